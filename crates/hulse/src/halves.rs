//! Metadata store and log belong together: whether they are of one node and of one time.
//!
//! Each alone looks sound when the other is missing or was restored from an older copy, and going on would destroy what is
//! left: without its metadata every ledger in the log counts as deleted, and ledger ids would be given out twice.

use std::path::{Path, PathBuf};

use bookie::{Bookie, LogEnd};
use bookkeeper_proto::{EntryId, LedgerId, LedgerState};
use bytes::Bytes;
use disk::Disk;
use ledger::{LedgerError, Ledgers};
use metadata::{Expected, MetadataError, MetadataStore};
use thiserror::Error;
use tracing::warn;

/// Where the metadata store keeps what it knows about the log: number, newest segment and last commit, in decimal.
const NODE: &str = "/hulse/log";

/// Why the two halves must not be used together. Nothing was deleted or written over.
#[derive(Debug, Error)]
pub(crate) enum MismatchError {
    #[error(
        "the metadata store `{}` is missing, but there is a log: restore both from copies of the same time; \
         or give up all data with --wipe-data",
        file.display()
    )]
    NoMetadata { file: PathBuf },
    #[error(
        "the metadata store knows nothing of the {ledgers} ledgers in the log: it is empty or an older copy; \
         restore both from copies of the same time, or give up all data with --wipe-data"
    )]
    NewMetadata { ledgers: usize },
    #[error(
        "the metadata store is an older copy than the log: ledger {ledger} is in the log, but the store has not given out \
         ids beyond {given_out} yet; restore both from copies of the same time"
    )]
    OlderMetadata { ledger: LedgerId, given_out: LedgerId },
    #[error(
        "the log `{}` is missing, but the metadata store knows ledgers with entries in it: put it back, or restore both \
         from copies of the same time; to go on without what is missing, start with --accept-log-loss",
        folder.display()
    )]
    NoLog { folder: PathBuf },
    #[error("the log is not the one that the metadata store belongs to: restore both from copies of the same node")]
    OtherLog,
    #[error(
        "the log ends at commit {found} in segment {found_segment}, but it went on to commit {known} in segment {known_segment} \
         before: it is an older copy, a file is missing, or its end is damaged; put the file back, or restore log and metadata from \
         copies of the same time; to go on without what is missing, start with --accept-log-loss"
    )]
    OlderLog { found: u64, found_segment: u64, known: u64, known_segment: u64 },
    #[error("cannot compare metadata store and log")]
    Metadata(#[from] MetadataError),
    #[error("cannot compare metadata store and log")]
    Ledger(#[from] LedgerError),
}

/// Before anything is opened, so that a refusal leaves the folder as it was.
pub(crate) fn check_files(root: &Path) -> Result<(), MismatchError> {
    let file = root.join("metadata").join("metadata.db");
    // Both are looked into when they are opened; a folder that cannot be listed is reported there.
    let has_log = std::fs::read_dir(root.join("log"))
        .is_ok_and(|names| names.flatten().any(|name| name.path().extension().is_some_and(|kind| kind == "seg")));
    if has_log && !file.exists() { Err(MismatchError::NoMetadata { file }) } else { Ok(()) }
}

/// With the metadata store open and the log not: whether there must be a log where there is none.
pub(crate) async fn check_log_is_there(
    disk: &dyn Disk,
    root: &Path,
    metadata: &dyn MetadataStore,
    ledgers: &Ledgers,
    accept_log_loss: bool,
) -> Result<(), MismatchError> {
    match find_log(disk, root, metadata, ledgers).await {
        Err(error @ MismatchError::NoLog { .. }) if accept_log_loss => {
            warn!(%error, "going on as asked for");
            // A new log begins, with a number of its own.
            match metadata.delete(NODE, Expected::Any).await {
                Err(error) if !error.is_not_found() => Err(error.into()),
                _ => Ok(()),
            }
        }
        result => result,
    }
}

async fn find_log(
    disk: &dyn Disk,
    root: &Path,
    metadata: &dyn MetadataStore,
    ledgers: &Ledgers,
) -> Result<(), MismatchError> {
    let names = disk.list(Path::new("log"));
    if names.as_ref().is_ok_and(|names| names.iter().any(|name| name.ends_with(".seg"))) {
        return Ok(());
    }
    let no_log = || MismatchError::NoLog { folder: root.join("log") };
    if metadata.get(NODE).await?.is_some() {
        return Err(no_log());
    }
    let known = match ledgers.list().await {
        Ok(known) => known,
        Err(LedgerError::NotInitialized) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // The folder is there before the first ledger is made; a ledger may be made without ever getting an entry.
    if names.is_err() && !known.is_empty() {
        return Err(no_log());
    }
    for ledger in known {
        let has_entries = |metadata: &bookkeeper_proto::ledger_metadata::LedgerMetadata| matches!(metadata.state, LedgerState::Closed { last_entry, .. } if last_entry > EntryId::NONE);
        if ledgers.metadata(ledger).await?.is_some_and(|metadata| has_entries(&metadata)) {
            return Err(no_log());
        }
    }
    Ok(())
}

/// With both open and before anything is created or collected.
pub(crate) async fn check(
    bookie: &Bookie,
    metadata: &dyn MetadataStore,
    ledgers: &Ledgers,
    accept_log_loss: bool,
) -> Result<(), MismatchError> {
    let stored = bookie.ledgers();
    let known = known_end(metadata).await?;
    if let (Some(known), Some(found)) = (known, bookie.end()) {
        if found.log != known.log {
            return Err(MismatchError::OtherLog);
        }
        if (found.segment, found.sequence) < (known.segment, known.sequence) {
            let (found_segment, known_segment) = (found.segment, known.segment);
            let error =
                MismatchError::OlderLog { found: found.sequence, found_segment, known: known.sequence, known_segment };
            if !accept_log_loss {
                return Err(error);
            }
            warn!(%error, "going on as asked for");
            note(bookie, metadata).await;
        }
    }
    let Some(&newest) = stored.last() else { return Ok(()) };
    if ledgers.metadata(newest).await?.is_some() {
        return Ok(());
    }
    if known.is_none() && ledgers.list().await?.is_empty() {
        return Err(MismatchError::NewMetadata { ledgers: stored.len() });
    }
    // Deleted, or never heard of? Ids only ever grow.
    let drawn = ledgers.draw_id().await?;
    if drawn <= newest {
        return Err(MismatchError::OlderMetadata { ledger: newest, given_out: drawn });
    }
    Ok(())
}

/// Lets the metadata store know how far the log is. What it knows is a lower bound, so that it need not be told of each commit.
pub(crate) async fn note(bookie: &Bookie, metadata: &dyn MetadataStore) {
    let Some(LogEnd { log, segment, sequence }) = bookie.end() else { return };
    let value = Bytes::from(format!("{log} {segment} {sequence}"));
    if let Err(error) = metadata.put(NODE, value, Expected::Any).await {
        warn!(%error, "cannot note how far the log is; an older copy of it would not be noticed");
    }
}

async fn known_end(metadata: &dyn MetadataStore) -> Result<Option<LogEnd>, MismatchError> {
    let node = metadata.get(NODE).await?;
    Ok(node.and_then(|node| parse(&node.value)))
}

fn parse(value: &[u8]) -> Option<LogEnd> {
    let mut numbers = std::str::from_utf8(value).ok()?.split(' ').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(LogEnd { log: next()?, segment: next()?, sequence: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_read_as_it_was_written() {
        let end = LogEnd { log: u64::MAX, segment: 3, sequence: 77 };
        assert_eq!(parse(format!("{} 3 77", u64::MAX).as_bytes()), Some(end));
        // A later version may add more.
        assert_eq!(parse(b"18446744073709551615 3 77 x"), Some(end));
        assert_eq!(parse(b"1 2"), None);
        assert_eq!(parse(b"a b c"), None);
    }
}
