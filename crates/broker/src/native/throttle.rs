//! When a connection is not read because too many of its messages wait to become durable.

/// Stops at `limit` unanswered publishes and goes on at half of it, so that reading does not start and stop for each.
#[derive(Debug)]
pub(super) struct Throttle {
    limit: usize,
    pending: usize,
    stopped: bool,
}

impl Throttle {
    /// `limit`: at least 1.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), pending: 0, stopped: false }
    }

    pub(super) fn published(&mut self) {
        self.pending += 1;
        self.stopped |= self.pending >= self.limit;
    }

    /// `count` publishes were answered, or will never be.
    pub(super) fn answered(&mut self, count: usize) {
        self.pending -= count;
        self.stopped &= self.pending > self.limit / 2;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_at_the_limit_and_goes_on_at_half() {
        let mut throttle = Throttle::new(4);
        let mut trace = String::new();
        for step in "++++-+--+-".chars() {
            match step {
                '+' => throttle.published(),
                _ => throttle.answered(1),
            }
            trace.push(if throttle.is_stopped() { 'S' } else { '.' });
        }
        assert_eq!(trace, "...SSSS...");
        let mut narrow = Throttle::new(1);
        narrow.published();
        assert!(narrow.is_stopped());
        narrow.answered(1);
        assert!(!narrow.is_stopped());
    }
}
