//! From published keys to the typed settings of each room.

use std::time::Duration;

use broker::{BrokerConfig, TopicType};
use managed_ledger::{ManagedLedgerConfig, Retention};

use super::Standalone;
use super::keys::TopicKind;
use crate::memory::Budget;

/// `None` where the original writes 0 for "no limit".
pub(crate) fn limit(number: u32) -> Option<u32> {
    (number > 0).then_some(number)
}

fn minutes(number: u32) -> Duration {
    Duration::from_secs(u64::from(number) * 60)
}

pub(crate) fn broker_config(keys: &Standalone, budget: &Budget, host: &str, port: u16, web_port: u16) -> BrokerConfig {
    BrokerConfig {
        cluster: keys.cluster_name.clone(),
        broker_id: format!("{host}:{web_port}"),
        service_url: format!("pulsar://{host}:{port}"),
        web_service_url: format!("http://{host}:{web_port}"),
        shards: limit(keys.num_io_threads).map(|threads| threads as usize),
        allow_auto_topic_creation: keys.allow_auto_topic_creation,
        auto_topic_creation_type: match keys.allow_auto_topic_creation_type {
            TopicKind::Partitioned => TopicType::Partitioned,
            TopicKind::NonPartitioned => TopicType::NonPartitioned,
        },
        default_num_partitions: keys.default_num_partitions.0,
        allow_auto_subscription_creation: keys.allow_auto_subscription_creation,
        max_unacked_messages_per_consumer: limit(keys.max_unacked_messages_per_consumer),
        max_unacked_messages_per_subscription: limit(keys.max_unacked_messages_per_subscription),
        ack_at_batch_index_level: keys.batch_index_acks,
        dispatcher_max_read_entries: keys.dispatcher_max_read_batch_size.0 as usize,
        dispatcher_max_read_bytes: keys.dispatcher_max_read_size_bytes.0 as usize,
        dispatcher_max_round_robin_entries: keys.dispatcher_max_round_robin_batch_size.0 as usize,
        max_message_bytes: keys.max_message_size.0 as usize,
        max_concurrent_lookups: keys.max_concurrent_lookup_request.0 as usize,
        shutdown_timeout: Duration::from_millis(u64::from(keys.broker_shutdown_timeout_ms.0)),
        keep_alive_interval: Duration::from_secs(u64::from(keys.keep_alive_interval_seconds.0)),
        max_pending_publishes_per_connection: keys.max_pending_publish_requests.0 as usize,
        max_publish_buffer_bytes: budget.publish_buffer,
        max_outbound_bytes: budget.outbound_buffer,
        ..BrokerConfig::default()
    }
}

pub(crate) fn managed_ledger_config(keys: &Standalone) -> ManagedLedgerConfig {
    // 0 writes would mean never; the original treats it as no limit of the rate.
    let rate = keys.managed_ledger_default_mark_delete_rate_limit;
    let lazy_cursor_interval = if rate > 0.0 { Duration::from_secs_f64(1.0 / rate) } else { Duration::ZERO };
    ManagedLedgerConfig {
        max_entries_per_ledger: u64::from(keys.managed_ledger_max_entries_per_ledger.0),
        max_bytes_per_ledger: u64::from(keys.managed_ledger_max_size_per_ledger_mbytes.0) << 20,
        min_rollover_time: minutes(keys.managed_ledger_min_ledger_rollover_time_minutes),
        max_rollover_time: minutes(keys.managed_ledger_max_ledger_rollover_time_minutes.0),
        retention: Retention::from_policy(keys.default_retention_time_in_minutes, keys.default_retention_size_in_mb),
        lazy_cursor_interval,
        max_entries_per_cursor_ledger: u64::from(keys.managed_ledger_cursor_max_entries_per_ledger.0),
        cursor_rollover_time: Duration::from_secs(u64::from(keys.managed_ledger_cursor_rollover_time_in_seconds.0)),
        ..ManagedLedgerConfig::default()
    }
}
