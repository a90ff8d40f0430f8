//! The one way into a shard.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bookkeeper_proto::{AddDone, AddSink};
use parking_lot::Mutex;
use pulsar_proto::{NamespaceName, TopicName};
use tokio::sync::{Notify, oneshot};

use crate::door::{
    AckRequest, BrokerError, ConsumerHandle, ConsumerSnapshot, LastMessageId, NewConsumer, NewProducer, Position,
    ProducerCreated, ProducerHandle, Publish, Redeliver, SeekTo,
};
use crate::stats::{TopicInternalStats, TopicMetrics, TopicStats};
use crate::tenancy::Namespace;

pub(crate) type Reply<T> = oneshot::Sender<Result<T, BrokerError>>;
/// Starts a task on the shard's thread.
pub(crate) type Spawn = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// Leave to open a topic: this broker owned its bundle in this term.
#[derive(Clone)]
pub(crate) struct Grant {
    pub term: u64,
    pub namespace: Arc<Namespace>,
    /// The topic may come into being.
    pub create: bool,
}

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
    CloseProducer {
        topic: u64,
        producer: u64,
        reply: Option<oneshot::Sender<()>>,
    },
    /// One commit's worth of answers from the bookie.
    Added(Vec<AddDone>),
    /// For a topic that has to be open.
    Open {
        topic: TopicName,
        grant: Grant,
        request: TopicRequest,
    },
    /// For a topic whether it is open or not: closes it with its clients.
    Unload {
        topic: TopicName,
        reply: Reply<()>,
    },
    Metrics {
        reply: oneshot::Sender<Vec<TopicMetrics>>,
    },
    /// For the topics of a namespace whose policies have changed.
    Policies {
        name: NamespaceName,
        namespace: Arc<Namespace>,
    },
    /// A term of ownership began: topics opened before it are closed.
    NewTerm {
        term: u64,
    },
    /// The outbox has room again.
    Resume {
        outbox: u64,
    },
    /// Connections have given back memory that topics of this shard wait for.
    Room,
    Spawn(Spawn),
    /// Close all topics and stop.
    Stop,
}

/// What is asked of an open topic.
pub(crate) enum TopicRequest {
    CreateProducer {
        request: Box<NewProducer>,
        reply: Reply<(ProducerHandle, ProducerCreated)>,
    },
    Subscribe {
        request: Box<NewConsumer>,
        reply: Reply<ConsumerHandle>,
    },
    /// Nothing but that it is open.
    Touch {
        reply: Reply<()>,
    },
    Stats {
        reply: Reply<Box<TopicStats>>,
    },
    InternalStats {
        reply: Reply<Box<TopicInternalStats>>,
    },
    Subscriptions {
        reply: Reply<Vec<String>>,
    },
    CreateSubscription {
        name: String,
        at: Position,
        reply: Reply<()>,
    },
    DeleteSubscription {
        name: String,
        force: bool,
        reply: Reply<()>,
    },
    SkipAll {
        subscription: String,
        reply: Reply<()>,
    },
    LastMessageId {
        reply: Reply<Position>,
    },
    Delete {
        force: bool,
        reply: Reply<()>,
    },
}

impl TopicRequest {
    pub(crate) fn refuse(self, error: BrokerError) {
        // Who no longer waits needs no answer.
        match self {
            TopicRequest::CreateProducer { reply, .. } => drop(reply.send(Err(error))),
            TopicRequest::Subscribe { reply, .. } => drop(reply.send(Err(error))),
            TopicRequest::Stats { reply } => drop(reply.send(Err(error))),
            TopicRequest::InternalStats { reply } => drop(reply.send(Err(error))),
            TopicRequest::Subscriptions { reply } => drop(reply.send(Err(error))),
            TopicRequest::LastMessageId { reply } => drop(reply.send(Err(error))),
            TopicRequest::Touch { reply }
            | TopicRequest::CreateSubscription { reply, .. }
            | TopicRequest::DeleteSubscription { reply, .. }
            | TopicRequest::SkipAll { reply, .. }
            | TopicRequest::Delete { reply, .. } => drop(reply.send(Err(error))),
        }
    }
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
    queue: Mutex<Queue>,
    notify: Notify,
}

#[derive(Default)]
struct Queue {
    commands: Vec<Command>,
    closed: bool,
}

impl Mailbox {
    /// Wakes the shard only when the queue was empty: one wake-up a batch. After the shard has stopped, what is posted is
    /// dropped, and whoever waits for a reply learns from the dropped sender.
    pub(crate) fn post(&self, command: Command) {
        let was_empty = {
            let mut queue = self.queue.lock();
            if queue.closed {
                return;
            }
            queue.commands.push(command);
            queue.commands.len() == 1
        };
        if was_empty {
            self.notify.notify_one();
        }
    }

    /// Gives the shard a turn without a command.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Resolves when something was posted since the last call. Cancel-safe.
    pub(crate) async fn posted(&self) {
        self.notify.notified().await;
    }

    /// Moves everything into the empty `batch`.
    pub(crate) fn take(&self, batch: &mut Vec<Command>) {
        debug_assert!(batch.is_empty(), "the batch before has been worked off");
        std::mem::swap(&mut self.queue.lock().commands, batch);
    }

    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        // Outside the lock: a dropped handle may post.
        let rest = std::mem::take(&mut queue.commands);
        drop(queue);
        drop(rest);
    }
}

impl AddSink for Mailbox {
    fn added(&self, done: Vec<AddDone>) {
        self.post(Command::Added(done));
    }
}
