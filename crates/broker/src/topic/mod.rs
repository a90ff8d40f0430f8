//! A topic: its managed ledger, producers and subscriptions. A core: it is fed by its shard and performs nothing.
//!
//! Everything that must stay ordered goes through the managed ledger: receipts are sent in the order of its
//! confirmations, and an acknowledgement's answer when it says that the acknowledgement is durable.

mod consumers;
mod dispatch;
mod positions;
mod producers;
mod stats;
mod subscriptions;

use std::collections::VecDeque;
use std::sync::Arc;

use managed_ledger::{CursorId, Effect, Effects, Event, ManagedLedger, ManagedLedgerConfig, Now};
use pulsar_proto::TopicName;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use self::producers::{PendingPublish, Producer};
use self::subscriptions::{Joining, Waiting};
use crate::config::BrokerConfig;
use crate::door::{BrokerError, BrokerErrorKind, OutboundBudget, Position};
use crate::mailbox::{Mailbox, Reply, TopicRequest};
use crate::outboxes::Outboxes;
use crate::subscription::Subscription;
use crate::tenancy::Namespace;

pub(crate) use self::producers::ProducerNames;

/// What a topic may use during a shard's turn.
pub(crate) struct Turn<'a> {
    pub now: Now,
    /// For the shard to perform, in order.
    pub effects: &'a mut Effects,
    pub out: &'a mut Outboxes,
    pub env: &'a Env,
    /// The next key of a producer or consumer, unique in the shard.
    pub next_key: &'a mut u64,
}

impl Turn<'_> {
    fn key(&mut self) -> u64 {
        *self.next_key += 1;
        *self.next_key
    }
}

/// What all topics of a shard share.
pub(crate) struct Env {
    pub config: BrokerConfig,
    pub mailbox: Arc<Mailbox>,
    pub producer_names: Arc<ProducerNames>,
    pub outbound: Arc<OutboundBudget>,
}

pub(crate) struct Topic {
    pub key: u64,
    pub name: TopicName,
    /// The term of ownership it was opened in.
    pub term: u64,
    namespace: Arc<Namespace>,
    /// Index parsed from the name, or -1.
    partition: i32,
    ledger: ManagedLedger,
    state: State,
    /// Something may be ready to be sent: the shard calls [`Topic::dispatch`] at the end of its turn.
    pub dirty: bool,
    /// The shard has it on its list for that.
    pub listed: bool,
    /// The shard has it on its list of those whose caches hold something.
    pub caching: bool,
    /// To be deleted when it is closed.
    pub delete: Option<Reply<()>>,

    producers: FxHashMap<u64, Producer>,
    producer_by_name: FxHashMap<Arc<str>, u64>,
    /// Sent to the managed ledger and not confirmed, in order.
    pending: VecDeque<PendingPublish>,

    subscriptions: FxHashMap<Arc<str>, Subscription>,
    /// Consumer key to the name of its subscription.
    consumers: FxHashMap<u64, Arc<str>>,
    /// Durable subscriptions being created, and who wants to join them.
    creating: FxHashMap<Arc<str>, Vec<Joining>>,
    /// Token of a cursor operation to what happens when it is done.
    waiting: FxHashMap<u64, Waiting>,
    last_token: u64,

    counters: TopicCounters,
    rates: stats::Rates,
    created_ms: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TopicCounters {
    pub messages_in: u64,
    pub bytes_in: u64,
    pub chunks_in: u64,
    /// Of subscriptions and consumers that are gone.
    pub messages_out_before: u64,
    pub bytes_out_before: u64,
}

enum State {
    Open,
    /// A write failed: the producers are closed as soon as their publishes are answered, and new ones are refused until
    /// writes are possible again, so that what is sent again comes in order.
    Interrupted,
    /// Clients are gone; the managed ledger is closed when the last publish is answered.
    Draining(Vec<Reply<()>>),
    /// The managed ledger is being closed.
    Closing(Vec<Reply<()>>),
    Closed,
}

impl Topic {
    pub(crate) fn new(
        key: u64,
        name: TopicName,
        term: u64,
        namespace: Arc<Namespace>,
        ledger: ManagedLedger,
        turn: &mut Turn<'_>,
    ) -> Self {
        let partition = name.partition_index().and_then(|index| i32::try_from(index).ok()).unwrap_or(-1);
        let mut topic = Self {
            key,
            name,
            term,
            namespace,
            partition,
            ledger,
            state: State::Open,
            dirty: false,
            listed: false,
            caching: false,
            delete: None,
            producers: FxHashMap::default(),
            producer_by_name: FxHashMap::default(),
            pending: VecDeque::new(),
            subscriptions: FxHashMap::default(),
            consumers: FxHashMap::default(),
            creating: FxHashMap::default(),
            waiting: FxHashMap::default(),
            last_token: 0,
            counters: TopicCounters::default(),
            rates: stats::Rates::new(turn.now),
            created_ms: turn.now.unix_ms,
        };
        let cursors: Vec<(CursorId, String)> = topic.ledger.cursors().map(|(id, name)| (id, name.to_owned())).collect();
        for (cursor, name) in cursors {
            // Cursors of the system (`pulsar.dedup`, `__compaction`, `pulsar.repl.…`) are no subscriptions.
            if !is_reserved(&name) {
                let properties = topic.ledger.cursor_properties(cursor);
                topic.add_subscription(name.into(), cursor, true, properties, turn);
            }
        }
        topic
    }

    /// Puts policies in force, and the settings of the managed ledger that come with them. Producers and consumers that are
    /// there stay, even if they would be refused now.
    pub(crate) fn set_policies(
        &mut self,
        namespace: Arc<Namespace>,
        config: Arc<ManagedLedgerConfig>,
        turn: &Turn<'_>,
    ) {
        self.namespace = namespace;
        self.ledger.set_config(config);
        let limits = self.limits(turn);
        self.subscriptions.values_mut().for_each(|subscription| subscription.limits = limits);
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Open enough for new producers and consumers.
    fn check_open(&self) -> Result<(), BrokerError> {
        let refuse = |why: &str| {
            let message = format!("Topic {} is {why}", self.name);
            Err(BrokerError::new(BrokerErrorKind::ServiceNotReady, message))
        };
        match self.state {
            State::Open => Ok(()),
            State::Interrupted => refuse("temporarily unavailable"),
            State::Draining(_) | State::Closing(_) | State::Closed => refuse("already fenced"),
        }
    }

    /// A request that needs the topic to be open.
    pub(crate) fn request(&mut self, request: TopicRequest, turn: &mut Turn<'_>) {
        if matches!(self.state, State::Draining(_) | State::Closing(_) | State::Closed)
            && let Err(error) = self.check_open()
        {
            return request.refuse(error);
        }
        match request {
            TopicRequest::CreateProducer { request, reply } => {
                self.create_producer_with_subscription(request, reply, turn);
            }
            TopicRequest::Subscribe { request, reply } => self.subscribe(request, reply, turn),
            TopicRequest::Touch { reply } => drop(reply.send(Ok(()))),
            TopicRequest::Stats { reply } => drop(reply.send(Ok(Box::new(self.stats(turn))))),
            TopicRequest::InternalStats { reply } => drop(reply.send(Ok(Box::new(self.internal_stats())))),
            TopicRequest::Subscriptions { reply } => {
                let mut names: Vec<String> = self.subscriptions.keys().map(|name| name.to_string()).collect();
                names.sort_unstable();
                drop(reply.send(Ok(names)));
            }
            TopicRequest::CreateSubscription { name, at, reply } => self.create_subscription(&name, at, reply, turn),
            TopicRequest::DeleteSubscription { name, force, reply } => {
                self.delete_subscription(&name, force, reply, turn);
            }
            TopicRequest::SkipAll { subscription, reply } => self.skip_all(&subscription, reply, turn),
            TopicRequest::LastMessageId { reply } => drop(reply.send(Ok(self.ledger.last_confirmed()))),
            TopicRequest::Delete { force, reply } => {
                if !force && (!self.producers.is_empty() || !self.consumers.is_empty()) {
                    let message = format!("Topic {} has active producers/subscriptions", self.name);
                    return drop(reply.send(Err(BrokerError::new(BrokerErrorKind::PreconditionFailed, message))));
                }
                self.delete = Some(reply);
                // Whoever waits for the deletion does not wait for the close.
                let (closed, _) = oneshot::channel();
                self.close(closed, turn);
            }
        }
    }

    /// One of the managed ledger's effects that is for the topic.
    pub(crate) fn on_effect(&mut self, effect: Effect, turn: &mut Turn<'_>) {
        match effect {
            Effect::Added { token, position, .. } => self.publish_added(token, position, turn),
            Effect::AddFailed { token, error } => self.publish_failed(token, &error, turn),
            Effect::AckDone { token, result } => self.ack_done(token, result, turn),
            Effect::CursorCreated { token, result } => self.cursor_created(token, result, turn),
            Effect::CursorDeleted { token, result } => self.cursor_deleted(token, result),
            Effect::EntriesRead { reader, from, result } => self.entries_read(reader, from, result, turn),
            Effect::NewEntries => self.dirty = true,
            Effect::WritesInterrupted { cause } => {
                tracing::warn!(topic = %self.name, error = %cause, "a write failed: disconnecting producers");
                if matches!(self.state, State::Open) {
                    self.state = State::Interrupted;
                }
            }
            Effect::WritesResumed => {
                tracing::info!(topic = %self.name, "writes resumed");
                if matches!(self.state, State::Interrupted) {
                    self.state = State::Open;
                }
            }
            Effect::Fenced { reason } => {
                tracing::warn!(topic = %self.name, reason, "topic fenced: closing it");
                self.disconnect_all(turn);
                self.finish_close(Err(BrokerError::new(BrokerErrorKind::ServiceNotReady, reason)));
            }
            Effect::Closed { result, .. } => {
                if let Err(error) = result {
                    tracing::warn!(topic = %self.name, %error, "topic closed without its last state; it is recovered when it opens");
                }
                self.finish_close(Ok(()));
            }
            Effect::Append(_) | Effect::Run(_) => unreachable!("the shard performs these"),
        }
        self.after_publish(turn);
    }

    pub(crate) fn on_event(&mut self, event: Event, turn: &mut Turn<'_>) {
        self.ledger.on_event(turn.now, event, turn.effects);
    }

    pub(crate) fn appended(&mut self, done: impl IntoIterator<Item = bookkeeper_proto::AddDone>, turn: &mut Turn<'_>) {
        self.ledger.appended(turn.now, done, turn.effects);
    }

    pub(crate) fn has_cached(&self) -> bool {
        self.ledger.has_cached()
    }

    /// Answers whether its cache still holds anything.
    pub(crate) fn expire_cache(&mut self) -> bool {
        self.caching = self.ledger.expire_cache();
        self.caching
    }

    pub(crate) fn tick(&mut self, turn: &mut Turn<'_>) {
        self.rates.tick(turn.now, &self.counters, self.out_counters());
        self.retry_reads();
        self.ledger.tick(turn.now, turn.effects);
    }

    /// What waits for the last pending publish.
    fn after_publish(&mut self, turn: &mut Turn<'_>) {
        if !self.pending.is_empty() {
            return;
        }
        match &mut self.state {
            State::Interrupted => self.disconnect_producers(turn),
            State::Draining(replies) => {
                self.state = State::Closing(std::mem::take(replies));
                self.last_token += 1;
                self.ledger.close(turn.now, self.last_token, turn.effects);
            }
            State::Open | State::Closing(_) | State::Closed => {}
        }
    }

    /// Disconnects everybody and closes the managed ledger. The topic is gone when the reply comes.
    pub(crate) fn close(&mut self, reply: Reply<()>, turn: &mut Turn<'_>) {
        match &mut self.state {
            State::Open | State::Interrupted => {
                self.disconnect_all(turn);
                self.state = State::Draining(vec![reply]);
                self.after_publish(turn);
            }
            State::Draining(replies) | State::Closing(replies) => replies.push(reply),
            State::Closed => drop(reply.send(Ok(()))),
        }
    }

    fn finish_close(&mut self, result: Result<(), BrokerError>) {
        let state = std::mem::replace(&mut self.state, State::Closed);
        if let State::Draining(replies) | State::Closing(replies) = state {
            replies.into_iter().for_each(|reply| drop(reply.send(result.clone())));
        }
        // Whoever still waits for a cursor learns from the dropped reply that the topic is gone.
        self.waiting.clear();
        self.creating.clear();
    }

    fn disconnect_all(&mut self, turn: &mut Turn<'_>) {
        self.disconnect_producers(turn);
        let names: Vec<Arc<str>> = self.subscriptions.keys().cloned().collect();
        for name in names {
            self.disconnect_consumers(&name, turn);
        }
    }

    fn token(&mut self, waiting: Waiting) -> u64 {
        self.last_token += 1;
        self.waiting.insert(self.last_token, waiting);
        self.last_token
    }
}

/// Names that only the broker itself may use for cursors.
fn is_reserved(cursor: &str) -> bool {
    cursor == "pulsar.dedup" || cursor == "__compaction" || cursor.starts_with("pulsar.repl")
}

/// Marks the end of an operation for someone who may have gone.
fn answer(reply: Option<oneshot::Sender<()>>) {
    if let Some(reply) = reply {
        let _ = reply.send(());
    }
}

/// The position as the protocols show it: entry -1 of a ledger without entries is "nothing".
fn shown(position: Position) -> Position {
    if position.entry.0 < 0 { Position::EARLIEST } else { position }
}
