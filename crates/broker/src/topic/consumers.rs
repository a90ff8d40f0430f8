//! Subscriptions and consumers of a topic: joining and leaving, acknowledging, seeking.

use std::collections::BTreeMap;
use std::sync::Arc;

use managed_ledger::{
    Ack as CursorAck, CursorError, CursorId, Entry, InitialPosition as CursorStart, NewCursor, Read, ReadError,
    ReadLimit,
};

use super::dispatch::{Content, count_unacked};
use super::{Topic, Turn, answer, is_reserved, shown};
use crate::door::{
    Ack, AckId, AckRequest, BrokerError, BrokerErrorKind, ConsumerHandle, ConsumerSnapshot, InitialPosition,
    LastMessageId, NewConsumer, NewProducer, Outgoing, Position, ProducerCreated, ProducerHandle, Redeliver, SeekTo,
    SubscriptionType,
};
use crate::mailbox::{ConsumerCommand, Reply, TopicRequest};
use crate::subscription::{Consumer, DispatchLimits, Subscription};

/// A request that goes on as soon as its subscription is there.
pub(super) enum Joining {
    Consumer {
        request: Box<NewConsumer>,
        reply: Reply<ConsumerHandle>,
    },
    /// A producer that wants the subscription to hold what it will send.
    Producer {
        request: Box<NewProducer>,
        reply: Reply<(ProducerHandle, ProducerCreated)>,
    },
}

impl Joining {
    fn resume(self) -> TopicRequest {
        match self {
            Joining::Consumer { request, reply } => TopicRequest::Subscribe { request, reply },
            Joining::Producer { request, reply } => TopicRequest::CreateProducer { request, reply },
        }
    }
}

/// What happens when the managed ledger has done something to a cursor.
pub(super) enum Waiting {
    /// An acknowledgement wants an answer.
    Ack {
        consumer: u64,
        request_id: u64,
    },
    /// A cursor of this name is being created.
    Create {
        name: Arc<str>,
        durable: bool,
        reply: Option<Reply<()>>,
    },
    Delete {
        name: Arc<str>,
        reply: Reply<()>,
    },
    Reset {
        reply: Reply<()>,
    },
    /// The last entry is being read to see how many messages it has.
    LastMessage {
        consumer: u64,
        reader: u64,
        reply: Reply<LastMessageId>,
    },
}

fn refused<T>(kind: BrokerErrorKind, message: impl Into<String>) -> Result<T, BrokerError> {
    Err(BrokerError::new(kind, message))
}

fn cursor_error(error: &CursorError) -> BrokerError {
    let kind = match error {
        CursorError::Exists { .. } => BrokerErrorKind::AlreadyExists,
        CursorError::NotFound => BrokerErrorKind::SubscriptionNotFound,
        CursorError::Fenced { .. } | CursorError::Closed => BrokerErrorKind::ServiceNotReady,
        _ => BrokerErrorKind::Metadata,
    };
    BrokerError::new(kind, error.to_string())
}

impl Topic {
    pub(super) fn add_subscription(
        &mut self,
        name: Arc<str>,
        cursor: CursorId,
        durable: bool,
        properties: BTreeMap<String, String>,
        turn: &mut Turn<'_>,
    ) {
        let reader = turn.key();
        let limits = self.limits(turn);
        let mut subscription =
            Subscription::new(self.key, self.partition, name.clone(), cursor, reader, durable, limits);
        subscription.properties = properties;
        self.subscriptions.insert(name, subscription);
    }

    fn limits(&self, turn: &Turn<'_>) -> DispatchLimits {
        let (config, policies) = (&turn.env.config, &self.namespace.policies);
        // In policies and settings 0 means that there is no limit.
        let or = |policy: Option<u32>, setting: Option<u32>| match policy.or(setting) {
            None | Some(0) => u64::MAX,
            Some(limit) => u64::from(limit),
        };
        let max_consumers = or(policies.max_consumers_per_subscription, config.max_consumers_per_subscription);
        DispatchLimits {
            read_entries: config.dispatcher_max_read_entries,
            round_robin_entries: config.dispatcher_max_round_robin_entries,
            unacked_per_consumer: or(
                policies.max_unacked_messages_per_consumer,
                config.max_unacked_messages_per_consumer,
            ),
            unacked_per_subscription: or(
                policies.max_unacked_messages_per_subscription,
                config.max_unacked_messages_per_subscription,
            ),
            max_consumers: usize::try_from(max_consumers).unwrap_or(usize::MAX),
        }
    }

    pub(super) fn subscribe(&mut self, request: Box<NewConsumer>, reply: Reply<ConsumerHandle>, turn: &mut Turn<'_>) {
        if let Err(error) = self.check_subscribe(&request, turn) {
            return drop(reply.send(Err(error)));
        }
        let name: Arc<str> = request.subscription.as_str().into();
        if self.subscriptions.contains_key(&name) {
            return drop(reply.send(self.join(&name, *request, turn)));
        }
        let new = NewCursor {
            name: name.to_string(),
            initial: start_of(&request),
            durable: request.durable,
            properties: Vec::new(),
            cursor_properties: request.subscription_properties.clone().into_iter().collect(),
        };
        self.create_for(new, Joining::Consumer { request, reply }, turn);
    }

    /// Creates a subscription for somebody, unless it is being created already.
    fn create_for(&mut self, new: NewCursor, joining: Joining, turn: &mut Turn<'_>) {
        let name: Arc<str> = new.name.as_str().into();
        if let Some(others) = self.creating.get_mut(&name) {
            return others.push(joining);
        }
        self.creating.insert(name.clone(), vec![joining]);
        let token = self.token(Waiting::Create { name, durable: new.durable, reply: None });
        self.ledger.create_cursor(turn.now, new, token, turn.effects);
    }

    /// Creates a producer, and before that the subscription it asks for (so that nothing it sends is trimmed unread).
    pub(super) fn create_producer_with_subscription(
        &mut self,
        request: Box<NewProducer>,
        reply: Reply<(ProducerHandle, ProducerCreated)>,
        turn: &mut Turn<'_>,
    ) {
        let wanted = request.initial_subscription.as_deref().filter(|name| !self.subscriptions.contains_key(*name));
        let Some(name) = wanted else { return drop(reply.send(self.create_producer(*request, turn))) };
        if name.trim().is_empty() || is_reserved(name) {
            let message = format!("initial subscription name `{name}` is not allowed");
            return drop(reply.send(refused(BrokerErrorKind::NotAllowed, message)));
        }
        if let Err(error) = self.check_open() {
            return drop(reply.send(Err(error)));
        }
        let new = NewCursor {
            name: name.to_owned(),
            initial: CursorStart::Earliest,
            durable: true,
            properties: Vec::new(),
            cursor_properties: Vec::new(),
        };
        self.create_for(new, Joining::Producer { request, reply }, turn);
    }

    fn check_subscribe(&self, request: &NewConsumer, turn: &Turn<'_>) -> Result<(), BrokerError> {
        self.check_open_for_reading()?;
        let (config, policies) = (&turn.env.config, &self.namespace.policies);
        let name = request.subscription.as_str();
        let max = policies.max_consumers_per_topic.or(config.max_consumers_per_topic).filter(|max| *max > 0);
        if max.is_some_and(|max| self.consumers.len() >= max as usize) {
            return refused(BrokerErrorKind::ConsumerBusy, "Topic reached max consumers limit");
        }
        let shared = matches!(request.sub_type, SubscriptionType::Shared | SubscriptionType::KeyShared);
        if request.read_compacted && shared {
            return refused(
                BrokerErrorKind::NotAllowed,
                "readCompacted only allowed on failover or exclusive subscriptions",
            );
        }
        if name.trim().is_empty() {
            return refused(BrokerErrorKind::ProducerBusy, "Empty subscription name");
        }
        if is_reserved(name) {
            return refused(BrokerErrorKind::ProducerBusy, "Subscription with reserved subscription name attempted");
        }
        if matches!(request.sub_type, SubscriptionType::Failover | SubscriptionType::KeyShared) {
            let message = format!("{} subscriptions are not supported yet", request.sub_type.name());
            return refused(BrokerErrorKind::NotAllowed, message);
        }
        match self.subscriptions.get(name) {
            Some(present) if present.deleting => {
                refused(BrokerErrorKind::ServiceNotReady, format!("Subscription {name} is being deleted"))
            }
            Some(present) if present.durable && !request.durable => refused(
                BrokerErrorKind::NotAllowed,
                format!("NonDurable subscription with the same name already exists: {name} is durable"),
            ),
            Some(present) => present.check_join(request.sub_type),
            None => {
                let allowed = match &policies.auto_subscription_creation_override {
                    Some(policy) => policy.allow_auto_subscription_creation,
                    None => config.allow_auto_subscription_creation,
                };
                if request.durable && !allowed && !self.creating.contains_key(name) {
                    let message = format!("Subscription {name} does not exist");
                    return refused(BrokerErrorKind::SubscriptionNotFound, message);
                }
                Ok(())
            }
        }
    }

    /// A topic whose writes are interrupted can still be read.
    fn check_open_for_reading(&self) -> Result<(), BrokerError> {
        match self.state {
            super::State::Interrupted => Ok(()),
            _ => self.check_open(),
        }
    }

    fn join(
        &mut self,
        name: &Arc<str>,
        request: NewConsumer,
        turn: &mut Turn<'_>,
    ) -> Result<ConsumerHandle, BrokerError> {
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return refused(BrokerErrorKind::ServiceNotReady, format!("Subscription {name} is gone"));
        };
        subscription.check_join(request.sub_type)?;
        let key = turn.key();
        let slot = turn.out.register(&request.outbox);
        let mut consumer =
            Consumer::new(key, request.consumer_id, slot, request.name.as_str().into(), request.priority_level);
        consumer.epoch = request.consumer_epoch;
        consumer.peer = request.peer;
        consumer.metadata = request.metadata;
        consumer.connected_since_ms = turn.now.unix_ms;
        subscription.join(request.sub_type, consumer);
        self.consumers.insert(key, name.clone());
        Ok(ConsumerHandle { mailbox: turn.env.mailbox.clone(), topic: self.key, consumer: key, closed: false })
    }

    pub(super) fn cursor_created(&mut self, token: u64, result: Result<CursorId, CursorError>, turn: &mut Turn<'_>) {
        let Some(Waiting::Create { name, durable, reply }) = self.waiting.remove(&token) else { return };
        let waiting = self.creating.remove(&name).unwrap_or_default();
        match result {
            Ok(cursor) => {
                // The first who asked for it has named them.
                let properties = match waiting.first() {
                    Some(Joining::Consumer { request, .. }) => request.subscription_properties.clone(),
                    Some(Joining::Producer { .. }) | None => BTreeMap::new(),
                };
                self.add_subscription(name.clone(), cursor, durable, properties, turn);
                tracing::info!(topic = %self.name, subscription = %name, durable, "subscription created");
                reply.into_iter().for_each(|reply| drop(reply.send(Ok(()))));
                for joining in waiting {
                    self.request(joining.resume(), turn);
                }
                self.drop_unused(&name, turn);
            }
            Err(error) => {
                let error = cursor_error(&error);
                reply.into_iter().for_each(|reply| drop(reply.send(Err(error.clone()))));
                waiting.into_iter().for_each(|joining| joining.resume().refuse(error.clone()));
            }
        }
    }

    pub(super) fn create_subscription(&mut self, name: &str, at: Position, reply: Reply<()>, turn: &mut Turn<'_>) {
        if self.subscriptions.contains_key(name) || self.creating.contains_key(name) {
            let message = format!("Subscription {name} already exists for topic {}", self.name);
            return drop(reply.send(refused(BrokerErrorKind::AlreadyExists, message)));
        }
        if name.trim().is_empty() || is_reserved(name) {
            let message = format!("subscription name `{name}` is not allowed");
            return drop(reply.send(refused(BrokerErrorKind::InvalidArgument, message)));
        }
        let new = NewCursor {
            name: name.to_owned(),
            initial: start_at(at, false),
            durable: true,
            properties: Vec::new(),
            cursor_properties: Vec::new(),
        };
        let name: Arc<str> = name.into();
        self.creating.insert(name.clone(), Vec::new());
        let token = self.token(Waiting::Create { name, durable: true, reply: Some(reply) });
        self.ledger.create_cursor(turn.now, new, token, turn.effects);
    }

    pub(super) fn delete_subscription(&mut self, name: &str, force: bool, reply: Reply<()>, turn: &mut Turn<'_>) {
        let Some((name, subscription)) = self.subscriptions.get_key_value(name) else {
            let message = format!("Subscription {name} not found");
            return drop(reply.send(refused(BrokerErrorKind::SubscriptionNotFound, message)));
        };
        let name = name.clone();
        if !force && !subscription.consumers().is_empty() {
            let message = format!("Subscription {name} has active connected consumers");
            return drop(reply.send(refused(BrokerErrorKind::PreconditionFailed, message)));
        }
        self.delete_cursor(&name, reply, turn);
    }

    fn delete_cursor(&mut self, name: &Arc<str>, reply: Reply<()>, turn: &mut Turn<'_>) {
        self.disconnect_consumers(name, turn);
        // A non-durable one went with its last consumer.
        let Some(subscription) = self.subscriptions.get_mut(name) else { return drop(reply.send(Ok(()))) };
        subscription.deleting = true;
        let cursor = subscription.cursor;
        let token = self.token(Waiting::Delete { name: name.clone(), reply });
        self.ledger.delete_cursor(cursor, token, turn.effects);
    }

    pub(super) fn cursor_deleted(&mut self, token: u64, result: Result<(), CursorError>, turn: &mut Turn<'_>) {
        let _ = turn;
        let Some(Waiting::Delete { name, reply }) = self.waiting.remove(&token) else { return };
        match &result {
            Ok(()) | Err(CursorError::NotFound) => {
                self.remove_subscription(&name);
                drop(reply.send(Ok(())));
            }
            Err(error) => {
                if let Some(subscription) = self.subscriptions.get_mut(&name) {
                    subscription.deleting = false;
                }
                drop(reply.send(Err(cursor_error(error))));
            }
        }
    }

    fn remove_subscription(&mut self, name: &Arc<str>) {
        if let Some(gone) = self.subscriptions.remove(name) {
            self.ledger.forget_reader(gone.reader);
            self.counters.messages_out_before += gone.counters.messages_out;
            self.counters.bytes_out_before += gone.counters.bytes_out;
        }
    }

    /// A non-durable subscription goes with its last consumer.
    fn drop_unused(&mut self, name: &Arc<str>, turn: &mut Turn<'_>) {
        let Some(subscription) = self.subscriptions.get_mut(name) else { return };
        if !subscription.consumers().is_empty() {
            return;
        }
        // Nobody reads: the cache need not wait.
        self.ledger.forget_reader(subscription.reader);
        if !subscription.durable {
            let cursor = subscription.cursor;
            self.last_token += 1;
            self.ledger.delete_cursor(cursor, self.last_token, turn.effects);
            self.remove_subscription(name);
        }
    }

    /// Takes a consumer out of its subscription.
    fn remove_consumer(&mut self, key: u64, turn: &mut Turn<'_>) {
        let Some(name) = self.consumers.remove(&key) else { return };
        let Some(subscription) = self.subscriptions.get_mut(&name) else { return };
        if let Some(consumer) = subscription.leave(key) {
            turn.out.release(consumer.slot);
        }
        self.dirty = true;
        self.drop_unused(&name, turn);
    }

    pub(super) fn disconnect_consumers(&mut self, name: &Arc<str>, turn: &mut Turn<'_>) {
        let Some(subscription) = self.subscriptions.get(name) else { return };
        let consumers: Vec<_> = subscription
            .consumers()
            .iter()
            .map(|consumer| (consumer.key, consumer.slot, consumer.consumer_id))
            .collect();
        for (key, slot, consumer_id) in consumers {
            turn.out.push(slot, Outgoing::CloseConsumer { consumer_id });
            self.remove_consumer(key, turn);
        }
    }

    pub(crate) fn consumer_command(&mut self, key: u64, command: ConsumerCommand, turn: &mut Turn<'_>) {
        let name = self.consumers.get(&key).cloned();
        let Some((name, subscription)) = name.and_then(|name| Some((name.clone(), self.subscriptions.get_mut(&name)?)))
        else {
            return no_consumer(command);
        };
        match command {
            ConsumerCommand::Flow(permits) => {
                self.dirty |= subscription.flow(key, permits, turn.now.unix_ms);
            }
            ConsumerCommand::Ack(request) => self.ack(key, &name, request, turn),
            ConsumerCommand::Redeliver(what, epoch) => {
                let positions = match &what {
                    Redeliver::All => None,
                    Redeliver::Some(positions) => Some(positions.as_slice()),
                };
                subscription.redeliver(key, positions, epoch);
                self.dirty = true;
            }
            ConsumerCommand::Unsubscribe { force, reply } => {
                if !force && subscription.consumers().len() > 1 {
                    let message = "Unconnected or shared consumer attempting to unsubscribe";
                    return drop(reply.send(refused(BrokerErrorKind::Metadata, message)));
                }
                // Its own connection knows that this consumer ends.
                self.remove_consumer(key, turn);
                self.delete_cursor(&name, reply, turn);
            }
            ConsumerCommand::Seek { to, reply } => self.seek(&name, to, reply, turn),
            ConsumerCommand::LastMessageId { reply } => self.last_message_id(key, &name, reply, turn),
            ConsumerCommand::Stats { reply } => drop(reply.send(self.consumer_snapshot(key, &name))),
            ConsumerCommand::Close { reply } => {
                self.remove_consumer(key, turn);
                answer(reply);
            }
        }
    }

    fn ack(&mut self, key: u64, name: &Arc<str>, request: AckRequest, turn: &mut Turn<'_>) {
        let Some(subscription) = self.subscriptions.get_mut(name) else { return };
        let end = self.ledger.last_confirmed();
        let by_index = turn.env.config.ack_at_batch_index_level;
        // What was never sent cannot be acknowledged, and part of a batch only where that is switched on.
        let counts = |id: &&AckId| {
            let partial = id.ack_set.as_ref().is_some_and(|words| words.iter().any(|word| *word != 0));
            id.position <= end && id.position.entry.0 >= 0 && (by_index || !partial)
        };
        let token = request.request_id.map(|request_id| {
            self.last_token += 1;
            self.waiting.insert(self.last_token, Waiting::Ack { consumer: key, request_id });
            self.last_token
        });
        let now_ms = turn.now.unix_ms;
        let mut handed_over = false;
        match &request.ack {
            Ack::Individual(ids) => {
                let mut ids = ids.as_slice().iter().filter(counts).peekable();
                while let Some(id) = ids.next() {
                    let remaining = id.ack_set.as_deref().unwrap_or_default().to_vec();
                    let ack = CursorAck::Individual { position: id.position, remaining };
                    // Each covers those before it, so the last one's word is enough.
                    let token = token.filter(|_| ids.peek().is_none());
                    handed_over |= token.is_some();
                    self.ledger.ack(turn.now, subscription.cursor, &ack, token, turn.effects);
                    let left = match self.ledger.ack_set(subscription.cursor, id.position) {
                        Some(words) => count_unacked(words),
                        None => 0,
                    };
                    self.dirty |= subscription.acked(key, id.position, left, now_ms);
                }
            }
            Ack::Cumulative(id) if counts(&id) && subscription.sub_type() == Some(SubscriptionType::Exclusive) => {
                let remaining = id.ack_set.as_deref().unwrap_or_default().to_vec();
                let ack = CursorAck::Cumulative { position: id.position, remaining };
                handed_over = token.is_some();
                self.ledger.ack(turn.now, subscription.cursor, &ack, token, turn.effects);
                subscription.acked_up_to(id.position, now_ms);
            }
            Ack::Cumulative(_) => {
                tracing::debug!(topic = %self.name, subscription = %name, "cumulative acknowledgement ignored");
            }
        }
        if let Some(token) = token.filter(|_| !handed_over) {
            self.ack_done(token, Ok(()), turn);
        }
    }

    pub(super) fn ack_done(&mut self, token: u64, result: Result<(), CursorError>, turn: &mut Turn<'_>) {
        match self.waiting.remove(&token) {
            Some(Waiting::Ack { consumer: key, request_id }) => {
                let subscription = self.consumers.get(&key).and_then(|name| self.subscriptions.get(name));
                let Some(consumer) = subscription.and_then(|subscription| subscription.consumer(key)) else { return };
                let error = result.err().map(|error| {
                    let error = cursor_error(&error);
                    (error.kind, error.message.into())
                });
                let response = Outgoing::AckResponse { consumer_id: consumer.consumer_id, request_id, error };
                turn.out.push(consumer.slot, response);
            }
            Some(Waiting::Reset { reply }) => drop(reply.send(result.map_err(|error| cursor_error(&error)))),
            Some(_) | None => {}
        }
    }

    fn seek(&mut self, name: &Arc<str>, to: SeekTo, reply: Reply<()>, turn: &mut Turn<'_>) {
        let (position, ack_set) = match to {
            SeekTo::Position { position, ack_set } => (position, ack_set),
            SeekTo::PublishTime(_) => {
                let message = "seeking by publish time is not supported yet";
                return drop(reply.send(refused(BrokerErrorKind::NotAllowed, message)));
            }
        };
        let mark_delete = match position {
            Position::EARLIEST => self.ledger.start(),
            Position::LATEST => self.ledger.last_confirmed(),
            position => self.ledger.preceding(self.ledger.at_or_after(position)),
        };
        let Some(subscription) = self.subscriptions.get(name) else { return };
        let (cursor, durable) = (subscription.cursor, subscription.durable);
        if durable {
            self.disconnect_consumers(name, turn);
        } else {
            // The subscription would go with its consumers; a reader keeps it and begins anew.
            self.close_for_seek(name, turn);
        }
        let token = self.token(Waiting::Reset { reply });
        let next = self.ledger.at_or_after(position);
        let partial = ack_set.filter(|_| {
            turn.env.config.ack_at_batch_index_level && next == position && position <= self.ledger.last_confirmed()
        });
        let reset_token = if partial.is_none() { Some(token) } else { None };
        self.ledger.reset_cursor(turn.now, cursor, mark_delete, reset_token, turn.effects);
        if let Some(remaining) = partial {
            // Its receipt covers the reset, which comes before it.
            let ack = CursorAck::Individual { position, remaining: remaining.into_vec() };
            self.ledger.ack(turn.now, cursor, &ack, Some(token), turn.effects);
        }
    }

    /// Tells the consumers to reconnect, but keeps a non-durable subscription for them.
    fn close_for_seek(&mut self, name: &Arc<str>, turn: &mut Turn<'_>) {
        let Some(subscription) = self.subscriptions.get_mut(name) else { return };
        let consumers: Vec<_> = subscription
            .consumers()
            .iter()
            .map(|consumer| (consumer.key, consumer.slot, consumer.consumer_id))
            .collect();
        for (key, slot, consumer_id) in consumers {
            turn.out.push(slot, Outgoing::CloseConsumer { consumer_id });
            subscription.leave(key);
            self.consumers.remove(&key);
            turn.out.release(slot);
        }
        self.ledger.forget_reader(subscription.reader);
    }

    pub(super) fn skip_all(&mut self, name: &str, reply: Reply<()>, turn: &mut Turn<'_>) {
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return drop(reply.send(refused(BrokerErrorKind::SubscriptionNotFound, "Subscription not found")));
        };
        let position = self.ledger.last_confirmed();
        if position.entry.0 < 0 {
            return drop(reply.send(Ok(())));
        }
        subscription.acked_up_to(position, turn.now.unix_ms);
        let cursor = subscription.cursor;
        let token = self.token(Waiting::Reset { reply });
        let ack = CursorAck::Cumulative { position, remaining: Vec::new() };
        self.ledger.ack(turn.now, cursor, &ack, Some(token), turn.effects);
    }

    fn last_message_id(&mut self, key: u64, name: &Arc<str>, reply: Reply<LastMessageId>, turn: &mut Turn<'_>) {
        let position = self.ledger.last_confirmed();
        if position.entry.0 < 0 {
            let answer = self.last_message(name, position, -1);
            return drop(reply.send(Ok(answer)));
        }
        // Only the entry itself knows how many messages it has.
        let reader = turn.key();
        let limit = ReadLimit { max_entries: 1, max_bytes: 1 };
        match self.ledger.read(reader, position, limit, turn.effects) {
            Read::Ready(entries) => {
                self.ledger.forget_reader(reader);
                let batch_index = entries.first().map_or(-1, batch_index);
                drop(reply.send(Ok(self.last_message(name, position, batch_index))));
            }
            Read::Pending => {
                self.token(Waiting::LastMessage { consumer: key, reader, reply });
            }
            Read::AtEnd => {
                self.ledger.forget_reader(reader);
                drop(reply.send(Ok(self.last_message(name, position, -1))));
            }
        }
    }

    fn last_message(&self, name: &Arc<str>, position: Position, batch_index: i32) -> LastMessageId {
        let cursor = self.subscriptions.get(name).map(|subscription| subscription.cursor);
        LastMessageId {
            position: shown(position),
            batch_index,
            partition: self.partition,
            mark_delete: cursor.and_then(|cursor| self.ledger.mark_delete(cursor)).unwrap_or(Position::EARLIEST),
        }
    }

    /// Whether the read was one of [`Self::last_message_id`].
    pub(super) fn last_message_read(&mut self, reader: u64, result: &Result<Vec<Entry>, ReadError>) -> bool {
        let asked =
            |waiting: &Waiting| matches!(waiting, Waiting::LastMessage { reader: asked, .. } if *asked == reader);
        let Some(token) = self.waiting.iter().find(|(_, waiting)| asked(waiting)).map(|(token, _)| *token) else {
            return false;
        };
        let Some(Waiting::LastMessage { consumer, reply, .. }) = self.waiting.remove(&token) else { return false };
        self.ledger.forget_reader(reader);
        let Some(name) = self.consumers.get(&consumer) else { return true };
        let answer = match result {
            Ok(entries) => match entries.first() {
                Some(entry) => Ok(self.last_message(name, entry.position, batch_index(entry))),
                None => Ok(self.last_message(name, Position::EARLIEST, -1)),
            },
            Err(error) => refused(BrokerErrorKind::Metadata, error.to_string()),
        };
        drop(reply.send(answer));
        true
    }

    fn consumer_snapshot(&self, key: u64, name: &Arc<str>) -> Result<ConsumerSnapshot, BrokerError> {
        let found =
            self.subscriptions.get(name).and_then(|subscription| Some((subscription, subscription.consumer(key)?)));
        let Some((subscription, consumer)) = found else {
            return refused(BrokerErrorKind::ConsumerNotFound, "Consumer not found");
        };
        Ok(ConsumerSnapshot {
            stats: super::stats::consumer_stats(consumer),
            sub_type: subscription.sub_type().map_or("None", SubscriptionType::name),
            msg_backlog: self.ledger.backlog(subscription.cursor).messages,
        })
    }
}

fn batch_index(entry: &Entry) -> i32 {
    let content = Content::of(entry.data.clone());
    if content.is_batch { i32::try_from(content.messages).map_or(-1, |messages| messages - 1) } else { -1 }
}

fn start_of(request: &NewConsumer) -> CursorStart {
    match (request.durable, request.start_message_id) {
        (false, Some(start)) => start_at(start.position, start.batch_index >= 0),
        (false, None) => CursorStart::Latest,
        (true, _) => match request.initial_position {
            InitialPosition::Latest => CursorStart::Latest,
            InitialPosition::Earliest => CursorStart::Earliest,
        },
    }
}

/// Behind `position`, or (`itself`) with that very entry.
fn start_at(position: Position, itself: bool) -> CursorStart {
    match position {
        Position::EARLIEST => CursorStart::Earliest,
        Position::LATEST => CursorStart::Latest,
        position if itself && position.entry.0 >= 0 => {
            CursorStart::After(Position { entry: position.entry.previous(), ..position })
        }
        position => CursorStart::After(position),
    }
}

/// The consumer was closed by the broker while the command was on its way.
fn no_consumer(command: ConsumerCommand) {
    let gone = || BrokerError::new(BrokerErrorKind::Metadata, "Consumer not found");
    match command {
        ConsumerCommand::Flow(_) | ConsumerCommand::Ack(_) | ConsumerCommand::Redeliver(..) => {}
        ConsumerCommand::Unsubscribe { reply, .. } | ConsumerCommand::Seek { reply, .. } => {
            drop(reply.send(Err(gone())))
        }
        ConsumerCommand::LastMessageId { reply } => drop(reply.send(Err(gone()))),
        ConsumerCommand::Stats { reply } => drop(reply.send(Err(gone()))),
        ConsumerCommand::Close { reply } => answer(reply),
    }
}
