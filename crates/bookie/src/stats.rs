use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one bookie. Read one by one, they need not fit together exactly.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commits: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) entry_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) reads_from_disk: AtomicU64,
    pub(crate) damaged_reads: AtomicU64,
    pub(crate) write_failures: AtomicU64,
    pub(crate) queue_bytes: AtomicU64,
    pub(crate) queue_requests: AtomicU64,
    pub(crate) free_segments: AtomicU64,
    pub(crate) read_only: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn set(counter: &AtomicU64, n: u64) {
        counter.store(n, Ordering::Relaxed);
    }
}

/// What a bookie has done since it was opened, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub commits: u64,
    /// Of files and folders, those of commits included.
    pub syncs: u64,
    /// Acknowledged.
    pub entries: u64,
    /// Length of the acknowledged entries as they came, headers included.
    pub entry_bytes: u64,
    /// Everything that was written to the disk.
    pub written_bytes: u64,
    pub reads: u64,
    pub reads_from_disk: u64,
    pub damaged_reads: u64,
    pub write_failures: u64,
    pub queue_bytes: u64,
    pub queue_requests: u64,
    pub ledgers: u64,
    /// Segments that hold commits.
    pub segments: u64,
    /// Segments waiting for reuse.
    pub free_segments: u64,
    /// Length of the files of segments that hold commits.
    pub segment_bytes: u64,
    /// Length of the records of entries that are not deleted.
    pub live_bytes: u64,
    /// Whether adds are refused at the moment.
    pub read_only: bool,
}
