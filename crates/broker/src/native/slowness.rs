//! Whether what waits for a socket waits long, and whether the peer still takes anything at all.

use std::time::Duration;

/// What waits longer than this is copied out of its blocks. In the meantime the entry cache holds the same blocks, so that
/// nothing is lost by waiting; a peer that reads well is never as slow.
const LONG: Duration = Duration::from_millis(25);

/// How often a slow connection is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A peer that takes nothing for so long may be sent away when others need the memory.
pub(super) const STOPPED_MS: u64 = 5000;

/// One that takes nothing for so long is no longer believed to read.
pub(super) const DOUBTFUL_MS: u64 = 500;

/// What has happened on the connection until now. Everything only grows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    pub(super) now_ms: u64,
    pub(super) written_bytes: u64,
    pub(super) encoded_bytes: u64,
    pub(super) encoded_items: u64,
    /// Those encoded included.
    pub(super) taken_items: u64,
}

/// Looked at while something waits to be written; begins anew when nothing does.
#[derive(Debug, Default)]
pub(super) struct Slowness {
    last: Option<Look>,
    /// When something was last found written since the look before.
    progress_ms: u64,
    is_slow: bool,
}

impl Slowness {
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// Until the next look.
    pub(super) fn pause(&self) -> Duration {
        if self.is_slow { LOOK_AGAIN } else { LONG }
    }

    /// Answers for how many milliseconds the peer has taken nothing.
    pub(super) fn look(&mut self, now: Look) -> u64 {
        let Some(last) = self.last.replace(now) else {
            self.progress_ms = now.now_ms;
            return 0;
        };
        // What was there at the last look is not gone yet.
        self.is_slow = now.written_bytes < last.encoded_bytes || now.encoded_items < last.taken_items;
        if now.written_bytes > last.written_bytes {
            self.progress_ms = now.now_ms;
        }
        now.now_ms - self.progress_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows: time, written, encoded bytes, encoded items, taken items; expected: `-` well, `s` slow, `X` stopped.
    fn check(rows: &[(u64, u64, u64, u64, u64, char)]) {
        let mut slowness = Slowness::default();
        for (now_ms, written_bytes, encoded_bytes, encoded_items, taken_items, expected) in rows.iter().copied() {
            let look = Look { now_ms, written_bytes, encoded_bytes, encoded_items, taken_items };
            let stopped = slowness.look(look) >= STOPPED_MS;
            let seen = match (stopped, slowness.is_slow()) {
                (true, _) => 'X',
                (false, true) => 's',
                (false, false) => '-',
            };
            assert_eq!(seen, expected, "at {now_ms} ms");
        }
    }

    #[test]
    fn slow_is_who_has_not_taken_what_was_there_before() {
        check(&[(0, 0, 100, 1, 1, '-'), (25, 100, 200, 2, 2, '-'), (50, 250, 300, 3, 3, '-')]);
        check(&[(0, 0, 100, 1, 1, '-'), (25, 99, 200, 2, 2, 's'), (275, 200, 300, 3, 3, '-')]);
        check(&[(0, 0, 100, 1, 9, '-'), (25, 100, 200, 8, 12, 's'), (275, 200, 300, 12, 12, '-')]);
    }

    #[test]
    fn stopped_is_who_takes_nothing() {
        check(&[(0, 5, 100, 1, 1, '-'), (25, 5, 100, 1, 1, 's'), (4999, 5, 100, 1, 1, 's'), (5000, 5, 100, 1, 1, 'X')]);
        check(&[
            (0, 5, 100, 1, 1, '-'),
            (4000, 6, 100, 1, 1, 's'),
            (8000, 6, 100, 1, 1, 's'),
            (9000, 6, 100, 1, 1, 'X'),
        ]);
    }
}
