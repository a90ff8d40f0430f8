use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::proto::{EncryptionKeys, KeyValue, MessageMetadata};

prop_compose! {
    fn metadata_without_optionals()(
        producer_name: String, sequence_id: u64, publish_time: u64, replicated_from: Option<String>,
        partition_key: Option<String>, partition_key_b64_encoded: Option<bool>, ordering_key: Option<Vec<u8>>,
        compression in prop::option::of(0..=4), uncompressed_size: Option<u32>, num_messages_in_batch: Option<i32>,
    ) -> MessageMetadata {
        MessageMetadata {
            producer_name, sequence_id, publish_time, replicated_from, partition_key, partition_key_b64_encoded,
            ordering_key: ordering_key.map(Into::into), compression, uncompressed_size, num_messages_in_batch,
            properties: vec![KeyValue { key: "k".to_owned(), value: "v".to_owned() }],
            ..Default::default()
        }
    }
}

prop_compose! {
    fn metadata()(
        base in metadata_without_optionals(), deliver_at_time: Option<i64>, marker_type: Option<i32>,
        event_time: Option<u64>, txnid_least_bits: Option<u64>, txnid_most_bits: Option<u64>,
        highest_sequence_id: Option<u64>, null_value: Option<bool>, uuid: Option<String>, chunk_id: Option<i32>,
        num_chunks_from_msg: Option<i32>, encrypted: bool,
    ) -> MessageMetadata {
        let key = EncryptionKeys { key: "k".to_owned(), value: vec![1].into(), metadata: vec![] };
        MessageMetadata {
            deliver_at_time, marker_type, event_time, txnid_least_bits, txnid_most_bits, highest_sequence_id, null_value,
            uuid, chunk_id, num_chunks_from_msg, encryption_keys: if encrypted { vec![key] } else { vec![] },
            ..base
        }
    }
}

proptest! {
    #[test]
    fn peek_is_what_the_generated_code_reads(metadata in metadata()) {
        let encoded = metadata.encode_to_vec();
        let expected = MetadataPeek {
            producer_name: &metadata.producer_name,
            sequence_id: metadata.sequence_id,
            highest_sequence_id: metadata.highest_sequence_id,
            publish_time_ms: metadata.publish_time,
            event_time_ms: metadata.event_time,
            num_messages_in_batch: metadata.num_messages_in_batch,
            partition_key: metadata.partition_key.as_deref(),
            partition_key_b64_encoded: metadata.partition_key_b64_encoded(),
            ordering_key: metadata.ordering_key.as_deref(),
            deliver_at_time_ms: metadata.deliver_at_time,
            marker_type: metadata.marker_type,
            txnid_least_bits: metadata.txnid_least_bits,
            txnid_most_bits: metadata.txnid_most_bits,
            replicated_from: metadata.replicated_from.as_deref(),
            encrypted: !metadata.encryption_keys.is_empty(),
            compression: metadata.compression(),
            uncompressed_size_bytes: metadata.uncompressed_size(),
            null_value: metadata.null_value(),
            schema_version: metadata.schema_version.as_deref(),
            uuid: metadata.uuid.as_deref(),
            chunk_id: metadata.chunk_id,
            num_chunks_from_msg: metadata.num_chunks_from_msg,
        };
        prop_assert_eq!(MetadataPeek::parse(&encoded), Ok(expected));
    }
}

#[test]
fn required_fields() {
    let no = |field| Err(MetadataError::NoField { field });
    assert_eq!(MetadataPeek::parse(b""), no("producer_name"));
    assert_eq!(MetadataPeek::parse(b"\x0a\x01p"), no("sequence_id"));
    assert_eq!(MetadataPeek::parse(b"\x0a\x01p\x10\x07"), no("publish_time"));
    assert_eq!(MetadataPeek::parse(b"\x0a\x01p\x10\x07\x18\x01").map(|peek| peek.sequence_id), Ok(7));
    assert_eq!(MetadataPeek::parse(b"\x0a\x01\xff"), Err(WireError::NotUtf8 { number: 1 }.into()));
}

#[test]
fn sticky_keys() {
    let plain = MetadataPeek { producer_name: "p", sequence_id: 7, ..Default::default() };
    let keyed = MetadataPeek { partition_key: Some("a2V5"), ..plain };
    let encoded = MetadataPeek { partition_key_b64_encoded: true, ..keyed };
    for (peek, key) in [
        (plain, "p-7"),
        (MetadataPeek { sequence_id: u64::MAX, ..plain }, "p--1"),
        (keyed, "a2V5"),
        (encoded, "key"),
        (MetadataPeek { partition_key: Some("a2V5LQ=="), ..encoded }, "key-"),
        (MetadataPeek { partition_key: Some("a2V5LTE="), ..encoded }, "key-1"),
        (MetadataPeek { partition_key: Some("a2V5LTE"), ..encoded }, "key-1"),
        (MetadataPeek { partition_key: Some(""), ..encoded }, ""),
        (MetadataPeek { partition_key: Some("a2V5L"), ..encoded }, "a2V5L"),
        (MetadataPeek { partition_key: Some("?"), ..encoded }, "?"),
        (MetadataPeek { ordering_key: Some(b"order"), ..encoded }, "order"),
    ] {
        assert_eq!(peek.sticky_key(), key.as_bytes());
    }
}

#[test]
fn counts() {
    for (num_messages_in_batch, messages) in [(None, 1), (Some(1), 1), (Some(9), 9), (Some(0), 1), (Some(-3), 1)] {
        let peek = MetadataPeek { num_messages_in_batch, ..Default::default() };
        assert_eq!((peek.messages(), peek.is_batch()), (messages, num_messages_in_batch.is_some()));
    }
}
