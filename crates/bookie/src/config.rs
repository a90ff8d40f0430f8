use std::path::PathBuf;

use crate::OpenError;

/// How a bookie keeps its log. [`BookieConfig::default`] is right for production; tests use small numbers.
#[derive(Clone, Debug)]
pub struct BookieConfig {
    /// The log's folder, relative to the disk's root. One level; its parent must exist.
    pub folder: PathBuf,
    /// Length of a new segment's file in bytes, a multiple of the block. Existing segments keep theirs.
    pub segment_bytes: u64,
    /// A commit takes no further request once it is this long, in bytes. A single entry may be longer.
    pub commit_bytes: usize,
    /// Bytes of entries that may wait for the log thread; an add beyond is refused.
    pub queue_bytes: usize,
    /// Requests that may wait for the log thread; an add beyond is refused.
    pub queue_requests: usize,
    /// Bytes of commit blocks kept in memory for reads of fresh entries.
    pub recent_bytes: usize,
    /// Bytes of index tables of sealed segments kept in memory for reads of old entries.
    pub index_cache_bytes: usize,
    /// Entries are refused while less than this is free on the disk; the rest is for fences and deletions.
    pub reserve_bytes: u64,
    /// Dead segments kept for reuse; further ones are removed.
    pub pool_segments: usize,
    /// The number that a new log stamps its checksums with; `None` draws one. Only simulations set it.
    pub log_number: Option<u64>,
}

impl Default for BookieConfig {
    fn default() -> Self {
        BookieConfig {
            folder: PathBuf::from("log"),
            segment_bytes: 64 << 20,
            commit_bytes: 1 << 20,
            queue_bytes: 64 << 20,
            queue_requests: 100_000,
            recent_bytes: 8 << 20,
            index_cache_bytes: 8 << 20,
            reserve_bytes: 64 << 20,
            pool_segments: 4,
            log_number: None,
        }
    }
}

const MIN_SEGMENT_BYTES: u64 = 32 << 10;
const MAX_SEGMENT_BYTES: u64 = 1 << 30;

impl BookieConfig {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let range = MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES;
        if !range.contains(&self.segment_bytes) || !self.segment_bytes.is_multiple_of(disk::BLOCK as u64) {
            return Err(OpenError::SegmentBytes {
                given: self.segment_bytes,
                least: *range.start(),
                most: *range.end(),
            });
        }
        Ok(())
    }

    /// The longest entry that fits into a segment of its own, in bytes.
    pub fn max_entry_bytes(&self) -> usize {
        // Header, footer, commit header and padding, index of one entry and state of one ledger: well below eight blocks.
        usize::try_from(self.segment_bytes).unwrap_or(usize::MAX) - 7 * disk::BLOCK
    }
}
