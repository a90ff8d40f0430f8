use std::collections::VecDeque;

use bookkeeper_proto::{
    AddOp, BookieError, Digester, EntryBuf, EntryHeader, EntryId, LedgerId, LedgerMetadata, MasterKey, Remedy,
};
use bytes::Bytes;

#[cfg(test)]
mod tests;

/// How many bookies hold a ledger, and how many of them each entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quorums {
    ensemble: u32,
    write: u32,
    ack: u32,
}

impl Quorums {
    /// `None` unless `64 >= ensemble >= write >= ack >= 1`.
    pub fn new(ensemble: u32, write: u32, ack: u32) -> Option<Quorums> {
        let valid = 64 >= ensemble && ensemble >= write && write >= ack && ack >= 1;
        valid.then_some(Quorums { ensemble, write, ack })
    }

    pub fn of(metadata: &LedgerMetadata) -> Option<Quorums> {
        Quorums::new(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    }

    pub fn ensemble(self) -> usize {
        self.ensemble as usize
    }

    pub fn write(self) -> usize {
        self.write as usize
    }

    pub fn ack(self) -> usize {
        self.ack as usize
    }

    /// The bookies, as indexes in the ensemble, that an entry is written to.
    pub fn write_set(self, entry: EntryId) -> impl Iterator<Item = usize> + Clone {
        let (ensemble, first) = (self.ensemble(), entry.0.rem_euclid(i64::from(self.ensemble)) as usize);
        (0..self.write()).map(move |i| (first + i) % ensemble)
    }
}

/// Decides when an entry of one ledger counts as written.
///
/// Entries get their ids in the order of [`add`](Self::add), are sent to their write set, and are confirmed in that order,
/// each by `ack` different bookies, none after fencing or after a failure. The last confirmed id (LAC) rides in every entry's
/// header, so that readers and recovery learn it.
///
/// A bookie's failure ends the writer: it asks to be sealed at its LAC. Adds that failed have an unknown outcome until
/// [`Ledgers::close`](crate::Ledgers::close) returned for the effect [`WriterEffect::Seal`]; from then on they are certainly
/// not in the ledger and may be added to another one.
pub struct LedgerWriter {
    ledger: LedgerId,
    key: MasterKey,
    digester: Digester,
    quorums: Quorums,
    state: State,
    /// Sent and not yet confirmed, in the order of their ids.
    pending: VecDeque<PendingAdd>,
    next_entry: EntryId,
    /// Payload bytes up to the last entry sent.
    sent_length: u64,
    last_confirmed: EntryId,
    /// Payload bytes up to the last entry confirmed.
    confirmed_length: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    /// Takes no more adds and waits for the pending ones, to seal the ledger behind them.
    Closing,
    /// Has asked to be sealed, after `Closing` or after a failure.
    Sealing,
    /// Somebody else recovers the ledger and decides where it ends.
    Fenced,
}

struct PendingAdd {
    entry: EntryId,
    /// One bit per bookie of the ensemble: a bookie that answers twice is one ack.
    acked_by: u64,
    length_after: u64,
    owner: u64,
    /// The entry as the first bookie committed it.
    stored: Bytes,
}

/// What is to be added. The ledger's entry holds `prefix ++ payload`.
pub struct NewAdd<'a> {
    pub prefix: &'a [u8],
    pub payload: Bytes,
    /// CRC-32C of `payload`.
    pub payload_crc: u32,
    /// Comes back in the effects about this entry, and in the bookie's `AddDone`.
    pub owner: u64,
}

#[derive(Clone, Debug)]
pub enum WriterEvent {
    /// A bookie (index in the ensemble) answered.
    Added { bookie: usize, entry: EntryId, result: Result<Bytes, BookieError> },
    /// The ledger shall end after what is pending.
    Close,
}

#[derive(Clone, Debug)]
pub enum WriterEffect {
    /// Send the add to the bookie with that index in the ensemble.
    Send {
        bookie: usize,
        op: AddOp,
    },
    /// The entry is written: it will be there for every reader of the ledger, for ever. `bytes` is the whole entry.
    Confirmed {
        entry: EntryId,
        owner: u64,
        bytes: Bytes,
    },
    Failed {
        entry: EntryId,
        owner: u64,
        error: AddError,
    },
    /// Nothing will be added or confirmed any more: close the ledger with these values. Comes once, after all else.
    Seal {
        last_entry: EntryId,
        length: u64,
    },
}

/// Why an add was not confirmed. It may be in the ledger nevertheless.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddError {
    /// Another owner recovers the ledger; its recovery decides.
    #[error("ledger {ledger} was fenced by a new owner while entry {entry} was being added")]
    Fenced { ledger: LedgerId, entry: EntryId },
    /// Closing the ledger at the writer's LAC decides.
    #[error("outcome of adding entry {entry} to ledger {ledger} is unknown: a bookie failed")]
    OutcomeUnknown { ledger: LedgerId, entry: EntryId, source: BookieError },
}

impl AddError {
    pub fn remedy(&self) -> Remedy {
        match self {
            AddError::Fenced { .. } | AddError::OutcomeUnknown { .. } => Remedy::OutcomeUnknown,
        }
    }
}

/// An add that was never sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("ledger {ledger} takes no more entries from this writer")]
pub struct NotOpen {
    pub ledger: LedgerId,
}

impl LedgerWriter {
    /// The writer of a ledger that was just created and has no entry yet.
    pub fn new(ledger: LedgerId, quorums: Quorums, digester: Digester, key: MasterKey) -> LedgerWriter {
        LedgerWriter {
            ledger,
            key,
            digester,
            quorums,
            state: State::Open,
            pending: VecDeque::new(),
            next_entry: EntryId(0),
            sent_length: 0,
            last_confirmed: EntryId::NONE,
            confirmed_length: 0,
        }
    }

    pub fn ledger(&self) -> LedgerId {
        self.ledger
    }

    /// The id that the next add will get.
    pub fn next_entry(&self) -> EntryId {
        self.next_entry
    }

    /// LAC: up to here every entry is confirmed. [`EntryId::NONE`] at first.
    pub fn last_confirmed(&self) -> EntryId {
        self.last_confirmed
    }

    /// Payload bytes up to LAC.
    pub fn confirmed_length(&self) -> u64 {
        self.confirmed_length
    }

    /// Payload bytes sent so far, confirmed or not.
    pub fn sent_length(&self) -> u64 {
        self.sent_length
    }

    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub fn is_fenced(&self) -> bool {
        self.state == State::Fenced
    }

    /// Gives an entry its id and sends it to its write set.
    ///
    /// # Errors
    /// [`NotOpen`]: nothing was sent; the entry belongs into another ledger.
    pub fn add(&mut self, add: NewAdd<'_>, out: &mut Vec<WriterEffect>) -> Result<EntryId, NotOpen> {
        if self.state != State::Open {
            return Err(NotOpen { ledger: self.ledger });
        }
        let entry = self.next_entry;
        assert!(self.last_confirmed < entry, "entry {entry} of ledger {} is confirmed before it is sent", self.ledger);
        self.next_entry = entry.next();
        self.sent_length += (add.prefix.len() + add.payload.len()) as u64;
        let header = EntryHeader {
            ledger: self.ledger,
            entry,
            last_add_confirmed: self.last_confirmed,
            length: self.sent_length,
        };
        let bytes = EntryBuf::new(&header, &self.digester, add.prefix, add.payload, add.payload_crc);
        self.pending.push_back(PendingAdd {
            entry,
            acked_by: 0,
            length_after: self.sent_length,
            owner: add.owner,
            stored: Bytes::new(),
        });

        let op = AddOp { ledger: self.ledger, entry, key: self.key, recovery: false, bytes, owner: add.owner };
        let mut bookies = self.quorums.write_set(entry);
        let first = bookies.next().expect("a write quorum has at least one bookie");
        out.extend(bookies.map(|bookie| WriterEffect::Send { bookie, op: op.clone() }));
        out.push(WriterEffect::Send { bookie: first, op });
        Ok(entry)
    }

    pub fn on_event(&mut self, event: WriterEvent, out: &mut Vec<WriterEffect>) {
        match (self.state, event) {
            (State::Open | State::Closing, WriterEvent::Added { bookie, entry, result: Ok(stored) }) => {
                self.acked(bookie, entry, stored);
                // Readers trust everything up to LAC, so a complete entry still waits for those before it.
                let complete = |add: &mut PendingAdd| add.acked_by.count_ones() >= self.quorums.ack;
                while let Some(add) = self.pending.pop_front_if(complete) {
                    assert_eq!(add.entry, self.last_confirmed.next(), "ledger {} confirms out of order", self.ledger);
                    self.last_confirmed = add.entry;
                    self.confirmed_length = add.length_after;
                    out.push(WriterEffect::Confirmed { entry: add.entry, owner: add.owner, bytes: add.stored });
                }
                if self.state == State::Closing && self.pending.is_empty() {
                    self.state = State::Sealing;
                    out.push(self.seal());
                }
            }
            (State::Open | State::Closing, WriterEvent::Added { result: Err(BookieError::Fenced { .. }), .. }) => {
                self.state = State::Fenced;
                // Their fate is up to the new owner's recovery: "outcome unknown", never "not written".
                let ledger = self.ledger;
                self.fail_pending(|entry| AddError::Fenced { ledger, entry }, out);
            }
            (State::Open | State::Closing, WriterEvent::Added { result: Err(error), .. }) => {
                self.state = State::Sealing;
                let ledger = self.ledger;
                self.fail_pending(|entry| AddError::OutcomeUnknown { ledger, entry, source: error.clone() }, out);
                out.push(self.seal());
            }
            (State::Open, WriterEvent::Close) if self.pending.is_empty() => {
                self.state = State::Sealing;
                out.push(self.seal());
            }
            (State::Open, WriterEvent::Close) => self.state = State::Closing,
            // Asked already, or nothing left to close.
            (State::Closing | State::Sealing | State::Fenced, WriterEvent::Close) => {}
            // The end is decided, or decided by others who may already be past these entries: a late answer proves nothing.
            (State::Sealing | State::Fenced, WriterEvent::Added { .. }) => {}
        }
    }

    /// Notes an ack. Those for confirmed entries, and from bookies outside of the write set, count for nothing.
    fn acked(&mut self, bookie: usize, entry: EntryId, stored: Bytes) {
        // Pending ids have no gaps, so the distance from the first one is the place in the queue.
        let place = entry.0 - self.last_confirmed.next().0;
        let pending = usize::try_from(place).ok().and_then(|place| self.pending.get_mut(place));
        if let Some(add) = pending
            && self.quorums.write_set(entry).any(|member| member == bookie)
        {
            add.acked_by |= 1 << bookie;
            if add.stored.is_empty() {
                add.stored = stored;
            }
        }
    }

    fn fail_pending(&mut self, error: impl Fn(EntryId) -> AddError, out: &mut Vec<WriterEffect>) {
        let failed =
            |add: PendingAdd| WriterEffect::Failed { entry: add.entry, owner: add.owner, error: error(add.entry) };
        out.extend(self.pending.drain(..).map(failed));
    }

    fn seal(&self) -> WriterEffect {
        WriterEffect::Seal { last_entry: self.last_confirmed, length: self.confirmed_length }
    }
}
