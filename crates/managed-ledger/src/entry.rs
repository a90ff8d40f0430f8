//! An entry as readers see it, and the broker entry metadata before its payload.

use bytes::{Buf, BufMut, Bytes};

use crate::position::Position;

/// What a broker adds before a message: when it came, and how many messages the topic has had up to it.
///
/// | bytes | content |
/// |--|--|
/// | 2 | `0x0e02` |
/// | 4 | n, big endian |
/// | n | protobuf: 1 broker_timestamp uint64 (Unix ms), 2 index uint64 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerEntryMetadata {
    /// Unix milliseconds.
    pub broker_timestamp_ms: Option<u64>,
    /// Index of the entry's last message.
    pub index: Option<u64>,
}

const MAGIC: [u8; 2] = [0x0e, 0x02];
const HEAD: usize = 6;
/// Two fields of a tag and ten bytes at most.
const MAX_PREFIX: usize = HEAD + 2 * 11;

impl BrokerEntryMetadata {
    /// The prefix, magic included.
    #[must_use]
    pub fn encode(&self) -> Prefix {
        let mut prefix = Prefix { bytes: [0; MAX_PREFIX], len: 0 };
        let mut rest = &mut prefix.bytes[HEAD..];
        for (tag, value) in [(0x08, self.broker_timestamp_ms), (0x10, self.index)] {
            if let Some(value) = value {
                rest.put_u8(tag);
                prost::encoding::encode_varint(value, &mut rest);
            }
        }
        let len = MAX_PREFIX - HEAD - rest.len();
        prefix.bytes[..2].copy_from_slice(&MAGIC);
        prefix.bytes[2..HEAD].copy_from_slice(&(len as u32).to_be_bytes());
        prefix.len = HEAD + len;
        prefix
    }

    /// The prefix's length in bytes and content; `None` if `data` has no (well-formed) prefix.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<(usize, BrokerEntryMetadata)> {
        let mut rest = data.strip_prefix(&MAGIC)?;
        let len = rest.try_get_u32().ok()? as usize;
        let mut body = rest.get(..len)?;
        let mut metadata = BrokerEntryMetadata { broker_timestamp_ms: None, index: None };
        while body.has_remaining() {
            let (tag, wire) = prost::encoding::decode_key(&mut body).ok()?;
            match tag {
                1 => metadata.broker_timestamp_ms = Some(prost::encoding::decode_varint(&mut body).ok()?),
                2 => metadata.index = Some(prost::encoding::decode_varint(&mut body).ok()?),
                _ => {
                    prost::encoding::skip_field(wire, tag, &mut body, prost::encoding::DecodeContext::default()).ok()?
                }
            }
        }
        Some((HEAD + len, metadata))
    }
}

/// Encoded [`BrokerEntryMetadata`]; on the stack, because every add makes one.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    bytes: [u8; MAX_PREFIX],
    len: usize,
}

impl std::ops::Deref for Prefix {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A confirmed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub position: Position,
    /// As stored: broker entry metadata (if any), then the client's block.
    pub data: Bytes,
}

impl Entry {
    /// The client's block (`0e01 crc metadata payload`), without broker entry metadata.
    #[must_use]
    pub fn payload(&self) -> Bytes {
        match BrokerEntryMetadata::parse(&self.data) {
            Some((len, _)) => self.data.slice(len..),
            None => self.data.clone(),
        }
    }

    /// The broker entry metadata, if the entry has any.
    #[must_use]
    pub fn broker_metadata(&self) -> Option<BrokerEntryMetadata> {
        BrokerEntryMetadata::parse(&self.data).map(|(_, metadata)| metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_entry_metadata_round_trips_and_bad_prefixes_are_payload() {
        let metadata = BrokerEntryMetadata { broker_timestamp_ms: Some(300), index: Some(5) };
        let prefix = metadata.encode();
        assert_eq!(&prefix[..], [0x0e, 2, 0, 0, 0, 5, 8, 0xac, 2, 0x10, 5]);
        assert_eq!(BrokerEntryMetadata::parse(&prefix), Some((prefix.len(), metadata)));
        let mut data = prefix.to_vec();
        data.extend_from_slice(b"payload");
        let entry = Entry { position: Position::new(1, 0), data: data.into() };
        assert_eq!(&entry.payload()[..], b"payload");
        for bad in [&b""[..], &[0x0e], &[0x0e, 2, 0, 0, 0, 9, 8], &[0x0e, 2, 0, 0, 0, 1, 8], &[0x0e, 1, 0, 0]] {
            assert_eq!(BrokerEntryMetadata::parse(bad), None, "{bad:?}");
        }
    }
}
