//! Batches, built before the clock runs: only the metadata differs from one to the next.

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use pulsar_proto::batch::BatchBuilder;
use pulsar_proto::frame::{CHECKSUM_MAGIC, encode_payload_command};
use pulsar_proto::proto::{CommandSend, MessageMetadata, SingleMessageMetadata};

/// The payload of a batch and its checksum.
#[derive(Clone)]
pub(crate) struct Batch {
    pub(crate) messages: u64,
    pub(crate) payload: Bytes,
    payload_crc: u32,
}

impl Batch {
    /// `messages` times `size` bytes that no codec and no disk can shrink.
    pub(crate) fn new(messages: u32, size: u32) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut builder = BatchBuilder::new();
        for _ in 0..messages {
            let body: Vec<u8> = (0..size)
                .map(|_| {
                    // xorshift64
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 32) as u8
                })
                .collect();
            builder.push(SingleMessageMetadata::default(), &body);
        }
        let payload = builder.finish();
        let payload_crc = crc32c::crc32c(&payload);
        Batch { messages: u64::from(messages), payload, payload_crc }
    }

    /// Everything of a SEND frame that comes before the payload.
    ///
    /// `stamp_us` travels as the event time, which no server looks at.
    pub(crate) fn head(&self, first_sequence_id: u64, stamp_us: u64, out: &mut BytesMut) {
        let last = first_sequence_id + self.messages - 1;
        let count = Some(self.messages as i32);
        let metadata = MessageMetadata {
            producer_name: PRODUCER_NAME.to_owned(),
            sequence_id: first_sequence_id,
            highest_sequence_id: Some(last),
            publish_time: super::wall_clock_ms(),
            event_time: Some(stamp_us),
            num_messages_in_batch: count,
            uncompressed_size: u32::try_from(self.payload.len()).ok(),
            ..Default::default()
        };
        let metadata_len = metadata.encoded_len();
        let send = CommandSend {
            producer_id: super::connection::ID,
            sequence_id: first_sequence_id,
            highest_sequence_id: Some(last),
            num_messages: count,
            ..Default::default()
        };
        encode_payload_command(send, BLOCK_HEAD_LEN + metadata_len + self.payload.len(), out);
        out.extend_from_slice(&CHECKSUM_MAGIC);
        let crc_at = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(metadata_len as u32).to_be_bytes());
        metadata.encode_raw(out);
        let head_crc = crc32c::crc32c(&out[crc_at + 4..]);
        let whole = checksum::join(head_crc, self.payload_crc, self.payload.len());
        out[crc_at..crc_at + 4].copy_from_slice(&whole.to_be_bytes());
    }
}

/// Names of producers are unique within a topic, and every run has a topic of its own.
pub(crate) const PRODUCER_NAME: &str = "bench";

/// Magic, checksum, metadata size.
const BLOCK_HEAD_LEN: usize = 2 + 4 + 4;

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use pulsar_proto::batch::BatchReader;
    use pulsar_proto::frame::DEFAULT_MAX_MESSAGE_BYTES;
    use pulsar_proto::message_metadata::MetadataPeek;
    use pulsar_proto::{Command, FrameDecoder};

    use super::Batch;

    #[test]
    fn a_frame_is_one_that_servers_take() {
        let batch = Batch::new(3, 100);
        let mut bytes = BytesMut::new();
        batch.head(40, 77, &mut bytes);
        bytes.extend_from_slice(&batch.payload);
        let frame = FrameDecoder::new(DEFAULT_MAX_MESSAGE_BYTES).decode(&mut bytes).unwrap().unwrap();
        assert!(bytes.is_empty());
        let Command::Send(send) = frame.command else { panic!("not a SEND") };
        assert_eq!((send.sequence_id, send.highest_sequence_id(), send.num_messages()), (40, 42, 3));
        let block = frame.payload.unwrap();
        block.verify().unwrap();
        let metadata = MetadataPeek::parse(block.metadata().unwrap()).unwrap();
        assert_eq!((metadata.messages(), metadata.event_time_ms, metadata.sequence_id), (3, Some(77), 40));
        let bodies: Vec<_> =
            BatchReader::new(block.payload().unwrap(), 3).map(|message| message.unwrap().body).collect();
        assert!(bodies.iter().all(|body| body.len() == 100));
        assert_ne!(bodies[0], bodies[1]);
    }
}
