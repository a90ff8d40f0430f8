//! What one cursor has acknowledged: the mark-delete position and what lies beyond it.

use std::collections::{BTreeMap, BTreeSet};

use bookkeeper_proto::{EntryId, LedgerId};

use crate::acked::EntrySet;
use crate::formats::{BatchedEntryDeletionIndexInfo, LongListMap, MessageRange, NestedPositionInfo};
use crate::line::Line;
use crate::position::Position;

/// Everything up to and including `mark_delete` is acknowledged; beyond it, what is in `acked`, and of the batches in
/// `partial` the messages whose bit is 0.
///
/// Invariant: nothing in `acked` or `partial` lies at or before `mark_delete`, and the entry following `mark_delete` is
/// not in `acked`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acks {
    mark_delete: Position,
    acked: BTreeMap<LedgerId, EntrySet>,
    acked_entries: u64,
    partial: BTreeMap<Position, Vec<i64>>,
}

/// What changed since the last time it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub acked: BTreeMap<LedgerId, EntrySet>,
    pub partial: BTreeSet<Position>,
    /// The mark-delete position moved.
    pub mark_delete: bool,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.acked.is_empty() && self.partial.is_empty() && !self.mark_delete
    }

    pub(crate) fn clear(&mut self) {
        *self = Changes::default();
    }
}

impl Acks {
    pub(crate) fn new(mark_delete: Position) -> Acks {
        Acks { mark_delete, acked: BTreeMap::new(), acked_entries: 0, partial: BTreeMap::new() }
    }

    pub(crate) fn mark_delete(&self) -> Position {
        self.mark_delete
    }

    /// Entries acknowledged beyond the mark-delete position.
    pub(crate) fn acked_entries(&self) -> u64 {
        self.acked_entries
    }

    pub(crate) fn has_holes(&self) -> bool {
        self.acked_entries > 0 || !self.partial.is_empty()
    }

    pub(crate) fn contains(&self, position: Position) -> bool {
        position <= self.mark_delete()
            || position.entry.0 >= 0
                && self.acked.get(&position.ledger).is_some_and(|set| set.contains(position.entry.0))
    }

    pub(crate) fn remaining(&self, position: Position) -> Option<&[i64]> {
        self.partial.get(&position).map(Vec::as_slice)
    }

    /// The first entry at or after `from` that is not acknowledged.
    pub(crate) fn next_unacked(&self, from: Position, line: &Line) -> Position {
        let mut at = line.at_or_after(from.max(line.following(self.mark_delete())));
        while let Some(set) = self.acked.get(&at.ledger) {
            let absent = set.next_absent(at.entry.0);
            if absent == at.entry.0 {
                return at;
            }
            at = line.at_or_after(Position { entry: EntryId(absent), ..at });
        }
        at
    }

    /// Acknowledges one entry, or those messages of it whose bit is 0 in `remaining` (missing words are 0; no word at
    /// all means the whole entry).
    pub(crate) fn ack(&mut self, position: Position, remaining: &[i64], line: &Line, changes: &mut Changes) {
        // Trimmed meanwhile, or never there.
        if !line.contains(position) || self.contains(position) {
            return;
        }
        if !remaining.is_empty() && self.ack_partly(position, remaining, changes) {
            return;
        }
        if line.following(self.mark_delete) == position {
            // In order, the usual case: no set is touched.
            self.move_to(position, changes);
            return self.advance(line, changes);
        }
        self.partial.remove(&position);
        changes.partial.remove(&position);
        self.insert(position.ledger, position.entry.0, position.entry.0);
        changes.acked.entry(position.ledger).or_default().insert(position.entry.0, position.entry.0);
        self.advance(line, changes);
    }

    /// Whether messages of the entry remain.
    fn ack_partly(&mut self, position: Position, remaining: &[i64], changes: &mut Changes) -> bool {
        let merged: Vec<i64> = match self.partial.get(&position) {
            Some(known) => {
                known.iter().zip(remaining.iter().chain(std::iter::repeat(&0))).map(|(a, b)| a & b).collect()
            }
            None => remaining.to_vec(),
        };
        if merged.iter().all(|&word| word == 0) {
            return false;
        }
        if self.partial.get(&position) != Some(&merged) {
            self.partial.insert(position, merged);
            changes.partial.insert(position);
        }
        true
    }

    /// Acknowledges everything up to and including `position`; with `remaining`, of that last entry only in part.
    pub(crate) fn ack_through(&mut self, position: Position, remaining: &[i64], line: &Line, changes: &mut Changes) {
        let exists = line.contains(position);
        // Whatever its numbers: up to an entry that is there.
        let position = if exists { position } else { line.preceding(line.at_or_after(position)) };
        if exists && remaining.iter().any(|&word| word != 0) {
            self.move_to(line.preceding(position), changes);
            self.ack(position, remaining, line, changes);
        } else {
            self.move_to(position, changes);
        }
        self.advance(line, changes);
    }

    fn move_to(&mut self, position: Position, changes: &mut Changes) {
        if position <= self.mark_delete() {
            return;
        }
        self.mark_delete = position;
        changes.mark_delete = true;
        if !self.partial.is_empty() {
            self.partial = self.partial.split_off(&position.next_entry());
        }
        if self.acked.is_empty() {
            return;
        }
        let after = self.acked.split_off(&position.ledger);
        self.acked_entries -= self.acked.values().map(EntrySet::len).sum::<u64>();
        self.acked = after;
        if position.entry.0 >= 0
            && let Some(set) = self.acked.get_mut(&position.ledger)
        {
            self.acked_entries -= set.remove_through(position.entry.0);
            if set.is_empty() {
                self.acked.remove(&position.ledger);
            }
        }
    }

    /// Moves the mark-delete position over what is contiguously acknowledged, across ledgers.
    pub(crate) fn advance(&mut self, line: &Line, changes: &mut Changes) {
        while !self.acked.is_empty() {
            let next = line.following(self.mark_delete());
            let Some(set) = self.acked.get(&next.ledger) else { return };
            let absent = set.next_absent(next.entry.0);
            if absent == next.entry.0 {
                return;
            }
            self.move_to(Position { entry: EntryId(absent - 1), ..next }, changes);
        }
    }

    fn insert(&mut self, ledger: LedgerId, first: i64, last: i64) {
        self.acked_entries += self.acked.entry(ledger).or_default().insert(first, last);
    }

    /// Adds what was stored, whatever its order; [`Acks::advance`] has to follow.
    pub(crate) fn restore(&mut self, ledger: LedgerId, first: i64, last: i64) {
        let first = if ledger == self.mark_delete().ledger { first.max(self.mark_delete().entry.0 + 1) } else { first };
        if ledger >= self.mark_delete().ledger && first.max(0) <= last {
            self.insert(ledger, first.max(0), last);
        }
    }

    /// Adds a batch's stored bits.
    pub(crate) fn restore_partial(&mut self, position: Position, remaining: &[i64]) {
        if !self.contains(position) {
            self.ack_partly(position, remaining, &mut Changes::default());
        }
    }

    /// Restores the invariant after a restore in any order, and after ledgers went: nothing refers to what is not there.
    pub(crate) fn settle(&mut self, line: &Line) {
        self.move_to(line.start(), &mut Changes::default());
        self.advance(line, &mut Changes::default());
        let partial = std::mem::take(&mut self.partial);
        self.partial = partial.into_iter().filter(|(position, _)| !self.contains(*position)).collect();
    }

    /// Number of maximal ranges beyond the mark-delete position, at most `limit`.
    pub(crate) fn count_ranges(&self, limit: usize) -> usize {
        self.acked.values().flat_map(EntrySet::ranges).take(limit).count()
    }

    /// Ledger, first, last (inclusive): all acknowledged beyond the mark-delete position.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (LedgerId, i64, i64)> + '_ {
        self.acked.iter().flat_map(|(&ledger, set)| set.ranges().map(move |(first, last)| (ledger, first, last)))
    }

    pub(crate) fn partial(&self) -> impl Iterator<Item = (Position, &[i64])> {
        self.partial.iter().map(|(&position, bits)| (position, bits.as_slice()))
    }
}

pub(crate) fn nested(position: Position) -> NestedPositionInfo {
    NestedPositionInfo { ledger_id: position.ledger.0, entry_id: position.entry.0 }
}

pub(crate) fn range_info((ledger, first, last): (LedgerId, i64, i64)) -> MessageRange {
    MessageRange {
        lower_endpoint: nested(Position::new(ledger.0, first - 1)),
        upper_endpoint: nested(Position::new(ledger.0, last)),
    }
}

pub(crate) fn partial_info((position, remaining): (Position, &[i64])) -> BatchedEntryDeletionIndexInfo {
    BatchedEntryDeletionIndexInfo { position: nested(position), delete_set: remaining.to_vec() }
}

/// The stored fields that all carriers of a cursor's state share.
pub(crate) struct Stored<'a> {
    pub ranges: &'a [MessageRange],
    pub bitmaps: &'a [LongListMap],
    pub partial: &'a [BatchedEntryDeletionIndexInfo],
}

impl Acks {
    pub(crate) fn restore_all(&mut self, stored: &Stored<'_>, line: &Line) {
        for range in stored.ranges {
            self.restore_range(range, line);
        }
        for map in stored.bitmaps {
            // A Java bit set: bit e is entry e.
            for (index, &word) in map.values.iter().enumerate() {
                (0..64).filter(|bit| word >> bit & 1 == 1).for_each(|bit| {
                    let entry = index as i64 * 64 + bit;
                    self.restore(LedgerId(map.key), entry, entry);
                });
            }
        }
        for info in stored.partial {
            self.restore_partial(Position::new(info.position.ledger_id, info.position.entry_id), &info.delete_set);
        }
    }

    /// The original's ranges may span ledgers.
    fn restore_range(&mut self, range: &MessageRange, line: &Line) {
        let (lower, upper) = (range.lower_endpoint, range.upper_endpoint);
        if lower.ledger_id == upper.ledger_id {
            return self.restore(LedgerId(upper.ledger_id), lower.entry_id + 1, upper.entry_id);
        }
        for (ledger, part) in line.iter() {
            if lower.ledger_id < ledger.0 && ledger.0 < upper.ledger_id {
                self.restore(ledger, 0, part.entries as i64 - 1);
            } else if ledger.0 == lower.ledger_id {
                self.restore(ledger, lower.entry_id + 1, part.entries as i64 - 1);
            }
        }
        self.restore(LedgerId(upper.ledger_id), 0, upper.entry_id);
    }
}
