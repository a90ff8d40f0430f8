//! A broker with its storage in memory, and a client that speaks to its door.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::sync::Arc;
use std::time::Duration;

use bookkeeper_proto::{BookieId, DigestType};
use broker::door::{
    AccessMode, Ack, AckId, AckIds, AckRequest, Broker, ConsumerHandle, InitialPosition, NewConsumer, NewProducer,
    Outbox, Outgoing, OutgoingMessage, Peer, Position, ProducerHandle, Publish, SubscriptionType, TopicName,
};
use broker::{BrokerConfig, BrokerError};
use ledger::{Ledgers, LedgersConfig};
use managed_ledger::{CacheBudget, Context, ManagedLedgerConfig};
use metadata::MemoryStore;
use parking_lot::Mutex;
use pulsar_proto::frame::PayloadBlock;
use pulsar_proto::proto::MessageMetadata;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::bookie::MemoryBookie;

/// What survives a broker.
pub(crate) struct World {
    pub(crate) store: MemoryStore,
    pub(crate) bookie: Arc<MemoryBookie>,
    /// Of the broker started last.
    session: Mutex<Option<Arc<MemoryStore>>>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { store: MemoryStore::new(), bookie: Arc::default(), session: Mutex::default() }
    }

    pub(crate) fn lose_session(&self) {
        self.session.lock().as_ref().unwrap().lose_session();
    }

    pub(crate) fn regain_session(&self) {
        self.session.lock().as_ref().unwrap().regain_session();
    }

    pub(crate) async fn start(&self) -> Broker {
        self.start_with(BrokerConfig { shards: Some(2), ack_at_batch_index_level: true, ..BrokerConfig::default() })
            .await
    }

    pub(crate) async fn start_with(&self, config: BrokerConfig) -> Broker {
        let metadata = Arc::new(self.store.connect());
        *self.session.lock() = Some(metadata.clone());
        let bookies: Vec<(BookieId, Arc<dyn ledger::BookieAccess>)> = vec![("b:1".into(), self.bookie.clone())];
        let ledgers = Ledgers::new(metadata.clone(), bookies, LedgersConfig::default(), StdRng::seed_from_u64(1));
        ledger::initialize(&*metadata, "instance").await.unwrap();
        let storage = Context {
            metadata,
            ledgers: Arc::new(ledgers),
            digest: DigestType::Crc32c,
            config: Arc::new(ManagedLedgerConfig::default()),
            cache: Arc::new(CacheBudget::new(16 << 20)),
        };
        Broker::start(config, storage).await.unwrap()
    }
}

pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::parse(name).unwrap()
}

/// A connection without a socket.
pub(crate) struct Client {
    pub(crate) broker: Broker,
    pub(crate) outbox: Arc<Outbox>,
    taken: Vec<Outgoing>,
    next_id: u64,
}

impl Client {
    pub(crate) fn new(broker: &Broker) -> Self {
        Self { broker: broker.clone(), outbox: broker.new_outbox(), taken: Vec::new(), next_id: 0 }
    }

    pub(crate) async fn produce_to(&mut self, name: &str) -> Result<ProducerHandle, BrokerError> {
        Ok(self.produce_as(name, None).await?.0)
    }

    pub(crate) async fn produce_as(
        &mut self,
        name: &str,
        producer: Option<&str>,
    ) -> Result<(ProducerHandle, String), BrokerError> {
        let request = self.producer(name, producer);
        let (handle, created) = self.broker.create_producer(request).await?;
        Ok((handle, created.name))
    }

    pub(crate) fn producer(&mut self, name: &str, producer: Option<&str>) -> NewProducer {
        self.next_id += 1;
        NewProducer {
            topic: topic(name),
            producer_id: self.next_id,
            name: producer.map(str::to_owned),
            epoch: 0,
            user_provided_name: true,
            access_mode: AccessMode::Shared,
            topic_epoch: None,
            encrypted: false,
            metadata: Default::default(),
            initial_subscription: None,
            supports_partial_producer: true,
            peer: Peer::default(),
            outbox: self.outbox.clone(),
        }
    }

    pub(crate) async fn subscribe(
        &mut self,
        name: &str,
        subscription: &str,
        sub_type: SubscriptionType,
    ) -> Result<ConsumerHandle, BrokerError> {
        let request = self.consumer(name, subscription, sub_type);
        self.broker.subscribe(request).await
    }

    pub(crate) fn consumer(&mut self, name: &str, subscription: &str, sub_type: SubscriptionType) -> NewConsumer {
        self.next_id += 1;
        NewConsumer {
            topic: topic(name),
            subscription: subscription.to_owned(),
            sub_type,
            consumer_id: self.next_id,
            name: format!("consumer-{}", self.next_id),
            priority_level: 0,
            durable: true,
            start_message_id: None,
            initial_position: InitialPosition::Earliest,
            read_compacted: false,
            force_topic_creation: true,
            consumer_epoch: None,
            metadata: Default::default(),
            subscription_properties: Default::default(),
            peer: Peer::default(),
            outbox: self.outbox.clone(),
        }
    }

    /// The next thing that the broker sends, within a deadline.
    pub(crate) async fn next(&mut self) -> Outgoing {
        let deadline = Duration::from_secs(10);
        loop {
            if !self.taken.is_empty() {
                let item = self.taken.remove(0);
                self.outbox.written(item.weight());
                return item;
            }
            self.outbox.take(&mut self.taken);
            if self.taken.is_empty() {
                tokio::time::timeout(deadline, self.outbox.ready()).await.expect("the broker has something to send");
            }
        }
    }

    pub(crate) async fn receipt(&mut self) -> (u64, Position) {
        match self.next().await {
            Outgoing::Receipt { sequence_id, position, .. } => (sequence_id, position),
            other => panic!("expected a receipt, got {other:?}"),
        }
    }

    pub(crate) async fn message(&mut self) -> OutgoingMessage {
        match self.next().await {
            Outgoing::Message(message) => message,
            other => panic!("expected a message, got {other:?}"),
        }
    }

    /// The next `count` messages, as `payload` or `payload+redeliveries`.
    pub(crate) async fn messages(&mut self, count: usize) -> String {
        let mut seen = Vec::new();
        for _ in 0..count {
            let message = self.message().await;
            let text = text(&message);
            seen.push(match message.redelivery_count {
                0 => text,
                count => format!("{text}+{count}"),
            });
        }
        seen.join(" ")
    }

    pub(crate) async fn ack_response(&mut self) -> u64 {
        match self.next().await {
            Outgoing::AckResponse { request_id, error: None, .. } => request_id,
            other => panic!("expected an answer to an acknowledgement, got {other:?}"),
        }
    }
}

pub(crate) fn text(message: &OutgoingMessage) -> String {
    let block = PayloadBlock::parse(message.entry.clone()).unwrap();
    block.verify().expect("the client's checksum arrives as it was sent");
    String::from_utf8(block.payload().unwrap().to_vec()).unwrap()
}

pub(crate) fn publish(sequence_id: u64, payload: &[u8], batch: Option<u32>) -> Publish {
    let metadata = MessageMetadata {
        producer_name: "p".to_owned(),
        sequence_id,
        publish_time: 1,
        num_messages_in_batch: batch.map(|count| count as i32),
        ..MessageMetadata::default()
    };
    let payload = PayloadBlock::build(&metadata, payload).into_bytes();
    Publish {
        sequence_id,
        highest_sequence_id: None,
        messages: batch.unwrap_or(1),
        payload_crc: crc32c::crc32c(&payload),
        payload,
        is_chunk: false,
    }
}

/// Sends these payloads and awaits their receipts.
pub(crate) async fn send(client: &mut Client, producer: &ProducerHandle, payloads: &str) -> Vec<Position> {
    let payloads: Vec<&str> = payloads.split_whitespace().collect();
    for (sequence_id, payload) in payloads.iter().enumerate() {
        producer.send(publish(sequence_id as u64, payload.as_bytes(), None));
    }
    let mut positions = Vec::new();
    for sequence_id in 0..payloads.len() {
        let (answered, position) = client.receipt().await;
        assert_eq!(answered, sequence_id as u64, "receipts come in the order of the sends");
        positions.push(position);
    }
    positions
}

pub(crate) fn ack(position: Position, ack_set: Option<&[i64]>, request_id: Option<u64>) -> AckRequest {
    let id = AckId { position, ack_set: ack_set.map(Box::from) };
    AckRequest { ack: Ack::Individual(AckIds::One(id)), request_id }
}
