//! Protobuf by hand, for the few messages that are read or written once per message of a topic.
//!
//! Everything here is property-tested equal to the generated code; nothing here allocates except for repeated fields.

use bytes::BytesMut;

use crate::command::DecodeError;
use crate::proto::{CommandAck, CommandFlow, CommandSend, MessageIdData, base_command::Type};

/// Why bytes are not a protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("the message ends within a field")]
    Truncated,
    #[error("a varint is longer than ten bytes")]
    LongVarint,
    #[error("field number or wire type is invalid")]
    BadKey,
    #[error("field {number} has the wrong wire type")]
    WrongType { number: u32 },
    #[error("field {number} is not UTF-8")]
    NotUtf8 { number: u32 },
}

/// Walks the fields of a protobuf message, in the order they were written.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

/// One field as it lies on the wire.
#[derive(Debug, Clone, Copy)]
pub struct Field<'a> {
    pub number: u32,
    value: Value<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Fixed-width numbers and groups: no message read here has any, so they are only skipped.
    Other,
}

impl<'a> Reader<'a> {
    pub fn new(message: &'a [u8]) -> Self {
        Reader { rest: message }
    }

    /// The next field, or `None` at the end of the message.
    #[inline]
    pub fn next_field(&mut self) -> Result<Option<Field<'a>>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| WireError::BadKey)?;
        if number == 0 || number > MAX_FIELD_NUMBER {
            return Err(WireError::BadKey);
        }
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Other)?,
            2 => {
                let len = self.varint()?;
                Value::Bytes(self.take(usize::try_from(len).map_err(|_| WireError::Truncated)?)?)
            }
            3 => self.skip_group(number).map(|()| Value::Other)?,
            5 => self.take(4).map(|_| Value::Other)?,
            _ => return Err(WireError::BadKey),
        };
        Ok(Some(Field { number, value }))
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0u64;
        for (index, byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                // The tenth byte holds one bit of 64; more would not fit.
                if index == 9 && *byte > 1 {
                    return Err(WireError::LongVarint);
                }
                self.rest = &self.rest[index + 1..];
                return Ok(value);
            }
        }
        Err(if self.rest.len() < 10 { WireError::Truncated } else { WireError::LongVarint })
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Skips an (obsolete) group, nested ones included, without recursion: depth is only a list of numbers to close.
    fn skip_group(&mut self, number: u32) -> Result<(), WireError> {
        let mut open = vec![number];
        while let Some(innermost) = open.last().copied() {
            let key = self.varint()?;
            let number = u32::try_from(key >> 3).map_err(|_| WireError::BadKey)?;
            match key & 7 {
                0 => self.varint().map(drop)?,
                1 => self.take(8).map(drop)?,
                2 => {
                    let len = self.varint()?;
                    self.take(usize::try_from(len).map_err(|_| WireError::Truncated)?)?;
                }
                3 if open.len() < MAX_GROUP_DEPTH => open.push(number),
                4 if number == innermost => drop(open.pop()),
                5 => self.take(4).map(drop)?,
                _ => return Err(WireError::BadKey),
            }
        }
        Ok(())
    }
}

const MAX_FIELD_NUMBER: u32 = (1 << 29) - 1;
const MAX_GROUP_DEPTH: usize = 32;

impl<'a> Field<'a> {
    /// The value of an integer, bool or enum field.
    #[inline]
    pub fn varint(&self) -> Result<u64, WireError> {
        match self.value {
            Value::Varint(value) => Ok(value),
            _ => Err(WireError::WrongType { number: self.number }),
        }
    }

    /// An `int32`; like every protobuf reader it keeps the low 32 bits of what was written.
    #[inline]
    pub fn int32(&self) -> Result<i32, WireError> {
        self.varint().map(|value| value as i32)
    }

    #[inline]
    pub fn bytes(&self) -> Result<&'a [u8], WireError> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(WireError::WrongType { number: self.number }),
        }
    }

    #[inline]
    pub fn str(&self) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| WireError::NotUtf8 { number: self.number })
    }

    /// Appends a repeated integer field, which may be written one by one or packed.
    fn push_int64s(&self, out: &mut Vec<i64>) -> Result<(), WireError> {
        match self.value {
            Value::Varint(value) => out.push(value as i64),
            Value::Bytes(bytes) => {
                let mut reader = Reader::new(bytes);
                while !reader.rest.is_empty() {
                    out.push(reader.varint()? as i64);
                }
            }
            Value::Other => return Err(WireError::WrongType { number: self.number }),
        }
        Ok(())
    }
}

/// A SEND_RECEIPT as the broker writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendReceipt {
    pub producer_id: u64,
    pub sequence_id: u64,
    /// Absent: the producer sent none.
    pub highest_sequence_id: Option<u64>,
    /// Ledger and entry; `u64::MAX` (-1) both for a duplicate or on a non-persistent topic.
    pub ledger_id: u64,
    pub entry_id: u64,
}

/// The command part of a MESSAGE; the stored entry follows it verbatim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader<'a> {
    pub consumer_id: u64,
    pub ledger_id: u64,
    pub entry_id: u64,
    /// Index of the topic's partition, -1 for none.
    pub partition: i32,
    pub redelivery_count: u32,
    /// Words of the bit set of what is still unacked; empty: everything.
    pub ack_set: &'a [i64],
    pub consumer_epoch: Option<u64>,
}

/// Appends a SEND_RECEIPT frame.
pub fn encode_send_receipt(receipt: &SendReceipt, out: &mut BytesMut) {
    let message_id = int_len(receipt.ledger_id) + int_len(receipt.entry_id);
    let body = int_len(receipt.producer_id)
        + int_len(receipt.sequence_id)
        + (2 + message_id)
        + receipt.highest_sequence_id.map_or(0, int_len);
    let mut frame = FrameWriter::start(out, Type::SendReceipt, body, 0);
    frame.int(1, receipt.producer_id);
    frame.int(2, receipt.sequence_id);
    frame.nested(3, message_id);
    frame.int(1, receipt.ledger_id);
    frame.int(2, receipt.entry_id);
    if let Some(highest) = receipt.highest_sequence_id {
        frame.int(4, highest);
    }
    frame.finish();
}

/// Appends the head of a MESSAGE frame. The caller sends `payload_len` bytes of the entry right after it.
///
/// `ack_set` has at most a few hundred words (one bit a message of the batch).
pub fn encode_message_header(header: &MessageHeader<'_>, payload_len: usize, out: &mut BytesMut) {
    let partition = (header.partition >= 0).then_some(header.partition as u64);
    let redelivery_count = (header.redelivery_count > 0).then_some(u64::from(header.redelivery_count));
    let message_id = int_len(header.ledger_id) + int_len(header.entry_id) + partition.map_or(0, int_len);
    let body = int_len(header.consumer_id)
        + (1 + varint_len(message_id as u64) + message_id)
        + redelivery_count.map_or(0, int_len)
        + header.ack_set.iter().map(|word| int_len(*word as u64)).sum::<usize>()
        + header.consumer_epoch.map_or(0, int_len);
    let mut frame = FrameWriter::start(out, Type::Message, body, payload_len);
    frame.int(1, header.consumer_id);
    frame.nested(2, message_id);
    frame.int(1, header.ledger_id);
    frame.int(2, header.entry_id);
    if let Some(partition) = partition {
        frame.int(3, partition);
    }
    if let Some(count) = redelivery_count {
        frame.int(3, count);
    }
    for word in header.ack_set {
        frame.int(4, *word as u64);
    }
    if let Some(epoch) = header.consumer_epoch {
        frame.int(5, epoch);
    }
    frame.finish();
}

/// Length of an integer field with a one-byte key (field numbers 1 to 15).
#[inline]
fn int_len(value: u64) -> usize {
    1 + varint_len(value)
}

#[inline]
pub(crate) fn varint_len(value: u64) -> usize {
    // Seven bits a byte; zero takes one byte.
    (((value | 1).ilog2() + 7) / 7) as usize
}

/// Writes one frame whose sizes are known beforehand.
struct FrameWriter<'a> {
    out: &'a mut BytesMut,
    end: usize,
}

impl<'a> FrameWriter<'a> {
    /// `body` is the length of the sub-message of `command`, a type below 16 (so that its key is one byte).
    fn start(out: &'a mut BytesMut, command: Type, body: usize, payload_len: usize) -> Self {
        let size = 2 + (1 + varint_len(body as u64)) + body;
        let total = u32::try_from(4 + size + payload_len).expect("an entry is far below 4 GiB");
        out.reserve(8 + size);
        let end = out.len() + 8 + size;
        out.extend_from_slice(&total.to_be_bytes());
        out.extend_from_slice(&(size as u32).to_be_bytes());
        let mut frame = FrameWriter { out, end };
        frame.int(1, command as u64);
        frame.nested(command as u8, body);
        frame
    }

    #[inline]
    fn int(&mut self, number: u8, mut value: u64) {
        let mut field = [0u8; 11];
        field[0] = number << 3;
        let mut len = 1;
        while value >= 0x80 {
            field[len] = value as u8 | 0x80;
            value >>= 7;
            len += 1;
        }
        field[len] = value as u8;
        self.out.extend_from_slice(&field[..=len]);
    }

    #[inline]
    fn nested(&mut self, number: u8, len: usize) {
        let key_at = self.out.len();
        self.int(number, len as u64);
        self.out[key_at] |= 2;
    }

    fn finish(self) {
        assert_eq!(self.out.len(), self.end, "the sizes in a frame must match its content");
    }
}

/// Reads the sub-message of a SEND.
pub fn decode_send(body: &[u8]) -> Result<CommandSend, DecodeError> {
    let mut send = CommandSend::default();
    let mut seen = Seen::new("CommandSend");
    let mut reader = Reader::new(body);
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => send.producer_id = seen.required(field.varint()?, 1),
            2 => send.sequence_id = seen.required(field.varint()?, 2),
            3 => send.num_messages = Some(field.int32()?),
            4 => send.txnid_least_bits = Some(field.varint()?),
            5 => send.txnid_most_bits = Some(field.varint()?),
            6 => send.highest_sequence_id = Some(field.varint()?),
            7 => send.is_chunk = Some(field.varint()? != 0),
            8 => send.marker = Some(field.varint()? != 0),
            9 => send.message_id = Some(Box::new(decode_message_id(field.bytes()?, 0)?)),
            _ => {}
        }
    }
    seen.all(&[1, 2])?;
    Ok(send)
}

/// Reads the sub-message of an ACK.
pub fn decode_ack(body: &[u8]) -> Result<CommandAck, DecodeError> {
    use prost::Message as _;
    let mut ack = CommandAck::default();
    let mut seen = Seen::new("CommandAck");
    let mut reader = Reader::new(body);
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => ack.consumer_id = seen.required(field.varint()?, 1),
            // An ack type we do not know counts as absent, and a required field that is absent is an error.
            2 if field.varint()? <= 1 => ack.ack_type = seen.required(field.int32()?, 2),
            3 => ack.message_id.push(decode_message_id(field.bytes()?, 0)?),
            4 => ack.validation_error = Some(field.int32()?),
            5 => ack.properties.push(
                crate::proto::KeyLongValue::decode(field.bytes()?)
                    .map_err(|error| DecodeError::Malformed { command: Type::Ack, reason: error.to_string() })?,
            ),
            6 => ack.txnid_least_bits = Some(field.varint()?),
            7 => ack.txnid_most_bits = Some(field.varint()?),
            8 => ack.request_id = Some(field.varint()?),
            _ => {}
        }
    }
    seen.all(&[1, 2])?;
    Ok(ack)
}

/// Reads the sub-message of a FLOW.
pub fn decode_flow(body: &[u8]) -> Result<CommandFlow, DecodeError> {
    let mut flow = CommandFlow::default();
    let mut seen = Seen::new("CommandFlow");
    let mut reader = Reader::new(body);
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => flow.consumer_id = seen.required(field.varint()?, 1),
            2 => flow.message_permits = seen.required(field.varint()? as u32, 2),
            _ => {}
        }
    }
    seen.all(&[1, 2])?;
    Ok(flow)
}

fn decode_message_id(bytes: &[u8], depth: u32) -> Result<MessageIdData, DecodeError> {
    let mut id = MessageIdData::default();
    let mut seen = Seen::new("MessageIdData");
    let mut reader = Reader::new(bytes);
    while let Some(field) = reader.next_field()? {
        match field.number {
            1 => id.ledger_id = seen.required(field.varint()?, 1),
            2 => id.entry_id = seen.required(field.varint()?, 2),
            3 => id.partition = Some(field.int32()?),
            4 => id.batch_index = Some(field.int32()?),
            5 => field.push_int64s(&mut id.ack_set)?,
            6 => id.batch_size = Some(field.int32()?),
            // A chunked id points at one plain id; a chain of them is somebody trying our stack.
            7 if depth == 0 => {
                id.first_chunk_message_id = Some(Box::new(decode_message_id(field.bytes()?, depth + 1)?));
            }
            _ => {}
        }
    }
    seen.all(&[1, 2])?;
    Ok(id)
}

/// Which required fields were there.
struct Seen {
    message: &'static str,
    fields: u32,
}

impl Seen {
    fn new(message: &'static str) -> Self {
        Seen { message, fields: 0 }
    }

    fn required<T>(&mut self, value: T, field: u32) -> T {
        self.fields |= 1 << field;
        value
    }

    fn all(&self, required: &[u32]) -> Result<(), DecodeError> {
        match required.iter().find(|field| self.fields & (1 << **field) == 0) {
            Some(field) => Err(DecodeError::NoField { message: self.message, field: *field }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
