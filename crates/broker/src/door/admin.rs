//! What the admin doors ask of a broker: tenants, namespaces, topics and their numbers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Broker, BrokerError, NamespaceName, Position, TopicName};
use crate::stats::{TopicInternalStats, TopicMetrics, TopicStats};

/// `/admin/clusters/<cluster>`. What this version does not know is kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterData {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_url_tls: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_service_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_service_url_tls: Option<String>,
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

/// `/admin/policies/<tenant>`
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantInfo {
    pub admin_roles: Vec<String>,
    pub allowed_clusters: Vec<String>,
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct BundlesData {
    pub boundaries: Vec<String>,
    pub num_bundles: u32,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoTopicCreationOverride {
    pub allow_auto_topic_creation: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_num_partitions: Option<u32>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoSubscriptionCreationOverride {
    pub allow_auto_subscription_creation: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct RetentionPolicies {
    pub retention_time_in_minutes: i64,
    #[serde(rename = "retentionSizeInMB")]
    pub retention_size_in_mb: i64,
}

/// `/admin/policies/<tenant>/<namespace>`. The fields this version acts on are typed; all others are kept as they are.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(default)]
pub struct Policies {
    pub replication_clusters: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundles: Option<BundlesData>,
    #[serde(rename = "autoTopicCreationOverride", skip_serializing_if = "Option::is_none")]
    pub auto_topic_creation_override: Option<AutoTopicCreationOverride>,
    #[serde(rename = "autoSubscriptionCreationOverride", skip_serializing_if = "Option::is_none")]
    pub auto_subscription_creation_override: Option<AutoSubscriptionCreationOverride>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_policies: Option<RetentionPolicies>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_producers_per_topic: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_consumers_per_topic: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_consumers_per_subscription: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unacked_messages_per_consumer: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unacked_messages_per_subscription: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_topics_per_namespace: Option<u32>,
    pub encryption_required: bool,
    pub deleted: bool,
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

/// `/admin/partitioned-topics/…`
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(default)]
pub struct PartitionedTopicMetadata {
    pub partitions: u32,
    pub deleted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub properties: Option<BTreeMap<String, String>>,
}

/// Which topics a list holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicsMode {
    Persistent,
    NonPersistent,
    All,
}

impl Broker {
    pub async fn clusters(&self) -> Result<Vec<String>, BrokerError> {
        self.unready()
    }

    pub async fn cluster(&self, _cluster: &str) -> Result<Option<ClusterData>, BrokerError> {
        self.unready()
    }

    /// `AlreadyExists` when there is one of that name.
    pub async fn create_cluster(&self, _cluster: &str, _data: ClusterData) -> Result<(), BrokerError> {
        self.unready()
    }

    pub async fn update_cluster(&self, _cluster: &str, _data: ClusterData) -> Result<(), BrokerError> {
        self.unready()
    }

    pub async fn tenants(&self) -> Result<Vec<String>, BrokerError> {
        self.unready()
    }

    pub async fn tenant(&self, _tenant: &str) -> Result<Option<TenantInfo>, BrokerError> {
        self.unready()
    }

    /// `AlreadyExists`; `InvalidArgument` for a bad name, no clusters or an unknown one.
    pub async fn create_tenant(&self, _tenant: &str, _info: TenantInfo) -> Result<(), BrokerError> {
        self.unready()
    }

    pub async fn update_tenant(&self, _tenant: &str, _info: TenantInfo) -> Result<(), BrokerError> {
        self.unready()
    }

    /// `NotFound`; `PreconditionFailed` while it has namespaces.
    pub async fn delete_tenant(&self, _tenant: &str) -> Result<(), BrokerError> {
        self.unready()
    }

    /// Names as `tenant/namespace`; `NotFound` without the tenant.
    pub async fn namespaces(&self, _tenant: &str) -> Result<Vec<String>, BrokerError> {
        self.unready()
    }

    pub async fn namespace(&self, _namespace: &NamespaceName) -> Result<Option<Policies>, BrokerError> {
        self.unready()
    }

    /// `NotFound` without the tenant; `AlreadyExists`. `None`: default policies.
    pub async fn create_namespace(
        &self,
        _namespace: &NamespaceName,
        _policies: Option<Policies>,
    ) -> Result<(), BrokerError> {
        self.unready()
    }

    /// Reads, changes and writes policies (again when somebody else was faster).
    pub async fn update_namespace(
        &self,
        _namespace: &NamespaceName,
        _change: impl FnMut(&mut Policies) + Send,
    ) -> Result<(), BrokerError> {
        self.unready()
    }

    /// `NotFound`; `PreconditionFailed` while it has topics.
    pub async fn delete_namespace(&self, _namespace: &NamespaceName) -> Result<(), BrokerError> {
        self.unready()
    }

    /// Full names, partitions one by one, sorted; `NotFound` without the namespace.
    pub async fn topics(
        &self,
        _namespace: &NamespaceName,
        _mode: TopicsMode,
        _include_system_topics: bool,
    ) -> Result<Vec<String>, BrokerError> {
        self.unready()
    }

    /// Full base names, sorted.
    pub async fn partitioned_topics(&self, _namespace: &NamespaceName) -> Result<Vec<String>, BrokerError> {
        self.unready()
    }

    /// `AlreadyExists` when there is any topic of that name.
    pub async fn create_topic(&self, _topic: &TopicName) -> Result<(), BrokerError> {
        self.unready()
    }

    /// `TopicNotFound`; `PreconditionFailed` with producers, consumers or subscriptions unless `force`.
    pub async fn delete_topic(&self, _topic: &TopicName, _force: bool) -> Result<(), BrokerError> {
        self.unready()
    }

    pub async fn create_partitioned_topic(
        &self,
        _topic: &TopicName,
        _metadata: PartitionedTopicMetadata,
    ) -> Result<(), BrokerError> {
        self.unready()
    }

    /// `InvalidArgument` unless there are more than now; `TopicNotFound`.
    pub async fn update_partitions(&self, _topic: &TopicName, _partitions: u32) -> Result<(), BrokerError> {
        self.unready()
    }

    /// Deletes the partitions and the metadata.
    pub async fn delete_partitioned_topic(&self, _topic: &TopicName, _force: bool) -> Result<(), BrokerError> {
        self.unready()
    }

    /// `None`: not a partitioned topic (which may exist as another).
    pub async fn partitioned_metadata(
        &self,
        _topic: &TopicName,
    ) -> Result<Option<PartitionedTopicMetadata>, BrokerError> {
        self.unready()
    }

    /// Loads the topic if need be; `TopicNotFound`.
    pub async fn topic_stats(&self, _topic: &TopicName) -> Result<TopicStats, BrokerError> {
        self.unready()
    }

    pub async fn topic_internal_stats(&self, _topic: &TopicName) -> Result<TopicInternalStats, BrokerError> {
        self.unready()
    }

    /// Closes the topic with its clients; they come back and open it again.
    pub async fn unload_topic(&self, _topic: &TopicName) -> Result<(), BrokerError> {
        self.unready()
    }

    pub async fn subscriptions(&self, _topic: &TopicName) -> Result<Vec<String>, BrokerError> {
        self.unready()
    }

    /// `AlreadyExists`; [`Position::EARLIEST`] and [`Position::LATEST`] are allowed.
    pub async fn create_subscription(
        &self,
        _topic: &TopicName,
        _subscription: &str,
        _at: Position,
    ) -> Result<(), BrokerError> {
        self.unready()
    }

    /// `PreconditionFailed` with consumers unless `force`; `SubscriptionNotFound`.
    pub async fn delete_subscription(
        &self,
        _topic: &TopicName,
        _subscription: &str,
        _force: bool,
    ) -> Result<(), BrokerError> {
        self.unready()
    }

    /// Acknowledges everything.
    pub async fn skip_all(&self, _topic: &TopicName, _subscription: &str) -> Result<(), BrokerError> {
        self.unready()
    }

    pub async fn last_message_id(&self, _topic: &TopicName) -> Result<Position, BrokerError> {
        self.unready()
    }

    /// Numbers of all open topics.
    pub async fn topic_metrics(&self) -> Vec<TopicMetrics> {
        Vec::new()
    }
}
