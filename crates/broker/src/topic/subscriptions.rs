//! Subscriptions of a topic: created for whoever wants one, deleted, forgotten when nobody needs them.

use std::collections::BTreeMap;
use std::sync::Arc;

use managed_ledger::{CursorError, CursorId, InitialPosition as CursorStart, NewCursor};

use super::{Topic, Turn, is_reserved};
use crate::door::{
    BrokerError, BrokerErrorKind, ConsumerHandle, LastMessageId, NewConsumer, NewProducer, Position, ProducerCreated,
    ProducerHandle,
};
use crate::mailbox::{Reply, TopicRequest};
use crate::subscription::{DispatchLimits, Subscription};

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

    pub(super) fn limits(&self, turn: &Turn<'_>) -> DispatchLimits {
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

    /// Creates a subscription for somebody, unless it is being created already.
    pub(super) fn create_for(&mut self, new: NewCursor, joining: Joining, turn: &mut Turn<'_>) {
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

    pub(super) fn delete_cursor(&mut self, name: &Arc<str>, reply: Reply<()>, turn: &mut Turn<'_>) {
        self.disconnect_consumers(name, turn);
        // A non-durable one went with its last consumer.
        let Some(subscription) = self.subscriptions.get_mut(name) else { return drop(reply.send(Ok(()))) };
        subscription.deleting = true;
        let cursor = subscription.cursor;
        let token = self.token(Waiting::Delete { name: name.clone(), reply });
        self.ledger.delete_cursor(cursor, token, turn.effects);
    }

    pub(super) fn cursor_deleted(&mut self, token: u64, result: Result<(), CursorError>) {
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
    pub(super) fn drop_unused(&mut self, name: &Arc<str>, turn: &mut Turn<'_>) {
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
}

pub(super) fn refused<T>(kind: BrokerErrorKind, message: impl Into<String>) -> Result<T, BrokerError> {
    Err(BrokerError::new(kind, message))
}

pub(super) fn cursor_error(error: &CursorError) -> BrokerError {
    let kind = match error {
        CursorError::Exists { .. } => BrokerErrorKind::AlreadyExists,
        CursorError::NotFound => BrokerErrorKind::SubscriptionNotFound,
        CursorError::Fenced { .. } | CursorError::Closed => BrokerErrorKind::ServiceNotReady,
        _ => BrokerErrorKind::Metadata,
    };
    BrokerError::new(kind, error.to_string())
}

/// Behind `position`, or (`itself`) with that very entry.
pub(super) fn start_at(position: Position, itself: bool) -> CursorStart {
    match position {
        Position::EARLIEST => CursorStart::Earliest,
        Position::LATEST => CursorStart::Latest,
        position if itself && position.entry.0 >= 0 => {
            CursorStart::After(Position { entry: position.entry.previous(), ..position })
        }
        position => CursorStart::After(position),
    }
}
