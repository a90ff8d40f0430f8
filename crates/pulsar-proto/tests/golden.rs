//! Bytes written by the classes of the original, version 4.0.1.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use bytes::{Bytes, BytesMut};

use pulsar_proto::batch::{BatchBuilder, BatchReader};
use pulsar_proto::compression::{compress, decompress};
use pulsar_proto::frame::{encode_command, encode_payload_command};
use pulsar_proto::message_metadata::MetadataPeek;
use pulsar_proto::proto::*;
use pulsar_proto::{Command, Frame, FrameDecoder, MessageId, PayloadBlock};

const MAX_MESSAGE_BYTES: usize = 5 * 1024 * 1024;

/// The command is written as those bytes, and read back from them.
fn check_command(command: impl Into<Command>, hex: &str) {
    let command = command.into();
    let mut written = BytesMut::new();
    encode_command(command.clone(), &mut written);
    assert_eq!(to_hex(&written), hex);
    let read = FrameDecoder::new(MAX_MESSAGE_BYTES).decode(&mut written).unwrap();
    assert_eq!(read, Some(Frame { command, payload: None }));
    assert!(written.is_empty());
}

#[test]
fn simple_commands() {
    check_command(
        CommandConnect {
            client_version: "X".to_owned(),
            auth_data: Some(Bytes::new()),
            protocol_version: Some(21),
            auth_method_name: Some("none".to_owned()),
            feature_flags: Some(FeatureFlags {
                supports_auth_refresh: Some(true),
                supports_broker_entry_metadata: Some(true),
                supports_partial_producer: Some(true),
                supports_get_partitioned_metadata_without_auto_creation: Some(true),
                ..Default::default()
            }),
            ..Default::default()
        },
        "0000001f0000001b080212170a01581a0020152a046e6f6e6552080801100118012801",
    );
    check_command(
        CommandConnected {
            server_version: "Pulsar Server4.0.1".to_owned(),
            protocol_version: Some(21),
            max_message_size: Some(5 * 1024 * 1024),
            feature_flags: Some(FeatureFlags {
                supports_topic_watchers: Some(true),
                supports_get_partitioned_metadata_without_auto_creation: Some(true),
                ..Default::default()
            }),
        },
        "000000290000002508031a210a1250756c73617220536572766572342e302e311015188080c002220420012801",
    );
    check_command(CommandFlow { consumer_id: 1, message_permits: 1000 }, "0000000d00000009080b5a05080110e807");
}

#[test]
fn send() {
    let hex = "000000270000000808063204080310070e015dbb2b140000000c0a017010071880d095ffbc3168656c6c6f";
    let send = CommandSend { producer_id: 3, sequence_id: 7, ..Default::default() };
    let metadata = MessageMetadata {
        producer_name: "p".to_owned(),
        sequence_id: 7,
        publish_time: 1_700_000_000_000,
        ..Default::default()
    };
    let block = PayloadBlock::build(&metadata, b"hello");
    assert_eq!(block.checksum(), Some(0x5dbb_2b14));
    let mut written = BytesMut::new();
    encode_payload_command(send.clone(), block.bytes().len(), &mut written);
    written.extend_from_slice(block.bytes());
    assert_eq!(to_hex(&written), hex);

    let frame = FrameDecoder::new(MAX_MESSAGE_BYTES).decode(&mut written).unwrap().unwrap();
    assert_eq!(frame.command, Command::Send(send));
    let block = frame.payload.unwrap();
    assert_eq!(to_hex(block.bytes()), hex[2 * (4 + 4 + 8)..]);
    assert_eq!(block.verify(), Ok(crc32c::crc32c(block.bytes())));
    assert_eq!(block.payload().unwrap(), &b"hello"[..]);
    let peek = MetadataPeek::parse(block.metadata().unwrap()).unwrap();
    assert_eq!((peek.producer_name, peek.sequence_id, peek.publish_time_ms), ("p", 7, 1_700_000_000_000));
    assert_eq!((peek.is_batch(), peek.messages()), (false, 1));
    assert_eq!(&peek.sticky_key()[..], b"p-7");
}

#[test]
fn batch() {
    let mut builder = BatchBuilder::new();
    builder.push(SingleMessageMetadata { partition_key: Some("k".to_owned()), ..Default::default() }, b"ab");
    builder.push(SingleMessageMetadata::default(), b"cd");
    let batch = builder.finish();
    assert_eq!(to_hex(&batch), "0000000512016b180261620000000218026364");
    let messages: Vec<_> = BatchReader::new(batch, 2).map(Result::unwrap).collect();
    let seen: Vec<_> = messages.iter().map(|m| (m.metadata.partition_key.as_deref(), &m.body[..])).collect();
    assert_eq!(seen, [(Some("k"), &b"ab"[..]), (None, &b"cd"[..])]);
}

#[test]
fn message_ids() {
    let batched = MessageId { ledger_id: 5, entry_id: 6, partition: 2, batch_index: 3 };
    assert_eq!(to_hex(&batched.to_bytes(10)), "0805100618022003300a");
    assert_eq!(to_hex(&MessageId::new(5, 6, -1).to_bytes(0)), "080510063000");
    assert_eq!(MessageId::from_bytes(&from_hex("0805100618022003300a")), Ok(batched));
    assert_eq!(MessageId::from_bytes(&from_hex("080510063000")), Ok(MessageId::new(5, 6, -1)));
}

#[test]
fn compressed_payloads() {
    let plain = Bytes::from("a".repeat(20) + &"b".repeat(20));
    for (codec, hex) in [
        (CompressionType::Lz4, "1f610100001a620100506262626262"),
        (CompressionType::Zlib, "789c4a4cc404495800000000ffff"),
        (CompressionType::Zstd, "28b52ffd24285d000018616162020020111ec00253ad8cb1"),
        (CompressionType::Snappy, "2800614a010000624a0100"),
    ] {
        let compressed = Bytes::from(from_hex(hex));
        assert_eq!(decompress(codec, &compressed, 40, 40).as_ref(), Ok(&plain), "{codec:?}");
        let ours = compress(codec, &plain);
        assert_eq!(decompress(codec, &ours, 40, 40).as_ref(), Ok(&plain), "{codec:?}");
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}
