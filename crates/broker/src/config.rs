//! The settings this room needs, typed. The names of the published keys are in each field's documentation.

use std::time::Duration;

/// Which kind of topic comes into being on first use (`allowAutoTopicCreationType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicType {
    NonPartitioned,
    Partitioned,
}

/// Defaults are the original's, except where said.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// `clusterName`
    pub cluster: String,
    /// `<advertised host>:<web port>`: the name in the load balancer's paths and in statistics.
    pub broker_id: String,
    /// `pulsar://host:port` as clients reach it.
    pub service_url: String,
    pub service_url_tls: Option<String>,
    /// `http://host:port` as clients reach it.
    pub web_service_url: String,
    pub web_service_url_tls: Option<String>,
    /// Threads that own topics and connections; `None`: one per core.
    pub shards: Option<usize>,
    /// `allowAutoTopicCreation`
    pub allow_auto_topic_creation: bool,
    /// `allowAutoTopicCreationType`
    pub auto_topic_creation_type: TopicType,
    /// `defaultNumPartitions`
    pub default_num_partitions: u32,
    /// `allowAutoSubscriptionCreation`
    pub allow_auto_subscription_creation: bool,
    /// `defaultNumberOfNamespaceBundles`
    pub default_number_of_namespace_bundles: u32,
    /// `maxProducersPerTopic`; `None`: unlimited.
    pub max_producers_per_topic: Option<u32>,
    /// `maxConsumersPerTopic`; `None`: unlimited.
    pub max_consumers_per_topic: Option<u32>,
    /// `maxConsumersPerSubscription`; `None`: unlimited.
    pub max_consumers_per_subscription: Option<u32>,
    /// `maxUnackedMessagesPerConsumer`; `None`: unlimited.
    pub max_unacked_messages_per_consumer: Option<u32>,
    /// `maxUnackedMessagesPerSubscription`; `None`: unlimited.
    pub max_unacked_messages_per_subscription: Option<u32>,
    /// `acknowledgmentAtBatchIndexLevelEnabled`
    pub ack_at_batch_index_level: bool,
    /// `dispatcherMaxReadBatchSize`, entries.
    pub dispatcher_max_read_entries: usize,
    /// `dispatcherMaxReadSizeBytes`
    pub dispatcher_max_read_bytes: usize,
    /// `dispatcherMaxRoundRobinBatchSize`, entries.
    pub dispatcher_max_round_robin_entries: usize,
    /// `maxMessageSize`, bytes.
    pub max_message_bytes: usize,
    /// `maxConcurrentTopicLoadRequest`, per shard.
    pub max_concurrent_topic_loads: usize,
    /// `maxConcurrentLookupRequest`
    pub max_concurrent_lookups: usize,
    /// `maxNumPartitionsPerPartitionedTopic`; `None`: unlimited.
    pub max_partitions_per_topic: Option<u32>,
    /// `maxTopicsPerNamespace`; `None`: unlimited.
    pub max_topics_per_namespace: Option<u32>,
    /// `brokerShutdownTimeoutMs`
    pub shutdown_timeout: Duration,
    /// `keepAliveIntervalSeconds`
    pub keep_alive_interval: Duration,
    /// `connectionLivenessCheckTimeoutMillis`
    pub connection_liveness_check_timeout: Duration,
    /// `maxPendingPublishRequestsPerConnection`
    pub max_pending_publishes_per_connection: usize,
    /// `maxMessagePublishBufferSizeInMB` in bytes, over all connections.
    pub max_publish_buffer_bytes: usize,
    /// Messages given to connections and not yet taken by their sockets, over all connections, in bytes.
    pub max_outbound_bytes: usize,
    /// `exposePublisherStats`
    pub expose_publisher_stats: bool,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            cluster: "standalone".into(),
            broker_id: "localhost:8080".into(),
            service_url: "pulsar://localhost:6650".into(),
            service_url_tls: None,
            web_service_url: "http://localhost:8080".into(),
            web_service_url_tls: None,
            shards: None,
            allow_auto_topic_creation: true,
            auto_topic_creation_type: TopicType::NonPartitioned,
            default_num_partitions: 1,
            allow_auto_subscription_creation: true,
            default_number_of_namespace_bundles: 4,
            max_producers_per_topic: None,
            max_consumers_per_topic: None,
            max_consumers_per_subscription: None,
            max_unacked_messages_per_consumer: Some(50_000),
            max_unacked_messages_per_subscription: Some(200_000),
            ack_at_batch_index_level: false,
            dispatcher_max_read_entries: 100,
            dispatcher_max_read_bytes: 5 << 20,
            dispatcher_max_round_robin_entries: 20,
            max_message_bytes: 5 << 20,
            max_concurrent_topic_loads: 5000,
            max_concurrent_lookups: 50_000,
            max_partitions_per_topic: None,
            max_topics_per_namespace: None,
            shutdown_timeout: Duration::from_secs(60),
            keep_alive_interval: Duration::from_secs(30),
            connection_liveness_check_timeout: Duration::from_secs(5),
            max_pending_publishes_per_connection: 1000,
            max_publish_buffer_bytes: 128 << 20,
            max_outbound_bytes: 128 << 20,
            expose_publisher_stats: true,
        }
    }
}
