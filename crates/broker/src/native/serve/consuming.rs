//! Consumers and what they ask for.

use std::{rc::Rc, sync::Arc};

use pulsar_proto::{
    Command,
    proto::{self, ServerError, base_command::Type, command_ack::AckType, schema::Type as SchemaType},
};

use super::super::{
    close_reason::CloseReason,
    connection::Connection,
    replies,
    resources::{ConsumerSlot, Done, still_opening},
};
use super::{is_plain_bytes, no_schemas, properties};
use crate::door::{
    Ack, AckId, AckIds, AckRequest, InitialPosition, NewConsumer, Redeliver, SeekTo, StartMessageId, SubscriptionType,
};

/// `maxConsumerMetadataSize`: keys and values together, in bytes.
const MAX_CONSUMER_METADATA: usize = 1024;

impl Connection {
    pub(super) fn subscribe(&mut self, request: proto::CommandSubscribe) -> Result<(), CloseReason> {
        use proto::command_subscribe::SubType;
        let (consumer_id, request_id) = (request.consumer_id, request.request_id);
        let sub_type = match SubType::try_from(request.sub_type) {
            Ok(SubType::Exclusive) => SubscriptionType::Exclusive,
            Ok(SubType::Shared) => SubscriptionType::Shared,
            Ok(SubType::Failover) => SubscriptionType::Failover,
            Ok(SubType::KeyShared) => SubscriptionType::KeyShared,
            Err(_) => return Err(CloseReason::MissingField(Type::Subscribe)),
        };
        let initial_position = match request.initial_position() {
            proto::command_subscribe::InitialPosition::Latest => InitialPosition::Latest,
            proto::command_subscribe::InitialPosition::Earliest => InitialPosition::Earliest,
        };
        let Some(topic) = self.topic(request_id, &request.topic) else { return Ok(()) };
        let metadata_bytes: usize = request.metadata.iter().map(|pair| pair.key.len() + pair.value.len()).sum();
        if metadata_bytes > MAX_CONSUMER_METADATA {
            let message = format!("metadata has a max size of {MAX_CONSUMER_METADATA} bytes, got {metadata_bytes}");
            self.answer(replies::error(request_id, ServerError::MetadataError, message));
            return Ok(());
        }
        match self.consumers.slots.get(&consumer_id) {
            Some(ConsumerSlot::Open(_)) => {
                self.answer(replies::success(request_id));
                return Ok(());
            }
            Some(ConsumerSlot::Opening(_)) => {
                self.answer(still_opening(request_id, "Consumer"));
                return Ok(());
            }
            None => {}
        }
        if let Some(message) = unsupported(&request) {
            self.answer(replies::error(request_id, ServerError::NotAllowedError, message));
            return Ok(());
        }
        let new = NewConsumer {
            topic,
            sub_type,
            consumer_id,
            priority_level: request.priority_level(),
            durable: request.durable(),
            start_message_id: request.start_message_id.as_ref().map(|id| StartMessageId {
                position: replies::position(id.ledger_id, id.entry_id),
                batch_index: id.batch_index(),
            }),
            initial_position,
            read_compacted: request.read_compacted(),
            force_topic_creation: request.force_topic_creation(),
            consumer_epoch: request.consumer_epoch,
            subscription: request.subscription,
            name: request.consumer_name.unwrap_or_default(),
            metadata: properties(request.metadata),
            subscription_properties: properties(request.subscription_properties),
            peer: self.peer.clone(),
            outbox: Arc::clone(&self.outbox),
        };
        let attempt = self.consumers.begin(consumer_id);
        let broker = self.shared.broker.clone();
        self.start(async move {
            let result = broker.subscribe(new).await;
            Done::ConsumerOpened { consumer_id, request_id, attempt, result }
        });
        Ok(())
    }

    pub(super) fn close_consumer(&mut self, close: proto::CommandCloseConsumer) {
        let proto::CommandCloseConsumer { consumer_id, request_id, .. } = close;
        match self.consumers.slots.remove(&consumer_id) {
            Some(ConsumerSlot::Open(consumer)) => self.start(async move {
                match Rc::try_unwrap(consumer) {
                    Ok(handle) => handle.close().await,
                    // A request still needs it, and closes it by being done.
                    Err(shared) => drop(shared),
                }
                Done::ConsumerAnswer(replies::success(request_id))
            }),
            Some(ConsumerSlot::Opening(_)) | None => self.answer(replies::success(request_id)),
        }
    }

    pub(super) fn ack(&mut self, ack: proto::CommandAck) {
        let Some(consumer) = self.consumers.open(ack.consumer_id) else { return };
        self.outbox.prove();
        if ack.txnid_least_bits.is_some() && ack.txnid_most_bits.is_some() {
            if let Some(request_id) = ack.request_id {
                let error = (ServerError::NotAllowedError, replies::NO_TRANSACTIONS.to_owned());
                self.answer(replies::ack_response(ack.consumer_id, request_id, Some(error)));
            }
            return;
        }
        if let Some(damage) = ack.validation_error {
            let (consumer, ids) = (ack.consumer_id, &ack.message_id);
            tracing::warn!(consumer, damage, ?ids, "a consumer acknowledges a message that it found damaged");
        }
        // The original stores them with the mark-delete position, and ignores them on individual acknowledgements.
        if !ack.properties.is_empty() && ack.ack_type == AckType::Cumulative as i32 {
            if let Some(request_id) = ack.request_id {
                let message = "properties of cumulative acknowledgements are not supported yet";
                let error = (ServerError::NotAllowedError, message.to_owned());
                self.answer(replies::ack_response(ack.consumer_id, request_id, Some(error)));
            }
            return;
        }
        let mut ids = ack.message_id.into_iter().map(|id| AckId {
            position: replies::position(id.ledger_id, id.entry_id),
            ack_set: (!id.ack_set.is_empty()).then(|| id.ack_set.into_boxed_slice()),
        });
        let what = match (AckType::try_from(ack.ack_type), ids.next(), ids.len()) {
            (_, None, _) => None,
            (Ok(AckType::Individual), Some(id), 0) => Some(Ack::Individual(AckIds::One(id))),
            (Ok(AckType::Individual), Some(id), _) => {
                Some(Ack::Individual(AckIds::Many(std::iter::once(id).chain(ids).collect())))
            }
            (Ok(AckType::Cumulative), Some(id), 0) => Some(Ack::Cumulative(id)),
            // A cumulative acknowledgement of several ids says nothing clear, and is ignored.
            (Ok(AckType::Cumulative) | Err(_), Some(_), _) => None,
        };
        match what {
            Some(what) => consumer.ack(AckRequest { ack: what, request_id: ack.request_id }),
            None => {
                if let Some(request_id) = ack.request_id {
                    self.answer(replies::ack_response(ack.consumer_id, request_id, None));
                }
            }
        }
    }

    pub(super) fn redeliver(&mut self, request: proto::CommandRedeliverUnacknowledgedMessages) {
        let Some(consumer) = self.consumers.open(request.consumer_id) else { return };
        let what = if request.message_ids.is_empty() {
            Redeliver::All
        } else {
            let ids = request.message_ids.iter();
            Redeliver::Some(ids.map(|id| replies::position(id.ledger_id, id.entry_id)).collect())
        };
        consumer.redeliver(what, request.consumer_epoch);
    }

    pub(super) fn unsubscribe(&mut self, request: proto::CommandUnsubscribe) {
        let (consumer_id, request_id, force) = (request.consumer_id, request.request_id, request.force());
        let Some(consumer) = self.consumers.open(consumer_id).cloned() else {
            return self.answer(no_consumer(request_id));
        };
        self.start(async move {
            let result = consumer.unsubscribe(force).await;
            Done::Unsubscribed { consumer_id, request_id, result }
        });
    }

    pub(super) fn seek(&mut self, seek: proto::CommandSeek) {
        let request_id = seek.request_id;
        let to = match (&seek.message_id, seek.message_publish_time) {
            (Some(id), _) => SeekTo::Position {
                position: replies::position(id.ledger_id, id.entry_id),
                ack_set: (!id.ack_set.is_empty()).then(|| id.ack_set.as_slice().into()),
            },
            (None, Some(publish_time_ms)) => SeekTo::PublishTime(publish_time_ms),
            (None, None) => {
                return self.answer(replies::error(
                    request_id,
                    ServerError::MetadataError,
                    "Message id and message publish time were not present",
                ));
            }
        };
        let Some(consumer) = self.consumers.open(seek.consumer_id).cloned() else {
            return self.answer(no_consumer(request_id));
        };
        self.start(async move {
            let result = consumer.seek(to).await;
            Done::ConsumerAnswer(replies::outcome(request_id, result))
        });
    }

    pub(super) fn get_last_message_id(&mut self, request: proto::CommandGetLastMessageId) {
        let request_id = request.request_id;
        let Some(consumer) = self.consumers.open(request.consumer_id).cloned() else {
            return self.answer(no_consumer(request_id));
        };
        self.start(async move { Done::Answer(replies::last_message_id(request_id, consumer.last_message_id().await)) });
    }

    pub(super) fn consumer_stats(&mut self, request: proto::CommandConsumerStats) {
        let request_id = request.request_id;
        let Some(consumer) = self.consumers.open(request.consumer_id).cloned() else {
            let message = format!("Consumer {} not found", request.consumer_id);
            let error = ServerError::ConsumerNotFound;
            return self.answer(replies::consumer_stats_failed(request_id, error, message));
        };
        self.start(async move { Done::Answer(replies::consumer_stats(request_id, consumer.stats().await)) });
    }
}

fn no_consumer(request_id: u64) -> Command {
    replies::error(request_id, ServerError::MetadataError, "Consumer not found")
}

/// Why a consumer cannot get what it asks for in this version.
fn unsupported(request: &proto::CommandSubscribe) -> Option<String> {
    // Who takes what comes needs no schema.
    let takes_all = |schema: &proto::Schema| schema.r#type == SchemaType::AutoConsume as i32;
    if let Some(schema) = request.schema.as_ref().filter(|schema| !is_plain_bytes(schema) && !takes_all(schema)) {
        return Some(no_schemas(schema));
    }
    (request.start_message_rollback_duration_sec() > 0)
        .then(|| "starting at a time (start_message_rollback_duration_sec) is not supported yet".to_owned())
}
