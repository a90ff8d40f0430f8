//! Slow work as data: what the shell runs at the side, and what it brings back.

use std::sync::Arc;

use bookkeeper_proto::{DigestType, EntryId, EntryView, LedgerId, LedgerState};
use bytes::Bytes;
use ledger::{LedgerError, Ledgers};
use metadata::{Expected, MetadataError, MetadataStore, Stat};

use crate::appender::Appender;
use crate::cache::CacheBudget;
use crate::config::ManagedLedgerConfig;
use crate::effect::CursorId;
use crate::entry::Entry;
use crate::position::Position;

/// What tasks and openings need of the world. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    pub metadata: Arc<dyn MetadataStore>,
    pub ledgers: Arc<Ledgers>,
    /// Of the ledgers that [`Context::ledgers`] creates.
    pub digest: DigestType,
    /// For managed ledgers opened without settings of their own.
    pub config: Arc<ManagedLedgerConfig>,
    pub cache: Arc<CacheBudget>,
}

/// Work of one managed ledger. A task that is dropped before it ends leaves the managed ledger waiting for ever: run it
/// to its end, or drop the managed ledger, too.
#[derive(Debug)]
pub struct Task {
    pub(crate) purpose: Purpose,
    pub(crate) work: Work,
}

/// The end of a task; only the managed ledger that asked for it understands it.
#[derive(Debug)]
pub struct TaskResult {
    pub(crate) purpose: Purpose,
    pub(crate) outcome: Outcome,
}

/// Whom a task serves; comes back with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The next data ledger.
    NextLedger,
    /// Find the end of the ledger whose write failed.
    Recover,
    /// The `ManagedLedgerInfo` in `info_put`.
    Info,
    CloseLedger,
    Read {
        first: Position,
    },
    CursorLedger(CursorId),
    CursorInfo(CursorId),
    CreateCursor(CursorId),
    DeleteCursor(CursorId),
    /// Nobody waits for it.
    Cleanup,
}

#[derive(Debug)]
pub(crate) enum Work {
    CreateLedger {
        custom: Vec<(String, Bytes)>,
    },
    /// Ends a ledger: at what its writer confirmed, or, if somebody else fenced it, where recovery finds the end.
    Recover {
        ledger: LedgerId,
        confirmed: Option<(EntryId, u64)>,
    },
    /// Closes a ledger of which we are the writer.
    Close {
        ledger: LedgerId,
        last: EntryId,
        length: u64,
    },
    /// Closes (if asked for), then compares and sets a node.
    Put {
        close: Option<(LedgerId, EntryId, u64)>,
        path: String,
        value: Bytes,
        expected: Expected,
    },
    DeleteNode {
        path: String,
    },
    DeleteLedger {
        ledger: LedgerId,
    },
    Read {
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: usize,
    },
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Created(Result<Appender, LedgerError>),
    Recovered(Result<Recovered, LedgerError>),
    Closed(Result<(), LedgerError>),
    Put(Result<Stat, PutError>),
    Deleted(Result<(), MetadataError>),
    Read(Result<Vec<Entry>, LedgerError>),
    CleanedUp,
}

#[derive(Debug)]
pub(crate) enum PutError {
    Close(LedgerError),
    Put(MetadataError),
}

/// What recovery found in a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recovered {
    pub last: EntryId,
    pub length: u64,
    /// The index after the last entry's; `None`: the ledger is empty or its entries carry no index.
    pub next_index: Option<u64>,
}

impl Task {
    /// Does the work; never fails, its errors are for the managed ledger. A plain future: no runtime is needed.
    pub async fn run(self, context: &Context) -> TaskResult {
        let outcome = match self.work {
            // A ledger on a bookie that refuses entries would be made in vain, and its producers called back for nothing: they would
            // fail and come back for ever. (An opening does not ask: what is stored must be readable on a full disk.)
            Work::CreateLedger { custom } => Outcome::Created(match context.ledgers.check_writable() {
                Ok(()) => create_ledger(context, custom).await,
                Err(error) => Err(error),
            }),
            Work::Recover { ledger, confirmed } => Outcome::Recovered(recover(context, ledger, confirmed).await),
            Work::Close { ledger, last, length } => Outcome::Closed(context.ledgers.close(ledger, last, length).await),
            Work::Put { close, path, value, expected } => {
                Outcome::Put(close_and_put(context, close, &path, value, expected).await)
            }
            Work::DeleteNode { path } => Outcome::Deleted(delete_node(context, &path).await),
            Work::DeleteLedger { ledger } => {
                if let Err(error) = context.ledgers.delete(ledger).await {
                    tracing::warn!(%ledger, %error, "cannot delete ledger; it stays as garbage");
                }
                Outcome::CleanedUp
            }
            Work::Read { ledger, first, last, max_bytes } => {
                Outcome::Read(read(context, ledger, first, last, max_bytes).await)
            }
        };
        TaskResult { purpose: self.purpose, outcome }
    }
}

pub(crate) async fn create_ledger(context: &Context, custom: Vec<(String, Bytes)>) -> Result<Appender, LedgerError> {
    Ok(Appender::new(context.ledgers.create(custom).await?, context.digest))
}

/// Ends a ledger, and reads the index off its last entry.
///
/// With `confirmed` (we are its writer, and a write failed) it ends there: what was not confirmed is then certainly not in
/// it, so that producers can send it again without duplicates. Else, and if somebody was faster, recovery finds the end.
pub(crate) async fn recover(
    context: &Context,
    ledger: LedgerId,
    confirmed: Option<(EntryId, u64)>,
) -> Result<Recovered, LedgerError> {
    if let Some((last, length)) = confirmed {
        match context.ledgers.close(ledger, last, length).await {
            Ok(()) => return Ok(Recovered { last, length, next_index: None }),
            Err(LedgerError::ClosedElsewhere { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let closed = context.ledgers.open_recover(ledger).await?;
    let LedgerState::Closed { last_entry: last, length } = closed.metadata.state else {
        unreachable!("recovery returns a closed ledger");
    };
    let next_index = if last.is_none() { None } else { next_index_at(context, ledger, last).await? };
    Ok(Recovered { last, length, next_index })
}

/// The index after that of an entry, if it carries one.
pub(crate) async fn next_index_at(
    context: &Context,
    ledger: LedgerId,
    entry: EntryId,
) -> Result<Option<u64>, LedgerError> {
    let entries = read(context, ledger, entry, entry, 0).await?;
    let metadata = entries.first().and_then(Entry::broker_metadata);
    Ok(metadata.and_then(|metadata| metadata.index).map(|index| index + 1))
}

pub(crate) async fn read(
    context: &Context,
    ledger: LedgerId,
    first: EntryId,
    last: EntryId,
    max_bytes: usize,
) -> Result<Vec<Entry>, LedgerError> {
    let entries = context.ledgers.read(ledger, first, last, max_bytes).await?;
    let entry =
        |view: EntryView| Entry { position: Position { ledger, entry: view.header.entry }, data: view.payload() };
    Ok(entries.into_iter().map(entry).collect())
}

async fn close_and_put(
    context: &Context,
    close: Option<(LedgerId, EntryId, u64)>,
    path: &str,
    value: Bytes,
    expected: Expected,
) -> Result<Stat, PutError> {
    if let Some((ledger, last, length)) = close {
        context.ledgers.close(ledger, last, length).await.map_err(PutError::Close)?;
    }
    put(&*context.metadata, path, value, expected).await.map_err(PutError::Put)
}

/// Compares and sets; a write that turns out to have happened already counts as ours, because every value we write names
/// a ledger (or a version) that nobody else writes. So it may be repeated after an unknown outcome.
pub(crate) async fn put(
    store: &dyn MetadataStore,
    path: &str,
    value: Bytes,
    expected: Expected,
) -> Result<Stat, MetadataError> {
    match store.put(path, value.clone(), expected).await {
        Err(error) if error.is_bad_version() || error.is_outcome_unknown() => match store.get(path).await? {
            Some(node) if node.value == value => Ok(node.stat),
            _ => Err(error),
        },
        settled => settled,
    }
}

async fn delete_node(context: &Context, path: &str) -> Result<(), MetadataError> {
    match context.metadata.delete(path, Expected::Any).await {
        Err(error) if error.is_not_found() => Ok(()),
        settled => settled,
    }
}
