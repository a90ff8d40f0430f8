//! One consumer of a subscription.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::door::{Peer, Position};
use crate::outboxes::OutSlot;

/// What the dispatcher knows of a consumer.
pub(crate) struct Consumer {
    /// Unique in the shard.
    pub key: u64,
    /// The client's, unique on its connection.
    pub consumer_id: u64,
    pub slot: OutSlot,
    pub name: Arc<str>,
    /// 0 comes first.
    pub priority: i32,
    /// Echoed in messages.
    pub epoch: Option<u64>,
    pub peer: Peer,
    pub metadata: BTreeMap<String, String>,
    pub connected_since_ms: u64,
    pub counters: ConsumerCounters,
    /// Messages that may still be sent. A whole batch goes out on the last permit, so it may be negative.
    pub(super) permits: i64,
    /// Shared only: entries sent, with the messages in them that are not acknowledged.
    pub(super) pending: FxHashMap<Position, u32>,
    /// Sum over `pending`.
    pub(super) unacked: u64,
    /// Too much is unacknowledged: nothing more until half of it is.
    pub(super) blocked: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConsumerCounters {
    pub messages_out: u64,
    pub bytes_out: u64,
    pub entries_out: u64,
    pub redelivered: u64,
    pub acked: u64,
    pub last_acked_ms: u64,
    pub last_consumed_ms: u64,
    pub last_flow_ms: u64,
}

impl Consumer {
    pub(crate) fn new(key: u64, consumer_id: u64, slot: OutSlot, name: Arc<str>, priority: i32) -> Self {
        Self {
            key,
            consumer_id,
            slot,
            name,
            priority,
            epoch: None,
            peer: Peer::default(),
            metadata: BTreeMap::new(),
            connected_since_ms: 0,
            counters: ConsumerCounters::default(),
            permits: 0,
            pending: FxHashMap::default(),
            unacked: 0,
            blocked: false,
        }
    }

    pub(crate) fn permits(&self) -> i64 {
        self.permits
    }

    pub(crate) fn unacked(&self) -> u64 {
        self.unacked
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }
}
