//! What a door holds for each open producer and consumer.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{BrokerError, Outbox, Position, TopicName};
use crate::mailbox::{Command, ConsumerCommand, Mailbox};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessMode {
    #[default]
    Shared,
    Exclusive,
    WaitForExclusive,
    ExclusiveWithFencing,
}

/// Who stands behind a producer or consumer, for statistics.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// `/ip:port`
    pub address: Arc<str>,
    pub client_version: Option<Arc<str>>,
    pub role: Option<Arc<str>>,
}

/// A request for a producer.
pub struct NewProducer {
    pub topic: TopicName,
    pub producer_id: u64,
    /// `None` or empty: the broker chooses one.
    pub name: Option<String>,
    pub epoch: u64,
    pub user_provided_name: bool,
    pub access_mode: AccessMode,
    pub topic_epoch: Option<u64>,
    pub encrypted: bool,
    pub metadata: BTreeMap<String, String>,
    pub initial_subscription: Option<String>,
    pub supports_partial_producer: bool,
    pub peer: Peer,
    pub outbox: Arc<Outbox>,
}

/// The answer to [`NewProducer`].
#[derive(Clone, Debug)]
pub struct ProducerCreated {
    pub name: String,
    /// Highest sequence id known for the name; -1 while deduplication is off.
    pub last_sequence_id: i64,
    pub topic_epoch: Option<u64>,
    /// Messages that are not encrypted are refused; the door sees to it.
    pub encryption_required: bool,
}

/// A message or batch to be stored as one entry.
#[derive(Debug)]
pub struct Publish {
    pub sequence_id: u64,
    pub highest_sequence_id: Option<u64>,
    /// At least 1.
    pub messages: u32,
    /// `0e01 crc size metadata payload`, verbatim.
    pub payload: Bytes,
    /// CRC32C over all of `payload`.
    pub payload_crc: u32,
    pub is_chunk: bool,
}

/// An open producer. Dropping it closes the producer without waiting (the connection is gone).
pub struct ProducerHandle {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) topic: u64,
    pub(crate) producer: u64,
    pub(crate) closed: bool,
}

impl ProducerHandle {
    /// Posts to the owner of the topic; never blocks. Each publish is answered in order by [`super::Outgoing::Receipt`]
    /// or [`super::Outgoing::SendError`]; when the broker closes the producer by itself, the ones still open are
    /// answered before [`super::Outgoing::CloseProducer`], and later ones not at all.
    pub fn send(&self, publish: Publish) {
        self.mailbox.post(Command::Publish { topic: self.topic, producer: self.producer, publish });
    }

    /// Returns when every pending publish has been answered and the name is free.
    pub async fn close(mut self) {
        self.closed = true;
        let (reply, done) = oneshot::channel();
        self.mailbox.post(Command::CloseProducer { topic: self.topic, producer: self.producer, reply: Some(reply) });
        // A dropped sender means that the topic is gone, and the producer with it.
        let _ = done.await;
    }
}

impl Drop for ProducerHandle {
    fn drop(&mut self) {
        if !self.closed {
            self.mailbox.post(Command::CloseProducer { topic: self.topic, producer: self.producer, reply: None });
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubscriptionType {
    Exclusive,
    Shared,
    Failover,
    KeyShared,
}

impl SubscriptionType {
    /// As in statistics and messages.
    pub fn name(self) -> &'static str {
        match self {
            SubscriptionType::Exclusive => "Exclusive",
            SubscriptionType::Shared => "Shared",
            SubscriptionType::Failover => "Failover",
            SubscriptionType::KeyShared => "Key_Shared",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InitialPosition {
    #[default]
    Latest,
    Earliest,
}

/// Where a non-durable subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartMessageId {
    pub position: Position,
    /// At least 0: begin with that entry itself; the client skips inside the batch.
    pub batch_index: i32,
}

/// A request for a consumer.
pub struct NewConsumer {
    pub topic: TopicName,
    pub subscription: String,
    pub sub_type: SubscriptionType,
    pub consumer_id: u64,
    pub name: String,
    pub priority_level: i32,
    pub durable: bool,
    pub start_message_id: Option<StartMessageId>,
    pub initial_position: InitialPosition,
    pub read_compacted: bool,
    pub force_topic_creation: bool,
    pub consumer_epoch: Option<u64>,
    pub metadata: BTreeMap<String, String>,
    pub subscription_properties: BTreeMap<String, String>,
    pub peer: Peer,
    pub outbox: Arc<Outbox>,
}

/// One acknowledged entry, or the part of a batch that is not yet acknowledged.
#[derive(Clone, Debug)]
pub struct AckId {
    pub position: Position,
    /// Bit = 1: still to be acknowledged. Empty or `None`: the whole entry is acknowledged.
    pub ack_set: Option<Box<[i64]>>,
}

#[derive(Clone, Debug)]
pub enum Ack {
    Individual(AckIds),
    Cumulative(AckId),
}

/// Most acknowledgements carry one id: it needs no allocation.
#[derive(Clone, Debug)]
pub enum AckIds {
    One(AckId),
    Many(Vec<AckId>),
}

impl AckIds {
    pub fn as_slice(&self) -> &[AckId] {
        match self {
            AckIds::One(id) => std::slice::from_ref(id),
            AckIds::Many(ids) => ids,
        }
    }
}

#[derive(Clone, Debug)]
pub struct AckRequest {
    pub ack: Ack,
    /// Present: an [`super::Outgoing::AckResponse`] follows once the acknowledgement is durable.
    pub request_id: Option<u64>,
}

#[derive(Clone, Debug)]
pub enum Redeliver {
    /// Everything this consumer has not acknowledged.
    All,
    Some(Vec<Position>),
}

#[derive(Clone, Debug)]
pub enum SeekTo {
    /// The entry to be dispatched next. (-1,-1): earliest; (2^63-1, 2^63-1): latest.
    Position {
        position: Position,
        /// What of the batch there is still to be dispatched, as in [`AckId::ack_set`]; only counts where acknowledgements
        /// of single messages of a batch are kept.
        ack_set: Option<Box<[i64]>>,
    },
    /// The first message published at or after this time, in ms since the epoch.
    PublishTime(u64),
}

/// The answer to [`ConsumerHandle::last_message_id`].
#[derive(Clone, Copy, Debug)]
pub struct LastMessageId {
    /// (-1,-1) when the topic is empty.
    pub position: Position,
    /// -1 when the entry is not a batch.
    pub batch_index: i32,
    pub partition: i32,
    pub mark_delete: Position,
}

/// The answer to [`ConsumerHandle::stats`].
#[derive(Clone, Debug, Default)]
pub struct ConsumerSnapshot {
    pub stats: crate::stats::ConsumerStats,
    pub sub_type: &'static str,
    pub msg_backlog: u64,
}

/// An open consumer. Dropping it closes the consumer without waiting (the connection is gone).
pub struct ConsumerHandle {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) topic: u64,
    pub(crate) consumer: u64,
    pub(crate) closed: bool,
}

impl ConsumerHandle {
    fn post(&self, command: ConsumerCommand) {
        self.mailbox.post(Command::Consumer { topic: self.topic, consumer: self.consumer, command });
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, BrokerError>>) -> ConsumerCommand,
    ) -> Result<T, BrokerError> {
        let (reply, answer) = oneshot::channel();
        self.post(command(reply));
        answer.await.unwrap_or_else(|_| Err(BrokerError::stopping()))
    }

    /// Allows `permits` more messages.
    pub fn flow(&self, permits: u32) {
        self.post(ConsumerCommand::Flow(permits));
    }

    pub fn ack(&self, request: AckRequest) {
        self.post(ConsumerCommand::Ack(request));
    }

    /// Asks for messages again. `epoch`: echoed in what is dispatched from now on.
    pub fn redeliver(&self, what: Redeliver, epoch: Option<u64>) {
        self.post(ConsumerCommand::Redeliver(what, epoch));
    }

    /// Deletes the subscription (and closes this consumer).
    pub async fn unsubscribe(&self, force: bool) -> Result<(), BrokerError> {
        self.ask(|reply| ConsumerCommand::Unsubscribe { force, reply }).await
    }

    /// Moves the subscription; its consumers are closed by the broker first ([`super::Outgoing::CloseConsumer`]).
    pub async fn seek(&self, to: SeekTo) -> Result<(), BrokerError> {
        self.ask(|reply| ConsumerCommand::Seek { to, reply }).await
    }

    pub async fn last_message_id(&self) -> Result<LastMessageId, BrokerError> {
        self.ask(|reply| ConsumerCommand::LastMessageId { reply }).await
    }

    pub async fn stats(&self) -> Result<ConsumerSnapshot, BrokerError> {
        self.ask(|reply| ConsumerCommand::Stats { reply }).await
    }

    /// Returns when the consumer has left its subscription; what it had not acknowledged goes to others.
    pub async fn close(mut self) {
        self.closed = true;
        let (reply, done) = oneshot::channel();
        self.post(ConsumerCommand::Close { reply: Some(reply) });
        // A dropped sender means that the topic is gone, and the consumer with it.
        let _ = done.await;
    }
}

impl Drop for ConsumerHandle {
    fn drop(&mut self) {
        if !self.closed {
            self.post(ConsumerCommand::Close { reply: None });
        }
    }
}
