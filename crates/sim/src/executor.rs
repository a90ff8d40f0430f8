use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Polls futures on the caller's thread, in the order the caller chooses. Wake-ups are ignored: a future that is pending
/// is simply polled again, after something else has happened.
pub struct Executor<T> {
    tasks: Vec<Pin<Box<dyn Future<Output = T>>>>,
}

impl<T> Default for Executor<T> {
    fn default() -> Self {
        Executor { tasks: Vec::new() }
    }
}

impl<T> Executor<T> {
    /// Takes a future; it does not run before it is polled.
    pub fn spawn(&mut self, task: impl Future<Output = T> + 'static) {
        self.tasks.push(Box::pin(task));
    }

    /// Tasks that have not ended.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether all tasks have ended.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Polls task number `index` once; returns its output and forgets it if that was its end.
    pub fn poll(&mut self, index: usize) -> Option<T> {
        let poll = self.tasks[index].as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match poll {
            Poll::Ready(output) => {
                // Not `swap_remove`: the order of the others must not depend on which one ended.
                drop(self.tasks.remove(index));
                Some(output)
            }
            Poll::Pending => None,
        }
    }
}

/// Runs one future to its end, calling `meanwhile` whenever it waits. Gives up, with `None`, if it still waits after
/// `patience` such calls: nothing that could wake it is left.
pub fn run<T>(task: impl Future<Output = T>, patience: usize, mut meanwhile: impl FnMut()) -> Option<T> {
    let mut task = std::pin::pin!(task);
    for _ in 0..patience {
        if let Poll::Ready(output) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(output);
        }
        meanwhile();
    }
    None
}
