//! When a ledger is full, and which consumed ledgers go: pure decisions.

use std::time::Duration;

use bookkeeper_proto::LedgerId;

use crate::config::{ManagedLedgerConfig, Retention, RetentionSize, RetentionTime};
use crate::line::Line;
use crate::position::Position;

/// Whether the open ledger should make room for a new one. An empty one never does.
///
/// Full (entries, bytes or age) and, where a minimum age is set, older than that.
pub(crate) fn rollover_is_due(config: &ManagedLedgerConfig, entries: u64, bytes: u64, age: Duration) -> bool {
    let too_old = !config.max_rollover_time.is_zero() && age >= config.max_rollover_time;
    let full = entries >= config.max_entries_per_ledger || bytes >= config.max_bytes_per_ledger || too_old;
    let old_enough = config.min_rollover_time.is_zero() || age > config.min_rollover_time;
    entries > 0 && full && old_enough
}

/// The ledgers to delete, oldest first. `slowest`: the mark-delete position of the slowest durable cursor, `None` if there
/// is no durable cursor. The last ledger never goes.
///
/// Walks over the closed ledgers that are consumed; one goes when it is older than the retention time, or when the topic
/// without it (and those chosen before) still has the retention size; the walk ends at the first that stays.
pub(crate) fn trimmable(line: &Line, slowest: Option<Position>, retention: Retention, unix_ms: u64) -> Vec<LedgerId> {
    let count = line.iter().count();
    let total = line.bytes();
    let mut chosen_bytes = 0;
    let mut chosen = Vec::new();
    for (ledger, part) in line.iter().take(count.saturating_sub(1)) {
        let Some(closed_ms) = part.closed_ms else { break };
        let consumed = slowest.is_none_or(|mark_delete| {
            ledger < mark_delete.ledger
                || ledger == mark_delete.ledger && mark_delete.entry.0 + 1 >= part.entries as i64
        });
        let expired = match retention.time {
            RetentionTime::Unlimited => false,
            RetentionTime::For(time) if time.is_zero() => true,
            RetentionTime::For(time) => u128::from(unix_ms.saturating_sub(closed_ms)) > time.as_millis(),
        };
        let over_quota = match retention.size {
            RetentionSize::Unlimited => false,
            RetentionSize::Bytes(quota) => total - (chosen_bytes + part.bytes) >= quota,
        };
        if !consumed || !(expired || over_quota) {
            break;
        }
        chosen_bytes += part.bytes;
        chosen.push(ledger);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Part;

    #[test]
    fn rollover() {
        let config = ManagedLedgerConfig::default();
        let no_minimum = ManagedLedgerConfig { min_rollover_time: Duration::ZERO, ..config.clone() };
        let no_age = ManagedLedgerConfig { max_rollover_time: Duration::ZERO, ..config.clone() };
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        let mb = 1 << 20;
        for (config, entries, bytes, age, due) in [
            (&config, 50_000, 0, minutes(11), true),
            (&config, 50_000, 0, minutes(10), false), // Exactly the minimum is not older.
            (&config, 49_999, 0, minutes(11), false),
            (&config, 1, 2048 * mb, minutes(11), true),
            (&config, 1, 2047 * mb, minutes(239), false),
            (&config, 1, 1, minutes(240), true),
            (&config, 0, 0, minutes(999), false),
            (&no_minimum, 50_000, 0, minutes(0), true),
            (&no_age, 1, 1, minutes(9999), false),
        ] {
            assert_eq!(rollover_is_due(config, entries, bytes, age), due, "{entries} entries, {bytes} bytes, {age:?}");
        }
    }

    /// Ledgers 1, 2, 3 of 10 MB closed 30, 20 and 10 minutes ago, and the open ledger 4 with 10 MB.
    fn check(slowest: Option<(i64, i64)>, minutes: i64, mb: i64, expected: &[i64]) {
        let now_ms = 100 * 60_000;
        let mut line = Line::default();
        for (ledger, age) in [(1, Some(30)), (2, Some(20)), (3, Some(10)), (4, None)] {
            let closed_ms = age.map(|age: u64| now_ms - age * 60_000);
            line.insert(LedgerId(ledger), Part { entries: 5, bytes: 10 << 20, closed_ms, offload_context: None });
        }
        let slowest = slowest.map(|(ledger, entry)| Position::new(ledger, entry));
        let chosen = trimmable(&line, slowest, Retention::from_policy(minutes, mb), now_ms);
        let expected: Vec<_> = expected.iter().copied().map(LedgerId).collect();
        assert_eq!(chosen, expected, "slowest {slowest:?}, {minutes} min, {mb} MB");
    }

    #[test]
    fn retention() {
        // Deleted on consumption.
        check(Some((3, 4)), 0, 0, &[1, 2, 3]);
        check(Some((3, 3)), 0, 0, &[1, 2]);
        check(Some((4, 2)), 0, 0, &[1, 2, 3]);
        check(Some((1, 3)), 0, 0, &[]);
        check(Some((0, -1)), 0, 0, &[]);
        // No durable cursor: all closed ledgers are candidates.
        check(None, 0, 0, &[1, 2, 3]);
        // Kept for ever.
        check(None, -1, -1, &[]);
        // By time alone.
        check(None, 15, -1, &[1, 2]);
        check(None, 30, -1, &[]);
        check(Some((2, 0)), 15, -1, &[1]);
        // By size alone: what is left is at least the quota.
        check(None, -1, 20, &[1, 2]);
        check(None, -1, 21, &[1]);
        check(None, -1, 100, &[]);
        // Either limit suffices.
        check(None, 25, 20, &[1, 2]);
        check(None, 15, 100, &[1, 2]);
    }
}
