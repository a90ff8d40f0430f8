use std::fmt;

/// The id of a ledger; unique in a cluster, never reused, never negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LedgerId(pub i64);

/// The place of an entry in its ledger, counted from 0. [`EntryId::NONE`] (-1) stands before the first entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryId(pub i64);

impl EntryId {
    /// "No entry": the LAC of an empty ledger.
    pub const NONE: EntryId = EntryId(-1);

    #[must_use]
    pub fn next(self) -> EntryId {
        EntryId(self.0 + 1)
    }

    /// The entry before this one; before entry 0 lies [`EntryId::NONE`].
    #[must_use]
    pub fn previous(self) -> EntryId {
        EntryId(self.0 - 1)
    }

    pub fn is_none(self) -> bool {
        self.0 < 0
    }
}

/// The name under which a bookie is registered and stands in ensembles, usually `host:port`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BookieId(pub String);

impl fmt::Display for LedgerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for BookieId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<&str> for BookieId {
    fn from(id: &str) -> Self {
        BookieId(id.to_owned())
    }
}
