//! Reading confirmed entries: from the cache, or from the bookies with one read for all who wait for it.

use bookkeeper_proto::EntryId;
use ledger::LedgerError;

use super::*;
use crate::effect::ReadError;
use crate::entry::Entry;

/// How much one read may bring; at least one entry comes, however large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimit {
    pub max_entries: usize,
    pub max_bytes: usize,
}

/// The answer to [`ManagedLedger::read`].
#[derive(Debug)]
pub enum Read {
    /// In order, at least one. Go on at [`Position::next_entry`] of the last one.
    Ready(Vec<Entry>),
    /// An [`Effect::EntriesRead`] for the same reader will follow.
    Pending,
    /// Nothing is confirmed at or after this position: wait for [`Effect::NewEntries`].
    AtEnd,
}

pub(super) struct PendingRead {
    ledger: LedgerId,
    first: EntryId,
    last: EntryId,
    waiting: Vec<Waiting>,
}

struct Waiting {
    reader: u64,
    from: Position,
    limit: ReadLimit,
}

/// Reads from bookies are kept up to so many times `read_bytes`, for others who read the same backlog.
const KEPT_READS: usize = 4;

impl ManagedLedger {
    /// Reads confirmed entries from the first one at or after `from`.
    ///
    /// `reader` is any number the caller knows the reader by; entries that all readers have passed leave the cache, so
    /// [`ManagedLedger::forget_reader`] when one goes.
    pub fn read(&mut self, reader: u64, from: Position, limit: ReadLimit, out: &mut Effects) -> Read {
        let at = self.line.at_or_after(from);
        if at > self.last_confirmed() {
            self.moved(reader, at);
            return Read::AtEnd;
        }
        let entries = self.cached(at, limit);
        if !entries.is_empty() {
            self.moved(reader, at);
            return Read::Ready(entries);
        }
        self.readers.insert(reader, at);
        self.read_from_bookies(Waiting { reader, from: at, limit }, out);
        Read::Pending
    }

    /// The reader is gone; an answer it still waits for may come nevertheless.
    pub fn forget_reader(&mut self, reader: u64) {
        self.readers.remove(&reader);
        if self.readers.is_empty() {
            self.cache.drop_read();
        }
        for read in &mut self.reads {
            read.waiting.retain(|waiting| waiting.reader != reader);
        }
    }

    fn cached(&self, from: Position, limit: ReadLimit) -> Vec<Entry> {
        let (mut at, end) = (from, self.last_confirmed());
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while at <= end && entries.len() < limit.max_entries.max(1) {
            let Some(data) = self.cache.get(at).or_else(|| self.cache.get_read(at)) else { break };
            bytes += data.len();
            if bytes > limit.max_bytes && !entries.is_empty() {
                break;
            }
            entries.push(Entry { position: at, data });
            at = self.line.following(at);
        }
        entries
    }

    /// The reader asks from `position` on: the tail before what everybody asks for need not be kept. (What a reader got may
    /// be more than it can hand on at once, so only its next question tells how far it is.)
    fn moved(&mut self, reader: u64, position: Position) {
        let was = self.readers.insert(reader, position);
        if was == Some(position) {
            return;
        }
        if let Some(&slowest) = self.readers.values().min() {
            self.cache.drop_before(slowest);
        }
    }

    fn read_from_bookies(&mut self, waiting: Waiting, out: &mut Effects) {
        let Position { ledger, entry } = waiting.from;
        let joined =
            self.reads.iter_mut().find(|read| read.ledger == ledger && read.first <= entry && entry <= read.last);
        if let Some(read) = joined {
            read.waiting.push(waiting);
            return;
        }
        let entries = self.line.get(ledger).map_or(0, |part| part.entries as i64);
        // A little ahead of what was asked for: the same reader, or the next one, goes on from there.
        let wanted = (waiting.limit.max_entries as i64).clamp(64, 4096);
        let last = EntryId((entry.0 + wanted - 1).min(entries - 1));
        let max_bytes = self.config.read_bytes;
        self.reads.push(PendingRead { ledger, first: entry, last, waiting: vec![waiting] });
        let first = Position { ledger, entry };
        run(out, Purpose::Read { first }, Work::Read { ledger, first: entry, last, max_bytes });
    }

    pub(super) fn read_finished(
        &mut self,
        first: Position,
        result: Result<Vec<Entry>, LedgerError>,
        out: &mut Effects,
    ) {
        let Some(at) = self.reads.iter().position(|read| read.ledger == first.ledger && read.first == first.entry)
        else {
            return;
        };
        let read = self.reads.swap_remove(at);
        match result {
            Ok(entries) if !entries.is_empty() => {
                for waiting in read.waiting {
                    self.serve(waiting, &entries, out);
                }
                for entry in entries {
                    let max_bytes = self.config.read_bytes * KEPT_READS;
                    self.cache.push_read(entry.position, entry.data, max_bytes, &self.budget);
                }
            }
            Ok(_) => self.fail_reads(read, None, out),
            Err(error) => self.fail_reads(read, Some(error), out),
        }
    }

    fn serve(&mut self, waiting: Waiting, entries: &[Entry], out: &mut Effects) {
        let skip = entries.partition_point(|entry| entry.position < waiting.from);
        let mut bytes = 0;
        let fitting =
            entries[skip..].iter().take(waiting.limit.max_entries.max(1)).enumerate().take_while(|(index, entry)| {
                bytes += entry.data.len();
                *index == 0 || bytes <= waiting.limit.max_bytes
            });
        let served: Vec<Entry> = fitting.map(|(_, entry)| entry.clone()).collect();
        if served.is_empty() {
            // The bytes ran out before this one's turn.
            self.read_from_bookies(waiting, out);
        } else {
            out.push(Effect::EntriesRead { reader: waiting.reader, from: waiting.from, result: Ok(served) });
        }
    }

    fn fail_reads(&mut self, read: PendingRead, error: Option<LedgerError>, out: &mut Effects) {
        for waiting in read.waiting {
            let error = match &error {
                Some(source) => ReadError::Ledger { ledger: read.ledger, source: source.clone() },
                None => ReadError::Nothing { ledger: read.ledger },
            };
            out.push(Effect::EntriesRead { reader: waiting.reader, from: waiting.from, result: Err(error) });
        }
    }
}
