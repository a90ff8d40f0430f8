//! Where the entries of one segment lie.
//!
//! While a segment takes commits its index is in memory ([`OpenRun`] per ledger). When it is sealed the index goes into the
//! file behind the last commit, and only a [`SealedRun`] per ledger stays in memory.
//!
//! On disk: the summary (see [`encode_summary`]), then one table per ledger. A table whose entry ids have no gap is *dense*:
//! 8 bytes a slot (offset u32, length u32); else *sparse*: 16 bytes (entry i64, offset u32, length u32), sorted.

use std::collections::BTreeMap;

use bookkeeper_proto::{EntryId, LedgerId};
use rustc_hash::FxHashMap;

use crate::format::{Footer, STATE_LEN, Stamp, StateRecord, round_up};

/// Where a record lies in its segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    /// Of the record's head, in bytes.
    pub(crate) offset: u32,
    /// Of the record's body, in bytes.
    pub(crate) len: u32,
}

/// A stretch of a segment whose content cannot be told any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DamagedRange {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The entries of one ledger in one segment.
///
/// Invariant: `others` holds no entry that `slots` covers, nor the one right behind them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    first: i64,
    /// Entries `first..first + slots.len()`.
    slots: Vec<Location>,
    others: BTreeMap<i64, Location>,
}

impl Table {
    pub(crate) fn insert(&mut self, entry: EntryId, location: Location) {
        if self.slots.is_empty() && self.others.is_empty() {
            self.first = entry.0;
        }
        match usize::try_from(entry.0.wrapping_sub(self.first)) {
            Ok(at) if at < self.slots.len() => self.slots[at] = location,
            Ok(at) if at == self.slots.len() => {
                self.slots.push(location);
                while let Some(next) = self.others.remove(&(self.first + self.slots.len() as i64)) {
                    self.slots.push(next);
                }
            }
            _ => {
                self.others.insert(entry.0, location);
            }
        }
    }

    pub(crate) fn get(&self, entry: EntryId) -> Option<Location> {
        let dense = usize::try_from(entry.0.wrapping_sub(self.first)).ok().and_then(|at| self.slots.get(at));
        dense.or_else(|| self.others.get(&entry.0)).copied()
    }

    /// Sorted by entry.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EntryId, Location)> {
        let below = self.others.range(..self.first);
        let above = self.others.range(self.first..);
        let slots = self.slots.iter().enumerate().map(|(i, location)| (self.first + i as i64, *location));
        let pair = |(entry, location): (&i64, &Location)| (*entry, *location);
        let above = above.map(pair);
        below.map(pair).chain(slots).chain(above).map(|(entry, location)| (EntryId(entry), location))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() + self.others.len()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.len() * 8 + self.others.len() * 40 + 64
    }

    fn encode(&self, dense: bool) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len() * 16);
        for (entry, location) in self.iter() {
            if !dense {
                bytes.extend_from_slice(&entry.0.to_le_bytes());
            }
            bytes.extend_from_slice(&location.offset.to_le_bytes());
            bytes.extend_from_slice(&location.len.to_le_bytes());
        }
        bytes
    }

    /// `None`: these are not the bytes that were written.
    pub(crate) fn decode(bytes: &[u8], run: &SealedRun, stamp: &Stamp) -> Option<Table> {
        if bytes.len() != run.table_len() || stamp.checksum(bytes) != run.checksum {
            return None;
        }
        let mut table = Table::default();
        let location = |bytes: &[u8]| Location { offset: read_u32(bytes, 0), len: read_u32(bytes, 4) };
        if run.is_dense() {
            table.first = run.first.0;
            table.slots = bytes.chunks_exact(8).map(location).collect();
        } else {
            for slot in bytes.chunks_exact(16) {
                table.insert(EntryId(read_u64(slot, 0) as i64), location(&slot[8..]));
            }
        }
        Some(table)
    }
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// One ledger in a segment whose index is in memory.
#[derive(Clone, Debug)]
pub(crate) struct OpenRun {
    pub(crate) table: Table,
    pub(crate) first: EntryId,
    pub(crate) last: EntryId,
    /// The highest LAC in the headers of its entries.
    pub(crate) lac: EntryId,
    /// Length of all its records, superseded ones included.
    pub(crate) bytes: u64,
}

impl OpenRun {
    pub(crate) fn new() -> OpenRun {
        OpenRun { table: Table::default(), first: EntryId(i64::MAX), last: EntryId::NONE, lac: EntryId::NONE, bytes: 0 }
    }

    pub(crate) fn insert(&mut self, entry: EntryId, lac: EntryId, location: Location, record_bytes: u64) {
        self.table.insert(entry, location);
        self.first = self.first.min(entry);
        self.last = self.last.max(entry);
        self.lac = self.lac.max(lac);
        self.bytes += record_bytes;
    }
}

/// One ledger in a sealed segment: enough to find its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SealedRun {
    pub(crate) first: EntryId,
    pub(crate) last: EntryId,
    pub(crate) lac: EntryId,
    pub(crate) bytes: u64,
    pub(crate) count: u32,
    pub(crate) checksum: u32,
    /// Of the table in the file, in bytes.
    pub(crate) table_at: u64,
}

const RUN_LEN: usize = 56;
const SUMMARY_HEAD_LEN: usize = 12;

impl SealedRun {
    fn is_dense(&self) -> bool {
        self.last.0 - self.first.0 + 1 == i64::from(self.count)
    }

    pub(crate) fn table_len(&self) -> usize {
        self.count as usize * if self.is_dense() { 8 } else { 16 }
    }
}

/// What a sealed segment holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) runs: FxHashMap<LedgerId, SealedRun>,
    /// The last state of each ledger that has one in this segment.
    pub(crate) states: Vec<StateRecord>,
    pub(crate) damaged: Vec<DamagedRange>,
}

/// An upper bound for the index of a segment with so many entries, ledgers, and states of altogether `state_bytes`.
pub(crate) fn index_bound(entries: u64, ledgers: u64, state_bytes: u64) -> u64 {
    round_up(SUMMARY_HEAD_LEN as u64 + entries * 16 + ledgers * RUN_LEN as u64 + state_bytes)
}

/// The index of a segment that ends at `end`, with the footer that finds it, and the runs as they will be found.
pub(crate) fn encode(
    stamp: &Stamp,
    end: u64,
    last_sequence: u64,
    runs: &FxHashMap<LedgerId, OpenRun>,
    states: Vec<StateRecord>,
    damaged: Vec<DamagedRange>,
) -> (Vec<u8>, Footer, Summary) {
    let mut ledgers: Vec<&LedgerId> = runs.keys().collect();
    ledgers.sort();
    let state_bytes: usize = states.iter().map(|state| state.encode().len()).sum();
    let summary_len = SUMMARY_HEAD_LEN + ledgers.len() * RUN_LEN + state_bytes + damaged.len() * 16;

    let mut tables = Vec::new();
    let mut sealed = FxHashMap::default();
    let mut summary = Vec::with_capacity(summary_len);
    for count in [ledgers.len(), states.len(), damaged.len()] {
        summary.extend_from_slice(&(count as u32).to_le_bytes());
    }
    for ledger in ledgers {
        let run = &runs[ledger];
        let mut found = SealedRun {
            first: run.first,
            last: run.last,
            lac: run.lac,
            bytes: run.bytes,
            count: run.table.len() as u32,
            checksum: 0,
            table_at: end + (summary_len + tables.len()) as u64,
        };
        let table = run.table.encode(found.is_dense());
        found.checksum = stamp.checksum(&table);
        let run = found;
        tables.extend_from_slice(&table);
        for word in [ledger.0, run.first.0, run.last.0, run.lac.0, run.bytes as i64, run.table_at as i64] {
            summary.extend_from_slice(&word.to_le_bytes());
        }
        summary.extend_from_slice(&run.count.to_le_bytes());
        summary.extend_from_slice(&run.checksum.to_le_bytes());
        sealed.insert(*ledger, run);
    }
    for state in &states {
        summary.extend_from_slice(&state.encode());
    }
    for range in &damaged {
        summary.extend_from_slice(&range.offset.to_le_bytes());
        summary.extend_from_slice(&range.len.to_le_bytes());
    }
    assert_eq!(summary.len(), summary_len, "tables are found by their offset behind the summary");
    let footer =
        Footer { end, summary_len: summary_len as u64, summary_checksum: stamp.checksum(&summary), last_sequence };
    summary.extend_from_slice(&tables);
    (summary, footer, Summary { runs: sealed, states, damaged })
}

/// `None`: these are not the bytes that the footer speaks of.
pub(crate) fn decode_summary(bytes: &[u8], footer: &Footer, stamp: &Stamp) -> Option<Summary> {
    if bytes.len() as u64 != footer.summary_len || stamp.checksum(bytes) != footer.summary_checksum {
        return None;
    }
    let counts: [usize; 3] = std::array::from_fn(|i| read_u32(bytes, i * 4) as usize);
    let mut rest = bytes.get(SUMMARY_HEAD_LEN..)?;
    let mut summary = Summary::default();
    for _ in 0..counts[0] {
        let (run, behind) = rest.split_at_checked(RUN_LEN)?;
        rest = behind;
        let word = |i: usize| read_u64(run, i * 8);
        let entry = |i: usize| EntryId(word(i) as i64);
        let found = SealedRun {
            first: entry(1),
            last: entry(2),
            lac: entry(3),
            bytes: word(4),
            table_at: word(5),
            count: read_u32(run, 48),
            checksum: read_u32(run, 52),
        };
        summary.runs.insert(LedgerId(word(0) as i64), found);
    }
    for _ in 0..counts[1] {
        let (state, len) = StateRecord::decode(rest)?;
        rest = &rest[len..];
        summary.states.push(state);
    }
    for _ in 0..counts[2] {
        let (range, behind) = rest.split_at_checked(16)?;
        rest = behind;
        summary.damaged.push(DamagedRange { offset: read_u64(range, 0), len: read_u64(range, 8) });
    }
    Some(summary)
}

/// What one ledger's state adds to an index at most, in bytes.
pub(crate) fn state_bound(blob_len: usize) -> u64 {
    (STATE_LEN + blob_len) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::SegmentId;

    /// Entries inserted in this order are found, come out sorted, and survive the disk.
    fn check(order: &[i64]) {
        let stamp = Stamp::new(1, SegmentId(2));
        let mut run = OpenRun::new();
        for (i, entry) in order.iter().enumerate() {
            run.insert(EntryId(*entry), EntryId(entry - 1), Location { offset: i as u32, len: 9 }, 25);
        }
        let newest = |entry: i64| order.iter().rposition(|other| *other == entry).map(|i| i as u32);
        let mut sorted = order.to_vec();
        sorted.sort();
        sorted.dedup();
        let runs = FxHashMap::from_iter([(LedgerId(3), run)]);
        let (bytes, footer, summary) = encode(&stamp, 4096, 8, &runs, Vec::new(), Vec::new());
        let decoded = decode_summary(&bytes[..footer.summary_len as usize], &footer, &stamp);
        assert_eq!(decoded.as_ref(), Some(&summary), "{order:?}");
        let sealed = summary.runs[&LedgerId(3)];
        let at = (sealed.table_at - footer.end) as usize;
        let decoded = Table::decode(&bytes[at..at + sealed.table_len()], &sealed, &stamp).expect("just encoded");
        for table in [&runs[&LedgerId(3)].table, &decoded] {
            let listed: Vec<i64> = table.iter().map(|(entry, _)| entry.0).collect();
            assert_eq!(listed, sorted);
            for entry in -2..30 {
                assert_eq!(
                    table.get(EntryId(entry)).map(|location| location.offset),
                    newest(entry),
                    "{order:?} {entry}"
                );
            }
        }
    }

    #[test]
    fn tables_hold_entries_in_any_order() {
        check(&[0, 1, 2, 3]);
        check(&[7]);
        check(&[5, 4, 3]);
        check(&[0, 2, 1]);
        check(&[0, 2, 4, 3, 1, 2]);
        check(&[10, 20, 11, 0, 12, 21, 13]);
        check(&[3, 3, 3]);
    }
}
