//! The writer of one ledger, in this crate's words: adds go out as effects, confirmed entries come back as payloads.
//!
//! One bookie per ledger so far: [`Effect::Append`] names no bookie.

use bookkeeper_proto::{AddDone, BookieError, DigestType, EntryId, EntryView, LedgerId};
use bytes::Bytes;
use ledger::{LedgerWriter, NewAdd, WriterEffect, WriterEvent};

use crate::effect::{Effect, Effects};

pub(crate) struct Appender {
    writer: LedgerWriter,
    digest: DigestType,
    scratch: Vec<WriterEffect>,
}

impl Appender {
    pub(crate) fn new(writer: LedgerWriter, digest: DigestType) -> Appender {
        Appender { writer, digest, scratch: Vec::new() }
    }

    pub(crate) fn ledger(&self) -> LedgerId {
        self.writer.ledger()
    }

    pub(crate) fn last_confirmed(&self) -> EntryId {
        self.writer.last_confirmed()
    }

    /// Bytes up to the last confirmed entry.
    pub(crate) fn length(&self) -> u64 {
        self.writer.confirmed_length()
    }

    /// Sends an entry. The writer must be open: nothing failed, and it was not closed.
    pub(crate) fn append(
        &mut self,
        prefix: &[u8],
        payload: Bytes,
        payload_crc: u32,
        owner: u64,
        out: &mut Effects,
    ) -> EntryId {
        let add = NewAdd { prefix, payload, payload_crc, owner };
        let entry = self.writer.add(add, &mut self.scratch).expect("a failed writer is given up at once");
        for effect in self.scratch.drain(..) {
            if let WriterEffect::Send { op, .. } = effect {
                out.push(Effect::Append(op));
            }
        }
        entry
    }

    /// Takes a bookie's answer; `confirmed` gets the entries that are now written, in order, without header and digest.
    ///
    /// # Errors
    /// The ledger takes no more entries; those not confirmed have an unknown outcome.
    pub(crate) fn on_done(
        &mut self,
        done: AddDone,
        mut confirmed: impl FnMut(EntryId, Bytes),
    ) -> Result<(), BookieError> {
        let failure = done.result.as_ref().err().cloned();
        self.writer
            .on_event(WriterEvent::Added { bookie: 0, entry: done.entry, result: done.result }, &mut self.scratch);
        for effect in self.scratch.drain(..) {
            if let WriterEffect::Confirmed { entry, bytes, .. } = effect {
                let view = EntryView::parse(bytes, self.digest).expect("the bookie committed what it was given");
                confirmed(entry, view.payload());
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

impl std::fmt::Debug for Appender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Appender").field("ledger", &self.ledger()).finish_non_exhaustive()
    }
}
