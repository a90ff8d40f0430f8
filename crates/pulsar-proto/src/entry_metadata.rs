//! The broker's prefix of a stored entry: when it arrived and which index its last message has.
//!
//! | bytes | content |
//! |--|--|
//! | 2 | magic `0e02` |
//! | 4 | size |
//! | n | `BrokerEntryMetadata` |
//! | … | the client's payload block |

use bytes::{Buf, Bytes};

use crate::proto::BrokerEntryMetadata;
use crate::wire::{Reader, WireError};

/// Begins an entry that has the prefix.
pub const ENTRY_METADATA_MAGIC: [u8; 2] = [0x0e, 0x02];

/// Why the prefix of an entry cannot be read: the entry is damaged, or was never one of a topic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryMetadataError {
    #[error("entry of {bytes} bytes ends within its broker metadata")]
    Truncated { bytes: usize },
    #[error("cannot parse the broker metadata of an entry: {0}")]
    Malformed(#[from] WireError),
}

/// An encoded prefix; small enough to be copied.
#[derive(Debug, Clone, Copy)]
pub struct EntryPrefix {
    buffer: [u8; MAX_PREFIX_LEN],
    len: u8,
}

/// Magic, size, and two integer fields of at most eleven bytes each.
pub const MAX_PREFIX_LEN: usize = HEAD_LEN + 2 * 11;
const HEAD_LEN: usize = ENTRY_METADATA_MAGIC.len() + 4;

impl EntryPrefix {
    /// `timestamp_ms`: the broker's clock. `index`: that of the entry's last message, counted over the topic's life from 0.
    pub fn new(timestamp_ms: u64, index: u64) -> Self {
        let mut buffer = [0; MAX_PREFIX_LEN];
        buffer[..2].copy_from_slice(&ENTRY_METADATA_MAGIC);
        let mut len = HEAD_LEN;
        for (number, mut value) in [(1u8, timestamp_ms), (2, index)] {
            buffer[len] = number << 3;
            len += 1;
            while value >= 0x80 {
                buffer[len] = value as u8 | 0x80;
                value >>= 7;
                len += 1;
            }
            buffer[len] = value as u8;
            len += 1;
        }
        buffer[2..HEAD_LEN].copy_from_slice(&((len - HEAD_LEN) as u32).to_be_bytes());
        EntryPrefix { buffer, len: len as u8 }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.buffer[..usize::from(self.len)]
    }
}

/// The prefix of an entry, if it has one. Does not allocate.
pub fn peek(entry: &[u8]) -> Result<Option<BrokerEntryMetadata>, EntryMetadataError> {
    let len = prefix_len(entry)?;
    if len == 0 {
        return Ok(None);
    }
    let mut metadata = BrokerEntryMetadata::default();
    let mut reader = Reader::new(&entry[HEAD_LEN..len]);
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => metadata.broker_timestamp = Some(field.varint()?),
            2 => metadata.index = Some(field.varint()?),
            _ => {}
        }
    }
    Ok(Some(metadata))
}

/// The client's payload block: the entry without its prefix, if it has one.
pub fn strip(mut entry: Bytes) -> Result<Bytes, EntryMetadataError> {
    entry.advance(prefix_len(&entry)?);
    Ok(entry)
}

/// How many bytes of the entry are the broker's; 0 if there is no prefix.
pub fn prefix_len(entry: &[u8]) -> Result<usize, EntryMetadataError> {
    let Some(rest) = entry.strip_prefix(&ENTRY_METADATA_MAGIC) else { return Ok(0) };
    let error = EntryMetadataError::Truncated { bytes: entry.len() };
    let Some(size) = rest.first_chunk() else { return Err(error) };
    let len = HEAD_LEN + u32::from_be_bytes(*size) as usize;
    if len > entry.len() { Err(error) } else { Ok(len) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn prefix_is_what_the_generated_code_writes() {
        for (timestamp_ms, index) in [(0, 0), (1_700_000_000_000, 127), (u64::MAX, u64::MAX), (1, 1 << 40)] {
            let prefix = EntryPrefix::new(timestamp_ms, index);
            let metadata = BrokerEntryMetadata { broker_timestamp: Some(timestamp_ms), index: Some(index) };
            let mut expected = vec![0x0e, 0x02];
            expected.extend_from_slice(&(metadata.encoded_len() as u32).to_be_bytes());
            metadata.encode(&mut expected).unwrap();
            assert_eq!(prefix.as_bytes(), expected);

            expected.extend_from_slice(b"\x0e\x01rest");
            assert_eq!(peek(&expected).unwrap(), Some(metadata));
            assert_eq!(strip(Bytes::from(expected)).unwrap(), &b"\x0e\x01rest"[..]);
        }
    }

    #[test]
    fn entries_without_prefix_and_damaged_ones() {
        assert_eq!(peek(b"\x0e\x01abcd"), Ok(None));
        assert_eq!(peek(b""), Ok(None));
        assert_eq!(peek(b"\x0e\x02\0\0"), Err(EntryMetadataError::Truncated { bytes: 4 }));
        assert_eq!(peek(b"\x0e\x02\0\0\0\x09ab"), Err(EntryMetadataError::Truncated { bytes: 8 }));
        assert_eq!(peek(b"\x0e\x02\xff\xff\xff\xffab"), Err(EntryMetadataError::Truncated { bytes: 8 }));
    }
}
