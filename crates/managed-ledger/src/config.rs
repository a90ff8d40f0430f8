//! The settings of managed ledgers, typed. The original's keys and defaults are in each field's doc.

use std::time::Duration;

/// When ledgers roll over, what is retained, how cursors are written. Shared by all managed ledgers of a namespace;
/// the broker hands over an overridden copy where policies say so.
#[derive(Clone, Debug, PartialEq)]
pub struct ManagedLedgerConfig {
    /// `managedLedgerMaxEntriesPerLedger`, 50 000.
    pub max_entries_per_ledger: u64,
    /// `managedLedgerMaxSizePerLedgerMbytes`, 2048 MB. In bytes.
    pub max_bytes_per_ledger: u64,
    /// `managedLedgerMinLedgerRolloverTimeMinutes`, 10. Zero: a full ledger rolls at once.
    pub min_rollover_time: Duration,
    /// `managedLedgerMaxLedgerRolloverTimeMinutes`, 240. Zero: age alone never rolls a ledger.
    pub max_rollover_time: Duration,
    /// Retention of consumed ledgers: `defaultRetentionTimeInMinutes`, `defaultRetentionSizeInMB`.
    pub retention: Retention,
    /// `managedLedgerDefaultMarkDeleteRateLimit`, 1 per second. The shortest time between two writes of a cursor for
    /// acknowledgements without a receipt.
    pub lazy_cursor_interval: Duration,
    /// `managedLedgerCursorMaxEntriesPerLedger`, 50 000.
    pub max_entries_per_cursor_ledger: u64,
    /// `managedLedgerCursorRolloverTimeInSeconds`, 14 400 s.
    pub cursor_rollover_time: Duration,
    /// `managedLedgerMaxUnackedRangesToPersistInMetadataStore`, 1000. Above it a closed cursor stays in its ledger.
    pub max_ranges_in_metadata: usize,
    /// Ours: a full snapshot of a cursor at least every so many entries of its ledger, unless the snapshot is larger
    /// than everything written since the one before.
    pub cursor_snapshot_entries: u64,
    /// Ours: the most ranges in one entry of a cursor ledger; larger snapshots take several entries.
    pub max_ranges_per_cursor_entry: usize,
    /// Ours: bytes one read from a bookie may bring.
    pub read_bytes: usize,
}

impl Default for ManagedLedgerConfig {
    fn default() -> Self {
        ManagedLedgerConfig {
            max_entries_per_ledger: 50_000,
            max_bytes_per_ledger: 2048 << 20,
            min_rollover_time: Duration::from_secs(10 * 60),
            max_rollover_time: Duration::from_secs(240 * 60),
            retention: Retention::default(),
            lazy_cursor_interval: Duration::from_secs(1),
            max_entries_per_cursor_ledger: 50_000,
            cursor_rollover_time: Duration::from_secs(14_400),
            max_ranges_in_metadata: 1000,
            cursor_snapshot_entries: 1000,
            max_ranges_per_cursor_entry: 10_000,
            read_bytes: 1 << 20,
        }
    }
}

/// What is kept of consumed ledgers. The default deletes on consumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub time: RetentionTime,
    pub size: RetentionSize,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { time: RetentionTime::For(Duration::ZERO), size: RetentionSize::Bytes(0) }
    }
}

/// Limit of age since a ledger was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionTime {
    /// -1: age never deletes.
    Unlimited,
    /// A ledger older than this may go.
    For(Duration),
}

/// Limit of the topic's total size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionSize {
    /// -1: size never deletes.
    Unlimited,
    /// Ledgers may go for as long as the topic stays at or above this.
    Bytes(u64),
}

impl Retention {
    /// From the numbers of a retention policy: negative means unlimited.
    #[must_use]
    pub fn from_policy(retention_time_minutes: i64, retention_size_mb: i64) -> Retention {
        let time = match u64::try_from(retention_time_minutes) {
            Ok(minutes) => RetentionTime::For(Duration::from_secs(minutes.saturating_mul(60))),
            Err(_) => RetentionTime::Unlimited,
        };
        let size = match u64::try_from(retention_size_mb) {
            Ok(mb) => RetentionSize::Bytes(mb.saturating_mul(1 << 20)),
            Err(_) => RetentionSize::Unlimited,
        };
        Retention { time, size }
    }
}
