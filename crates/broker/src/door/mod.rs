//! The typed way in: what the doors (binary protocol, admin REST, …) may ask, and how the broker answers. No command
//! frames, no HTTP.

mod admin;
mod error;
mod handles;
mod outbound;
mod outbox;
mod registration;

use std::future::Future;
use std::num::NonZero;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use managed_ledger::Context;
use metadata::CreateMode;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use crate::config::{BrokerConfig, TopicType};
use crate::mailbox::{Command, Grant, Mailbox, Reply, TopicRequest};
use crate::ownership::{NamespaceEphemeralData, Owner, OwnershipShell};
use crate::shard::Shard;
use crate::tenancy::{Changed, ClusterUrls, Namespace, Tenancy, metadata_error};
use crate::topic::{Env, ProducerNames};

pub use self::admin::TopicsMode;
pub use self::error::{BrokerError, BrokerErrorKind};
pub use self::handles::{
    AccessMode, Ack, AckId, AckIds, AckRequest, ConsumerHandle, ConsumerSnapshot, InitialPosition, LastMessageId,
    NewConsumer, NewProducer, Peer, ProducerCreated, ProducerHandle, Publish, Redeliver, SeekTo, StartMessageId,
    SubscriptionType,
};
pub use self::outbound::OutboundBudget;
pub(crate) use self::outbox::{Admission, unpinned};
pub use self::outbox::{Outbox, Outgoing, OutgoingMessage};
pub use crate::tenancy::{
    AutoSubscriptionCreationOverride, AutoTopicCreationOverride, BundlesData, ClusterData, PartitionedTopicMetadata,
    Policies, RetentionPolicies, TenantInfo,
};
pub use managed_ledger::Position;
pub use pulsar_proto::{NamespaceName, TopicName};

/// Hands the policies of namespaces to the topics that are open.
async fn tell_policies(tenancy: &Tenancy, shards: &[Arc<Mailbox>], names: &[NamespaceName]) -> Result<(), BrokerError> {
    for name in names {
        if let Some(namespace) = tenancy.namespace(name).await? {
            for shard in shards {
                shard.post(Command::Policies { name: name.clone(), namespace: namespace.clone() });
            }
        }
    }
    Ok(())
}

/// The tenant of the namespaces named after brokers, which each broker uses to check itself.
const HEARTBEAT_TENANT: &str = "pulsar";

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

pub(crate) struct Inner {
    pub(crate) config: BrokerConfig,
    pub(crate) tenancy: Arc<Tenancy>,
    pub(crate) ownership: Arc<OwnershipShell>,
    outbound: Arc<OutboundBudget>,
    shards: Arc<[Arc<Mailbox>]>,
    /// Resolves when the shard's thread has ended.
    ended: Mutex<Vec<oneshot::Receiver<()>>>,
    lookups: Semaphore,
    next_outbox: AtomicU64,
    stopping: AtomicBool,
}

impl Broker {
    /// Starts the shards' threads and creates what the cluster's metadata lacks. The bookie and the metadata store are the
    /// caller's: they are closed after [`Broker::shutdown`].
    pub async fn start(config: BrokerConfig, storage: Context) -> Result<Broker, BrokerError> {
        let store = storage.metadata.clone();
        let tenancy =
            Arc::new(Tenancy::new(store.clone(), config.cluster.clone(), config.default_number_of_namespace_bundles));
        let urls = ClusterUrls { web_service_url: &config.web_service_url, service_url: &config.service_url };
        let counter = "/counters/producer-name/-";
        // Together: they share a commit.
        let (initialised, instance, ()) = tokio::join!(
            tenancy.initialise(urls),
            store.create(counter, Bytes::new(), CreateMode::EphemeralSequential),
            registration::register(&*store, &config),
        );
        initialised?;
        let instance = instance.map_err(|error| metadata_error(counter, error))?;
        let number = instance.path.rsplit('-').next().and_then(|digits| digits.parse().ok()).unwrap_or(0);
        let producer_names = Arc::new(ProducerNames::new(&config.cluster, number));

        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let count = config.shards.unwrap_or(cores).clamp(1, 64);
        let shards: Arc<[Arc<Mailbox>]> = (0..count).map(|_| Arc::default()).collect();
        let outbound = Arc::new(OutboundBudget::new(config.max_outbound_bytes, shards.clone()));
        let us = NamespaceEphemeralData {
            native_url: config.service_url.clone(),
            native_url_tls: config.service_url_tls.clone(),
            http_url: config.web_service_url.clone(),
            http_url_tls: config.web_service_url_tls.clone(),
            ..NamespaceEphemeralData::default()
        };
        let told = shards.clone();
        let new_term = move |term| told.iter().for_each(|shard| shard.post(Command::NewTerm { term }));
        let ownership = Arc::new(OwnershipShell::new(store, &us, Box::new(new_term)));
        let mut ended = Vec::new();
        for (index, mailbox) in shards.iter().enumerate() {
            let env = Env {
                config: config.clone(),
                mailbox: mailbox.clone(),
                producer_names: producer_names.clone(),
                outbound: outbound.clone(),
            };
            ended.push(start_shard(index, env, storage.clone())?);
        }
        let inner = Inner {
            lookups: Semaphore::new(config.max_concurrent_lookups.min(Semaphore::MAX_PERMITS)),
            config,
            tenancy: tenancy.clone(),
            ownership: ownership.clone(),
            outbound,
            shards,
            ended: Mutex::new(ended),
            next_outbox: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        };
        let broker = Broker { inner: Arc::new(inner) };
        // Both end with shard 0.
        let following = ownership.follow_session();
        broker.spawn_on(0, move || following);
        let mut watch = tenancy.watch();
        let shards = broker.inner.shards.clone();
        broker.spawn_on(0, move || async move {
            while let Some(event) = watch.next().await {
                let result = match tenancy.on_event(&event) {
                    Changed::Nothing => Ok(()),
                    Changed::Namespace(name) => tell_policies(&tenancy, &shards, &[name]).await,
                    Changed::Anything => match tenancy.all_namespaces().await {
                        Ok(names) => tell_policies(&tenancy, &shards, &names).await,
                        Err(error) => Err(error),
                    },
                };
                if let Err(error) = result {
                    tracing::warn!(%error, "cannot read changed policies: open topics keep the old ones");
                }
            }
        });
        Ok(broker)
    }

    /// Stops taking work, closes all topics (their clients are told), stores cursors and seals ledgers, ends the shards.
    /// Bounded by `brokerShutdownTimeoutMs`: what is not closed by then is recovered at the next start. Stop the doors first.
    pub async fn shutdown(&self) {
        if self.inner.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        self.inner.shards.iter().for_each(|shard| shard.post(Command::Stop));
        let ended = std::mem::take(&mut *self.inner.ended.lock());
        let all = async {
            for shard in ended {
                // A dropped sender is an end, too.
                let _ = shard.await;
            }
        };
        if tokio::time::timeout(self.inner.config.shutdown_timeout, all).await.is_err() {
            // Their bundles stay ours until the session ends: somebody else must not open them now.
            tracing::error!("some topics could not be closed in time: they are recovered at the next start");
            return;
        }
        self.inner.ownership.release_all().await;
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

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

    /// Bytes that wait for sockets, over all connections.
    pub fn outbound_bytes(&self) -> usize {
        self.inner.outbound.used_bytes()
    }

    /// One for each connection.
    pub fn new_outbox(&self) -> Arc<Outbox> {
        let id = self.inner.next_outbox.fetch_add(1, Ordering::Relaxed);
        Arc::new(Outbox::new(id, self.inner.outbound.clone()))
    }

    /// Finds (or becomes) the owner of the topic. `TopicNotFound` when the namespace does not exist; `TooManyRequests`.
    pub async fn lookup(&self, topic: &TopicName) -> Result<Lookup, BrokerError> {
        let Ok(_permit) = self.inner.lookups.try_acquire() else {
            return Err(BrokerError::new(BrokerErrorKind::TooManyRequests, "too many concurrent lookup requests"));
        };
        let config = &self.inner.config;
        let (_, owner) = self.owner(topic).await?;
        Ok(match owner {
            Owner::Us { .. } => Lookup {
                service_url: config.service_url.clone(),
                service_url_tls: config.service_url_tls.clone(),
                web_service_url: config.web_service_url.clone(),
                web_service_url_tls: config.web_service_url_tls.clone(),
                authoritative: true,
                local: true,
            },
            Owner::Other(other) => Lookup {
                service_url: other.native_url.clone(),
                service_url_tls: other.native_url_tls.clone(),
                web_service_url: other.http_url.clone(),
                web_service_url_tls: other.http_url_tls.clone(),
                authoritative: true,
                local: false,
            },
        })
    }

    /// Number of partitions; 0 for a topic that is not partitioned, or may come into being as such on first use.
    /// `auto_create` as the client's `metadata_auto_creation_enabled`. `TopicNotFound` otherwise.
    pub async fn partitions(&self, topic: &TopicName, auto_create: bool) -> Result<u32, BrokerError> {
        let namespace = self.namespace_of(topic).await?;
        if topic.is_partition() {
            return match self.may_exist(topic, &namespace).await? {
                Existence::Allowed => Ok(0),
                Existence::Unknown { auto } if auto && auto_create => Ok(0),
                Existence::Unknown { .. } if self.inner.tenancy.managed_ledger_exists(topic).await? => Ok(0),
                Existence::Unknown { .. } => Err(topic_not_found(topic)),
            };
        }
        if let Some(metadata) = self.inner.tenancy.partitioned(topic).await? {
            return Ok(metadata.partitions);
        }
        if self.inner.tenancy.managed_ledger_exists(topic).await? {
            return Ok(0);
        }
        let (allowed, partitions) = self.auto_creation(&namespace);
        match partitions {
            _ if !allowed || !auto_create => Err(topic_not_found(topic)),
            None => Ok(0),
            Some(partitions) => {
                let metadata = PartitionedTopicMetadata { partitions, ..PartitionedTopicMetadata::default() };
                if self.inner.tenancy.create_partitioned(topic, &metadata).await? {
                    return Ok(partitions);
                }
                // Somebody else was faster.
                Ok(self.inner.tenancy.partitioned(topic).await?.map_or(0, |metadata| metadata.partitions))
            }
        }
    }

    pub async fn create_producer(
        &self,
        request: NewProducer,
    ) -> Result<(ProducerHandle, ProducerCreated), BrokerError> {
        let topic = request.topic.clone();
        let ask = |reply| TopicRequest::CreateProducer { request: Box::new(request), reply };
        self.ask_topic(&topic, Creation::IfAllowed, ask).await
    }

    pub async fn subscribe(&self, request: NewConsumer) -> Result<ConsumerHandle, BrokerError> {
        let topic = request.topic.clone();
        let creation = if request.force_topic_creation { Creation::IfAllowed } else { Creation::Never };
        let ask = |reply| TopicRequest::Subscribe { request: Box::new(request), reply };
        self.ask_topic(&topic, creation, ask).await
    }

    /// Asks the owner of a topic, which is opened if need be.
    pub(crate) async fn ask_topic<T>(
        &self,
        topic: &TopicName,
        creation: Creation,
        request: impl FnOnce(Reply<T>) -> TopicRequest,
    ) -> Result<T, BrokerError> {
        let grant = self.grant(topic, creation).await?;
        let (reply, answer) = oneshot::channel();
        let command = Command::Open { topic: topic.clone(), grant, request: request(reply) };
        self.shard_of(topic).post(command);
        answer.await.unwrap_or_else(|_| Err(BrokerError::stopping()))
    }

    async fn grant(&self, topic: &TopicName, creation: Creation) -> Result<Grant, BrokerError> {
        if self.inner.stopping.load(Ordering::Relaxed) {
            return Err(BrokerError::stopping());
        }
        if !topic.is_persistent() {
            let message = format!("cannot open `{topic}`: non-persistent topics are not supported yet");
            return Err(BrokerError::new(BrokerErrorKind::NotAllowed, message));
        }
        let (namespace, owner) = self.owner(topic).await?;
        let Owner::Us { term } = owner else {
            let message = format!("Namespace bundle for topic ({topic}) not served by this instance");
            return Err(BrokerError::new(BrokerErrorKind::ServiceNotReady, message));
        };
        let create = match (creation, self.may_exist(topic, &namespace).await?) {
            (Creation::Always, _) => true,
            (_, Existence::Allowed) => true,
            (Creation::IfAllowed, Existence::Unknown { auto }) => auto,
            (Creation::Never, Existence::Unknown { .. }) => false,
        };
        Ok(Grant { term, namespace, create })
    }

    /// Whether the topic may be opened under that name.
    async fn may_exist(&self, topic: &TopicName, namespace: &Namespace) -> Result<Existence, BrokerError> {
        let (auto, _) = self.auto_creation(namespace);
        let base = topic.partitioned_topic();
        match (self.inner.tenancy.partitioned(&base).await?, topic.partition_index()) {
            (None, _) => Ok(Existence::Unknown { auto }),
            (Some(metadata), Some(index)) if index < metadata.partitions => Ok(Existence::Allowed),
            (Some(metadata), Some(_)) => {
                let count = metadata.partitions;
                let message = format!("Illegal topic partition name {topic} with max allowed {count} partitions");
                Err(BrokerError::new(BrokerErrorKind::TopicNotFound, message))
            }
            (Some(_), None) => {
                let message = format!("{topic} is a partitioned topic: use its partitions");
                Err(BrokerError::new(BrokerErrorKind::NotAllowed, message))
            }
        }
    }

    /// Whether topics come into being on first use, and with how many partitions.
    fn auto_creation(&self, namespace: &Namespace) -> (bool, Option<u32>) {
        let config = &self.inner.config;
        let (mut allowed, mut topic_type) = (config.allow_auto_topic_creation, config.auto_topic_creation_type);
        let mut partitions = config.default_num_partitions;
        if let Some(policy) = &namespace.policies.auto_topic_creation_override {
            allowed = policy.allow_auto_topic_creation;
            match policy.topic_type.as_deref() {
                Some("partitioned") => topic_type = TopicType::Partitioned,
                Some(_) => topic_type = TopicType::NonPartitioned,
                None => {}
            }
            partitions = policy.default_num_partitions.unwrap_or(partitions);
        }
        (allowed, (topic_type == TopicType::Partitioned).then_some(partitions.max(1)))
    }

    pub(crate) async fn namespace_of(&self, topic: &TopicName) -> Result<Arc<Namespace>, BrokerError> {
        let name = topic.namespace();
        if name.tenant() == HEARTBEAT_TENANT && name.local_name() == self.inner.config.broker_id {
            return Ok(Arc::new(Namespace::heartbeat()));
        }
        match self.inner.tenancy.namespace(&name).await? {
            Some(namespace) => Ok(namespace),
            None => {
                let message = format!("Namespace not found: {}", name.as_str());
                Err(BrokerError::new(BrokerErrorKind::TopicNotFound, message))
            }
        }
    }

    async fn owner(&self, topic: &TopicName) -> Result<(Arc<Namespace>, Owner), BrokerError> {
        let namespace = self.namespace_of(topic).await?;
        let bundle = namespace.bundles.of(topic.namespace_str(), topic.bundle_hash());
        let owner = self.inner.ownership.owner(&bundle).await?;
        Ok((namespace, owner))
    }

    pub(crate) fn shard_of(&self, topic: &TopicName) -> &Mailbox {
        let shards = &self.inner.shards;
        &shards[topic.bundle_hash() as usize % shards.len()]
    }

    pub(crate) fn all_shards(&self) -> &[Arc<Mailbox>] {
        &self.inner.shards
    }
}

/// Whether a request may bring its topic into being.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Creation {
    Never,
    IfAllowed,
    Always,
}

/// What the names alone say about a topic.
enum Existence {
    /// A partition of a partitioned topic: created on first use.
    Allowed,
    /// Only its managed ledger can tell; `auto`: it may come into being.
    Unknown { auto: bool },
}

pub(crate) fn topic_not_found(topic: &TopicName) -> BrokerError {
    BrokerError::new(BrokerErrorKind::TopicNotFound, format!("Topic {topic} does not exist"))
}

/// Starts the thread of a shard. The receiver resolves when it has ended.
fn start_shard(index: usize, env: Env, storage: Context) -> Result<oneshot::Receiver<()>, BrokerError> {
    let cannot = |error: std::io::Error| {
        BrokerError::new(BrokerErrorKind::Unknown, format!("cannot start shard {index}: {error}"))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let (end, ended) = oneshot::channel();
    std::thread::Builder::new()
        .name(format!("shard-{index}"))
        .spawn(move || {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, Shard::new(index, env, storage).run());
            drop(local);
            runtime.shutdown_background();
            // Nobody may wait any more.
            let _ = end.send(());
        })
        .map_err(cannot)?;
    Ok(ended)
}
