//! Every reader of the crate, fed with one input. Used by the fuzzer and by `tests/hostile.rs`.
#![allow(dead_code, reason = "the fuzzer needs no valid input")]

use bytes::{Bytes, BytesMut};

use pulsar_proto::batch::BatchReader;
use pulsar_proto::command::decode_command;
use pulsar_proto::compression::{compress, decompress};
use pulsar_proto::frame::{encode_command, encode_payload_command};
use pulsar_proto::message_metadata::MetadataPeek;
use pulsar_proto::proto::{CommandAck, CommandSend, CompressionType, KeyValue, MessageIdData, MessageMetadata};
use pulsar_proto::{FrameDecoder, MessageId, NamespaceName, PayloadBlock, TopicName, entry_metadata};

/// The limit that is given to everything that takes one.
pub(crate) const LIMIT_BYTES: usize = 1 << 16;

/// The first byte of an input that is decompressed; see [`compressed`].
pub(crate) const DECOMPRESS: u8 = 4;

const CODECS: [CompressionType; 4] =
    [CompressionType::Lz4, CompressionType::Zlib, CompressionType::Zstd, CompressionType::Snappy];

/// The first byte says what the others are read as.
pub(crate) fn read_everything(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 8 {
        0 => read_frames(bytes),
        1 => drop(decode_command(bytes)),
        2 => read_entry(bytes),
        3 => drop(BatchReader::new(Bytes::copy_from_slice(bytes), u32::MAX).collect::<Vec<_>>()),
        DECOMPRESS => read_compressed(bytes),
        5 => drop(MessageId::from_bytes(bytes)),
        6 => {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let _ = (TopicName::parse(text), NamespaceName::parse(text), text.parse::<MessageId>());
            let _ = TopicName::from_managed_ledger_name(text);
        }
        _ => {
            if let Ok(peek) = MetadataPeek::parse(bytes) {
                let _ = (peek.sticky_key(), peek.messages());
            }
        }
    }
}

fn read_frames(bytes: &[u8]) {
    let decoder = FrameDecoder::new(LIMIT_BYTES);
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some(frame)) = decoder.decode(&mut buffer) {
        if let Some(block) = frame.payload {
            read_block(&block);
        }
    }
    if let Ok(missing) = decoder.missing(&buffer) {
        assert!(missing <= LIMIT_BYTES + (1 << 14), "the limit bounds what may be asked for");
    }
}

fn read_entry(bytes: &[u8]) {
    let entry = Bytes::copy_from_slice(bytes);
    let _ = entry_metadata::peek(&entry);
    if let Ok(Ok(block)) = entry_metadata::strip(entry).map(PayloadBlock::parse) {
        read_block(&block);
    }
}

fn read_block(block: &PayloadBlock) {
    let _ = block.verify();
    let _ = (block.payload(), block.without_checksum());
    if let Ok(metadata) = block.metadata() {
        let _ = MetadataPeek::parse(metadata);
    }
}

/// Codec, two bytes of length, compressed bytes.
fn read_compressed(bytes: &[u8]) {
    let [codec, high, low, compressed @ ..] = bytes else { return };
    let uncompressed_bytes = usize::from(u16::from_be_bytes([*high, *low]));
    let codec = CODECS[usize::from(codec % 4)];
    let _ = decompress(codec, &Bytes::copy_from_slice(compressed), uncompressed_bytes, LIMIT_BYTES);
}

/// Input for the kind [`DECOMPRESS`].
pub(crate) fn compressed(codec: usize, plain: Vec<u8>) -> Vec<u8> {
    let mut input = vec![codec as u8];
    input.extend_from_slice(&(plain.len() as u16).to_be_bytes());
    input.extend_from_slice(&compress(CODECS[codec], &plain.into()));
    input
}

/// A frame with something in every corner: a SEND with its payload, or an ACK.
pub(crate) fn valid_frame(send: bool) -> Vec<u8> {
    let mut frame = BytesMut::new();
    let message_id = MessageIdData { ledger_id: 5, entry_id: 6, ack_set: vec![-1, 3], ..Default::default() };
    if send {
        let metadata = MessageMetadata {
            producer_name: "producer".to_owned(),
            sequence_id: 7,
            publish_time: 1_700_000_000_000,
            properties: vec![KeyValue { key: "k".to_owned(), value: "v".to_owned() }],
            partition_key: Some("key".to_owned()),
            num_messages_in_batch: Some(1),
            ..Default::default()
        };
        let block = PayloadBlock::build(&metadata, b"hello");
        let send =
            CommandSend { producer_id: 3, sequence_id: 7, message_id: Some(message_id.into()), ..Default::default() };
        encode_payload_command(send, block.bytes().len(), &mut frame);
        frame.extend_from_slice(block.bytes());
    } else {
        let chunked = MessageIdData { first_chunk_message_id: Some(message_id.clone().into()), ..message_id.clone() };
        encode_command(
            CommandAck { consumer_id: 1, message_id: vec![message_id, chunked], ..Default::default() },
            &mut frame,
        );
    }
    frame.to_vec()
}
