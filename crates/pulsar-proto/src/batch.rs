//! The payload of a batch: records of (size, `SingleMessageMetadata`, message body).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message as _;

use crate::proto::SingleMessageMetadata;

/// Why a batch cannot be read any further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("batch ends within message {index}")]
    Truncated { index: u32 },
    #[error("cannot parse the metadata of message {index} of a batch: {reason}")]
    Malformed { index: u32, reason: String },
}

/// One message of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchedMessage {
    pub metadata: SingleMessageMetadata,
    /// A slice of the batch.
    pub body: Bytes,
}

/// Iterates over the messages of a batch, decrypted and decompressed. Ends after the first error.
#[derive(Debug, Clone)]
pub struct BatchReader {
    rest: Bytes,
    index: u32,
    count: u32,
}

impl BatchReader {
    /// `count`: `num_messages_in_batch` of the metadata.
    pub fn new(batch: Bytes, count: u32) -> Self {
        BatchReader { rest: batch, index: 0, count }
    }

    fn read(&mut self) -> Result<BatchedMessage, BatchError> {
        let index = self.index;
        let truncated = || BatchError::Truncated { index };
        let size = self.rest.try_get_u32().map_err(|_| truncated())? as usize;
        if size > self.rest.len() {
            return Err(truncated());
        }
        let metadata = SingleMessageMetadata::decode(&self.rest[..size])
            .map_err(|error| BatchError::Malformed { index, reason: error.to_string() })?;
        self.rest.advance(size);
        // A size below zero is as impossible as one beyond the end.
        let body = usize::try_from(metadata.payload_size).map_err(|_| truncated())?;
        if body > self.rest.len() {
            return Err(truncated());
        }
        Ok(BatchedMessage { metadata, body: self.rest.split_to(body) })
    }
}

impl Iterator for BatchReader {
    type Item = Result<BatchedMessage, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.count {
            return None;
        }
        let message = self.read();
        self.index = if message.is_ok() { self.index + 1 } else { self.count };
        Some(message)
    }
}

/// Puts messages into a batch.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    buffer: BytesMut,
    count: u32,
}

impl BatchBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    /// `metadata.payload_size` is set from `body`.
    pub fn push(&mut self, mut metadata: SingleMessageMetadata, body: &[u8]) {
        metadata.payload_size = i32::try_from(body.len()).expect("a message is far below 2 GiB");
        self.buffer.put_u32(u32::try_from(metadata.encoded_len()).expect("message metadata is far below 4 GiB"));
        metadata.encode_raw(&mut self.buffer);
        self.buffer.put_slice(body);
        self.count += 1;
    }

    /// How many messages were pushed.
    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn len_bytes(&self) -> usize {
        self.buffer.len()
    }

    pub fn finish(self) -> Bytes {
        self.buffer.freeze()
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
