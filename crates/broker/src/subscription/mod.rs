//! A subscription: who consumes, what goes to whom, what has to be sent again.
//!
//! A plain core. The topic reads entries from the managed ledger as [`Subscription::wish`] asks, hands them to
//! [`Subscription::deliver`], and keeps the cursor; what is acknowledged is told here so that it is not sent again.

mod consumer;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use managed_ledger::CursorId;
use rustc_hash::FxHashMap;

use crate::door::{BrokerError, BrokerErrorKind, Outgoing, OutgoingMessage, Position, SubscriptionType};
use crate::outboxes::Outboxes;

pub(crate) use self::consumer::Consumer;

/// Settings of a dispatcher; policies may change them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchLimits {
    /// Entries of one read.
    pub read_entries: usize,
    /// Entries one consumer gets in its turn.
    pub round_robin_entries: usize,
    pub unacked_per_consumer: u64,
    pub unacked_per_subscription: u64,
    pub max_consumers: usize,
}

/// An entry that is ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Deliverable {
    pub position: Position,
    /// Without broker entry metadata.
    pub payload: Bytes,
    /// Messages not acknowledged; at least 1.
    pub messages: u32,
    /// The messages of a batch not acknowledged, unless all are.
    pub ack_set: Option<Box<[i64]>>,
}

/// What the subscription could send if it had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub kind: ReadKind,
    pub from: Position,
    pub entries: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadKind {
    /// What follows the read position.
    Next,
    /// What was sent before and has to be sent again.
    Replay,
}

/// Invariants: a position is in at most one consumer's `pending`, and never both there and in `replay`. Consumers are in
/// the order of their priority. Exclusive: at most one consumer, and nothing in `pending` or `replay`.
pub(crate) struct Subscription {
    pub name: Arc<str>,
    pub cursor: CursorId,
    pub durable: bool,
    pub limits: DispatchLimits,
    pub counters: Counters,
    /// By which the managed ledger knows us.
    pub reader: u64,
    /// The read under way: where it begins, and what for. One at a time; answers to others are stale.
    pub reading: Option<(Position, ReadKind)>,
    /// The last read failed: nothing is read until the next tick.
    pub read_failed: bool,
    /// Its cursor is being deleted: nobody may join.
    pub deleting: bool,
    pub properties: BTreeMap<String, String>,
    topic: u64,
    partition: i32,
    sub_type: Option<SubscriptionType>,
    consumers: Vec<Consumer>,
    /// Consumer key to place in `consumers`.
    places: FxHashMap<u64, usize>,
    read_position: Position,
    replay: BTreeSet<Position>,
    redeliveries: FxHashMap<Position, u32>,
    unacked: u64,
    blocked: bool,
    /// Weight of the message that no consumer could take, if that is what delivery waits for.
    refused: usize,
    /// Whose turn it is, and how many entries of it are used up.
    turn: usize,
    turn_entries: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub messages_out: u64,
    pub bytes_out: u64,
    pub redelivered: u64,
    pub acked: u64,
    pub last_flow_ms: u64,
    pub last_consumed_ms: u64,
    pub last_acked_ms: u64,
}

impl Subscription {
    pub(crate) fn new(
        topic: u64,
        partition: i32,
        name: Arc<str>,
        cursor: CursorId,
        reader: u64,
        durable: bool,
        limits: DispatchLimits,
    ) -> Self {
        Self {
            name,
            cursor,
            durable,
            limits,
            counters: Counters::default(),
            reader,
            reading: None,
            read_failed: false,
            deleting: false,
            properties: BTreeMap::new(),
            topic,
            partition,
            sub_type: None,
            consumers: Vec::new(),
            places: FxHashMap::default(),
            read_position: Position::EARLIEST,
            replay: BTreeSet::new(),
            redeliveries: FxHashMap::default(),
            unacked: 0,
            blocked: false,
            refused: 0,
            turn: 0,
            turn_entries: 0,
        }
    }

    pub(crate) fn sub_type(&self) -> Option<SubscriptionType> {
        self.sub_type
    }

    pub(crate) fn consumers(&self) -> &[Consumer] {
        &self.consumers
    }

    pub(crate) fn consumer(&self, key: u64) -> Option<&Consumer> {
        self.places.get(&key).map(|place| &self.consumers[*place])
    }

    pub(crate) fn consumer_mut(&mut self, key: u64) -> Option<&mut Consumer> {
        self.places.get(&key).map(|place| &mut self.consumers[*place])
    }

    pub(crate) fn unacked(&self) -> u64 {
        self.unacked
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(crate) fn in_replay(&self) -> usize {
        self.replay.len()
    }

    pub(crate) fn read_position(&self) -> Position {
        self.read_position
    }

    /// Whether one more consumer of this type may join.
    pub(crate) fn check_join(&self, sub_type: SubscriptionType) -> Result<(), BrokerError> {
        let refuse = |kind, message: &str| Err(BrokerError::new(kind, message));
        match sub_type {
            SubscriptionType::Exclusive | SubscriptionType::Shared => {}
            SubscriptionType::Failover | SubscriptionType::KeyShared => {
                let message = format!("{} subscriptions are not supported yet", sub_type.name());
                return refuse(BrokerErrorKind::NotAllowed, &message);
            }
        }
        if self.consumers.is_empty() {
            return Ok(());
        }
        match (self.sub_type, sub_type) {
            (Some(present), new) if present != new => {
                refuse(BrokerErrorKind::ConsumerBusy, "Subscription is of different type")
            }
            (_, SubscriptionType::Exclusive) => {
                refuse(BrokerErrorKind::ConsumerBusy, "Exclusive consumer is already connected")
            }
            _ if self.consumers.len() >= self.limits.max_consumers => {
                refuse(BrokerErrorKind::ConsumerBusy, "Subscription reached max consumers limit")
            }
            _ => Ok(()),
        }
    }

    /// Adds a consumer for which [`Self::check_join`] said yes.
    pub(crate) fn join(&mut self, sub_type: SubscriptionType, consumer: Consumer) {
        if self.consumers.is_empty() {
            self.sub_type = Some(sub_type);
            self.rewind();
        }
        let place = self.consumers.partition_point(|other| other.priority <= consumer.priority);
        self.consumers.insert(place, consumer);
        self.index();
    }

    /// Removes a consumer; what it had not acknowledged is sent again, to others.
    pub(crate) fn leave(&mut self, key: u64) -> Option<Consumer> {
        let place = *self.places.get(&key)?;
        let mut consumer = self.consumers.remove(place);
        self.index();
        self.unacked -= consumer.unacked;
        if self.consumers.is_empty() {
            // Whoever comes next begins at the mark-delete position.
            self.rewind();
            self.redeliveries.clear();
        } else {
            for (position, _) in consumer.pending.drain() {
                self.replay.insert(position);
                *self.redeliveries.entry(position).or_default() += 1;
            }
        }
        self.unblock();
        Some(consumer)
    }

    /// Begins again at the first entry that is not acknowledged. Nothing may be pending.
    pub(crate) fn rewind(&mut self) {
        // The managed ledger skips what is acknowledged.
        self.read_position = Position::EARLIEST;
        self.replay.clear();
        self.reading = None;
        self.refused = 0;
    }

    fn index(&mut self) {
        self.places = self.consumers.iter().enumerate().map(|(place, consumer)| (consumer.key, place)).collect();
        self.turn = 0;
        self.turn_entries = 0;
    }

    /// Adds permits. False for an unknown consumer.
    pub(crate) fn flow(&mut self, key: u64, permits: u32, now_ms: u64) -> bool {
        self.counters.last_flow_ms = now_ms;
        let Some(consumer) = self.consumer_mut(key) else { return false };
        consumer.permits += i64::from(permits);
        consumer.counters.last_flow_ms = now_ms;
        true
    }

    /// What to read next; nothing while a read is under way, nobody has permits, or nobody can take more.
    pub(crate) fn wish(&mut self, out: &mut Outboxes) -> Option<Wish> {
        if self.reading.is_some() || self.blocked || self.read_failed {
            return None;
        }
        let (topic, weight) = (self.topic, self.refused);
        let willing = |consumer: &&Consumer| consumer.permits > 0 && !consumer.blocked;
        let mut permits = 0;
        for consumer in self.consumers.iter().filter(willing) {
            // Without this look it would be read again and again for nobody.
            if out.admits(consumer.slot, weight, topic) {
                permits += consumer.permits;
            }
        }
        if permits <= 0 {
            return None;
        }
        let entries = self.limits.read_entries.min(usize::try_from(permits).unwrap_or(usize::MAX));
        let Some(first) = self.replay.first() else {
            return Some(Wish { kind: ReadKind::Next, from: self.read_position, entries });
        };
        // Neighbours are read together; a hole ends the read.
        let mut expected = *first;
        let run = self.replay.iter().take(entries).take_while(|position| {
            let fits = **position == expected;
            expected = position.next_entry();
            fits
        });
        Some(Wish { kind: ReadKind::Replay, from: *first, entries: run.count() })
    }

    /// Says whether an entry that was read is still wanted.
    pub(crate) fn wants(&self, kind: ReadKind, position: Position) -> bool {
        match kind {
            ReadKind::Next => true,
            ReadKind::Replay => self.replay.contains(&position),
        }
    }

    /// A replay read brought nothing for these positions: they are acknowledged or gone.
    pub(crate) fn forget_replay(&mut self, from: Position, below: Position) {
        let gone: Vec<Position> = self.replay.range(from..below).copied().collect();
        for position in gone {
            self.replay.remove(&position);
            self.redeliveries.remove(&position);
        }
    }

    /// The entry needs no delivery: reading goes on behind it.
    pub(crate) fn skip(&mut self, kind: ReadKind, position: Position) {
        match kind {
            ReadKind::Next => self.read_position = position.next_entry(),
            ReadKind::Replay => {
                self.replay.remove(&position);
            }
        }
    }

    /// The batch of a new read starts with the next consumer.
    pub(crate) fn begin_batch(&mut self) {
        self.turn += 1;
        self.turn_entries = 0;
    }

    /// Sends the entry to the consumer whose turn it is. False: nobody can take it, it stays where it was.
    pub(crate) fn deliver(&mut self, kind: ReadKind, entry: Deliverable, now_ms: u64, out: &mut Outboxes) -> bool {
        let weight = Outgoing::message_weight(entry.payload.len());
        let Some(place) = self.choose(weight, out) else {
            self.refused = weight;
            return false;
        };
        self.refused = 0;
        self.skip(kind, entry.position);
        let shared = self.sub_type != Some(SubscriptionType::Exclusive);
        let redelivery_count = self.redeliveries.get(&entry.position).copied().unwrap_or(0);
        let consumer = &mut self.consumers[place];
        let bytes = entry.payload.len() as u64;
        let messages = u64::from(entry.messages);
        consumer.permits -= i64::from(entry.messages);
        consumer.counters.messages_out += messages;
        consumer.counters.bytes_out += bytes;
        consumer.counters.entries_out += 1;
        consumer.counters.last_consumed_ms = now_ms;
        self.counters.messages_out += messages;
        self.counters.bytes_out += bytes;
        self.counters.last_consumed_ms = now_ms;
        if redelivery_count > 0 {
            consumer.counters.redelivered += messages;
            self.counters.redelivered += messages;
        }
        if shared {
            consumer.pending.insert(entry.position, entry.messages);
            consumer.unacked += messages;
            consumer.blocked = consumer.unacked >= self.limits.unacked_per_consumer;
            self.unacked += messages;
            self.blocked = self.unacked >= self.limits.unacked_per_subscription;
        }
        let message = OutgoingMessage {
            consumer_id: consumer.consumer_id,
            position: entry.position,
            partition: self.partition,
            redelivery_count,
            ack_set: entry.ack_set,
            consumer_epoch: consumer.epoch,
            entry: entry.payload,
        };
        out.push(consumer.slot, Outgoing::Message(message));
        true
    }

    /// Who gets a message of this weight: round robin among the first priority level that has somebody with permits and room.
    fn choose(&mut self, weight: usize, out: &mut Outboxes) -> Option<usize> {
        if self.blocked {
            return None;
        }
        let count = self.consumers.len();
        let topic = self.topic;
        let mut able =
            |consumer: &Consumer| consumer.permits > 0 && !consumer.blocked && out.admits(consumer.slot, weight, topic);
        let first = self.consumers.iter().position(&mut able)?;
        let level = self.consumers[first].priority;
        let end = first + self.consumers[first..].partition_point(|consumer| consumer.priority == level);
        let present = self.turn % count;
        let in_level = (first..end).contains(&present);
        if in_level && self.turn_entries < self.limits.round_robin_entries && able(&self.consumers[present]) {
            self.turn = present;
            self.turn_entries += 1;
            return Some(present);
        }
        let start = if in_level { present + 1 } else { first };
        let chosen = (start..end).chain(first..start.min(end)).find(|place| able(&self.consumers[*place]))?;
        self.turn = chosen;
        self.turn_entries = 1;
        Some(chosen)
    }

    /// The entry is acknowledged, or (`remaining` > 0) only that many of its messages are not yet. True: dispatch may be
    /// possible again.
    pub(crate) fn acked(&mut self, key: u64, position: Position, remaining: u32, now_ms: u64) -> bool {
        self.counters.last_acked_ms = now_ms;
        let own = self.places.get(&key).copied();
        if let Some(place) = own {
            self.consumers[place].counters.last_acked_ms = now_ms;
        }
        if remaining == 0 {
            self.replay.remove(&position);
            if !self.redeliveries.is_empty() {
                self.redeliveries.remove(&position);
            }
        }
        let holds = |consumer: &Consumer| consumer.pending.contains_key(&position);
        let owner = match own {
            Some(place) if holds(&self.consumers[place]) => Some(place),
            // Somebody may acknowledge what another got.
            _ => self.consumers.iter().position(holds),
        };
        let Some(place) = owner else { return false };
        let consumer = &mut self.consumers[place];
        let before = consumer.pending[&position];
        if remaining == 0 {
            consumer.pending.remove(&position);
        } else if remaining < before {
            consumer.pending.insert(position, remaining);
        }
        let done = u64::from(before.saturating_sub(remaining));
        consumer.unacked -= done;
        consumer.counters.acked += done;
        self.counters.acked += done;
        self.unacked -= done;
        self.unblock()
    }

    /// Everything up to and including `position` is acknowledged, by an operator or a cumulative acknowledgement.
    pub(crate) fn acked_up_to(&mut self, position: Position, now_ms: u64) {
        self.counters.last_acked_ms = now_ms;
        self.replay = self.replay.split_off(&position.next_entry());
        self.redeliveries.retain(|other, _| *other > position);
        for consumer in &mut self.consumers {
            let mut done = 0;
            consumer.pending.retain(|other, messages| {
                let keep = *other > position;
                done += if keep { 0 } else { u64::from(*messages) };
                keep
            });
            consumer.unacked -= done;
            self.unacked -= done;
        }
        self.unblock();
    }

    /// Sends again what this consumer has not acknowledged: all of it, or the positions named.
    pub(crate) fn redeliver(&mut self, key: u64, positions: Option<&[Position]>, epoch: Option<u64>) {
        let Some(place) = self.places.get(&key).copied() else { return };
        let consumer = &mut self.consumers[place];
        if epoch.is_some() {
            consumer.epoch = epoch;
        }
        match (self.sub_type, positions) {
            (Some(SubscriptionType::Exclusive) | None, _) => self.rewind(),
            (Some(_), None) => {
                for (position, _) in consumer.pending.drain() {
                    self.replay.insert(position);
                    *self.redeliveries.entry(position).or_default() += 1;
                }
                self.unacked -= std::mem::take(&mut consumer.unacked);
            }
            (Some(_), Some(positions)) => {
                for position in positions {
                    // What it does not hold is acknowledged, or somebody else's.
                    let Some(messages) = consumer.pending.remove(position) else { continue };
                    consumer.unacked -= u64::from(messages);
                    self.unacked -= u64::from(messages);
                    self.replay.insert(*position);
                    *self.redeliveries.entry(*position).or_default() += 1;
                }
            }
        }
        self.unblock();
    }

    /// Lets go on who has got rid of half of its limit. True: somebody was blocked and no longer is.
    fn unblock(&mut self) -> bool {
        let mut freed = false;
        if self.blocked && self.unacked <= self.limits.unacked_per_subscription / 2 {
            self.blocked = false;
            freed = true;
        }
        for consumer in &mut self.consumers {
            if consumer.blocked && consumer.unacked <= self.limits.unacked_per_consumer / 2 {
                consumer.blocked = false;
                freed = true;
            }
        }
        freed
    }
}
