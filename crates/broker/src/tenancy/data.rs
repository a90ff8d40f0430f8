//! The JSON objects below `/admin`. Their shapes are public; what this version does not know is kept as it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
