//! The one way into a shard.

use std::future::Future;
use std::pin::Pin;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::door::{
    AckRequest, BrokerError, ConsumerHandle, ConsumerSnapshot, LastMessageId, NewConsumer, NewProducer,
    ProducerCreated, ProducerHandle, Publish, Redeliver, SeekTo,
};

pub(crate) type Reply<T> = oneshot::Sender<Result<T, BrokerError>>;
/// Starts a task on the shard's thread.
pub(crate) type Spawn = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

pub(crate) enum Command {
    Publish {
        topic: u64,
        producer: u64,
        publish: Publish,
    },
    Consumer {
        topic: u64,
        consumer: u64,
        command: ConsumerCommand,
    },
    CreateProducer {
        request: Box<NewProducer>,
        reply: Reply<(ProducerHandle, ProducerCreated)>,
    },
    CloseProducer {
        topic: u64,
        producer: u64,
        reply: Option<oneshot::Sender<()>>,
    },
    Subscribe {
        request: Box<NewConsumer>,
        reply: Reply<ConsumerHandle>,
    },
    /// The outbox has room again.
    Resume {
        outbox: u64,
    },
    Spawn(Spawn),
}

pub(crate) enum ConsumerCommand {
    Flow(u32),
    Ack(AckRequest),
    Redeliver(Redeliver, Option<u64>),
    Unsubscribe { force: bool, reply: Reply<()> },
    Seek { to: SeekTo, reply: Reply<()> },
    LastMessageId { reply: Reply<LastMessageId> },
    Stats { reply: Reply<ConsumerSnapshot> },
    Close { reply: Option<oneshot::Sender<()>> },
}

/// Commands for one shard, in the order posted; taken all at once.
///
/// Bounded by those who post: a connection stops reading its socket above its count of pending publishes and its share of
/// the publish buffer.
#[derive(Default)]
pub(crate) struct Mailbox {
    queue: Mutex<Vec<Command>>,
    notify: Notify,
}

impl Mailbox {
    /// Wakes the shard only when the queue was empty: one wake-up a batch.
    pub(crate) fn post(&self, command: Command) {
        let was_empty = {
            let mut queue = self.queue.lock();
            queue.push(command);
            queue.len() == 1
        };
        if was_empty {
            self.notify.notify_one();
        }
    }

    /// Resolves when something was posted since the last call. Cancel-safe.
    pub(crate) async fn posted(&self) {
        self.notify.notified().await;
    }

    /// Moves everything into the empty `batch`.
    pub(crate) fn take(&self, batch: &mut Vec<Command>) {
        debug_assert!(batch.is_empty());
        std::mem::swap(&mut *self.queue.lock(), batch);
    }
}
