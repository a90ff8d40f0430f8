//! The ledgers of a managed ledger, laid end to end: which positions exist, which comes next, how many lie between.

use std::collections::BTreeMap;

use bookkeeper_proto::{EntryId, LedgerId};

use crate::formats::{LedgerInfo, OffloadContext};
use crate::position::Position;

/// The ledgers in order. The last one is open unless the managed ledger is terminated; only confirmed entries count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    parts: BTreeMap<LedgerId, Part>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Part {
    pub entries: u64,
    pub bytes: u64,
    /// Unix milliseconds; `None` while it is open.
    pub closed_ms: Option<u64>,
    pub offload_context: Option<OffloadContext>,
}

impl Line {
    pub(crate) fn insert(&mut self, ledger: LedgerId, part: Part) {
        self.parts.insert(ledger, part);
    }

    pub(crate) fn remove(&mut self, ledger: LedgerId) {
        self.parts.remove(&ledger);
    }

    pub(crate) fn get(&self, ledger: LedgerId) -> Option<&Part> {
        self.parts.get(&ledger)
    }

    pub(crate) fn get_mut(&mut self, ledger: LedgerId) -> Option<&mut Part> {
        self.parts.get_mut(&ledger)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (LedgerId, &Part)> {
        self.parts.iter().map(|(&ledger, part)| (ledger, part))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.parts.values().map(|part| part.bytes).sum()
    }

    pub(crate) fn entries(&self) -> u64 {
        self.parts.values().map(|part| part.entries).sum()
    }

    /// The last entry, or "before the first entry" of the last ledger if nothing was ever kept.
    pub(crate) fn last(&self) -> Position {
        let with_entries = self.parts.iter().rev().find(|(_, part)| part.entries > 0);
        match with_entries.or(self.parts.iter().next_back()) {
            Some((&ledger, part)) => Position { ledger, entry: EntryId(part.entries as i64 - 1) },
            None => Position::EARLIEST,
        }
    }

    /// Before the first entry.
    pub(crate) fn start(&self) -> Position {
        match self.parts.keys().next() {
            Some(&ledger) => Position { ledger, entry: EntryId::NONE },
            None => Position::EARLIEST,
        }
    }

    /// The first entry after `position`; past the end, the position that the next add to the last ledger will get.
    pub(crate) fn following(&self, position: Position) -> Position {
        let next = position.next_entry();
        self.at_or_after(if next.entry.0 < 0 { Position { entry: EntryId(0), ..next } } else { next })
    }

    /// `position` itself if there is an entry, else the first one after it; past the end as [`Line::following`].
    pub(crate) fn at_or_after(&self, position: Position) -> Position {
        let position = Position { entry: EntryId(position.entry.0.max(0)), ..position };
        for (&ledger, part) in self.parts.range(position.ledger..) {
            if ledger > position.ledger {
                if part.entries > 0 {
                    return Position { ledger, entry: EntryId(0) };
                }
            } else if position.entry.0 < part.entries as i64 {
                return position;
            }
        }
        match self.parts.iter().next_back() {
            Some((&ledger, part)) if ledger >= position.ledger => {
                let entry = if ledger == position.ledger { position.entry.0.max(part.entries as i64) } else { 0 };
                Position { ledger, entry: EntryId(entry.max(part.entries as i64)) }
            }
            _ => position,
        }
    }

    /// The last position before `position`: an entry, or "before the first entry".
    pub(crate) fn preceding(&self, position: Position) -> Position {
        if let Some(part) = self.parts.get(&position.ledger)
            && position.entry.0 > 0
        {
            return Position {
                ledger: position.ledger,
                entry: EntryId((position.entry.0 - 1).min(part.entries as i64 - 1)),
            };
        }
        let before = self.parts.range(..position.ledger).rev().find(|(_, part)| part.entries > 0);
        match before {
            Some((&ledger, part)) => Position { ledger, entry: EntryId(part.entries as i64 - 1) },
            None if self.parts.contains_key(&position.ledger) => Position { entry: EntryId::NONE, ..position },
            None => self.start(),
        }
    }

    /// Whether there is a confirmed entry at `position`.
    pub(crate) fn contains(&self, position: Position) -> bool {
        self.parts.get(&position.ledger).is_some_and(|part| (0..part.entries as i64).contains(&position.entry.0))
    }

    /// Entries after `after`, up to and including `through`.
    pub(crate) fn count(&self, after: Position, through: Position) -> u64 {
        if through <= after {
            return 0;
        }
        let upto = |end: Position, ledger: LedgerId, part: &Part| match ledger.cmp(&end.ledger) {
            std::cmp::Ordering::Less => part.entries,
            std::cmp::Ordering::Equal => part.entries.min((end.entry.0.saturating_add(1)).max(0) as u64),
            std::cmp::Ordering::Greater => 0,
        };
        self.parts
            .range(after.ledger..=through.ledger)
            .map(|(&ledger, part)| {
                upto(through, ledger, part) - upto(after, ledger, part).min(upto(through, ledger, part))
            })
            .sum()
    }

    /// As it is stored.
    pub(crate) fn to_infos(&self) -> Vec<LedgerInfo> {
        self.parts.iter().map(|(&ledger, part)| part.to_info(ledger)).collect()
    }
}

impl Part {
    pub(crate) fn to_info(&self, ledger: LedgerId) -> LedgerInfo {
        LedgerInfo {
            ledger_id: ledger.0,
            entries: self.closed_ms.map(|_| self.entries as i64),
            size: self.closed_ms.map(|_| self.bytes as i64),
            timestamp: Some(self.closed_ms.unwrap_or(0) as i64),
            offload_context: self.offload_context.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(parts: &[(i64, u64)]) -> Line {
        let mut line = Line::default();
        for &(ledger, entries) in parts {
            line.insert(LedgerId(ledger), Part { entries, ..Part::default() });
        }
        line
    }

    #[test]
    fn steps_over_ledgers() {
        let line = line(&[(3, 2), (5, 0), (8, 3), (9, 0)]);
        let at = Position::new;
        for (from, next) in [
            (at(-1, -1), at(3, 0)),
            (at(3, -1), at(3, 0)),
            (at(3, 0), at(3, 1)),
            (at(3, 1), at(8, 0)),
            (at(4, 7), at(8, 0)),
            (at(8, 2), at(9, 0)),
            (at(9, -1), at(9, 0)),
            (at(12, 3), at(12, 4)),
        ] {
            assert_eq!(line.following(from), next, "after {from}");
        }
        for (from, before) in [
            (at(3, 0), at(3, -1)),
            (at(3, 1), at(3, 0)),
            (at(8, 0), at(3, 1)),
            (at(9, 0), at(8, 2)),
            (at(2, 5), at(3, -1)),
        ] {
            assert_eq!(line.preceding(from), before, "before {from}");
        }
        assert_eq!(line.last(), at(8, 2));
        for (after, through, count) in [
            (at(-1, -1), at(8, 2), 5),
            (at(3, 0), at(8, 0), 2),
            (at(3, 1), at(8, 2), 3),
            (at(8, 2), at(8, 2), 0),
            (at(9, 0), at(3, 0), 0),
            (at(8, 0), at(i64::MAX, i64::MAX), 2),
        ] {
            assert_eq!(line.count(after, through), count, "{after}..={through}");
        }
    }

    #[test]
    fn an_empty_topic_starts_at_its_open_ledger() {
        let line = line(&[(7, 0)]);
        assert_eq!((line.last(), line.start()), (Position::new(7, -1), Position::new(7, -1)));
        assert_eq!(line.following(Position::new(4, 9)), Position::new(7, 0));
    }
}
