//! A topic's numbers.

use std::collections::BTreeMap;

use managed_ledger::Now;

use super::{Topic, TopicCounters, Turn};
use crate::door::SubscriptionType;
use crate::stats::{
    ConsumerStats, CursorStats, LedgerStats, PublisherStats, SubscriptionMetrics, SubscriptionStats,
    TopicInternalStats, TopicMetrics, TopicStats,
};
use crate::subscription::{Consumer, Subscription};
use crate::time_text::{iso, iso_opt};

/// How long rates are measured over, at least.
const WINDOW_MS: u64 = 10_000;

/// Rates of the last whole window.
pub(super) struct Rates {
    since_ms: u64,
    before: [u64; 4],
    /// Messages in, bytes in, messages out, bytes out; each per second.
    per_second: [f64; 4],
}

impl Rates {
    pub(super) fn new(now: Now) -> Self {
        Self { since_ms: now.monotonic_ms, before: [0; 4], per_second: [0.0; 4] }
    }

    pub(super) fn tick(&mut self, now: Now, counters: &TopicCounters, out: (u64, u64)) {
        let elapsed_ms = now.monotonic_ms.saturating_sub(self.since_ms);
        if elapsed_ms < WINDOW_MS {
            return;
        }
        let present = [counters.messages_in, counters.bytes_in, out.0, out.1];
        for (index, value) in present.into_iter().enumerate() {
            let grown = value.saturating_sub(self.before[index]);
            self.per_second[index] = grown as f64 * 1000.0 / elapsed_ms as f64;
        }
        (self.before, self.since_ms) = (present, now.monotonic_ms);
    }
}

impl Topic {
    /// Messages and bytes sent to consumers, since the topic was opened.
    pub(super) fn out_counters(&self) -> (u64, u64) {
        let before = (self.counters.messages_out_before, self.counters.bytes_out_before);
        self.subscriptions.values().fold(before, |(messages, bytes), subscription| {
            (messages + subscription.counters.messages_out, bytes + subscription.counters.bytes_out)
        })
    }

    pub(super) fn stats(&self, turn: &Turn<'_>) -> TopicStats {
        let storage = self.ledger.stats();
        let (messages_out, bytes_out) = self.out_counters();
        let rates = self.rates.per_second;
        let subscriptions: BTreeMap<String, SubscriptionStats> = self
            .subscriptions
            .iter()
            .map(|(name, subscription)| (name.to_string(), self.subscription_stats(subscription)))
            .collect();
        let backlog_size = subscriptions.values().map(|stats| stats.backlog_size).max().unwrap_or(0);
        let mut publishers: Vec<PublisherStats> = Vec::new();
        if turn.env.config.expose_publisher_stats {
            publishers.extend(self.producers.values().map(|producer| PublisherStats {
                access_mode: "Shared".to_owned(),
                producer_id: producer.producer_id,
                producer_name: producer.name.to_string(),
                average_msg_size: average(producer.bytes_in, producer.messages_in),
                address: producer.peer.address.to_string(),
                connected_since: iso(producer.connected_since_ms),
                client_version: producer.peer.client_version.as_deref().map(str::to_owned),
                supports_partial_producer: producer.supports_partial_producer,
                metadata: producer.metadata.clone(),
                ..PublisherStats::default()
            }));
        }
        publishers.sort_by(|a, b| a.producer_name.cmp(&b.producer_name));
        TopicStats {
            msg_rate_in: rates[0],
            msg_throughput_in: rates[1],
            msg_rate_out: rates[2],
            msg_throughput_out: rates[3],
            bytes_in_counter: self.counters.bytes_in,
            msg_in_counter: self.counters.messages_in,
            bytes_out_counter: bytes_out,
            msg_out_counter: messages_out,
            average_msg_size: average(self.counters.bytes_in, self.counters.messages_in),
            msg_chunk_published: self.counters.chunks_in > 0,
            storage_size: storage.bytes,
            backlog_size: u64::try_from(backlog_size).unwrap_or(0),
            publishers,
            subscriptions,
            deduplication_status: "Disabled".to_owned(),
            owner_broker: turn.env.config.broker_id.clone(),
            ..TopicStats::default()
        }
    }

    fn subscription_stats(&self, subscription: &Subscription) -> SubscriptionStats {
        let backlog = self.ledger.backlog(subscription.cursor);
        let storage = self.ledger.stats();
        let entry_bytes = storage.bytes.checked_div(storage.entries).unwrap_or(0);
        let counters = subscription.counters;
        let exclusive = subscription.sub_type() == Some(SubscriptionType::Exclusive);
        let active = subscription.consumers().first().filter(|_| exclusive);
        SubscriptionStats {
            bytes_out_counter: counters.bytes_out,
            msg_out_counter: counters.messages_out,
            msg_backlog: backlog.messages,
            msg_backlog_no_delayed: backlog.messages,
            // Entries of one topic are about the same size.
            backlog_size: (backlog.entries * entry_bytes) as i64,
            blocked_subscription_on_unacked_msgs: subscription.is_blocked(),
            msg_in_replay: subscription.in_replay() as u64,
            unacked_messages: subscription.unacked(),
            sub_type: subscription.sub_type().map_or("None", SubscriptionType::name).to_owned(),
            active_consumer_name: active.map(|consumer| consumer.name.to_string()),
            last_consumed_flow_timestamp: counters.last_flow_ms,
            last_consumed_timestamp: counters.last_consumed_ms,
            last_acked_timestamp: counters.last_acked_ms,
            consumers: subscription.consumers().iter().map(consumer_stats).collect(),
            is_durable: subscription.durable,
            durable: subscription.durable,
            subscription_properties: subscription.properties.clone(),
            ..SubscriptionStats::default()
        }
    }

    pub(super) fn internal_stats(&self) -> TopicInternalStats {
        let storage = self.ledger.stats();
        let ledgers: Vec<LedgerStats> = storage
            .ledgers
            .iter()
            .map(|part| LedgerStats {
                ledger_id: part.ledger.0,
                // The original counts a ledger only when it is closed.
                entries: if part.closed_ms.is_some() { part.entries } else { 0 },
                size: if part.closed_ms.is_some() { part.bytes } else { 0 },
                ..LedgerStats::default()
            })
            .collect();
        let open = storage.ledgers.last().filter(|part| part.closed_ms.is_none());
        TopicInternalStats {
            entries_added_counter: self.counters.messages_in,
            number_of_entries: storage.entries,
            total_size: storage.bytes,
            current_ledger_entries: open.map_or(0, |part| part.entries),
            current_ledger_size: open.map_or(0, |part| part.bytes),
            last_ledger_created_timestamp: iso_opt(Some(self.created_ms)),
            pending_add_entries_count: u32::try_from(storage.pending_adds).unwrap_or(u32::MAX),
            last_confirmed_entry: self.ledger.last_confirmed().to_string(),
            state: if self.ledger.is_writable() { "LedgerOpened" } else { "Closed" }.to_owned(),
            ledgers,
            cursors: self.subscriptions.iter().map(|(name, one)| (name.to_string(), self.cursor_stats(one))).collect(),
            ..TopicInternalStats::default()
        }
    }

    fn cursor_stats(&self, subscription: &Subscription) -> CursorStats {
        let mark_delete = self.ledger.mark_delete(subscription.cursor);
        let read = self.ledger.next_unacked(subscription.cursor, subscription.read_position());
        CursorStats {
            mark_delete_position: mark_delete.map(|position| position.to_string()).unwrap_or_default(),
            read_position: read.to_string(),
            pending_read_ops: u32::from(subscription.reading.is_some()),
            messages_consumed_counter: subscription.counters.acked,
            cursor_ledger: -1,
            cursor_ledger_last_entry: -1,
            state: "Open".to_owned(),
            active: !subscription.consumers().is_empty(),
            number_of_entries_since_first_not_acked_message: self.ledger.backlog(subscription.cursor).entries,
            subscription_have_pending_read: subscription.reading.is_some(),
            ..CursorStats::default()
        }
    }

    pub(crate) fn metrics(&self) -> TopicMetrics {
        let (messages_out, bytes_out) = self.out_counters();
        let subscription_metrics: Vec<SubscriptionMetrics> = self
            .subscriptions
            .values()
            .map(|subscription| SubscriptionMetrics {
                subscription: subscription.name.to_string(),
                backlog: self.ledger.backlog(subscription.cursor).messages,
                unacked: subscription.unacked(),
                consumers: subscription.consumers().len() as u64,
                msg_out: subscription.counters.messages_out,
                bytes_out: subscription.counters.bytes_out,
                redelivered: subscription.counters.redelivered,
            })
            .collect();
        TopicMetrics {
            topic: self.name.to_string(),
            producers: self.producers.len() as u64,
            subscriptions: self.subscriptions.len() as u64,
            consumers: self.consumers.len() as u64,
            msg_in: self.counters.messages_in,
            bytes_in: self.counters.bytes_in,
            msg_out: messages_out,
            bytes_out,
            storage_size: self.ledger.stats().bytes,
            backlog: subscription_metrics.iter().map(|one| one.backlog).sum(),
            subscription_metrics,
        }
    }
}

fn average(bytes: u64, messages: u64) -> f64 {
    if messages == 0 { 0.0 } else { bytes as f64 / messages as f64 }
}

pub(super) fn consumer_stats(consumer: &Consumer) -> ConsumerStats {
    let counters = consumer.counters;
    ConsumerStats {
        bytes_out_counter: counters.bytes_out,
        msg_out_counter: counters.messages_out,
        consumer_name: consumer.name.to_string(),
        available_permits: consumer.permits(),
        unacked_messages: consumer.unacked(),
        avg_messages_per_entry: average(counters.messages_out, counters.entries_out).round() as u32,
        blocked_consumer_on_unacked_msgs: consumer.is_blocked(),
        address: consumer.peer.address.to_string(),
        connected_since: iso(consumer.connected_since_ms),
        client_version: consumer.peer.client_version.as_deref().map(str::to_owned),
        last_acked_timestamp: counters.last_acked_ms,
        last_consumed_timestamp: counters.last_consumed_ms,
        last_consumed_flow_timestamp: counters.last_flow_ms,
        metadata: consumer.metadata.clone(),
        last_acked_time: iso(counters.last_acked_ms),
        last_consumed_time: iso(counters.last_consumed_ms),
        ..ConsumerStats::default()
    }
}
