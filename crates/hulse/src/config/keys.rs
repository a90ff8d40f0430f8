//! The one table of published keys: name, type, default, unit and meaning; the docs are made from it.

use super::{ConfigError, Values};

/// A type a key may have: how its text is read, and what is allowed, in words.
trait Parse: Sized {
    const EXPECTED: &'static str;
    fn parse(text: &str) -> Option<Self>;
}

impl Parse for String {
    const EXPECTED: &'static str = "text";
    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl Parse for bool {
    const EXPECTED: &'static str = "true or false";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Parse for u16 {
    const EXPECTED: &'static str = "a port from 0 to 65535";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Parse for u32 {
    const EXPECTED: &'static str = "a whole number from 0 to 4294967295";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Parse for i64 {
    const EXPECTED: &'static str = "a whole number, -1 for no limit";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number| *number >= -1)
    }
}

impl Parse for f64 {
    const EXPECTED: &'static str = "a number of at least 0";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
    }
}

/// Bytes of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageBytes(pub(crate) u32);

impl Parse for MessageBytes {
    const EXPECTED: &'static str = "bytes from 1 to 1073741824";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|bytes| (1..=1 << 30).contains(bytes)).map(Self)
    }
}

/// A count of which there is at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtLeastOne(pub(crate) u32);

impl Parse for AtLeastOne {
    const EXPECTED: &'static str = "a whole number from 1 to 4294967295";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number| *number >= 1).map(Self)
    }
}

/// What an automatically created topic becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopicKind {
    Partitioned,
    NonPartitioned,
}

impl Parse for TopicKind {
    const EXPECTED: &'static str = "partitioned or non-partitioned";
    fn parse(text: &str) -> Option<Self> {
        match text {
            "partitioned" => Some(Self::Partitioned),
            "non-partitioned" => Some(Self::NonPartitioned),
            _ => None,
        }
    }
}

macro_rules! keys {
    ($($name:literal $field:ident: $type:ty = $default:literal, $unit:literal, $meaning:literal;)*) => {
        /// Every key that `hulse standalone` acts on.
        #[derive(Clone, Debug)]
        pub(crate) struct Standalone {
            $(#[doc = $meaning] pub(crate) $field: $type,)*
        }

        impl Standalone {
            /// Reads the keys out of `values`; a key that was not given has its default.
            pub(crate) fn parse(values: &Values) -> Result<Self, ConfigError> {
                Ok(Self {
                    $($field: parse_one(values, $name, $default)?,)*
                })
            }
        }

        /// Whether something in the project acts on this key.
        pub(super) fn is_known(key: &str) -> bool {
            matches!(key, $($name)|*)
        }

        /// The table as text: key, default, unit, meaning.
        pub(crate) fn keys_table() -> String {
            let rows: &[[&str; 4]] = &[["key", "default", "unit", "meaning"], $([$name, $default, $unit, $meaning],)*];
            let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
            let (key, default, unit) = (width(0), width(1), width(2));
            rows.iter()
                .map(|[k, d, u, m]| format!("{k:key$}  {d:default$}  {u:unit$}  {m}\n"))
                .collect()
        }
    };
}

fn parse_one<T: Parse>(values: &Values, key: &'static str, default: &str) -> Result<T, ConfigError> {
    let (text, from) = match values.by_key.get(key) {
        Some(value) => (value.text.as_str(), value.source.as_str()),
        None => (default, "default"),
    };
    T::parse(text).ok_or_else(|| ConfigError::BadValue {
        key,
        value: text.to_owned(),
        from: from.to_owned(),
        expected: T::EXPECTED,
    })
}

keys! {
    "clusterName" cluster_name: String = "standalone", "", "name of the cluster this node forms";
    "brokerServicePort" broker_service_port: u16 = "6650", "port", "binary protocol; 0 takes a free port";
    "webServicePort" web_service_port: u16 = "8080", "port", "admin REST, health and metrics over HTTP; 0 takes a free port";
    "bindAddress" bind_address: String = "127.0.0.1", "address", "where to listen (the original: 0.0.0.0; this node has no authentication yet)";
    "advertisedAddress" advertised_address: String = "", "host", "host that clients are told; empty: localhost if bound to loopback, else the bound address";
    "numIOThreads" num_io_threads: u32 = "0", "threads", "shards that own topics and connections; 0: one per core";
    "maxMessageSize" max_message_size: MessageBytes = "5242880", "bytes", "largest message, metadata included";
    "keepAliveIntervalSeconds" keep_alive_interval_seconds: AtLeastOne = "30", "s", "how often each side checks that the other is alive";
    "brokerMaxConnections" broker_max_connections: u32 = "0", "connections", "limit over all clients; 0: none";
    "brokerMaxConnectionsPerIp" broker_max_connections_per_ip: u32 = "0", "connections", "limit for one address; 0: none";
    "maxPendingPublishRequestsPerConnection" max_pending_publish_requests: AtLeastOne = "1000", "publishes", "a connection with more in flight is not read until half are done";
    "maxConcurrentLookupRequest" max_concurrent_lookup_request: AtLeastOne = "50000", "requests", "more lookups at once are answered TooManyRequests";
    "allowAutoTopicCreation" allow_auto_topic_creation: bool = "true", "", "topics come into being on first use";
    "allowAutoTopicCreationType" allow_auto_topic_creation_type: TopicKind = "non-partitioned", "", "what such a topic becomes";
    "defaultNumPartitions" default_num_partitions: AtLeastOne = "1", "partitions", "of automatically created partitioned topics";
    "allowAutoSubscriptionCreation" allow_auto_subscription_creation: bool = "true", "", "subscriptions come into being on first use";
    "acknowledgmentAtBatchIndexLevelEnabled" batch_index_acks: bool = "false", "", "remember which messages of a batch were acknowledged";
    "maxUnackedMessagesPerConsumer" max_unacked_messages_per_consumer: u32 = "50000", "messages", "a shared consumer with more gets none until it acknowledges; 0: no limit";
    "maxUnackedMessagesPerSubscription" max_unacked_messages_per_subscription: u32 = "200000", "messages", "the same for a shared subscription; 0: no limit";
    "dispatcherMaxReadBatchSize" dispatcher_max_read_batch_size: AtLeastOne = "100", "entries", "most entries of one read for a subscription";
    "dispatcherMaxReadSizeBytes" dispatcher_max_read_size_bytes: AtLeastOne = "5242880", "bytes", "most bytes of one read for a subscription";
    "dispatcherMaxRoundRobinBatchSize" dispatcher_max_round_robin_batch_size: AtLeastOne = "20", "entries", "most entries to one shared consumer before the next has its turn";
    "managedLedgerMaxEntriesPerLedger" managed_ledger_max_entries_per_ledger: AtLeastOne = "50000", "entries", "a ledger with more is closed and a new one begun";
    "managedLedgerMaxSizePerLedgerMbytes" managed_ledger_max_size_per_ledger_mbytes: AtLeastOne = "2048", "MiB", "the same by size";
    "managedLedgerMinLedgerRolloverTimeMinutes" managed_ledger_min_ledger_rollover_time_minutes: u32 = "10", "min", "no ledger is closed for its size before this age";
    "managedLedgerMaxLedgerRolloverTimeMinutes" managed_ledger_max_ledger_rollover_time_minutes: AtLeastOne = "240", "min", "a ledger of this age is closed";
    "managedLedgerDefaultMarkDeleteRateLimit" managed_ledger_default_mark_delete_rate_limit: f64 = "1.0", "1/s", "cursor writes for acknowledgements without a receipt; those with one are always written at once";
    "managedLedgerCursorMaxEntriesPerLedger" managed_ledger_cursor_max_entries_per_ledger: AtLeastOne = "50000", "entries", "a cursor's ledger with more is replaced";
    "managedLedgerCursorRolloverTimeInSeconds" managed_ledger_cursor_rollover_time_in_seconds: AtLeastOne = "14400", "s", "the same by age";
    "defaultRetentionTimeInMinutes" default_retention_time_in_minutes: i64 = "0", "min", "how long consumed messages are kept; -1: for ever";
    "defaultRetentionSizeInMB" default_retention_size_in_mb: i64 = "0", "MiB", "how much of what was consumed is kept; -1: all";
    "brokerShutdownTimeoutMs" broker_shutdown_timeout_ms: AtLeastOne = "60000", "ms", "how long a clean stop may take before it is cut short";
    "statusFilePath" status_file_path: String = "", "path", "/status.html answers OK only while this file exists; empty: always";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_allowed() {
        Standalone::parse(&Values::default()).unwrap();
        assert!(keys_table().contains("brokerServicePort"));
    }
}
