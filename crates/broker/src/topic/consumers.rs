//! Consumers of a topic: joining, leaving, and what each of them asks.

use std::sync::Arc;

use managed_ledger::{InitialPosition as CursorStart, NewCursor};

use super::subscriptions::{Joining, refused, start_at};
use super::{Topic, Turn, answer, is_reserved};
use crate::door::{
    BrokerError, BrokerErrorKind, ConsumerHandle, ConsumerSnapshot, InitialPosition, NewConsumer, Outgoing, Redeliver,
    SubscriptionType,
};
use crate::mailbox::{ConsumerCommand, Reply};
use crate::subscription::Consumer;

impl Topic {
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

    /// Tells the consumers to reconnect; a non-durable subscription goes with them.
    pub(super) fn disconnect_consumers(&mut self, name: &Arc<str>, turn: &mut Turn<'_>) {
        self.close_consumers(name, turn);
        self.drop_unused(name, turn);
    }

    /// The same, but even a non-durable subscription stays, for their return.
    pub(super) fn close_consumers(&mut self, name: &Arc<str>, turn: &mut Turn<'_>) {
        let Some(subscription) = self.subscriptions.get_mut(name) else { return };
        let closed: Vec<_> = subscription
            .consumers()
            .iter()
            .map(|consumer| (consumer.key, consumer.slot, consumer.consumer_id))
            .collect();
        for (key, slot, consumer_id) in closed {
            turn.out.push(slot, Outgoing::CloseConsumer { consumer_id });
            subscription.leave(key);
            self.consumers.remove(&key);
            turn.out.release(slot);
        }
        self.dirty = true;
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
