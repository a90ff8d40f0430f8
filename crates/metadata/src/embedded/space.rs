//! The tree in the database's tables.
//!
//! - `nodes`: key of the path (`path::key`) → version, created, modified, owner (8 bytes each, big-endian; owner 0 =
//!   persistent), then the value
//! - `ephemerals`: path → owner; the nodes that do not outlive their session
//! - `numbers`: path of a parent → its next sequence number; stays when the parent goes, so that no number comes back

use std::io;

use bytes::Bytes;
use redb::{
    CommitError, Database, ReadOnlyTable, ReadableTable, StorageError, Table, TableDefinition, TableError,
    TransactionError, WriteTransaction,
};

use crate::path;
use crate::tree::{self, Record, Space};

type Nodes = TableDefinition<'static, &'static [u8], &'static [u8]>;
const NODES: Nodes = TableDefinition::new("nodes");
const EPHEMERALS: TableDefinition<'static, &'static str, u64> = TableDefinition::new("ephemerals");
const NUMBERS: TableDefinition<'static, &'static str, u64> = TableDefinition::new("numbers");

const RECORD_HEADER_BYTES: usize = 32;

pub(super) fn create_tables(database: &Database) -> Result<(), StorageError> {
    let transaction = database.begin_write().map_err(of_transaction)?;
    drop(TableSpace::open(&transaction)?);
    transaction.commit().map_err(of_commit)
}

/// Sessions that own nodes.
pub(super) fn owners(space: &TableSpace<'_>) -> Result<Vec<u64>, StorageError> {
    let owners: Result<std::collections::BTreeSet<u64>, StorageError> =
        space.ephemerals.iter()?.map(|entry| entry.map(|(_, owner)| owner.value())).collect();
    Ok(owners?.into_iter().collect())
}

/// One snapshot.
pub(super) struct Snapshot {
    nodes: ReadOnlyTable<&'static [u8], &'static [u8]>,
}

impl Snapshot {
    pub(super) fn take(database: &Database) -> Result<Snapshot, StorageError> {
        let transaction = database.begin_read().map_err(of_transaction)?;
        Ok(Snapshot { nodes: transaction.open_table(NODES).map_err(of_table)? })
    }

    pub(super) fn get(&self, path: &str) -> Result<Option<Record>, StorageError> {
        get(&self.nodes, path)
    }

    pub(super) fn exists(&self, path: &str) -> Result<bool, StorageError> {
        exists(&self.nodes, path)
    }

    /// Names of the children.
    pub(super) fn children(&self, path: &str) -> Result<Vec<String>, StorageError> {
        let skip = if path == "/" { 1 } else { path.len() + 1 };
        let mut paths = below(&self.nodes, path, 1)?;
        paths.iter_mut().for_each(|path| drop(path.drain(..skip)));
        Ok(paths)
    }
}

/// The tables of a transaction being written.
pub(super) struct TableSpace<'txn> {
    nodes: Table<'txn, &'static [u8], &'static [u8]>,
    ephemerals: Table<'txn, &'static str, u64>,
    numbers: Table<'txn, &'static str, u64>,
}

impl<'txn> TableSpace<'txn> {
    pub(super) fn open(transaction: &'txn WriteTransaction) -> Result<TableSpace<'txn>, StorageError> {
        Ok(TableSpace {
            nodes: transaction.open_table(NODES).map_err(of_table)?,
            ephemerals: transaction.open_table(EPHEMERALS).map_err(of_table)?,
            numbers: transaction.open_table(NUMBERS).map_err(of_table)?,
        })
    }
}

impl Space for TableSpace<'_> {
    type Error = StorageError;

    fn get(&self, path: &str) -> Result<Option<Record>, StorageError> {
        get(&self.nodes, path)
    }

    fn exists(&self, path: &str) -> Result<bool, StorageError> {
        exists(&self.nodes, path)
    }

    fn has_children(&self, path: &str) -> Result<bool, StorageError> {
        let (first, end) = path::keys_below(path, 1);
        Ok(self.nodes.range(&*first..&*end)?.next().transpose()?.is_some())
    }

    fn descendants(&self, path: &str) -> Result<Vec<String>, StorageError> {
        let mut all = Vec::new();
        for levels in 1.. {
            let level = below(&self.nodes, path, levels)?;
            if level.is_empty() {
                break; // Every node's parent exists, so nothing is further down.
            }
            all.extend(level);
        }
        Ok(all)
    }

    fn ephemerals(&self, session: u64) -> Result<Vec<String>, StorageError> {
        let mut paths = Vec::new();
        for entry in self.ephemerals.iter()? {
            let (path, owner) = entry?;
            if owner.value() == session {
                paths.push(path.value().to_owned());
            }
        }
        Ok(paths)
    }

    fn put(&mut self, path: &str, record: &Record) -> Result<(), StorageError> {
        self.nodes.insert(&*path::key(path), &*encode(record))?;
        if let Some(owner) = record.owner {
            self.ephemerals.insert(path, owner)?;
        }
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<(), StorageError> {
        self.nodes.remove(&*path::key(path))?;
        self.ephemerals.remove(path)?;
        Ok(())
    }

    fn next_number(&mut self, parent: &str) -> Result<u64, StorageError> {
        let next = self.numbers.get(parent)?.map_or(0, |next| next.value());
        self.numbers.insert(parent, next + 1)?;
        Ok(next)
    }
}

fn get(nodes: &impl ReadableTable<&'static [u8], &'static [u8]>, path: &str) -> Result<Option<Record>, StorageError> {
    if path == "/" {
        return Ok(Some(tree::root()));
    }
    let Some(found) = nodes.get(&*path::key(path))? else { return Ok(None) };
    decode(found.value())
        .map(Some)
        .ok_or_else(|| StorageError::Corrupted(format!("metadata node `{path}` is too short")))
}

fn exists(nodes: &impl ReadableTable<&'static [u8], &'static [u8]>, path: &str) -> Result<bool, StorageError> {
    Ok(path == "/" || nodes.get(&*path::key(path))?.is_some())
}

fn below(
    nodes: &impl ReadableTable<&'static [u8], &'static [u8]>,
    path: &str,
    levels: u16,
) -> Result<Vec<String>, StorageError> {
    let (first, end) = path::keys_below(path, levels);
    let mut paths = Vec::new();
    for entry in nodes.range(&*first..&*end)? {
        let (key, _) = entry?;
        let path = path::of_key(key.value());
        paths.push(path.ok_or_else(|| StorageError::Corrupted(format!("metadata key below `{path:?}`")))?.to_owned());
    }
    Ok(paths)
}

fn encode(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD_HEADER_BYTES + record.value.len());
    bytes.extend_from_slice(&record.version.to_be_bytes());
    bytes.extend_from_slice(&record.created_ms.to_be_bytes());
    bytes.extend_from_slice(&record.modified_ms.to_be_bytes());
    bytes.extend_from_slice(&record.owner.unwrap_or(0).to_be_bytes());
    bytes.extend_from_slice(&record.value);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Record> {
    let (header, value) = bytes.split_at_checked(RECORD_HEADER_BYTES)?;
    let word = |index: usize| header[index * 8..][..8].try_into().map(u64::from_be_bytes).ok();
    Some(Record {
        version: word(0)?.cast_signed(),
        created_ms: word(1)?,
        modified_ms: word(2)?,
        owner: word(3).filter(|owner| *owner != 0),
        value: Bytes::copy_from_slice(value),
    })
}

pub(super) fn of_transaction(error: TransactionError) -> StorageError {
    match error {
        TransactionError::Storage(error) => error,
        other => StorageError::Corrupted(other.to_string()),
    }
}

pub(super) fn of_commit(error: CommitError) -> StorageError {
    match error {
        CommitError::Storage(error) => error,
        other => StorageError::Corrupted(other.to_string()),
    }
}

fn of_table(error: TableError) -> StorageError {
    match error {
        TableError::Storage(error) => error,
        other => StorageError::Corrupted(other.to_string()),
    }
}

pub(super) fn into_io(error: StorageError) -> io::Error {
    match error {
        StorageError::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_keeps_its_bytes_for_ever() {
        let record = Record {
            version: 3,
            created_ms: 0x0102,
            modified_ms: 0x0304,
            owner: Some(7),
            value: Bytes::from_static(b"v"),
        };
        let bytes = encode(&record);
        let words = [3u64, 0x0102, 0x0304, 7].map(u64::to_be_bytes).concat();
        assert_eq!(bytes, [&words[..], b"v"].concat());
        assert_eq!(decode(&bytes), Some(record));
        assert_eq!(decode(&bytes[..31]), None);
    }
}
