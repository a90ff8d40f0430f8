//! Watches: bounded queues of changes, one per watcher.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::path;

/// How many events wait for a slow watcher before they are replaced by one [`Event::Resync`].
pub const WATCH_QUEUE_EVENTS: usize = 1024;

/// One change of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Created {
        path: Arc<str>,
    },
    /// The value was written, even if with the same bytes.
    Modified {
        path: Arc<str>,
    },
    Deleted {
        path: Arc<str>,
    },
    /// A child of this node was created or deleted.
    ChildrenChanged {
        path: Arc<str>,
    },
    /// Events were lost (a slow watcher, or a session that was lost and regained): whatever was cached is suspect.
    Resync,
}

impl Event {
    /// The node it is about; none for [`Event::Resync`], which is about all of them.
    pub fn path(&self) -> Option<&str> {
        match self {
            Event::Created { path }
            | Event::Modified { path }
            | Event::Deleted { path }
            | Event::ChildrenChanged { path } => Some(path),
            Event::Resync => None,
        }
    }
}

/// Where a watcher takes its events from. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    queue: Arc<Queue>,
}

impl Watch {
    /// The next event; `None` once the store is closed and everything was taken. Nothing is lost when this future is
    /// dropped.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Watch::next`], for hand-written futures.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.queue.state.lock();
        if let Some(event) = state.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// An event that is there already.
    pub fn try_next(&mut self) -> Option<Event> {
        self.queue.state.lock().events.pop_front()
    }
}

#[derive(Debug)]
struct Queue {
    prefix: String,
    state: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    events: VecDeque<Event>,
    waker: Option<Waker>,
    closed: bool,
}

/// Every watch on one store, as its writer sees them.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    state: Mutex<WatchersState>,
}

#[derive(Debug, Default)]
struct WatchersState {
    queues: Vec<Weak<Queue>>,
    closed: bool,
}

impl Watchers {
    pub(crate) fn watch(&self, prefix: &str) -> Watch {
        let mut state = self.state.lock();
        let fresh = QueueState { closed: state.closed, ..QueueState::default() };
        let queue = Arc::new(Queue { prefix: prefix.into(), state: Mutex::new(fresh) });
        state.queues.retain(|queue| queue.strong_count() > 0);
        state.queues.push(Arc::downgrade(&queue));
        Watch { queue }
    }

    /// Delivers events in the order given.
    pub(crate) fn publish(&self, events: &[Event]) {
        if !events.is_empty() {
            self.each(|queue, state| {
                for event in
                    events.iter().filter(|event| event.path().is_none_or(|path| path::covers(&queue.prefix, path)))
                {
                    if state.events.len() >= WATCH_QUEUE_EVENTS || *event == Event::Resync {
                        state.events.clear();
                        state.events.push_back(Event::Resync);
                    } else {
                        state.events.push_back(event.clone());
                    }
                }
            });
        }
    }

    /// Ends every watch, present and future.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.each(|_, state| state.closed = true);
    }

    fn each(&self, mut change: impl FnMut(&Queue, &mut QueueState)) {
        let mut wakers = Vec::new();
        self.state.lock().queues.retain(|queue| {
            let Some(queue) = queue.upgrade() else { return false };
            let mut state = queue.state.lock();
            change(&queue, &mut state);
            if !state.events.is_empty() || state.closed {
                wakers.extend(state.waker.take());
            }
            true
        });
        // Outside the locks: a waker may run anything.
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(number: usize) -> Event {
        Event::Created { path: format!("/a/{number}").into() }
    }

    #[test]
    fn an_overflowing_queue_becomes_one_resync() {
        let watchers = Watchers::default();
        let mut watch = watchers.watch("/a");
        for number in 0..WATCH_QUEUE_EVENTS {
            watchers.publish(&[created(number)]);
        }
        watchers.publish(&[created(7777), created(8888)]);
        assert_eq!(watch.try_next(), Some(Event::Resync));
        assert_eq!(watch.try_next(), Some(created(8888)));
        assert_eq!(watch.try_next(), None);
    }

    #[test]
    fn a_dropped_watch_is_forgotten() {
        let watchers = Watchers::default();
        drop(watchers.watch("/a"));
        watchers.publish(&[created(1)]);
        assert!(watchers.state.lock().queues.is_empty());
    }
}
