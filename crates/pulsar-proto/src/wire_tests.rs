use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::command::{Command, decode_command, encode_command};
use crate::frame::encode_payload_command;
use crate::proto::{BaseCommand, CommandMessage, CommandSendReceipt, KeyLongValue};

fn generated(command: impl Into<Command>, payload_len: usize) -> BytesMut {
    let mut out = BytesMut::new();
    encode_payload_command(command, payload_len, &mut out);
    out
}

prop_compose! {
    fn message_id(depth: u32)(
        ledger_id: u64, entry_id: u64, partition: Option<i32>, batch_index: Option<i32>, batch_size: Option<i32>,
        ack_set in prop::collection::vec(any::<i64>(), 0..4),
        first in if depth == 0 { prop::option::of(message_id(1).boxed()).boxed() } else { Just(None).boxed() },
    ) -> MessageIdData {
        let first_chunk_message_id = first.map(Box::new);
        MessageIdData { ledger_id, entry_id, partition, batch_index, batch_size, ack_set, first_chunk_message_id }
    }
}

prop_compose! {
    fn send()(
        producer_id: u64, sequence_id: u64, num_messages: Option<i32>, txnid_least_bits: Option<u64>,
        txnid_most_bits: Option<u64>, highest_sequence_id: Option<u64>, is_chunk: Option<bool>, marker: Option<bool>,
        message_id in prop::option::of(message_id(0)),
    ) -> CommandSend {
        let message_id = message_id.map(Box::new);
        CommandSend {
            producer_id, sequence_id, num_messages, txnid_least_bits, txnid_most_bits, highest_sequence_id, is_chunk, marker,
            message_id,
        }
    }
}

prop_compose! {
    fn ack()(
        consumer_id: u64, ack_type in 0..=1, message_id in prop::collection::vec(message_id(0), 0..4),
        validation_error in prop::option::of(0..=4), properties: Vec<(String, u64)>, txnid_least_bits: Option<u64>,
        txnid_most_bits: Option<u64>, request_id: Option<u64>,
    ) -> CommandAck {
        let properties = properties.into_iter().map(|(key, value)| KeyLongValue { key, value }).collect();
        CommandAck {
            consumer_id, ack_type, message_id, validation_error, properties, txnid_least_bits, txnid_most_bits, request_id,
        }
    }
}

proptest! {
    #[test]
    fn receipts_are_what_the_generated_code_writes(
        producer_id: u64, sequence_id: u64, highest_sequence_id: Option<u64>, ledger_id: u64, entry_id: u64,
    ) {
        let mut out = BytesMut::new();
        encode_send_receipt(&SendReceipt { producer_id, sequence_id, highest_sequence_id, ledger_id, entry_id }, &mut out);
        let message_id = Some(MessageIdData { ledger_id, entry_id, ..Default::default() });
        let receipt = CommandSendReceipt { producer_id, sequence_id, message_id, highest_sequence_id };
        prop_assert_eq!(out, generated(receipt, 0));
    }

    #[test]
    fn messages_are_what_the_generated_code_writes(
        consumer_id: u64, ledger_id: u64, entry_id: u64, partition in -1i32.., redelivery_count: u32,
        ack_set in prop::collection::vec(any::<i64>(), 0..200), consumer_epoch: Option<u64>, payload_len in 0usize..1 << 24,
    ) {
        let mut out = BytesMut::from(&b"before"[..]);
        let header = MessageHeader {
            consumer_id, ledger_id, entry_id, partition, redelivery_count, ack_set: &ack_set, consumer_epoch,
        };
        encode_message_header(&header, payload_len, &mut out);
        let partition = (partition >= 0).then_some(partition);
        let message_id = MessageIdData { ledger_id, entry_id, partition, ..Default::default() };
        let redelivery_count = (redelivery_count > 0).then_some(redelivery_count);
        let message = CommandMessage { consumer_id, message_id, redelivery_count, ack_set, consumer_epoch };
        prop_assert_eq!(&out[6..], generated(message, payload_len));
    }

    #[test]
    fn sends_are_what_the_generated_code_reads(send in send()) {
        check_reads(send.into())?;
    }

    #[test]
    fn acks_are_what_the_generated_code_reads(ack in ack()) {
        check_reads(ack.into())?;
    }

    #[test]
    fn flows_are_what_the_generated_code_reads(consumer_id: u64, message_permits: u32) {
        check_reads(CommandFlow { consumer_id, message_permits }.into())?;
    }

    /// Where both make something of damaged bytes, it is the same. (Ours wants required fields; the generated code does not.)
    #[test]
    fn damaged_commands(command in prop_oneof![send().prop_map(Command::from), ack().prop_map(Command::from)], at: prop::sample::Index, byte: u8) {
        let mut encoded = BytesMut::new();
        encode_command(command, &mut encoded);
        let mut encoded = encoded.split_off(8);
        let at = at.index(encoded.len());
        encoded[at] = byte;
        if let Ok(ours) = decode_command(&encoded) {
            // A `oneof` keeps whatever sub-message came last; we keep that of the type.
            if let Ok(BaseCommand { command: Some(theirs), .. }) = BaseCommand::decode(&encoded[..])
                && theirs.command_type() == ours.command_type()
            {
                prop_assert_eq!(ours, theirs);
            }
        }
    }

    #[test]
    fn varint_lengths(value: u64) {
        prop_assert_eq!(varint_len(value), prost::encoding::encoded_len_varint(value));
    }
}

fn check_reads(command: Command) -> Result<(), TestCaseError> {
    let encoded = BaseCommand { r#type: command.command_type() as i32, command: Some(command.clone()) }.encode_to_vec();
    prop_assert_eq!(decode_command(&encoded), Ok(command));
    Ok(())
}

/// Hex of a whole `BaseCommand`, and what becomes of it.
#[test]
fn hostile_commands() {
    for (hex, expected) in [
        ("", "command without a type"),
        ("5a05080110e807", "command without a type"),
        ("0863", "unknown command 99"),
        ("0829", "unknown command 41"),
        ("08ffffffffffffffffff01", "unknown command 18446744073709551615"),
        ("0806", "command Send without its sub-message"),
        ("08065a05080110e807", "command Send without its sub-message"),
        ("080612", "cannot parse a command: the message ends within a field"),
        ("08063202080310", "cannot parse a command: the message ends within a field"),
        ("080632020803", "CommandSend without the required field 2"),
        ("080b5a020801", "CommandFlow without the required field 2"),
        ("080a520408011001", "Ack"),
        ("080a520408011002", "CommandAck without the required field 2"),
        // SUBSCRIBE to topic "t" with subscription "s" of a type nobody knows, and with one.
        ("0804220c0a0174120173180920012801", "CommandSubscribe without the required field 3"),
        ("0804220c0a0174120173180120012801", "Subscribe"),
        ("08043001", "command Subscribe without its sub-message"),
        ("0804220e0a01741201731801200128014a00", "MessageIdData without the required field 1"),
        ("080422100a01741201731801200128014a020801", "MessageIdData without the required field 2"),
        // A PING whose type comes last, and one with an unknown field and an unknown group.
        ("9201000812", "Ping"),
        ("08129201020801fa3f0161fb3f0801fc3f", "Ping"),
        ("0812920100fb3f0801", "cannot parse a command: the message ends within a field"),
        ("0812920100fb3f0801ec3f", "cannot parse a command: field number or wire type is invalid"),
    ] {
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let seen = match decode_command(&bytes) {
            Ok(command) => format!("{:?}", command.command_type()),
            Err(error) => error.to_string(),
        };
        assert_eq!(seen, expected, "{hex}");
    }
}

#[test]
fn commands_are_small() {
    assert!(size_of::<Command>() <= 120, "{}", size_of::<Command>());
}
