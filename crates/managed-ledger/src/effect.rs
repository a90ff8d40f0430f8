//! What goes into a managed ledger (commands, events) and what comes out (effects).

use bookkeeper_proto::{AddDone, AddOp, BookieError, LedgerId};
use bytes::Bytes;
use ledger::LedgerError;
use metadata::MetadataError;

use crate::entry::Entry;
use crate::position::Position;
use crate::task::{Task, TaskResult};

/// The clock, as the shell read it at the start of its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Now {
    /// Wall clock, Unix milliseconds. Goes into what is stored; may jump.
    pub unix_ms: u64,
    /// Milliseconds of a monotonic clock with any origin. Measures intervals.
    pub monotonic_ms: u64,
}

/// An entry to append.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// The client's `0e01 crc metadata payload` block, verbatim.
    pub payload: Bytes,
    /// CRC32C over all of `payload`.
    pub payload_crc: u32,
    /// Messages in the entry, at least 1; the index moves on by as many.
    pub messages: u32,
    /// Comes back in [`Effect::Added`] or [`Effect::AddFailed`].
    pub token: u64,
}

/// Something the core waits for.
#[derive(Debug)]
pub enum Event {
    /// A bookie answered an [`Effect::Append`]. Many at once: [`ManagedLedger::appended`](crate::ManagedLedger::appended).
    Appended(AddDone),
    /// A task of an [`Effect::Run`] came to its end.
    Finished(TaskResult),
}

/// What the shell has to do, in this order.
#[derive(Debug)]
pub enum Effect {
    /// Give this to the bookie; the answer comes back as [`Event::Appended`].
    Append(AddOp),
    /// Run this at the side (`task.run(&context).await`); the result comes back as [`Event::Finished`].
    /// Tasks of one managed ledger may run concurrently.
    Run(Task),
    /// The entry is durable and confirmed. In the order of the adds.
    Added {
        token: u64,
        position: Position,
        /// Index of the entry's last message.
        index: u64,
    },
    /// In the order of the adds, too.
    AddFailed {
        token: u64,
        error: AddError,
    },
    /// The acknowledgement (or reset) with this token is durable, or will never be.
    AckDone {
        token: u64,
        result: Result<(), CursorError>,
    },
    CursorCreated {
        token: u64,
        result: Result<CursorId, CursorError>,
    },
    CursorDeleted {
        token: u64,
        result: Result<(), CursorError>,
    },
    /// Answers a read that was [`Read::Pending`](crate::Read::Pending).
    EntriesRead {
        reader: u64,
        from: Position,
        result: Result<Vec<Entry>, ReadError>,
    },
    /// [`ManagedLedger::last_confirmed`](crate::ManagedLedger::last_confirmed) moved: readers at the end may go on.
    NewEntries,
    /// A write failed: adds fail until [`Effect::WritesResumed`]. Disconnect the producers, so that they resend in order.
    WritesInterrupted {
        cause: BookieError,
    },
    WritesResumed,
    /// Somebody else owns this managed ledger now, or its metadata is beyond understanding. Nothing will be added or
    /// acknowledged any more: drop it (a close would not write either).
    Fenced {
        reason: String,
    },
    /// Answers [`ManagedLedger::close`](crate::ManagedLedger::close) and [`ManagedLedger::terminate`](crate::ManagedLedger::terminate).
    Closed {
        token: u64,
        result: Result<(), CloseError>,
    },
}

/// The effects of one turn, in order.
pub type Effects = Vec<Effect>;

/// A cursor of one open managed ledger; not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CursorId(pub u64);

#[derive(Clone, Debug, thiserror::Error)]
pub enum AddError {
    /// The entry may or may not be found later.
    #[error("outcome unknown: the ledger's write failed")]
    OutcomeUnknown(#[source] BookieError),
    /// Nothing was written. Try again later.
    #[error("the managed ledger is recovering from a failed write")]
    Recovering,
    /// Entries that had been sent to a bookie fail with [`AddError::OutcomeUnknown`] instead.
    #[error("the managed ledger has another owner: {reason}")]
    Fenced { reason: String },
    #[error("the managed ledger is terminated")]
    Terminated,
    #[error("the managed ledger is closed")]
    Closed,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum CursorError {
    #[error("there is already a cursor `{name}`")]
    Exists { name: String },
    #[error("no such cursor")]
    NotFound,
    #[error("the managed ledger has another owner: {reason}")]
    Fenced { reason: String },
    #[error("the managed ledger is closed")]
    Closed,
    /// Such an entry does not exist yet.
    #[error("cannot acknowledge {position}: it is beyond the last confirmed entry")]
    BeyondEnd { position: Position },
    /// The change may have been stored.
    #[error("cannot store cursor `{name}`")]
    Metadata {
        name: String,
        #[source]
        source: MetadataError,
    },
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read ledger {ledger}")]
    Ledger {
        ledger: LedgerId,
        #[source]
        source: LedgerError,
    },
    /// The bookie answered without an entry.
    #[error("ledger {ledger} gave nothing where an entry was confirmed")]
    Nothing { ledger: LedgerId },
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum CloseError {
    #[error("the managed ledger has another owner: {reason}")]
    Fenced { reason: String },
    #[error("cannot close the managed ledger: {reason}; its next owner recovers it")]
    Unclean { reason: String },
}
