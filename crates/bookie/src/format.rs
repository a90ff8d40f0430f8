//! Bytes on the disk. Every integer is little-endian; every block is [`BLOCK`] bytes. Nothing here does I/O.
//!
//! A segment is one file: header block, commits (each starting on a block), index, padding, footer in the last block.
//!
//! Header block:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `HULSELOG` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the whole block with this field as zero |
//! | 16 | 8 | log: a random number that all segments of one log share |
//! | 24 | 8 | generation: the segment's id, never used twice in a log |
//! | 32 | 8 | sequence number of the first commit |
//! | 40 | 8 | generation of the segment before, 0 for none |
//! | 48 | 8 | length of the file |
//! | 56 | 4 | number of ranges, `u32::MAX` if there were too many to list |
//! | 64 | 16 each | ranges of the generations alive when this segment began: first, last |
//!
//! Commit header, followed by the records:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `HCMT` |
//! | 4 | 4 | stamped checksum of bytes 8..40 |
//! | 8 | 8 | generation |
//! | 16 | 8 | sequence number |
//! | 24 | 4 | length of header and records, without the padding to the block |
//! | 28 | 4 | number of records |
//! | 32 | 4 | stamped checksum of all record heads in order |
//! | 36 | 4 | zero |
//!
//! Record head, followed by the body:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | kind: 1 entry, 2 ledger state, 3 freed segment |
//! | 1 | 1 | flags of an entry: 1 written by recovery |
//! | 2 | 2 | zero |
//! | 4 | 4 | length of the body |
//! | 8 | 4 | CRC-32C of the body, not stamped: an entry brings it along |
//! | 12 | 4 | stamped checksum of bytes 0..12 |
//!
//! A *stamped* checksum starts from the log's and the segment's numbers, so what a recycled file held before, or what a client
//! puts into a payload to look like a commit, does not pass for one.

use bookkeeper_proto::{LedgerId, MasterKey};
use bytes::Bytes;
use disk::BLOCK;

pub(crate) const FORMAT_VERSION: u32 = 1;
pub(crate) const COMMIT_HEADER_LEN: usize = 40;
pub(crate) const RECORD_HEAD_LEN: usize = 16;
pub(crate) const STATE_LEN: usize = 31;
/// The longest explicit LAC blob: ledger id, LAC and the longest digest fit many times.
pub(crate) const MAX_LAC_BLOB_LEN: usize = 1024;

const HEADER_MAGIC: [u8; 8] = *b"HULSELOG";
const COMMIT_MAGIC: [u8; 4] = *b"HCMT";
const FOOTER_MAGIC: [u8; 8] = *b"HULSEIDX";
const MAX_RANGES: usize = (BLOCK - 64) / 16;

/// The id of a segment, which is also its generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SegmentId(pub(crate) u64);

impl std::fmt::Display for SegmentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What the checksums of one segment start from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    pub(crate) log: u64,
    pub(crate) generation: SegmentId,
    seed: u32,
}

impl Stamp {
    pub(crate) fn new(log: u64, generation: SegmentId) -> Stamp {
        let seed = crc32c::crc32c_append(crc32c::crc32c(&log.to_le_bytes()), &generation.0.to_le_bytes());
        Stamp { log, generation, seed }
    }

    pub(crate) fn checksum(&self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(self.seed, bytes)
    }
}

pub(crate) fn round_up(len: u64) -> u64 {
    len.next_multiple_of(BLOCK as u64)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// The first block of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) log: u64,
    pub(crate) generation: SegmentId,
    pub(crate) first_sequence: u64,
    pub(crate) previous: Option<SegmentId>,
    pub(crate) segment_bytes: u64,
    /// Generations alive when this segment began, sorted; `None` if they are in more ranges than fit.
    pub(crate) alive: Option<Vec<SegmentId>>,
}

/// Why a block is not a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderError {
    NotALog,
    Newer { version: u32 },
    Damaged,
}

impl Header {
    pub(crate) fn encode(&self, block: &mut [u8]) {
        block[..BLOCK].fill(0);
        block[0..8].copy_from_slice(&HEADER_MAGIC);
        block[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        block[16..24].copy_from_slice(&self.log.to_le_bytes());
        block[24..32].copy_from_slice(&self.generation.0.to_le_bytes());
        block[32..40].copy_from_slice(&self.first_sequence.to_le_bytes());
        block[40..48].copy_from_slice(&self.previous.map_or(0, |id| id.0).to_le_bytes());
        block[48..56].copy_from_slice(&self.segment_bytes.to_le_bytes());
        let ranges = self.alive.as_deref().map(ranges_of).filter(|ranges| ranges.len() <= MAX_RANGES);
        let count = ranges.as_ref().map_or(u32::MAX, |ranges| ranges.len() as u32);
        block[56..60].copy_from_slice(&count.to_le_bytes());
        for (i, (first, last)) in ranges.into_iter().flatten().enumerate() {
            block[64 + i * 16..72 + i * 16].copy_from_slice(&first.to_le_bytes());
            block[72 + i * 16..80 + i * 16].copy_from_slice(&last.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&block[..BLOCK]);
        block[12..16].copy_from_slice(&checksum.to_le_bytes());
    }

    pub(crate) fn decode(block: &[u8]) -> Result<Header, HeaderError> {
        if block.len() < BLOCK || block[0..8] != HEADER_MAGIC {
            return Err(HeaderError::NotALog);
        }
        let checksum = crc32c::crc32c(&block[..12]);
        let checksum = crc32c::crc32c_append(checksum, &[0; 4]);
        let checksum = crc32c::crc32c_append(checksum, &block[16..BLOCK]);
        if checksum != u32_at(block, 12) {
            return Err(HeaderError::Damaged);
        }
        let version = u32_at(block, 8);
        if version != FORMAT_VERSION {
            return Err(HeaderError::Newer { version });
        }
        let alive = match u32_at(block, 56) as usize {
            count if count <= MAX_RANGES => {
                let range = |i: usize| u64_at(block, 64 + i * 16)..=u64_at(block, 72 + i * 16);
                Some((0..count).flat_map(range).map(SegmentId).collect())
            }
            _ => None,
        };
        Ok(Header {
            log: u64_at(block, 16),
            generation: SegmentId(u64_at(block, 24)),
            first_sequence: u64_at(block, 32),
            previous: Some(SegmentId(u64_at(block, 40))).filter(|id| id.0 != 0),
            segment_bytes: u64_at(block, 48),
            alive,
        })
    }
}

fn ranges_of(sorted: &[SegmentId]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for id in sorted {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == id.0 => *last = id.0,
            _ => ranges.push((id.0, id.0)),
        }
    }
    ranges
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CommitHeader {
    pub(crate) sequence: u64,
    pub(crate) len: u32,
    pub(crate) records: u32,
    pub(crate) heads: u32,
}

impl CommitHeader {
    pub(crate) fn encode(&self, stamp: &Stamp) -> [u8; COMMIT_HEADER_LEN] {
        let mut bytes = [0; COMMIT_HEADER_LEN];
        bytes[0..4].copy_from_slice(&COMMIT_MAGIC);
        bytes[8..16].copy_from_slice(&stamp.generation.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.records.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.heads.to_le_bytes());
        let checksum = stamp.checksum(&bytes[8..]);
        bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// `None`: these bytes are not a commit header of this segment.
    pub(crate) fn decode(bytes: &[u8], stamp: &Stamp) -> Option<CommitHeader> {
        let bytes = bytes.get(..COMMIT_HEADER_LEN)?;
        let is_ours = bytes[0..4] == COMMIT_MAGIC
            && u64_at(bytes, 8) == stamp.generation.0
            && u32_at(bytes, 4) == stamp.checksum(&bytes[8..]);
        is_ours.then(|| CommitHeader {
            sequence: u64_at(bytes, 16),
            len: u32_at(bytes, 24),
            records: u32_at(bytes, 28),
            heads: u32_at(bytes, 32),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Entry = 1,
    State = 2,
    Freed = 3,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordHead {
    pub(crate) kind: Kind,
    pub(crate) recovery: bool,
    pub(crate) len: u32,
    pub(crate) body_crc: u32,
}

impl RecordHead {
    pub(crate) fn encode(&self, stamp: &Stamp) -> [u8; RECORD_HEAD_LEN] {
        let mut bytes = [0; RECORD_HEAD_LEN];
        bytes[0] = self.kind as u8;
        bytes[1] = u8::from(self.recovery);
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.body_crc.to_le_bytes());
        let checksum = stamp.checksum(&bytes[..12]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// `None`: these bytes are not a record head of this segment.
    pub(crate) fn decode(bytes: &[u8], stamp: &Stamp) -> Option<RecordHead> {
        let bytes = bytes.get(..RECORD_HEAD_LEN)?;
        if u32_at(bytes, 12) != stamp.checksum(&bytes[..12]) {
            return None;
        }
        let kind = match bytes[0] {
            1 => Kind::Entry,
            2 => Kind::State,
            3 => Kind::Freed,
            _ => return None,
        };
        Some(RecordHead { kind, recovery: bytes[1] & 1 != 0, len: u32_at(bytes, 4), body_crc: u32_at(bytes, 8) })
    }
}

/// All that the log knows about a ledger beside its entries. The last one in the log counts.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 8 | ledger id |
/// | 8 | 1 | flags: 1 fenced, 2 deleted |
/// | 9 | 20 | master key |
/// | 29 | 2 | length of the explicit LAC blob, 0 for none |
/// | 31 | n | explicit LAC blob as the client sent it |
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StateRecord {
    pub(crate) ledger: LedgerId,
    pub(crate) key: MasterKey,
    pub(crate) fenced: bool,
    pub(crate) deleted: bool,
    pub(crate) explicit_lac: Option<Bytes>,
}

impl StateRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let blob = self.explicit_lac.as_deref().unwrap_or_default();
        assert!(blob.len() <= MAX_LAC_BLOB_LEN, "checked when it came in");
        let mut bytes = Vec::with_capacity(STATE_LEN + blob.len());
        bytes.extend_from_slice(&self.ledger.0.to_le_bytes());
        bytes.push(u8::from(self.fenced) | u8::from(self.deleted) << 1);
        bytes.extend_from_slice(&self.key.0);
        bytes.extend_from_slice(&(blob.len() as u16).to_le_bytes());
        bytes.extend_from_slice(blob);
        bytes
    }

    /// The record and the bytes it took, if they are one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(StateRecord, usize)> {
        let fixed = bytes.get(..STATE_LEN)?;
        let blob_len = usize::from(u16::from_le_bytes([fixed[29], fixed[30]]));
        let blob = bytes.get(STATE_LEN..STATE_LEN + blob_len)?;
        let record = StateRecord {
            ledger: LedgerId(u64_at(fixed, 0) as i64),
            key: MasterKey(std::array::from_fn(|i| fixed[9 + i])),
            fenced: fixed[8] & 1 != 0,
            deleted: fixed[8] & 2 != 0,
            explicit_lac: (blob_len > 0).then(|| Bytes::copy_from_slice(blob)),
        };
        Some((record, STATE_LEN + blob_len))
    }
}

pub(crate) fn decode_freed(body: &[u8]) -> Option<SegmentId> {
    Some(SegmentId(u64::from_le_bytes(body.try_into().ok()?)))
}

/// The last block of a sealed segment: where its index lies.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 8 | magic `HULSEIDX` |
/// | 8 | 4 | format version |
/// | 12 | 4 | stamped checksum of bytes 16..64 |
/// | 16 | 8 | generation |
/// | 24 | 8 | offset where the commits end and the index begins |
/// | 32 | 8 | length of the index's summary |
/// | 40 | 8 | stamped checksum of the summary (the upper half is zero) |
/// | 48 | 8 | sequence number of the last commit |
/// | 56 | 8 | zero |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Footer {
    pub(crate) end: u64,
    pub(crate) summary_len: u64,
    pub(crate) summary_checksum: u32,
    pub(crate) last_sequence: u64,
}

impl Footer {
    pub(crate) fn encode(&self, stamp: &Stamp, block: &mut [u8]) {
        block[..BLOCK].fill(0);
        block[0..8].copy_from_slice(&FOOTER_MAGIC);
        block[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        block[16..24].copy_from_slice(&stamp.generation.0.to_le_bytes());
        block[24..32].copy_from_slice(&self.end.to_le_bytes());
        block[32..40].copy_from_slice(&self.summary_len.to_le_bytes());
        block[40..44].copy_from_slice(&self.summary_checksum.to_le_bytes());
        block[48..56].copy_from_slice(&self.last_sequence.to_le_bytes());
        let checksum = stamp.checksum(&block[16..64]);
        block[12..16].copy_from_slice(&checksum.to_le_bytes());
    }

    /// `None`: the segment is not sealed, as far as this block tells.
    pub(crate) fn decode(block: &[u8], stamp: &Stamp) -> Option<Footer> {
        let block = block.get(..64)?;
        let is_ours = block[0..8] == FOOTER_MAGIC
            && u32_at(block, 8) == FORMAT_VERSION
            && u64_at(block, 16) == stamp.generation.0
            && u32_at(block, 12) == stamp.checksum(&block[16..64]);
        is_ours.then(|| Footer {
            end: u64_at(block, 24),
            summary_len: u64_at(block, 32),
            summary_checksum: u32_at(block, 40),
            last_sequence: u64_at(block, 48),
        })
    }
}
