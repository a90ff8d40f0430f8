//! The original's `MLDataFormats` (proto2), by hand: what lies in `/managed-ledgers/…` and in cursor ledgers.
//!
//! These types are wire formats and nothing else; the cores convert from and to them at the edges. One field is ours:
//! [`PositionInfo::delta`], numbered where the original does not look (proto2 skips unknown fields).

use prost::Message;

/// Value of `/managed-ledgers/<name>`.
#[derive(Clone, PartialEq, Message)]
pub struct ManagedLedgerInfo {
    /// Oldest first; the last one is the open ledger (no `entries`, no `size`), unless the topic is terminated.
    #[prost(message, repeated, tag = "1")]
    pub ledger_info: Vec<LedgerInfo>,
    #[prost(message, optional, tag = "2")]
    pub terminated_position: Option<NestedPositionInfo>,
    #[prost(message, repeated, tag = "3")]
    pub properties: Vec<KeyValue>,
}

/// One ledger of a managed ledger.
#[derive(Clone, PartialEq, Message)]
pub struct LedgerInfo {
    #[prost(int64, required, tag = "1")]
    pub ledger_id: i64,
    #[prost(int64, optional, tag = "2")]
    pub entries: Option<i64>,
    /// Bytes of all entries.
    #[prost(int64, optional, tag = "3")]
    pub size: Option<i64>,
    /// When it was closed, in Unix milliseconds; 0 while it is open.
    #[prost(int64, optional, tag = "4")]
    pub timestamp: Option<i64>,
    #[prost(message, optional, tag = "5")]
    pub offload_context: Option<OffloadContext>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OffloadContext {
    #[prost(int64, optional, tag = "1")]
    pub uid_msb: Option<i64>,
    #[prost(int64, optional, tag = "2")]
    pub uid_lsb: Option<i64>,
    #[prost(bool, optional, tag = "3")]
    pub complete: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub bookkeeper_deleted: Option<bool>,
    #[prost(int64, optional, tag = "5")]
    pub timestamp: Option<i64>,
    #[prost(message, optional, tag = "6")]
    pub driver_metadata: Option<OffloadDriverMetadata>,
    #[prost(message, repeated, tag = "7")]
    pub offload_segment: Vec<OffloadSegment>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OffloadSegment {
    #[prost(int64, optional, tag = "1")]
    pub uid_msb: Option<i64>,
    #[prost(int64, optional, tag = "2")]
    pub uid_lsb: Option<i64>,
    #[prost(bool, optional, tag = "3")]
    pub complete: Option<bool>,
    #[prost(int64, optional, tag = "4")]
    pub assigned_timestamp: Option<i64>,
    #[prost(int64, optional, tag = "5")]
    pub offloaded_timestamp: Option<i64>,
    #[prost(int64, optional, tag = "6")]
    pub end_entry_id: Option<i64>,
    #[prost(message, optional, tag = "7")]
    pub driver_metadata: Option<OffloadDriverMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OffloadDriverMetadata {
    #[prost(string, required, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub properties: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(string, required, tag = "1")]
    pub key: String,
    #[prost(string, required, tag = "2")]
    pub value: String,
}

/// Value of `/managed-ledgers/<name>/<cursor>`.
#[derive(Clone, PartialEq, Message)]
pub struct ManagedCursorInfo {
    /// -1: there is no cursor ledger and this message is the whole truth.
    #[prost(int64, required, tag = "1")]
    pub cursors_ledger_id: i64,
    #[prost(int64, optional, tag = "2")]
    pub mark_delete_ledger_id: Option<i64>,
    #[prost(int64, optional, tag = "3")]
    pub mark_delete_entry_id: Option<i64>,
    #[prost(message, repeated, tag = "4")]
    pub individual_deleted_messages: Vec<MessageRange>,
    #[prost(message, repeated, tag = "5")]
    pub properties: Vec<LongProperty>,
    /// Unix milliseconds. Deprecated, yet 4.0 still writes it.
    #[prost(int64, optional, tag = "6")]
    pub last_active: Option<i64>,
    #[prost(message, repeated, tag = "7")]
    pub batched_entry_deletion_index_info: Vec<BatchedEntryDeletionIndexInfo>,
    #[prost(message, repeated, tag = "8")]
    pub cursor_properties: Vec<StringProperty>,
}

/// An entry of a cursor ledger. The mark-delete position is exact in every entry.
#[derive(Clone, PartialEq, Message)]
pub struct PositionInfo {
    #[prost(int64, required, tag = "1")]
    pub ledger_id: i64,
    #[prost(int64, required, tag = "2")]
    pub entry_id: i64,
    #[prost(message, repeated, tag = "3")]
    pub individual_deleted_messages: Vec<MessageRange>,
    #[prost(message, repeated, tag = "4")]
    pub properties: Vec<LongProperty>,
    #[prost(message, repeated, tag = "5")]
    pub batched_entry_deletion_index_info: Vec<BatchedEntryDeletionIndexInfo>,
    #[prost(message, repeated, tag = "6")]
    pub individual_deleted_message_ranges: Vec<LongListMap>,
    /// Ours. Absent: this entry is a full snapshot, as the original writes it. Present: see [`CursorDelta`].
    #[prost(message, optional, tag = "48101")]
    pub delta: Option<CursorDelta>,
}

/// What was acknowledged since the entry before this one of the same cursor ledger.
///
/// The state of a cursor is the union of the entries from [`CursorDelta::snapshot`] up to the last one, with the last
/// one's mark-delete position. A reader that skips this field sees fewer acknowledgements: it redelivers, it never
/// loses.
#[derive(Clone, PartialEq, Message)]
pub struct CursorDelta {
    /// Entry id, in this cursor ledger, where the last complete snapshot begins.
    #[prost(int64, required, tag = "1")]
    pub snapshot: i64,
    /// Triples: ledger id, first entry, last entry (inclusive), acknowledged since the entry before.
    #[prost(int64, repeated, packed = "true", tag = "2")]
    pub acked: Vec<i64>,
    /// Batches that became partly acknowledged, or more so.
    #[prost(message, repeated, tag = "3")]
    pub partial: Vec<BatchedEntryDeletionIndexInfo>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct NestedPositionInfo {
    #[prost(int64, required, tag = "1")]
    pub ledger_id: i64,
    #[prost(int64, required, tag = "2")]
    pub entry_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct MessageRange {
    /// Exclusive.
    #[prost(message, required, tag = "1")]
    pub lower_endpoint: NestedPositionInfo,
    /// Inclusive.
    #[prost(message, required, tag = "2")]
    pub upper_endpoint: NestedPositionInfo,
}

#[derive(Clone, PartialEq, Message)]
pub struct BatchedEntryDeletionIndexInfo {
    #[prost(message, required, tag = "1")]
    pub position: NestedPositionInfo,
    /// Bit = 1: the message is not yet acknowledged. Missing words are zero.
    #[prost(int64, repeated, packed = "false", tag = "2")]
    pub delete_set: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LongListMap {
    #[prost(int64, required, tag = "1")]
    pub key: i64,
    #[prost(int64, repeated, packed = "false", tag = "2")]
    pub values: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LongProperty {
    #[prost(string, required, tag = "1")]
    pub name: String,
    #[prost(int64, required, tag = "2")]
    pub value: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct StringProperty {
    #[prost(string, required, tag = "1")]
    pub name: String,
    #[prost(string, required, tag = "2")]
    pub value: String,
}

/// A node compressed by the original starts with this (`managedLedgerInfoCompressionType` and its cursor twin).
pub const COMPRESSED_MAGIC: [u8; 2] = [0x47, 0x78];

/// Why a node of `/managed-ledgers` or a cursor ledger's entry cannot be understood.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FormatError {
    #[error("the node is compressed (managedLedgerInfoCompressionType), which is not supported yet: set it to NONE")]
    Compressed,
    #[error("cannot decode the protobuf message")]
    Protobuf(#[from] prost::DecodeError),
}

/// Decodes a node's value.
pub fn decode_node<M: Message + Default>(value: &[u8]) -> Result<M, FormatError> {
    if value.starts_with(&COMPRESSED_MAGIC) {
        return Err(FormatError::Compressed);
    }
    Ok(M::decode(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden<M: Message + Default + PartialEq + std::fmt::Debug>(hex: &str, expected: M) {
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        assert_eq!(decode_node::<M>(&bytes).unwrap(), expected);
        assert_eq!(expected.encode_to_vec(), bytes, "{expected:?}");
    }

    fn nested(ledger_id: i64, entry_id: i64) -> NestedPositionInfo {
        NestedPositionInfo { ledger_id, entry_id }
    }

    fn open(ledger_id: i64) -> LedgerInfo {
        LedgerInfo { ledger_id, timestamp: Some(0), ..LedgerInfo::default() }
    }

    /// Bytes written by the original, 4.0.1.
    #[test]
    fn golden_bytes_of_the_original() {
        golden("0a0408052000", ManagedLedgerInfo { ledger_info: vec![open(5)], ..Default::default() });
        let closed = LedgerInfo {
            ledger_id: 5,
            entries: Some(10),
            size: Some(1604),
            timestamp: Some(1796005004415),
            offload_context: None,
        };
        golden(
            "0a0e0805100a18c40c20ff88f6d1a2340a04083b2000",
            ManagedLedgerInfo { ledger_info: vec![closed, open(59)], ..Default::default() },
        );
        golden(
            "0a04080f20001204080f1000",
            ManagedLedgerInfo {
                ledger_info: vec![open(15)],
                terminated_position: Some(nested(15, 0)),
                properties: vec![],
            },
        );
        golden(
            "0809100518ffffffffffffffffff012a220a1e70756c7361722e7265706c6963617465642e737562736372697074696f6e100130eaaae9d1a234",
            ManagedCursorInfo {
                cursors_ledger_id: 9,
                mark_delete_ledger_id: Some(5),
                mark_delete_entry_id: Some(-1),
                properties: vec![LongProperty { name: "pulsar.replicated.subscription".into(), value: 1 }],
                last_active: Some(1796004795754),
                ..Default::default()
            },
        );
        golden(
            "08ffffffffffffffffff01100518ffffffffffffffffff01309480f6d1a2343a090a040805100010c9043a090a040805100110c407",
            ManagedCursorInfo {
                cursors_ledger_id: -1,
                mark_delete_ledger_id: Some(5),
                mark_delete_entry_id: Some(-1),
                last_active: Some(1796005003284),
                batched_entry_deletion_index_info: vec![
                    BatchedEntryDeletionIndexInfo { position: nested(5, 0), delete_set: vec![0x249] },
                    BatchedEntryDeletionIndexInfo { position: nested(5, 1), delete_set: vec![0x3c4] },
                ],
                ..Default::default()
            },
        );
        golden(
            "08ffffffffffffffffff01101418092a180a14436f6d706163746564546f7069634c6564676572101530f1b5e9d1a234",
            ManagedCursorInfo {
                cursors_ledger_id: -1,
                mark_delete_ledger_id: Some(20),
                mark_delete_entry_id: Some(9),
                properties: vec![LongProperty { name: "CompactedTopicLedger".into(), value: 21 }],
                last_active: Some(1796004797169),
                ..Default::default()
            },
        );
        golden("080210ffffffffffffffffff01", PositionInfo { ledger_id: 2, entry_id: -1, ..Default::default() });
        golden("08021004", PositionInfo { ledger_id: 2, entry_id: 4, ..Default::default() });
    }

    #[test]
    fn our_delta_field_is_skipped_by_a_reader_that_does_not_know_it() {
        #[derive(Clone, PartialEq, Message)]
        struct Original {
            #[prost(int64, required, tag = "1")]
            ledger_id: i64,
            #[prost(int64, required, tag = "2")]
            entry_id: i64,
        }
        let delta = CursorDelta { snapshot: 3, acked: vec![7, 1, 2], partial: vec![] };
        let ours = PositionInfo { ledger_id: 7, entry_id: 0, delta: Some(delta), ..Default::default() };
        let bytes = ours.encode_to_vec();
        assert_eq!(Original::decode(&bytes[..]).unwrap(), Original { ledger_id: 7, entry_id: 0 });
        assert_eq!(PositionInfo::decode(&bytes[..]).unwrap(), ours);
    }

    #[test]
    fn a_compressed_node_is_refused_by_name() {
        assert!(matches!(decode_node::<ManagedLedgerInfo>(&[0x47, 0x78, 0]), Err(FormatError::Compressed)));
    }
}
