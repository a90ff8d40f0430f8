//! What is asked of a bookie and what it answers, without saying how either travels.

use std::sync::Arc;

use bytes::Bytes;

use crate::{EntryBuf, EntryId, LedgerId, MasterKey};

/// One entry to be made durable.
#[derive(Clone, Debug)]
pub struct AddOp {
    pub ledger: LedgerId,
    pub entry: EntryId,
    pub key: MasterKey,
    /// Written by a ledger's recovery, therefore accepted although the ledger is fenced.
    pub recovery: bool,
    pub bytes: EntryBuf,
    /// Comes back in [`AddDone`]; the bookie does not look at it.
    pub owner: u64,
}

/// The end of an [`AddOp`].
#[derive(Clone, Debug)]
pub struct AddDone {
    pub ledger: LedgerId,
    pub entry: EntryId,
    pub owner: u64,
    /// The whole entry, durable, as a slice of the block it was committed in.
    pub result: Result<Bytes, BookieError>,
}

/// Takes the ends of the adds that were posted with it: one call per commit.
///
/// Called on the bookie's thread, so it must not block: it puts the batch into somebody's mailbox.
pub trait AddSink: Send + Sync {
    fn added(&self, done: Vec<AddDone>);
}

/// What a bookie answers to a fence request, when the fence is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fenced {
    /// The highest LAC the bookie knows: explicit, or from the headers of its entries.
    pub last_add_confirmed: EntryId,
    /// The whole entry with the highest id the bookie holds.
    pub last_entry: Option<Bytes>,
}

/// Why a bookie did not do what it was asked for.
///
/// [`BookieError::remedy`] tells the caller what to do next. `NoLedger` and `NoEntry` are proofs of absence: ledger recovery
/// closes a ledger on their word, so a bookie that is not certain answers with one of the others.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BookieError {
    /// This bookie has never held an entry of the ledger.
    #[error("no ledger {ledger}")]
    NoLedger { ledger: LedgerId },
    /// This bookie has never acknowledged the entry.
    #[error("no entry {entry} in ledger {ledger}")]
    NoEntry { ledger: LedgerId, entry: EntryId },
    #[error("ledger {ledger} is fenced: somebody recovers or has recovered it")]
    Fenced { ledger: LedgerId },
    #[error("wrong master key for ledger {ledger}")]
    Unauthorized { ledger: LedgerId },
    /// The bookie takes no writes now, usually because its disk is full. The add was not written.
    #[error("bookie is read-only ({reason}), cannot write to ledger {ledger}")]
    ReadOnly { ledger: LedgerId, reason: Arc<str> },
    /// A queue is full. The add was not written.
    #[error("too many requests in progress, refused one for ledger {ledger}")]
    TooManyRequests { ledger: LedgerId },
    #[error("entry {entry} of {len} bytes in ledger {ledger} is too large: at most {max} bytes")]
    TooLarge { ledger: LedgerId, entry: EntryId, len: usize, max: usize },
    /// The request contradicts itself or names what cannot exist; nothing was done.
    #[error("bad request for ledger {ledger}: {detail}")]
    BadRequest { ledger: LedgerId, detail: Arc<str> },
    /// The bookie acknowledged this entry once, and its bytes are no longer what was written.
    #[error("entry {entry} of ledger {ledger} is damaged at offset {offset} of {file}: {detail}")]
    Damaged { ledger: LedgerId, entry: EntryId, file: Arc<str>, offset: u64, detail: Arc<str> },
    /// The bookie lost what it knew about the ledger (a folder, a segment): absence proves nothing.
    #[error("state of ledger {ledger} is unknown: {detail}")]
    UnknownLedgerState { ledger: LedgerId, detail: Arc<str> },
    #[error("cannot read ledger {ledger} from {file}: {detail}")]
    ReadFailed { ledger: LedgerId, file: Arc<str>, detail: Arc<str> },
    /// What was asked for may or may not be on the disk, and may or may not survive a restart.
    #[error("cannot write to ledger {ledger} in {file}: {detail}")]
    WriteFailed { ledger: LedgerId, file: Arc<str>, detail: Arc<str> },
    /// The bookie stopped, or the way to it broke, before it answered.
    #[error("bookie went away before it answered a request for ledger {ledger}")]
    Gone { ledger: LedgerId },
}

/// What a caller should do about an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// The same bookie may do it later.
    RetryHere,
    /// Another bookie, or the ledger's new owner, may do it.
    RetryElsewhere,
    /// Nobody will do it.
    GiveUp,
    /// It may have been done: only ledger recovery can tell.
    OutcomeUnknown,
}

impl BookieError {
    pub fn remedy(&self) -> Remedy {
        match self {
            BookieError::TooManyRequests { .. } => Remedy::RetryHere,
            BookieError::NoLedger { .. }
            | BookieError::NoEntry { .. }
            | BookieError::Fenced { .. }
            | BookieError::ReadOnly { .. }
            | BookieError::Damaged { .. }
            | BookieError::UnknownLedgerState { .. }
            | BookieError::ReadFailed { .. } => Remedy::RetryElsewhere,
            BookieError::Unauthorized { .. } | BookieError::TooLarge { .. } | BookieError::BadRequest { .. } => {
                Remedy::GiveUp
            }
            BookieError::WriteFailed { .. } | BookieError::Gone { .. } => Remedy::OutcomeUnknown,
        }
    }

    /// Does this answer prove that the bookie does not hold the entry? Anything else counts as "may be there".
    pub fn proves_absence(&self) -> bool {
        matches!(self, BookieError::NoLedger { .. } | BookieError::NoEntry { .. })
    }
}
