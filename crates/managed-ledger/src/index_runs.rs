//! Which index an entry has, for as much of the log as this process has written: runs of entries with equally many messages.

use std::collections::VecDeque;

use crate::position::Position;

const MAX_RUNS: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct IndexRuns {
    runs: VecDeque<Run>,
}

#[derive(Debug)]
struct Run {
    first: Position,
    /// Index of the first message of the first entry.
    first_index: u64,
    entries: u64,
    messages_per_entry: u32,
}

impl IndexRuns {
    /// A confirmed entry; its first message has `first_index`.
    pub(crate) fn push(&mut self, position: Position, first_index: u64, messages: u32) {
        if let Some(run) = self.runs.back_mut()
            && run.messages_per_entry == messages
            && run.first.ledger == position.ledger
            && run.first.entry.0 + run.entries as i64 == position.entry.0
        {
            run.entries += 1;
            return;
        }
        self.runs.push_back(Run { first: position, first_index, entries: 1, messages_per_entry: messages });
        if self.runs.len() > MAX_RUNS {
            self.runs.pop_front();
        }
    }

    /// The index that follows the last message of `position`; `None` where it is not known.
    pub(crate) fn next_index(&self, position: Position) -> Option<u64> {
        let after = self.runs.partition_point(|run| run.first <= position);
        match after.checked_sub(1).and_then(|at| self.runs.get(at)) {
            Some(run) => {
                let same_ledger = run.first.ledger == position.ledger;
                let entries = if same_ledger { (position.entry.0 - run.first.entry.0 + 1) as u64 } else { run.entries };
                Some(run.first_index + entries.min(run.entries) * u64::from(run.messages_per_entry))
            }
            // Just before the first known entry, of the same ledger.
            None => self.runs.front().filter(|run| run.first == position.next_entry()).map(|run| run.first_index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_index_of_what_it_saw() {
        let mut runs = IndexRuns::default();
        let mut next = 100;
        for (ledger, entry, messages) in [(1, 5, 1), (1, 6, 1), (1, 7, 10), (1, 8, 10), (3, 0, 10)] {
            runs.push(Position::new(ledger, entry), next, messages);
            next += u64::from(messages);
        }
        for (ledger, entry, index) in [
            (1, 3, None),
            (1, 4, Some(100)),
            (1, 5, Some(101)),
            (1, 6, Some(102)),
            (1, 7, Some(112)),
            (1, 8, Some(122)),
            (2, 0, Some(122)),
            (3, -1, Some(122)),
            (3, 0, Some(132)),
        ] {
            assert_eq!(runs.next_index(Position::new(ledger, entry)), index, "{ledger}:{entry}");
        }
    }
}
