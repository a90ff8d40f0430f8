//! The typed way in: what the doors (binary protocol, admin REST, …) may ask, and how the broker answers. No command
//! frames, no HTTP.

mod admin;
mod error;
mod handles;
mod outbox;
mod stub;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use crate::BrokerConfig;
use crate::mailbox::{Command, Mailbox};

pub use self::admin::{
    AutoSubscriptionCreationOverride, AutoTopicCreationOverride, BundlesData, ClusterData, PartitionedTopicMetadata,
    Policies, RetentionPolicies, TenantInfo, TopicsMode,
};
pub use self::error::{BrokerError, BrokerErrorKind};
pub use self::handles::{
    AccessMode, Ack, AckId, AckIds, AckRequest, ConsumerHandle, ConsumerSnapshot, InitialPosition, LastMessageId,
    NewConsumer, NewProducer, Peer, ProducerCreated, ProducerHandle, Publish, Redeliver, SeekTo, StartMessageId,
    SubscriptionType,
};
pub use self::outbox::{Outbox, Outgoing, OutgoingMessage};
pub use self::stub::{NamespaceName, Position, TopicName};

/// Who serves a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    pub service_url: String,
    pub service_url_tls: Option<String>,
    pub web_service_url: String,
    pub web_service_url_tls: Option<String>,
    /// True: connect there. False: ask there.
    pub authoritative: bool,
    /// The owner is this broker.
    pub local: bool,
}

/// A running broker. Cheap to clone.
#[derive(Clone)]
pub struct Broker {
    inner: Arc<Inner>,
}

struct Inner {
    config: BrokerConfig,
    shards: Arc<[Arc<Mailbox>]>,
    next_outbox: AtomicU64,
}

impl Broker {
    pub fn config(&self) -> &BrokerConfig {
        &self.inner.config
    }

    /// Threads that own topics; connections live on them too.
    pub fn shards(&self) -> usize {
        self.inner.shards.len()
    }

    /// Starts a task on the thread of shard `shard` (a `current_thread` runtime with I/O and time). `make` runs there, so
    /// what it makes need not be `Send`.
    pub fn spawn_on<F>(&self, shard: usize, make: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        self.inner.shards[shard]
            .post(Command::Spawn(Box::new(move || Box::pin(make()) as Pin<Box<dyn Future<Output = ()>>>)));
    }

    /// One for each connection.
    pub fn new_outbox(&self) -> Arc<Outbox> {
        let id = self.inner.next_outbox.fetch_add(1, Ordering::Relaxed);
        Arc::new(Outbox::new(id, self.inner.shards.clone()))
    }

    /// Finds (or becomes) the owner of the topic. `TopicNotFound` when the namespace does not exist.
    pub async fn lookup(&self, _topic: &TopicName) -> Result<Lookup, BrokerError> {
        self.unready()
    }

    /// Number of partitions; 0 for a topic that is not partitioned, or may come into being as such on first use.
    /// `auto_create` as the client's `metadata_auto_creation_enabled`. `TopicNotFound` otherwise.
    pub async fn partitions(&self, _topic: &TopicName, _auto_create: bool) -> Result<u32, BrokerError> {
        self.unready()
    }

    pub async fn create_producer(
        &self,
        request: NewProducer,
    ) -> Result<(ProducerHandle, ProducerCreated), BrokerError> {
        let (reply, answer) = oneshot::channel();
        self.inner.shards[0].post(Command::CreateProducer { request: Box::new(request), reply });
        answer.await.unwrap_or_else(|_| Err(BrokerError::stopping()))
    }

    pub async fn subscribe(&self, request: NewConsumer) -> Result<ConsumerHandle, BrokerError> {
        let (reply, answer) = oneshot::channel();
        self.inner.shards[0].post(Command::Subscribe { request: Box::new(request), reply });
        answer.await.unwrap_or_else(|_| Err(BrokerError::stopping()))
    }

    fn unready<T>(&self) -> Result<T, BrokerError> {
        Err(BrokerError::new(BrokerErrorKind::ServiceNotReady, "the broker is starting"))
    }
}
