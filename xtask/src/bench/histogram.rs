//! Durations, counted in buckets that are at most 1/64 wide of what they hold.

use std::time::Duration;

/// Whole microseconds; exact below 128 µs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max_us: u64,
}

const SUB_BITS: u32 = 6;
const SUB: u64 = 1 << SUB_BITS;

impl Histogram {
    /// Counts `times` messages that took as long.
    pub(crate) fn record(&mut self, took: Duration, times: u64) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = bucket(us);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += times;
        self.count += times;
        self.max_us = self.max_us.max(us);
    }

    /// The smallest bucket's upper end that `share` (0 to 1) of everything is not above; zero if nothing was recorded.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let rank = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, times) in self.buckets.iter().enumerate() {
            seen += times;
            if seen >= rank {
                return Duration::from_micros(highest(bucket).min(self.max_us));
            }
        }
        Duration::from_micros(self.max_us)
    }

    /// Exact.
    pub(crate) fn max(&self) -> Duration {
        Duration::from_micros(self.max_us)
    }
}

fn bucket(us: u64) -> usize {
    // The seven highest bits decide; below 128 they are the number itself.
    let shift = us.max(SUB).ilog2() - SUB_BITS;
    (u64::from(shift) * SUB + (us >> shift)) as usize
}

/// The largest duration of a bucket.
fn highest(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / SUB).saturating_sub(1);
    let first = (bucket - shift * SUB) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Histogram, bucket, highest};

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        let mut last = 0;
        for us in (0..100_000).chain([u64::MAX / 3, u64::MAX]) {
            let index = bucket(us);
            assert!(index == last || index == last + 1 || us > 100_000, "{us}");
            assert!(highest(index) >= us, "{us}");
            assert!(highest(index) - us <= us / 64, "{us}");
            assert_eq!(bucket(highest(index)), index, "{us}");
            last = index;
        }
    }

    #[test]
    fn quantiles() {
        let us = Duration::from_micros;
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), us(0));
        for value in 1..=100 {
            histogram.record(us(value), 1);
        }
        assert_eq!(
            [0.0, 0.5, 0.99, 0.999, 1.0].map(|share| histogram.quantile(share)),
            [us(1), us(50), us(99), us(100), us(100)]
        );
        // A batch counts as many times as it has messages.
        histogram.record(us(1_000_000), 900);
        assert_eq!(histogram.quantile(0.5), us(1_000_000));
        assert_eq!(histogram.quantile(0.05), us(50));
        assert_eq!(histogram.max(), us(1_000_000));
    }
}
