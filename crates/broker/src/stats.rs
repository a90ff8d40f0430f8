//! What topics tell about themselves, in the shapes of the admin REST (the field names are public).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicStats {
    pub msg_rate_in: f64,
    pub msg_throughput_in: f64,
    pub msg_rate_out: f64,
    pub msg_throughput_out: f64,
    pub bytes_in_counter: u64,
    pub msg_in_counter: u64,
    pub system_topic_bytes_in_counter: u64,
    pub bytes_out_counter: u64,
    pub msg_out_counter: u64,
    pub bytes_out_internal_counter: u64,
    pub average_msg_size: f64,
    pub msg_chunk_published: bool,
    pub storage_size: u64,
    pub backlog_size: u64,
    pub backlog_quota_limit_size: i64,
    pub backlog_quota_limit_time: i64,
    pub oldest_backlog_message_age_seconds: i64,
    pub publish_rate_limited_times: u64,
    pub earliest_msg_publish_time_in_backlogs: u64,
    pub offloaded_storage_size: u64,
    pub last_offload_ledger_id: i64,
    pub last_offload_success_time_stamp: u64,
    pub last_offload_failure_time_stamp: u64,
    pub ongoing_txn_count: u64,
    pub aborted_txn_count: u64,
    pub committed_txn_count: u64,
    pub publishers: Vec<PublisherStats>,
    pub waiting_publishers: u32,
    pub subscriptions: BTreeMap<String, SubscriptionStats>,
    pub replication: BTreeMap<String, serde_json::Value>,
    pub deduplication_status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_epoch: Option<u64>,
    pub non_contiguous_deleted_messages_ranges: u64,
    pub non_contiguous_deleted_messages_ranges_serialized_size: u64,
    pub delayed_message_index_size_in_bytes: u64,
    pub compaction: CompactionStats,
    pub owner_broker: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CompactionStats {
    pub last_compaction_removed_event_count: u64,
    pub last_compaction_succeed_timestamp: u64,
    pub last_compaction_failed_timestamp: u64,
    pub last_compaction_duration_time_in_mills: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PublisherStats {
    pub access_mode: String,
    pub msg_rate_in: f64,
    pub msg_throughput_in: f64,
    pub average_msg_size: f64,
    pub chunked_message_rate: f64,
    pub producer_id: u64,
    pub supports_partial_producer: bool,
    pub producer_name: String,
    pub address: String,
    pub connected_since: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_version: Option<String>,
    pub metadata: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionStats {
    pub msg_rate_out: f64,
    pub msg_throughput_out: f64,
    pub bytes_out_counter: u64,
    pub msg_out_counter: u64,
    pub msg_rate_redeliver: f64,
    pub message_ack_rate: f64,
    pub chunked_message_rate: f64,
    pub msg_backlog: u64,
    pub backlog_size: i64,
    pub earliest_msg_publish_time_in_backlog: u64,
    pub msg_backlog_no_delayed: u64,
    pub blocked_subscription_on_unacked_msgs: bool,
    pub msg_delayed: u64,
    pub msg_in_replay: u64,
    pub unacked_messages: u64,
    /// `Exclusive`, `Shared`, `Failover`, `Key_Shared` or `None`.
    #[serde(rename = "type")]
    pub sub_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_consumer_name: Option<String>,
    pub msg_rate_expired: f64,
    pub total_msg_expired: u64,
    pub last_expire_timestamp: u64,
    pub last_consumed_flow_timestamp: u64,
    pub last_consumed_timestamp: u64,
    pub last_acked_timestamp: u64,
    pub last_mark_delete_advanced_timestamp: u64,
    pub consumers: Vec<ConsumerStats>,
    pub is_durable: bool,
    pub is_replicated: bool,
    pub allow_out_of_order_delivery: bool,
    pub consumers_after_mark_delete_position: BTreeMap<String, String>,
    pub draining_hashes_count: u32,
    pub draining_hashes_cleared_total: u64,
    pub draining_hashes_unacked_messages: u32,
    pub non_contiguous_deleted_messages_ranges: u64,
    pub non_contiguous_deleted_messages_ranges_serialized_size: u64,
    pub delayed_message_index_size_in_bytes: u64,
    pub subscription_properties: BTreeMap<String, String>,
    pub filter_processed_msg_count: u64,
    pub filter_accepted_msg_count: u64,
    pub filter_rejected_msg_count: u64,
    pub filter_rescheduled_msg_count: u64,
    pub durable: bool,
    pub replicated: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerStats {
    pub msg_rate_out: f64,
    pub msg_throughput_out: f64,
    pub bytes_out_counter: u64,
    pub msg_out_counter: u64,
    pub msg_rate_redeliver: f64,
    pub message_ack_rate: f64,
    pub chunked_message_rate: f64,
    pub consumer_name: String,
    pub available_permits: i64,
    pub unacked_messages: u64,
    pub avg_messages_per_entry: u32,
    pub blocked_consumer_on_unacked_msgs: bool,
    pub draining_hashes_count: u32,
    pub draining_hashes_cleared_total: u64,
    pub draining_hashes_unacked_messages: u32,
    pub address: String,
    pub connected_since: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_version: Option<String>,
    pub last_acked_timestamp: u64,
    pub last_consumed_timestamp: u64,
    pub last_consumed_flow_timestamp: u64,
    pub metadata: BTreeMap<String, String>,
    pub last_acked_time: String,
    pub last_consumed_time: String,
}

/// The storage behind a topic.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicInternalStats {
    pub entries_added_counter: u64,
    pub number_of_entries: u64,
    pub total_size: u64,
    pub current_ledger_entries: u64,
    pub current_ledger_size: u64,
    pub last_ledger_created_timestamp: Option<String>,
    pub last_ledger_creation_failure_timestamp: Option<String>,
    pub waiting_cursors_count: u32,
    pub pending_add_entries_count: u32,
    pub last_confirmed_entry: String,
    pub state: String,
    pub ledgers: Vec<LedgerStats>,
    pub cursors: BTreeMap<String, CursorStats>,
    pub schema_ledgers: Vec<LedgerStats>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LedgerStats {
    pub ledger_id: i64,
    pub entries: u64,
    pub size: u64,
    pub offloaded: bool,
    pub under_replicated: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CursorStats {
    pub mark_delete_position: String,
    pub read_position: String,
    pub waiting_read_op: bool,
    pub pending_read_ops: u32,
    pub messages_consumed_counter: u64,
    pub cursor_ledger: i64,
    pub cursor_ledger_last_entry: i64,
    pub individually_deleted_messages: String,
    pub last_ledger_switch_timestamp: Option<String>,
    pub state: String,
    pub active: bool,
    pub number_of_entries_since_first_not_acked_message: u64,
    pub total_non_contiguous_deleted_messages_range: u64,
    pub subscription_have_pending_read: bool,
    pub subscription_have_pending_replay_read: bool,
    pub properties: BTreeMap<String, i64>,
}

/// One topic's numbers for `/metrics`; cheap to gather (no strings are built but the name).
#[derive(Clone, Debug, Default)]
pub struct TopicMetrics {
    pub topic: String,
    pub producers: u64,
    pub subscriptions: u64,
    pub consumers: u64,
    pub msg_in: u64,
    pub bytes_in: u64,
    pub msg_out: u64,
    pub bytes_out: u64,
    pub storage_size: u64,
    pub backlog: u64,
    pub subscription_metrics: Vec<SubscriptionMetrics>,
}

#[derive(Clone, Debug, Default)]
pub struct SubscriptionMetrics {
    pub subscription: String,
    pub backlog: u64,
    pub unacked: u64,
    pub consumers: u64,
    pub msg_out: u64,
    pub bytes_out: u64,
    pub redelivered: u64,
}
