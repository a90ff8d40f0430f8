//! Where an entry lies.

use std::fmt;

use bookkeeper_proto::{EntryId, LedgerId};

/// An entry of a managed ledger. Ordered by ledger, then entry. Entry -1 means "before the ledger's first entry".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub ledger: LedgerId,
    pub entry: EntryId,
}

impl Position {
    /// Before everything.
    pub const EARLIEST: Position = Position { ledger: LedgerId(-1), entry: EntryId(-1) };
    /// After everything.
    pub const LATEST: Position = Position { ledger: LedgerId(i64::MAX), entry: EntryId(i64::MAX) };

    /// The position with these numbers.
    pub const fn new(ledger: i64, entry: i64) -> Position {
        Position { ledger: LedgerId(ledger), entry: EntryId(entry) }
    }

    /// The next entry id in the same ledger, whether it exists or not.
    #[must_use]
    pub const fn next_entry(self) -> Position {
        Position { ledger: self.ledger, entry: EntryId(self.entry.0 + 1) }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.ledger.0, self.entry.0)
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}
