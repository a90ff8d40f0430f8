use bookkeeper_proto::ledger_metadata::LedgerMetadataError;
use bookkeeper_proto::{BookieError, BookieId, EntryError, EntryId, LedgerId, Remedy};
use metadata::MetadataError;

use crate::RecoveryError;

/// Why an operation on a ledger did not happen, or is not known to have happened: see [`LedgerError::remedy`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("no ledger {ledger}")]
    NotFound { ledger: LedgerId },
    #[error("cannot {doing} `{path}`")]
    Metadata { doing: &'static str, path: String, source: MetadataError },
    #[error("cannot understand `{path}`")]
    BadMetadata { path: String, source: LedgerMetadataError },
    #[error("password of ledger {ledger} is not the configured one (`managedLedgerPassword`)")]
    WrongPassword { ledger: LedgerId },
    #[error("ledger {ledger} lies on bookie {bookie}, which cannot be reached from here")]
    UnknownBookie { ledger: LedgerId, bookie: BookieId },
    #[error("cannot create a ledger over {wanted} bookies: {available} available")]
    NotEnoughBookies { wanted: usize, available: usize },
    #[error("cannot {doing} ledger {ledger} on bookie {bookie}")]
    Bookie { doing: &'static str, ledger: LedgerId, bookie: BookieId, source: BookieError },
    #[error("bookie {bookie} returned a wrong entry of ledger {ledger}")]
    BadEntry { ledger: LedgerId, bookie: BookieId, source: EntryError },
    /// The bookie broke the contract of `BookieAccess::read`: something other than 1 to `wanted` entries came back.
    #[error("bookie {bookie} returned {got} entries of ledger {ledger} when asked for {wanted}")]
    WrongCount { ledger: LedgerId, bookie: BookieId, got: usize, wanted: u64 },
    /// The ledger is fenced but stays open. Retry later.
    #[error("cannot recover ledger {ledger}")]
    Recovery { ledger: LedgerId, source: RecoveryError },
    /// Somebody else closed the ledger, elsewhere than the caller would have.
    #[error(
        "ledger {ledger} is closed at entry {found_last_entry} with {found_length} bytes, not at {last_entry} with {length}"
    )]
    ClosedElsewhere { ledger: LedgerId, last_entry: EntryId, length: u64, found_last_entry: EntryId, found_length: u64 },
    #[error("too many others change `{path}` at the same time")]
    Contended { path: String },
    /// Ids below 2^31 are used up.
    #[error("no more ledger ids below 2^31: longer ids (`/ledgers/idgen-long`) are not supported yet")]
    IdsExhausted,
    #[error("`{path}` is not the name of a ledger's node: refusing to take the listing for complete")]
    UnexpectedNode { path: String },
    #[error("`/ledgers` does not exist: this metadata store holds no cluster")]
    NotInitialized,
    #[error("`/ledgers/LAYOUT` says `{}`: expected `{}`", found.escape_debug(), expected.escape_debug())]
    OtherLayout { found: String, expected: &'static str },
}

impl LedgerError {
    pub fn remedy(&self) -> Remedy {
        match self {
            LedgerError::Metadata { source, .. } if source.is_outcome_unknown() => Remedy::OutcomeUnknown,
            LedgerError::Metadata { source, .. } if source.is_retryable() => Remedy::RetryHere,
            LedgerError::Contended { .. } | LedgerError::Recovery { .. } => Remedy::RetryHere,
            LedgerError::NotEnoughBookies { .. } | LedgerError::UnknownBookie { .. } => Remedy::RetryHere,
            LedgerError::Bookie { source, .. } => source.remedy(),
            LedgerError::ClosedElsewhere { .. } => Remedy::RetryElsewhere,
            LedgerError::Metadata { .. }
            | LedgerError::NotFound { .. }
            | LedgerError::BadMetadata { .. }
            | LedgerError::WrongPassword { .. }
            | LedgerError::BadEntry { .. }
            | LedgerError::WrongCount { .. }
            | LedgerError::IdsExhausted
            | LedgerError::UnexpectedNode { .. }
            | LedgerError::NotInitialized
            | LedgerError::OtherLayout { .. } => Remedy::GiveUp,
        }
    }
}
