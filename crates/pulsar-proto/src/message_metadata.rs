//! What the broker must know of a message, read without building the whole `MessageMetadata`.

use std::borrow::Cow;

use crate::proto::CompressionType;
use crate::wire::{Reader, WireError};

/// Why metadata cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    #[error("message metadata without the required field {field}")]
    NoField { field: &'static str },
    #[error("cannot parse message metadata: {0}")]
    Wire(#[from] WireError),
}

/// The fields of a `MessageMetadata` that decide how a broker treats the message. Borrows; nothing is allocated.
///
/// Integers that are ids or times have the type of the wire; a field that is `None` was not written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetadataPeek<'a> {
    pub producer_name: &'a str,
    pub sequence_id: u64,
    pub highest_sequence_id: Option<u64>,
    pub publish_time_ms: u64,
    pub event_time_ms: Option<u64>,
    /// Present (even with 1): the payload is a batch.
    pub num_messages_in_batch: Option<i32>,
    pub partition_key: Option<&'a str>,
    pub partition_key_b64_encoded: bool,
    pub ordering_key: Option<&'a [u8]>,
    pub deliver_at_time_ms: Option<i64>,
    /// Present: a marker of the servers, never delivered.
    pub marker_type: Option<i32>,
    pub txnid_least_bits: Option<u64>,
    pub txnid_most_bits: Option<u64>,
    pub replicated_from: Option<&'a str>,
    /// The payload is encrypted (and so is its batch structure).
    pub encrypted: bool,
    pub compression: CompressionType,
    pub uncompressed_size_bytes: u32,
    /// A tombstone.
    pub null_value: bool,
    pub schema_version: Option<&'a [u8]>,
    pub uuid: Option<&'a str>,
    pub chunk_id: Option<i32>,
    pub num_chunks_from_msg: Option<i32>,
}

impl<'a> MetadataPeek<'a> {
    /// Reads an encoded `MessageMetadata`.
    pub fn parse(metadata: &'a [u8]) -> Result<Self, MetadataError> {
        let mut peek = MetadataPeek::default();
        let (mut producer_name, mut sequence_id, mut publish_time_ms) = (None, None, None);
        let mut reader = Reader::new(metadata);
        while let Some(field) = reader.next_field()? {
            match field.number {
                1 => producer_name = Some(field.str()?),
                2 => sequence_id = Some(field.varint()?),
                3 => publish_time_ms = Some(field.varint()?),
                5 => peek.replicated_from = Some(field.str()?),
                6 => peek.partition_key = Some(field.str()?),
                8 => peek.compression = CompressionType::try_from(field.int32()?).unwrap_or_default(),
                9 => peek.uncompressed_size_bytes = field.varint()? as u32,
                11 => peek.num_messages_in_batch = Some(field.int32()?),
                12 => peek.event_time_ms = Some(field.varint()?),
                13 => peek.encrypted = true,
                16 => peek.schema_version = Some(field.bytes()?),
                17 => peek.partition_key_b64_encoded = field.varint()? != 0,
                18 => peek.ordering_key = Some(field.bytes()?),
                19 => peek.deliver_at_time_ms = Some(field.varint()? as i64),
                20 => peek.marker_type = Some(field.int32()?),
                22 => peek.txnid_least_bits = Some(field.varint()?),
                23 => peek.txnid_most_bits = Some(field.varint()?),
                24 => peek.highest_sequence_id = Some(field.varint()?),
                25 => peek.null_value = field.varint()? != 0,
                26 => peek.uuid = Some(field.str()?),
                27 => peek.num_chunks_from_msg = Some(field.int32()?),
                29 => peek.chunk_id = Some(field.int32()?),
                _ => {}
            }
        }
        peek.producer_name = producer_name.ok_or(MetadataError::NoField { field: "producer_name" })?;
        peek.sequence_id = sequence_id.ok_or(MetadataError::NoField { field: "sequence_id" })?;
        peek.publish_time_ms = publish_time_ms.ok_or(MetadataError::NoField { field: "publish_time" })?;
        Ok(peek)
    }

    /// How many messages the entry holds: at least 1, also if the metadata claims less.
    pub fn messages(&self) -> u32 {
        self.num_messages_in_batch.map_or(1, |count| u32::try_from(count).unwrap_or(1).max(1))
    }

    /// The payload is a batch (once decrypted and decompressed), even of one message.
    pub fn is_batch(&self) -> bool {
        self.num_messages_in_batch.is_some()
    }

    /// What decides the consumer on a Key_Shared subscription: ordering key, else partition key (decoded if it is
    /// base64), else producer name and sequence id.
    pub fn sticky_key(&self) -> Cow<'a, [u8]> {
        match (self.ordering_key, self.partition_key) {
            (Some(key), _) => Cow::Borrowed(key),
            (None, Some(key)) if self.partition_key_b64_encoded => match decode_base64(key.as_bytes()) {
                Some(decoded) => Cow::Owned(decoded),
                // Flagged as base64 but is not: any key is fine as long as it is always the same.
                None => Cow::Borrowed(key.as_bytes()),
            },
            (None, Some(key)) => Cow::Borrowed(key.as_bytes()),
            (None, None) => Cow::Owned(format!("{}-{}", self.producer_name, self.sequence_id as i64).into_bytes()),
        }
    }
}

/// Standard alphabet, padding optional.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0u32;
        for byte in group {
            let value = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        let bytes = (bits << (6 * (4 - group.len()))).to_be_bytes();
        match group.len() {
            1 => return None,
            len => out.extend_from_slice(&bytes[1..len]),
        }
    }
    Some(out)
}

#[cfg(test)]
#[path = "message_metadata_tests.rs"]
mod tests;
