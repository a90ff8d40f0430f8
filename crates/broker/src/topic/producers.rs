//! Producers of a topic: names, publishes, receipts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use managed_ledger::{AddError, NewEntry, Position};
use tokio::sync::oneshot;

use super::{Topic, Turn, answer};
use crate::door::{
    AccessMode, BrokerError, BrokerErrorKind, NewProducer, Outgoing, Peer, ProducerCreated, ProducerHandle, Publish,
};
use crate::outboxes::OutSlot;

/// Gives out `<cluster>-<instance>-<counter>`.
pub(crate) struct ProducerNames {
    prefix: String,
    counter: AtomicU64,
}

impl ProducerNames {
    pub(crate) fn new(cluster: &str, instance: u64) -> Self {
        Self { prefix: format!("{cluster}-{instance}-"), counter: AtomicU64::new(0) }
    }

    fn next(&self) -> String {
        format!("{}{}", self.prefix, self.counter.fetch_add(1, Ordering::Relaxed))
    }
}

pub(super) struct Producer {
    pub producer_id: u64,
    pub slot: OutSlot,
    pub name: Arc<str>,
    pub epoch: u64,
    pub peer: Peer,
    pub metadata: BTreeMap<String, String>,
    pub supports_partial_producer: bool,
    pub connected_since_ms: u64,
    pub messages_in: u64,
    pub bytes_in: u64,
    pub chunks_in: u64,
    /// Publishes that are not answered.
    pending: usize,
    state: ProducerState,
}

enum ProducerState {
    Open,
    /// Leaves when its publishes are answered.
    Closing(Option<oneshot::Sender<()>>),
}

/// A publish that was handed to the managed ledger.
pub(super) struct PendingPublish {
    token: u64,
    producer: u64,
    sequence_id: u64,
    highest_sequence_id: u64,
    messages: u32,
    bytes: usize,
    is_chunk: bool,
}

impl Topic {
    pub(super) fn create_producer(
        &mut self,
        request: NewProducer,
        turn: &mut Turn<'_>,
    ) -> Result<(ProducerHandle, ProducerCreated), BrokerError> {
        self.check_open()?;
        let refuse = |kind, message: String| Err(BrokerError::new(kind, message));
        let policies = &self.namespace.policies;
        let encryption_required = policies.encryption_required;
        let max = policies.max_producers_per_topic.or(turn.env.config.max_producers_per_topic).filter(|max| *max > 0);
        if encryption_required && !request.encrypted {
            return refuse(BrokerErrorKind::Metadata, format!("Encryption is required in {}", self.name));
        }
        if request.access_mode != AccessMode::Shared {
            let message = format!("producer access mode {:?} is not supported yet", request.access_mode);
            return refuse(BrokerErrorKind::NotAllowed, message);
        }
        let name: Arc<str> = match request.name {
            Some(name) if !name.is_empty() => name.into(),
            _ => turn.env.producer_names.next().into(),
        };
        if let Some(old) = self.producer_by_name.get(&name).copied() {
            let producer = &self.producers[&old];
            let outbox = turn.out.outbox(producer.slot);
            let same_connection = outbox.id() == request.outbox.id();
            let successor =
                same_connection && producer.producer_id == request.producer_id && producer.epoch < request.epoch;
            // A connection that is gone has not always had the time to say good-bye.
            if !successor && !outbox.is_closed() {
                let message = format!("Producer with name '{name}' is already connected to topic");
                return refuse(BrokerErrorKind::ProducerBusy, message);
            }
            self.remove_producer(old, turn);
        } else if max.is_some_and(|max| self.producers.len() >= max as usize) {
            let message = format!("Topic '{}' reached max producers limit", self.name);
            return refuse(BrokerErrorKind::ProducerBusy, message);
        }
        let key = turn.key();
        let producer = Producer {
            producer_id: request.producer_id,
            slot: turn.out.register(&request.outbox),
            name: name.clone(),
            epoch: request.epoch,
            peer: request.peer,
            metadata: request.metadata,
            supports_partial_producer: request.supports_partial_producer,
            connected_since_ms: turn.now.unix_ms,
            messages_in: 0,
            bytes_in: 0,
            chunks_in: 0,
            pending: 0,
            state: ProducerState::Open,
        };
        self.producers.insert(key, producer);
        self.producer_by_name.insert(name.clone(), key);
        let handle =
            ProducerHandle { mailbox: turn.env.mailbox.clone(), topic: self.key, producer: key, closed: false };
        let name = name.to_string();
        Ok((handle, ProducerCreated { name, last_sequence_id: -1, topic_epoch: None, encryption_required }))
    }

    /// Hands a publish to the managed ledger.
    pub(crate) fn publish(&mut self, key: u64, publish: Publish, turn: &mut Turn<'_>) {
        // Closed by the broker while this was on its way: the client sends it again after it has reconnected.
        let Some(producer) = self.producers.get_mut(&key) else { return };
        let highest = publish.highest_sequence_id.filter(|highest| *highest >= publish.sequence_id);
        producer.pending += 1;
        self.last_token += 1;
        self.pending.push_back(PendingPublish {
            token: self.last_token,
            producer: key,
            sequence_id: publish.sequence_id,
            highest_sequence_id: highest.unwrap_or(0),
            messages: publish.messages.max(1),
            bytes: publish.payload.len(),
            is_chunk: publish.is_chunk,
        });
        let entry = NewEntry {
            payload: publish.payload,
            payload_crc: publish.payload_crc,
            messages: publish.messages.max(1),
            token: self.last_token,
        };
        self.ledger.add(turn.now, entry, turn.effects);
    }

    pub(super) fn publish_added(&mut self, token: u64, position: Position, turn: &mut Turn<'_>) {
        let publish = self.answered(token);
        self.counters.messages_in += u64::from(publish.messages);
        self.counters.bytes_in += publish.bytes as u64;
        self.counters.chunks_in += u64::from(publish.is_chunk);
        let Some(producer) = self.producers.get_mut(&publish.producer) else { return };
        producer.messages_in += u64::from(publish.messages);
        producer.bytes_in += publish.bytes as u64;
        producer.chunks_in += u64::from(publish.is_chunk);
        let receipt = Outgoing::Receipt {
            producer_id: producer.producer_id,
            sequence_id: publish.sequence_id,
            highest_sequence_id: publish.highest_sequence_id,
            position,
        };
        turn.out.push(producer.slot, receipt);
        self.producer_answered(publish.producer, turn);
    }

    pub(super) fn publish_failed(&mut self, token: u64, error: &AddError, turn: &mut Turn<'_>) {
        let publish = self.answered(token);
        let Some(producer) = self.producers.get_mut(&publish.producer) else { return };
        let kind = match error {
            AddError::Terminated => BrokerErrorKind::TopicTerminated,
            AddError::OutcomeUnknown(_) | AddError::Recovering | AddError::Fenced { .. } | AddError::Closed => {
                BrokerErrorKind::Persistence
            }
        };
        let failure = Outgoing::SendError {
            producer_id: producer.producer_id,
            sequence_id: publish.sequence_id,
            kind,
            message: error.to_string().into(),
        };
        turn.out.push(producer.slot, failure);
        self.producer_answered(publish.producer, turn);
    }

    fn answered(&mut self, token: u64) -> PendingPublish {
        let publish = self.pending.pop_front().expect("only what was handed over is answered");
        assert_eq!(publish.token, token, "topic {}: publishes are answered in order", self.name);
        publish
    }

    fn producer_answered(&mut self, key: u64, turn: &mut Turn<'_>) {
        let Some(producer) = self.producers.get_mut(&key) else { return };
        producer.pending -= 1;
        if producer.pending == 0 && matches!(producer.state, ProducerState::Closing(_)) {
            self.remove_producer(key, turn);
        }
    }

    /// The client closes its producer.
    pub(crate) fn close_producer(&mut self, key: u64, reply: Option<oneshot::Sender<()>>, turn: &mut Turn<'_>) {
        match self.producers.get_mut(&key) {
            None => answer(reply),
            // The connection is gone: nobody waits for receipts, and the name has to be free at once.
            Some(_) if reply.is_none() => self.remove_producer(key, turn),
            Some(producer) if producer.pending > 0 => producer.state = ProducerState::Closing(reply),
            Some(producer) => {
                producer.state = ProducerState::Closing(reply);
                self.remove_producer(key, turn);
            }
        }
    }

    fn remove_producer(&mut self, key: u64, turn: &mut Turn<'_>) {
        let Some(producer) = self.producers.remove(&key) else { return };
        if self.producer_by_name.get(&producer.name) == Some(&key) {
            self.producer_by_name.remove(&producer.name);
        }
        turn.out.release(producer.slot);
        if let ProducerState::Closing(reply) = producer.state {
            answer(reply);
        }
    }

    pub(super) fn disconnect_producers(&mut self, turn: &mut Turn<'_>) {
        let keys: Vec<u64> = self.producers.keys().copied().collect();
        for key in keys {
            let producer = &self.producers[&key];
            let close = Outgoing::CloseProducer { producer_id: producer.producer_id };
            turn.out.push(producer.slot, close);
            self.remove_producer(key, turn);
        }
    }
}
