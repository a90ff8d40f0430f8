//! Builds one commit: header, records and padding in one aligned buffer. The payload is copied here, and nowhere else.

use bookkeeper_proto::EntryBuf;
use bytes::{BufMut, Bytes};
use disk::BLOCK;

use crate::format::{COMMIT_HEADER_LEN, CommitHeader, Kind, RECORD_HEAD_LEN, RecordHead, Stamp, round_up};

/// Bytes at an aligned address, filled from the front.
///
/// Invariant: `bytes` never grows beyond its first capacity, so that its address, and with it the alignment, stays.
#[derive(Debug)]
struct AlignedVec {
    bytes: Vec<u8>,
    start: usize,
}

impl AsRef<[u8]> for AlignedVec {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// A commit in the making.
#[derive(Debug)]
pub(crate) struct CommitBuffer {
    buffer: AlignedVec,
    capacity: usize,
    stamp: Stamp,
    records: u32,
    /// Checksum of the record heads so far; its seed is the stamp's.
    heads: Option<u32>,
}

impl CommitBuffer {
    /// For records of `record_bytes` altogether, heads included.
    pub(crate) fn new(stamp: Stamp, record_bytes: usize) -> CommitBuffer {
        let capacity = round_up((COMMIT_HEADER_LEN + record_bytes) as u64) as usize;
        let mut bytes: Vec<u8> = Vec::with_capacity(capacity + BLOCK);
        let start = bytes.as_ptr().align_offset(BLOCK);
        assert!(start < BLOCK, "a byte pointer can always be aligned");
        bytes.resize(start + COMMIT_HEADER_LEN, 0);
        CommitBuffer { buffer: AlignedVec { bytes, start }, capacity, stamp, records: 0, heads: None }
    }

    /// Length so far, which is where the next record begins, counted from the commit's start.
    pub(crate) fn len(&self) -> usize {
        self.buffer.bytes.len() - self.buffer.start
    }

    fn push_head(&mut self, head: RecordHead) {
        let head = head.encode(&self.stamp);
        self.heads = Some(match self.heads {
            None => self.stamp.checksum(&head),
            Some(heads) => crc32c::crc32c_append(heads, &head),
        });
        self.records += 1;
        self.buffer.bytes.put_slice(&head);
    }

    pub(crate) fn push_entry(&mut self, entry: &EntryBuf, recovery: bool) {
        let len = entry.len();
        assert!(self.len() + RECORD_HEAD_LEN + len <= self.capacity, "the capacity was computed from the records");
        self.push_head(RecordHead { kind: Kind::Entry, recovery, len: len as u32, body_crc: entry.crc32c() });
        let before = self.buffer.bytes.len();
        entry.write_to(&mut self.buffer.bytes);
        assert_eq!(self.buffer.bytes.len() - before, len, "an entry writes as many bytes as it says");
    }

    pub(crate) fn push(&mut self, kind: Kind, body: &[u8]) {
        assert!(
            self.len() + RECORD_HEAD_LEN + body.len() <= self.capacity,
            "the capacity was computed from the records"
        );
        self.push_head(RecordHead { kind, recovery: false, len: body.len() as u32, body_crc: crc32c::crc32c(body) });
        self.buffer.bytes.put_slice(body);
    }

    /// The finished commit, padded to the block, at an aligned address.
    pub(crate) fn finish(mut self, sequence: u64) -> Bytes {
        let len = self.len();
        let heads = self.heads.unwrap_or_else(|| self.stamp.checksum(&[]));
        let header = CommitHeader { sequence, len: len as u32, records: self.records, heads };
        let start = self.buffer.start;
        self.buffer.bytes[start..start + COMMIT_HEADER_LEN].copy_from_slice(&header.encode(&self.stamp));
        self.buffer.bytes.resize(start + round_up(len as u64) as usize, 0);
        assert!(self.buffer.bytes.as_ptr().align_offset(BLOCK) == start, "the buffer must not have moved");
        Bytes::from_owner(self.buffer)
    }
}
