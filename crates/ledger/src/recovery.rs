use bookkeeper_proto::{
    AddOp, BookieError, Digester, EntryBuf, EntryError, EntryId, EntryView, Fenced, LedgerId, MasterKey,
};
use bytes::Bytes;

use crate::Quorums;

#[cfg(test)]
mod tests;

/// Finds out where a ledger ends whose writer is gone, so that nothing that may have been acknowledged is lost.
///
/// It fences the bookies of the last ensemble until no ack quorum is left that a writer could still win, takes the highest
/// LAC they know, and reads forward from there. An entry that a bookie still holds is given to those of its write set that
/// lack it (with the recovery flag, since they are fenced); the ledger ends before the first entry that can never have been
/// acknowledged: more than `write - ack` bookies of its write set prove that they do not hold it. Anything else a bookie may
/// answer proves nothing: then recovery fails, and may be tried again.
///
/// Entries are given on as they are, byte for byte, so that all replicas stay equal.
/// Source: BookKeeper protocol, "Ledger recovery".
pub struct Recovery {
    ledger: LedgerId,
    key: MasterKey,
    digester: Digester,
    quorums: Quorums,
    stage: Stage,
    /// The highest entry known to be held by an ack quorum, and the ledger's length up to it if it is known.
    last: EntryId,
    length: Option<u64>,
}

enum Stage {
    Fencing {
        answers: Vec<Answer>,
    },
    /// Asks the whole write set whether there is an entry after the last one.
    Reading {
        entry: EntryId,
        answers: Vec<Answer>,
        found: Option<EntryView>,
    },
    /// Gives an entry to the bookies that lack it.
    Rewriting {
        found: EntryView,
        holders: u64,
        unanswered: u32,
    },
    /// Nothing lies behind the last entry, whose length is not known yet.
    Measuring {
        unanswered: u32,
        error: RecoveryError,
    },
    Over,
}

#[derive(Clone, Debug)]
enum Answer {
    None,
    /// Fenced; or: here is the entry.
    Yes,
    /// Proven absent.
    No,
    Failed(RecoveryError),
}

#[derive(Clone, Debug)]
pub enum RecoveryEvent {
    Fenced { bookie: usize, result: Result<Fenced, BookieError> },
    Read { bookie: usize, entry: EntryId, result: Result<Bytes, BookieError> },
    Added { bookie: usize, entry: EntryId, result: Result<(), BookieError> },
}

#[derive(Clone, Debug)]
pub enum RecoveryEffect {
    Fence {
        bookie: usize,
        key: MasterKey,
    },
    Read {
        bookie: usize,
        entry: EntryId,
    },
    Add {
        bookie: usize,
        op: AddOp,
    },
    /// Close the ledger by compare-and-set; if somebody else has closed it, theirs counts.
    Close {
        last_entry: EntryId,
        length: u64,
    },
    Fail(RecoveryError),
}

/// Why the end of a ledger could not be found. The ledger is fenced, as far as its bookies answered, but stays open.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecoveryError {
    #[error("bookie {bookie} of the ensemble cannot be fenced")]
    Fence { bookie: usize, source: BookieError },
    #[error("bookie {bookie} of the ensemble neither returns entry {entry} nor proves its absence")]
    Read { bookie: usize, entry: EntryId, source: BookieError },
    #[error("bookie {bookie} of the ensemble returned a wrong entry")]
    BadEntry { bookie: usize, source: EntryError },
    #[error("bookie {bookie} of the ensemble does not take recovered entry {entry}")]
    Rewrite { bookie: usize, entry: EntryId, source: BookieError },
}
