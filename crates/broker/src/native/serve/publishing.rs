//! Producers and what they send.

use std::sync::Arc;

use bytes::Bytes;

use pulsar_proto::{
    PayloadBlock,
    message_metadata::MetadataPeek,
    proto::{self, ServerError},
};

use super::super::{
    close_reason::CloseReason,
    connection::Connection,
    replies,
    resources::{Closing, Done, ProducerSlot, still_opening},
};
use super::{is_plain_bytes, no_schemas, properties};
use crate::door::{AccessMode, NewProducer, Publish};

/// What a publish under way takes beside its message, in all the queues it passes.
const PUBLISH_OVERHEAD: usize = 512;

impl Connection {
    pub(super) fn send(&mut self, send: proto::CommandSend, block: PayloadBlock) -> Result<(), CloseReason> {
        let (producer_id, sequence_id) = (send.producer_id, send.sequence_id);
        let closed_recently = self.producers.was_closed_recently(producer_id);
        let open = match self.producers.slots.get_mut(&producer_id) {
            Some(ProducerSlot::Open(open)) => open,
            Some(ProducerSlot::Closing(_)) => {
                self.answer(replies::send_error(
                    producer_id,
                    sequence_id,
                    ServerError::PersistenceError,
                    "Producer is closed",
                ));
                return Ok(());
            }
            // The client could not know yet: it will hear of the closing, and send again elsewhere.
            None if closed_recently => return Ok(()),
            Some(ProducerSlot::Opening(_)) | None => return Err(CloseReason::NoProducer(producer_id)),
        };
        match publish_of(&send, block, self.shared.broker.config().max_message_bytes, open.created.encryption_required)
        {
            Ok(publish) => {
                let bytes = PUBLISH_OVERHEAD + publish.payload.len();
                // A frame is limited to far less than 4 GiB.
                open.in_flight.push(bytes as u32);
                open.handle.send(publish);
                self.published(bytes);
            }
            Err((error, message)) => {
                if error == ServerError::ChecksumError {
                    self.shared.counters.checksum_error();
                }
                self.answer_in_turn(replies::send_error(producer_id, sequence_id, error, message));
            }
        }
        Ok(())
    }

    pub(super) fn open_producer(&mut self, request: proto::CommandProducer) -> Result<(), CloseReason> {
        let (producer_id, request_id) = (request.producer_id, request.request_id);
        let access_mode = match request.producer_access_mode() {
            proto::ProducerAccessMode::Shared => AccessMode::Shared,
            proto::ProducerAccessMode::Exclusive => AccessMode::Exclusive,
            proto::ProducerAccessMode::WaitForExclusive => AccessMode::WaitForExclusive,
            proto::ProducerAccessMode::ExclusiveWithFencing => AccessMode::ExclusiveWithFencing,
        };
        let Some(topic) = self.topic(request_id, &request.topic) else { return Ok(()) };
        match self.producers.slots.get(&producer_id) {
            Some(ProducerSlot::Open(open)) => {
                // The client repeats a request whose answer it has not seen.
                let again = replies::producer_success(request_id, &open.created);
                self.answer(again);
                return Ok(());
            }
            Some(ProducerSlot::Opening(_) | ProducerSlot::Closing(_)) => {
                self.answer(still_opening(request_id, "Producer"));
                return Ok(());
            }
            None => {}
        }
        if let Some(schema) = request.schema.as_ref().filter(|schema| !is_plain_bytes(schema)) {
            self.answer(replies::error(request_id, ServerError::NotAllowedError, no_schemas(schema)));
            return Ok(());
        }
        let new = NewProducer {
            topic,
            producer_id,
            epoch: request.epoch(),
            user_provided_name: request.user_provided_producer_name(),
            encrypted: request.encrypted(),
            name: request.producer_name.filter(|name| !name.is_empty()),
            access_mode,
            topic_epoch: request.topic_epoch,
            metadata: properties(request.metadata),
            initial_subscription: request.initial_subscription_name.filter(|name| !name.is_empty()),
            supports_partial_producer: self.session.peer().is_some_and(|peer| peer.supports_partial_producer),
            peer: self.peer.clone(),
            outbox: Arc::clone(&self.outbox),
        };
        let attempt = self.producers.begin(producer_id);
        let broker = self.shared.broker.clone();
        self.start(async move {
            let result = broker.create_producer(new).await;
            Done::ProducerOpened { producer_id, request_id, attempt, result }
        });
        Ok(())
    }

    pub(super) fn close_producer(&mut self, close: proto::CommandCloseProducer) {
        let proto::CommandCloseProducer { producer_id, request_id, .. } = close;
        match self.producers.slots.remove(&producer_id) {
            Some(ProducerSlot::Open(open)) => {
                let closing = Closing { in_flight: open.in_flight, closed: None };
                self.producers.slots.insert(producer_id, ProducerSlot::Closing(closing));
                self.start(async move {
                    open.handle.close().await;
                    Done::ProducerClosed { producer_id, request_id }
                });
            }
            Some(closing @ ProducerSlot::Closing(_)) => {
                self.producers.slots.insert(producer_id, closing);
                self.answer(replies::success(request_id));
            }
            // Still opening: it is closed as soon as it is open. Unknown: closed already.
            Some(ProducerSlot::Opening(_)) | None => self.answer(replies::success(request_id)),
        }
    }
}

/// The message to be stored, or why it is refused. Its checksum is verified here, in the one pass over it.
fn publish_of(
    send: &proto::CommandSend,
    block: PayloadBlock,
    max_message_bytes: usize,
    encryption_required: bool,
) -> Result<Publish, (ServerError, String)> {
    let refuse = |error, message: &str| Err((error, message.to_owned()));
    let Ok(payload_crc) = block.verify() else {
        return refuse(ServerError::ChecksumError, "Checksum failed on the broker");
    };
    let Ok(metadata) = block.metadata() else {
        return refuse(ServerError::MetadataError, "the size of the message's metadata is wrong");
    };
    if encryption_required && !MetadataPeek::parse(metadata).is_ok_and(|metadata| metadata.encrypted) {
        return refuse(ServerError::MetadataError, "Messages must be encrypted");
    }
    let Some(messages) = u32::try_from(send.num_messages()).ok().filter(|count| *count > 0) else {
        return refuse(ServerError::NotAllowedError, "the number of messages must be positive");
    };
    if send.txnid_least_bits.is_some() && send.txnid_most_bits.is_some() {
        return refuse(ServerError::NotAllowedError, replies::NO_TRANSACTIONS);
    }
    if send.message_id.is_some() {
        return refuse(ServerError::NotAllowedError, "Only shadow topic supports sending messages with messageId");
    }
    let payload: Bytes = block.into_bytes();
    if payload.len() > max_message_bytes + BLOCK_HEAD {
        return refuse(ServerError::NotAllowedError, "Exceed maximum message size");
    }
    Ok(Publish {
        sequence_id: send.sequence_id,
        // A highest id below the lowest is taken for absent.
        highest_sequence_id: send.highest_sequence_id.filter(|highest| *highest >= send.sequence_id),
        messages,
        payload,
        payload_crc,
        is_chunk: send.is_chunk(),
    })
}

/// Magic, checksum and metadata size, which the size of a message does not include.
const BLOCK_HEAD: usize = 10;
