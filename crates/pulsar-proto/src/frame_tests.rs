use proptest::prelude::*;

use super::*;
use crate::proto::{CommandFlow, CommandPing, CommandSend, MessageMetadata};

fn send_frame(payload: &[u8]) -> BytesMut {
    let mut frame = BytesMut::new();
    let send = CommandSend { producer_id: 1, sequence_id: 2, ..Default::default() };
    encode_payload_command(send, payload.len(), &mut frame);
    frame.extend_from_slice(payload);
    frame
}

fn decode(frame: &[u8]) -> Result<Option<Frame>, FrameError> {
    FrameDecoder::new(0).decode(&mut BytesMut::from(frame))
}

/// Frames longer than the limit are refused as soon as their size is there, and one of just that size is read.
#[test]
fn limit() {
    let decoder = FrameDecoder::new(1000);
    let limit_bytes = 1000 + FRAME_OVERHEAD_BYTES;
    assert_eq!(decoder.missing(&(limit_bytes as u32).to_be_bytes()), Ok(limit_bytes));
    let too_large = FrameError::TooLarge { total_bytes: limit_bytes + 1, limit_bytes };
    let size = (limit_bytes as u32 + 1).to_be_bytes();
    assert_eq!(decoder.missing(&size), Err(too_large.clone()));
    assert_eq!(decoder.decode(&mut BytesMut::from(&size[..])), Err(too_large));

    let overhead = send_frame(&[]).len() - SIZE_LEN;
    assert!(matches!(decoder.decode(&mut send_frame(&vec![0; limit_bytes - overhead])), Ok(Some(_))));
    assert!(decoder.decode(&mut send_frame(&vec![0; limit_bytes - overhead + 1])).is_err());
}

#[test]
fn sizes_that_contradict_each_other() {
    let bad = |total_bytes, command_bytes| Err(FrameError::BadSizes { total_bytes, command_bytes });
    assert_eq!(decode(&[0, 0, 0, 0]), bad(0, 0));
    assert_eq!(decode(&[0, 0, 0, 3, 0, 0, 0]), bad(3, 0));
    assert_eq!(decode(&[0, 0, 0, 4, 0, 0, 0, 1]), bad(4, 1));
    assert_eq!(decode(&[0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]), bad(4, 0xffff_ffff));
    assert_eq!(decode(&[0, 0, 0, 4, 0, 0, 0, 0]), Err(FrameError::Command(DecodeError::NoType)));
}

#[test]
fn bytes_after_a_simple_command_are_skipped() {
    let mut buffer = BytesMut::new();
    encode_payload_command(CommandPing {}, 3, &mut buffer);
    buffer.extend_from_slice(b"abc");
    encode_command(CommandFlow { consumer_id: 1, message_permits: 2 }, &mut buffer);
    let decoder = FrameDecoder::new(0);
    let commands: Vec<Command> =
        std::iter::from_fn(|| decoder.decode(&mut buffer).unwrap()).map(|frame| frame.command).collect();
    let expected: [Command; 2] = [CommandPing {}.into(), CommandFlow { consumer_id: 1, message_permits: 2 }.into()];
    assert_eq!(commands, expected);
}

/// Hex of a payload block: whether its checksum holds, its metadata, its payload.
#[test]
fn payload_blocks() {
    for (hex, expected) in [
        ("0000000161626364", "whole, a, bcd"),
        ("0e01cc48cdbe0000000161626364", "damaged"),
        ("", "whole, no metadata"),
        ("0000", "whole, no metadata"),
        ("000000056162", "whole, no metadata"),
        ("ffffffff6162", "whole, no metadata"),
        ("0e01", "no checksum"),
        ("0e01000000", "no checksum"),
        ("0e0100000000", "whole, no metadata"),
    ] {
        let bytes: Bytes =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let seen = match PayloadBlock::parse(bytes) {
            Err(BlockError::NoChecksum { .. }) => "no checksum".to_owned(),
            Err(error) => panic!("{error}"),
            Ok(block) => match (block.verify(), block.metadata(), block.payload()) {
                (Err(_), _, _) => "damaged".to_owned(),
                (Ok(_), Ok(metadata), Ok(payload)) => {
                    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                    format!("whole, {}, {}", text(metadata), text(&payload))
                }
                (Ok(_), _, _) => "whole, no metadata".to_owned(),
            },
        };
        assert_eq!(seen, expected, "{hex}");
    }
}

proptest! {
    /// However the bytes arrive, the same frames come out, and `missing` never asks for more than the next frame.
    #[test]
    fn arrival_does_not_matter(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..5), step in 1usize..40) {
        let blocks: Vec<PayloadBlock> =
            payloads.iter().map(|payload| PayloadBlock::build(&MessageMetadata::default(), payload)).collect();
        let stream: Vec<u8> = blocks.iter().flat_map(|block| send_frame(block.bytes())).collect();
        let decoder = FrameDecoder::new(1000);
        let mut buffer = BytesMut::new();
        let mut seen = Vec::new();
        for piece in stream.chunks(step) {
            buffer.extend_from_slice(piece);
            while let Some(frame) = decoder.decode(&mut buffer).unwrap() {
                seen.push(frame.payload.unwrap());
            }
            prop_assert!(decoder.missing(&buffer).unwrap() > 0);
        }
        prop_assert!(buffer.is_empty());
        prop_assert_eq!(seen, blocks);
    }

    #[test]
    fn checksum_of_the_whole_is_combined(payload: Vec<u8>, at: prop::sample::Index, bit in 0..8) {
        let block = PayloadBlock::build(&MessageMetadata::default(), &payload);
        prop_assert_eq!(block.verify(), Ok(crc32c::crc32c(block.bytes())));
        let without = PayloadBlock::parse(block.without_checksum()).unwrap();
        prop_assert_eq!(without.verify(), Ok(crc32c::crc32c(without.bytes())));
        prop_assert_eq!(without.payload(), block.payload());

        // Any flipped bit behind the magic is seen.
        let mut damaged = block.bytes().to_vec();
        let at = CHECKSUM_MAGIC.len() + at.index(damaged.len() - CHECKSUM_MAGIC.len());
        damaged[at] ^= 1u8 << bit;
        prop_assert!(PayloadBlock::parse(damaged.into()).unwrap().verify().is_err());
    }
}
