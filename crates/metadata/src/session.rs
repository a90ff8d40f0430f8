//! The session that owns a store's ephemeral nodes, as its users see it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// A session at one moment. If `generation` is not what it was, the ephemeral nodes of before are gone, whatever
/// happened in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    pub state: SessionState,
    /// Grows with every session that replaces a lost one.
    pub generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Ephemeral nodes are ours.
    Alive,
    /// No contact at present; the nodes may or may not still be ours. Decide nothing new.
    Suspended,
    /// Over: others may already own what was ours. Also the state after the store is closed.
    Lost,
}

/// Follows a session. Only the latest state is kept: `generation` tells what was missed.
#[derive(Clone, Debug)]
pub struct SessionWatch {
    shared: Arc<Mutex<Shared>>,
    seen: Session,
}

impl SessionWatch {
    /// The session now.
    pub fn current(&self) -> Session {
        self.shared.lock().session
    }

    /// Waits until the session differs from what this watch last returned here (at first: from when it was made).
    pub async fn changed(&mut self) -> Session {
        poll_fn(|cx| {
            let mut shared = self.shared.lock();
            if shared.session != self.seen {
                self.seen = shared.session;
                return Poll::Ready(self.seen);
            }
            if !shared.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                shared.wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

/// The writing end.
#[derive(Clone, Debug)]
pub(crate) struct SessionCell {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    session: Session,
    wakers: Vec<Waker>,
}

impl SessionCell {
    pub(crate) fn new(generation: u64) -> SessionCell {
        let session = Session { state: SessionState::Alive, generation };
        SessionCell { shared: Arc::new(Mutex::new(Shared { session, wakers: Vec::new() })) }
    }

    pub(crate) fn get(&self) -> Session {
        self.shared.lock().session
    }

    pub(crate) fn set(&self, session: Session) {
        let mut shared = self.shared.lock();
        shared.session = session;
        let wakers = std::mem::take(&mut shared.wakers);
        drop(shared);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn watch(&self) -> SessionWatch {
        SessionWatch { seen: self.get(), shared: self.shared.clone() }
    }
}
