//! Builds one commit: header, records and padding in one aligned buffer. The payload is copied here, and nowhere else.

use std::sync::{Arc, Weak};

use bookkeeper_proto::EntryBuf;
use bytes::{BufMut, Bytes};
use disk::BLOCK;
use parking_lot::Mutex;

use crate::format::{COMMIT_HEADER_LEN, CommitHeader, Kind, RECORD_HEAD_LEN, RecordHead, Stamp, round_up};

/// Memory of commits that nobody reads any more, for the next ones: a block fresh from the system costs a page fault for each
/// 4 KiB, a fifth of what a commit costs.
#[derive(Debug, Default)]
pub(crate) struct SparePool {
    spare: Mutex<Vec<Vec<u8>>>,
}

/// Smaller blocks come from the allocator without a fault, larger ones are rare.
const POOLED_BYTES: std::ops::RangeInclusive<usize> = 128 << 10..=2 << 20;
/// Capacities are multiples of this, so that commits of about the same size fit into each other's memory.
const CAPACITY_STEP_BYTES: usize = 128 << 10;
/// Blocks that are kept; some MiB in all.
const MAX_SPARE: usize = 8;

impl SparePool {
    /// An empty vector with room for so many bytes, and at most half as many again.
    fn take(&self, bytes: usize) -> Vec<u8> {
        if !POOLED_BYTES.contains(&bytes) {
            return Vec::with_capacity(bytes);
        }
        let mut spare = self.spare.lock();
        let fits = |vec: &Vec<u8>| (bytes..=bytes + bytes / 2 + CAPACITY_STEP_BYTES).contains(&vec.capacity());
        match spare.iter().rposition(fits) {
            Some(index) => spare.swap_remove(index),
            None => Vec::with_capacity(bytes.next_multiple_of(CAPACITY_STEP_BYTES)),
        }
    }

    fn give_back(&self, mut bytes: Vec<u8>) {
        if !POOLED_BYTES.contains(&bytes.capacity()) {
            return;
        }
        bytes.clear();
        let mut spare = self.spare.lock();
        if spare.len() == MAX_SPARE {
            // The oldest goes, so that sizes follow the load.
            spare.remove(0);
        }
        spare.push(bytes);
    }
}

/// Bytes at an aligned address, filled from the front. Their memory goes back to the pool with the last slice of them.
///
/// Invariant: `bytes` never grows beyond its first capacity, so that its address, and with it the alignment, stays.
#[derive(Debug)]
struct AlignedVec {
    bytes: Vec<u8>,
    start: usize,
    pool: Weak<SparePool>,
}

impl Drop for AlignedVec {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.give_back(std::mem::take(&mut self.bytes));
        }
    }
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
    pub(crate) fn new(stamp: Stamp, record_bytes: usize, pool: &Arc<SparePool>) -> CommitBuffer {
        let capacity = round_up((COMMIT_HEADER_LEN + record_bytes) as u64) as usize;
        let mut bytes = pool.take(capacity + BLOCK);
        let start = bytes.as_ptr().align_offset(BLOCK);
        assert!(start < BLOCK, "a byte pointer can always be aligned");
        bytes.resize(start + COMMIT_HEADER_LEN, 0);
        CommitBuffer {
            buffer: AlignedVec { bytes, start, pool: Arc::downgrade(pool) },
            capacity,
            stamp,
            records: 0,
            heads: None,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_round_once_nobody_reads_it() {
        let pool = Arc::new(SparePool::default());
        let commit = |bytes: usize| {
            let mut buffer = CommitBuffer::new(Stamp::new(1, crate::format::SegmentId(1)), bytes, &pool);
            buffer.push(Kind::Freed, &[7; 100]);
            buffer.finish(1)
        };
        let first = commit(300 << 10);
        let slice = first.slice(100..200);
        let address = first.as_ptr();
        drop(first);
        let second = commit(300 << 10);
        assert_ne!(second.as_ptr(), address, "a slice still reads the first");
        drop(slice);
        let third = commit(310 << 10);
        assert_eq!(third.as_ptr(), address);
        assert_eq!(third.as_ptr().align_offset(BLOCK), 0);
        assert!(commit(4 << 20).len() >= 100, "what is too large for the pool works, too");
        drop((second, third));
        assert_eq!(pool.spare.lock().len(), 2);
    }
}
