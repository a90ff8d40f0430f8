//! The memory that published messages may hold between the socket and their durable commit, for the whole process.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

/// Counts the bytes of messages that were read and are not yet answered.
///
/// Small frames are charged after they were read (they are in memory already), and reading stops at the soft limit.
/// A large frame is charged as a whole *before* the rest of it is read: if frames were charged piece by piece,
/// many half-read ones could use up the budget, and none could ever be completed. The room between the soft and the
/// hard limit belongs to large frames, so that a flood of small ones cannot starve them.
#[derive(Debug)]
pub struct PublishBudget {
    soft_limit: usize,
    hard_limit: usize,
    used: AtomicUsize,
    /// Whether `waiters` may hold someone: spares the releasing side the lock.
    contended: AtomicBool,
    waiters: Mutex<Vec<Waker>>,
}

impl PublishBudget {
    /// `limit_bytes`: `None` for no limit. `largest_frame`: the largest frame a connection may send, in bytes.
    pub fn new(limit_bytes: Option<usize>, largest_frame: usize) -> Self {
        let hard_limit = limit_bytes.unwrap_or(usize::MAX);
        Self {
            soft_limit: hard_limit - largest_frame.min(hard_limit / 2),
            hard_limit,
            used: AtomicUsize::new(0),
            contended: AtomicBool::new(false),
            waiters: Mutex::new(Vec::new()),
        }
    }

    pub fn used_bytes(&self) -> usize {
        self.used.load(SeqCst)
    }

    /// Charges what is in memory already.
    pub(super) fn charge(&self, bytes: usize) {
        self.used.fetch_add(bytes, SeqCst);
    }

    /// Returns what was charged or acquired.
    pub(super) fn release(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.used.fetch_sub(bytes, SeqCst);
        // A waiter first raises the flag and then looks at `used`; here it is the other way round. So either it sees
        // the lower number, or the flag is seen here.
        if self.contended.load(SeqCst) {
            let waiters = {
                let mut waiters = self.waiters.lock();
                self.contended.store(false, SeqCst);
                std::mem::take(&mut *waiters)
            };
            waiters.into_iter().for_each(Waker::wake);
        }
    }

    /// Ready when small frames may be read.
    pub(super) fn poll_open(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_when(cx, |budget| budget.used_bytes() < budget.soft_limit)
    }

    /// Ready when `bytes` were acquired. A frame larger than the whole budget is let through alone.
    pub(super) fn poll_acquire(&self, bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_when(cx, |budget| {
            let fits = |used: usize| {
                let after = used.saturating_add(bytes);
                (used == 0 || after <= budget.hard_limit).then_some(after)
            };
            budget.used.fetch_update(SeqCst, SeqCst, fits).is_ok()
        })
    }

    fn poll_when(&self, cx: &mut Context<'_>, mut attempt: impl FnMut(&Self) -> bool) -> Poll<()> {
        if attempt(self) {
            return Poll::Ready(());
        }
        let mut waiters = self.waiters.lock();
        self.contended.store(true, SeqCst);
        if attempt(self) {
            return Poll::Ready(());
        }
        if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiters.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        task::{Wake, Waker},
    };

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn small_frames_leave_room_for_a_large_one() {
        let woken = Arc::new(Counter::default());
        let waker = Waker::from(Arc::clone(&woken));
        let cx = &mut Context::from_waker(&waker);
        let budget = PublishBudget::new(Some(100), 30);

        budget.charge(69);
        assert!(budget.poll_open(cx).is_ready());
        budget.charge(1);
        assert!(budget.poll_open(cx).is_pending());
        assert!(budget.poll_open(cx).is_pending()); // Registered once.
        assert!(budget.poll_acquire(30, cx).is_ready());
        assert!(budget.poll_acquire(1, cx).is_pending());
        assert_eq!(budget.used_bytes(), 100);

        budget.release(30);
        assert_eq!(woken.0.load(SeqCst), 1);
        budget.release(1);
        assert_eq!(woken.0.load(SeqCst), 1); // Nobody waits any more.
        assert!(budget.poll_open(cx).is_ready());
    }

    #[test]
    fn a_frame_beyond_the_budget_passes_alone() {
        let cx = &mut Context::from_waker(Waker::noop());
        let budget = PublishBudget::new(Some(10), 1000);
        budget.charge(1);
        assert!(budget.poll_acquire(500, cx).is_pending());
        budget.release(1);
        assert!(budget.poll_acquire(500, cx).is_ready());
        budget.release(500);
        assert_eq!(budget.used_bytes(), 0);
    }
}
