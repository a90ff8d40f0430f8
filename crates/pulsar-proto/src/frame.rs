//! Frames: where a command begins and ends, and the payload block behind SEND and MESSAGE.
//!
//! | bytes | content | checksummed |
//! |--|--|--|
//! | 4 | total size (of what follows) | |
//! | 4 | command size | |
//! | n | `BaseCommand` | |
//! | 2 | magic `0e01`, absent from very old clients together with the checksum | no |
//! | 4 | CRC32C | no |
//! | 4 | metadata size | yes |
//! | m | `MessageMetadata` | yes |
//! | … | payload | yes |
//!
//! The last five rows are the [`PayloadBlock`]: stored verbatim as the entry, sent back verbatim in MESSAGE.

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};

use crate::command::{self, Command, DecodeError};

pub use crate::command::encode_command;
pub use crate::wire::{MessageHeader, SendReceipt, encode_message_header, encode_send_receipt};

/// What a frame may hold beyond the largest message: its command and sizes.
pub const FRAME_OVERHEAD_BYTES: usize = 10 * 1024;

/// The default of `maxMessageSize`, metadata and payload together.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 5 * 1024 * 1024;

/// Begins a payload block that carries a checksum.
pub const CHECKSUM_MAGIC: [u8; 2] = [0x0e, 0x01];

/// One frame of a connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    pub command: Command,
    /// Only SEND and MESSAGE have one, and they always do. In a MESSAGE it may begin with the broker's prefix
    /// ([`crate::entry_metadata`]) where the client asked for it: strip that and parse the rest again.
    pub payload: Option<PayloadBlock>,
}

/// Why the bytes of a connection are not a frame. There is no way to find the next one: close the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("frame of {total_bytes} bytes is larger than the limit of {limit_bytes}")]
    TooLarge { total_bytes: usize, limit_bytes: usize },
    #[error("frame of {total_bytes} bytes cannot hold a command of {command_bytes} bytes")]
    BadSizes { total_bytes: usize, command_bytes: usize },
    #[error(transparent)]
    Command(#[from] DecodeError),
    #[error(transparent)]
    Block(#[from] BlockError),
}

/// Cuts frames off a read buffer.
#[derive(Debug, Clone, Copy)]
pub struct FrameDecoder {
    limit_bytes: usize,
}

impl FrameDecoder {
    /// `max_message_bytes`: the largest metadata plus payload (`maxMessageSize`).
    pub fn new(max_message_bytes: usize) -> Self {
        FrameDecoder { limit_bytes: max_message_bytes.saturating_add(FRAME_OVERHEAD_BYTES) }
    }

    /// How many bytes must be read before the next frame is whole; 0 if it is.
    ///
    /// The size a peer announces is checked before anybody reserves room for it.
    /// # Errors
    /// [`FrameError::TooLarge`].
    pub fn missing(&self, buffer: &[u8]) -> Result<usize, FrameError> {
        match self.total(buffer)? {
            Some(total) => Ok((SIZE_LEN + total).saturating_sub(buffer.len())),
            None => Ok(SIZE_LEN - buffer.len()),
        }
    }

    /// Takes the next whole frame off `buffer`, or leaves everything as it is and returns `None`.
    ///
    /// The payload block is a slice of the buffer (it pins it); the command is copied out.
    pub fn decode(&self, buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(total) = self.total(buffer)? else { return Ok(None) };
        if buffer.len() < SIZE_LEN + total {
            return Ok(None);
        }
        let command_bytes = match buffer.get(SIZE_LEN..SIZE_LEN + total).and_then(|frame| frame.first_chunk()) {
            Some(size) => u32::from_be_bytes(*size) as usize,
            None => return Err(FrameError::BadSizes { total_bytes: total, command_bytes: 0 }),
        };
        let block_at = SIZE_LEN + SIZE_LEN + command_bytes;
        if block_at > SIZE_LEN + total {
            return Err(FrameError::BadSizes { total_bytes: total, command_bytes });
        }
        let command = command::decode_command(&buffer[SIZE_LEN + SIZE_LEN..block_at])?;
        let payload = match command {
            Command::Send(_) | Command::Message(_) => {
                let mut frame = buffer.split_to(SIZE_LEN + total);
                frame.advance(block_at);
                Some(PayloadBlock::parse(frame.freeze())?)
            }
            // Whatever follows another command has no meaning; the original skips it, too.
            _ => {
                buffer.advance(SIZE_LEN + total);
                None
            }
        };
        Ok(Some(Frame { command, payload }))
    }

    fn total(&self, buffer: &[u8]) -> Result<Option<usize>, FrameError> {
        let Some(size) = buffer.first_chunk() else { return Ok(None) };
        let total_bytes = u32::from_be_bytes(*size) as usize;
        if total_bytes > self.limit_bytes {
            return Err(FrameError::TooLarge { total_bytes, limit_bytes: self.limit_bytes });
        }
        Ok(Some(total_bytes))
    }
}

const SIZE_LEN: usize = 4;

/// The bytes of one entry as a client sends them: `[0e01 crc] metadata size, metadata, payload`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadBlock {
    bytes: Bytes,
    checksum: Option<u32>,
}

/// Why bytes are not a payload block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    #[error("payload of {bytes} bytes is too short for its checksum")]
    NoChecksum { bytes: usize },
    #[error("payload of {bytes} bytes is too short for its metadata")]
    NoMetadata { bytes: usize },
}

/// The client's checksum is not that of the bytes that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("checksum of the message is {computed:08x}, its sender computed {expected:08x}")]
pub struct ChecksumMismatch {
    pub expected: u32,
    pub computed: u32,
}

impl PayloadBlock {
    /// Looks for a checksum. The metadata size is not looked at: it may be damaged, and the checksum must tell first.
    pub fn parse(bytes: Bytes) -> Result<Self, BlockError> {
        let checksum = match bytes.strip_prefix(&CHECKSUM_MAGIC) {
            Some(rest) => {
                let crc = rest.first_chunk().ok_or(BlockError::NoChecksum { bytes: bytes.len() })?;
                Some(u32::from_be_bytes(*crc))
            }
            None => None,
        };
        Ok(PayloadBlock { bytes, checksum })
    }

    /// Builds the block of a message, with a checksum.
    pub fn build(metadata: &crate::proto::MessageMetadata, payload: &[u8]) -> Self {
        use prost::Message as _;
        let metadata_len = metadata.encoded_len();
        let mut bytes = BytesMut::with_capacity(CHECKSUM_LEN + SIZE_LEN + metadata_len + payload.len());
        bytes.extend_from_slice(&CHECKSUM_MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        let size = u32::try_from(metadata_len).expect("message metadata is far below 4 GiB");
        bytes.extend_from_slice(&size.to_be_bytes());
        metadata.encode_raw(&mut bytes);
        bytes.extend_from_slice(payload);
        let checksum = crc32c::crc32c(&bytes[CHECKSUM_LEN..]);
        bytes[CHECKSUM_MAGIC.len()..CHECKSUM_LEN].copy_from_slice(&checksum.to_be_bytes());
        PayloadBlock { bytes: bytes.freeze(), checksum: Some(checksum) }
    }

    /// Everything, verbatim.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// What the sender says the CRC32C of metadata size, metadata and payload is.
    pub fn checksum(&self) -> Option<u32> {
        self.checksum
    }

    /// Verifies the client's checksum, if there is one, and returns the CRC32C over the whole of [`bytes`](Self::bytes).
    ///
    /// The one pass over the payload: the checksum of the whole is combined from that of the parts.
    pub fn verify(&self) -> Result<u32, ChecksumMismatch> {
        let Some(expected) = self.checksum else { return Ok(crc32c::crc32c(&self.bytes)) };
        let (head, covered) = self.bytes.split_at(CHECKSUM_LEN);
        let computed = crc32c::crc32c(covered);
        if computed != expected {
            return Err(ChecksumMismatch { expected, computed });
        }
        Ok(checksum::join(crc32c::crc32c(head), computed, covered.len()))
    }

    /// Where the encoded `MessageMetadata` lies within [`bytes`](Self::bytes).
    ///
    /// # Errors
    /// [`BlockError::NoMetadata`]: the sizes are wrong, although the checksum may be right.
    pub fn metadata_range(&self) -> Result<Range<usize>, BlockError> {
        let error = BlockError::NoMetadata { bytes: self.bytes.len() };
        let size_at = self.checksum.map_or(0, |_| CHECKSUM_LEN);
        let Some(size) = self.bytes[size_at..].first_chunk() else { return Err(error) };
        let start = size_at + SIZE_LEN;
        let end = start + u32::from_be_bytes(*size) as usize;
        if end > self.bytes.len() { Err(error) } else { Ok(start..end) }
    }

    /// The encoded `MessageMetadata`.
    pub fn metadata(&self) -> Result<&[u8], BlockError> {
        Ok(&self.bytes[self.metadata_range()?])
    }

    /// What follows the metadata: the message or batch, perhaps compressed, perhaps encrypted.
    pub fn payload(&self) -> Result<Bytes, BlockError> {
        Ok(self.bytes.slice(self.metadata_range()?.end..))
    }

    /// Without magic and checksum, for consumers that speak a protocol version below 11.
    pub fn without_checksum(&self) -> Bytes {
        self.bytes.slice(self.checksum.map_or(0, |_| CHECKSUM_LEN)..)
    }
}

const CHECKSUM_LEN: usize = CHECKSUM_MAGIC.len() + 4;

/// Appends everything of a SEND or MESSAGE frame that comes before its payload block.
pub fn encode_payload_command(command: impl Into<Command>, payload_len: usize, out: &mut BytesMut) {
    let start = out.len();
    encode_command(command, out);
    let total = out.len() - start - SIZE_LEN + payload_len;
    let total = u32::try_from(total).expect("an entry is far below 4 GiB");
    out[start..start + SIZE_LEN].copy_from_slice(&total.to_be_bytes());
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
