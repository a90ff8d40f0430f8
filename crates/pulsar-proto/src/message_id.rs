//! The id of a message as clients write it down: as text and as bytes.

use std::fmt;
use std::str::FromStr;

use prost::Message as _;

use crate::proto::MessageIdData;

/// Where a message lies: its entry, the partition of the topic, and its place in the entry's batch.
///
/// Ordered as messages of one topic are. Ledger and entry are signed: -1 means "before everything".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    pub ledger_id: i64,
    pub entry_id: i64,
    /// -1: the topic has no partitions.
    pub partition: i32,
    /// -1: the entry is not a batch, or the whole of it is meant.
    pub batch_index: i32,
}

/// Why text or bytes are not a message id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageIdError {
    #[error("cannot parse message id `{text}`: expected `ledger:entry:partition[:batch index]`")]
    Text { text: String },
    #[error("cannot parse a message id of {len} bytes: {reason}")]
    Bytes { len: usize, reason: String },
}

impl MessageId {
    /// Before the first message of every topic.
    pub const EARLIEST: MessageId = MessageId { ledger_id: -1, entry_id: -1, partition: -1, batch_index: -1 };
    /// After the last message of every topic.
    pub const LATEST: MessageId = MessageId { ledger_id: i64::MAX, entry_id: i64::MAX, partition: -1, batch_index: -1 };

    pub fn new(ledger_id: i64, entry_id: i64, partition: i32) -> Self {
        MessageId { ledger_id, entry_id, partition, batch_index: -1 }
    }

    /// The bytes a client keeps: a `MessageIdData`. `batch_size` is 0 where the entry is not a batch.
    pub fn to_bytes(&self, batch_size: i32) -> Vec<u8> {
        MessageIdData { batch_size: Some(batch_size), ..MessageIdData::from(*self) }.encode_to_vec()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote. Batch size, ack set and first chunk are dropped.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageIdError> {
        MessageIdData::decode(bytes)
            .map(|data| MessageId::from(&data))
            .map_err(|error| MessageIdError::Bytes { len: bytes.len(), reason: error.to_string() })
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.ledger_id, self.entry_id, self.partition)?;
        if self.batch_index >= 0 { write!(f, ":{}", self.batch_index) } else { Ok(()) }
    }
}

impl FromStr for MessageId {
    type Err = MessageIdError;

    fn from_str(text: &str) -> Result<Self, MessageIdError> {
        let parse = || {
            let mut parts = text.split(':');
            let id = MessageId {
                ledger_id: parts.next()?.parse().ok()?,
                entry_id: parts.next()?.parse().ok()?,
                partition: parts.next()?.parse().ok()?,
                batch_index: parts.next().map_or(Ok(-1), str::parse).ok()?,
            };
            parts.next().is_none().then_some(id)
        };
        parse().ok_or_else(|| MessageIdError::Text { text: text.to_owned() })
    }
}

impl From<&MessageIdData> for MessageId {
    fn from(data: &MessageIdData) -> Self {
        MessageId {
            ledger_id: data.ledger_id as i64,
            entry_id: data.entry_id as i64,
            partition: data.partition(),
            batch_index: data.batch_index(),
        }
    }
}

impl From<MessageId> for MessageIdData {
    /// Partition and batch index are left out where they are -1, which is their default.
    fn from(id: MessageId) -> Self {
        MessageIdData {
            ledger_id: id.ledger_id as u64,
            entry_id: id.entry_id as u64,
            partition: (id.partition >= 0).then_some(id.partition),
            batch_index: (id.batch_index >= 0).then_some(id.batch_index),
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text() {
        for (text, id) in [
            ("5:6:-1", MessageId::new(5, 6, -1)),
            ("5:6:2", MessageId::new(5, 6, 2)),
            ("5:6:2:3", MessageId { ledger_id: 5, entry_id: 6, partition: 2, batch_index: 3 }),
            ("-1:-1:-1", MessageId::EARLIEST),
            ("9223372036854775807:9223372036854775807:-1", MessageId::LATEST),
        ] {
            assert_eq!(text.parse(), Ok(id));
            assert_eq!(id.to_string(), text);
        }
        for text in ["", "5", "5:6", "5:6:", "5:6:1:2:3", "a:6:1", "5:6:1:", "99999999999999999999:6:1"] {
            assert_eq!(text.parse::<MessageId>(), Err(MessageIdError::Text { text: text.to_owned() }));
        }
    }

    proptest! {
        #[test]
        fn round_trips(ledger_id: i64, entry_id: i64, partition in -1i32.., batch_index in -1i32..) {
            let id = MessageId { ledger_id, entry_id, partition, batch_index };
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(MessageId::from_bytes(&id.to_bytes(0)), Ok(id));
        }
    }
}
