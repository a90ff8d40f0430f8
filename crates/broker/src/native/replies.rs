//! The answers of the protocol, and what of the broker's own words each of them stands for.

use bytes::Bytes;

use pulsar_proto::{
    Command, NO_REQUEST,
    proto::{self, CommandError, CommandSuccess, ServerError},
};

use crate::door::{BrokerError, BrokerErrorKind, ConsumerSnapshot, LastMessageId, Lookup, Position, ProducerCreated};

/// The code a client is told; it decides whether the client retries, looks up again or gives up.
pub(super) fn server_error(kind: BrokerErrorKind) -> ServerError {
    match kind {
        BrokerErrorKind::Unknown => ServerError::UnknownError,
        BrokerErrorKind::Metadata => ServerError::MetadataError,
        BrokerErrorKind::Persistence => ServerError::PersistenceError,
        BrokerErrorKind::ConsumerBusy => ServerError::ConsumerBusy,
        BrokerErrorKind::ServiceNotReady => ServerError::ServiceNotReady,
        BrokerErrorKind::ProducerBlockedQuotaExceeded => ServerError::ProducerBlockedQuotaExceededError,
        BrokerErrorKind::SubscriptionNotFound => ServerError::SubscriptionNotFound,
        BrokerErrorKind::ConsumerNotFound => ServerError::ConsumerNotFound,
        BrokerErrorKind::TooManyRequests => ServerError::TooManyRequests,
        BrokerErrorKind::TopicTerminated => ServerError::TopicTerminatedError,
        BrokerErrorKind::ProducerBusy => ServerError::ProducerBusy,
        BrokerErrorKind::InvalidTopicName => ServerError::InvalidTopicName,
        BrokerErrorKind::IncompatibleSchema => ServerError::IncompatibleSchema,
        BrokerErrorKind::ConsumerAssign => ServerError::ConsumerAssignError,
        BrokerErrorKind::NotAllowed => ServerError::NotAllowedError,
        BrokerErrorKind::ProducerFenced => ServerError::ProducerFenced,
        // A missing tenant or namespace is a missing topic to a client.
        BrokerErrorKind::TopicNotFound | BrokerErrorKind::NotFound => ServerError::TopicNotFound,
        BrokerErrorKind::PreconditionFailed | BrokerErrorKind::InvalidArgument => ServerError::NotAllowedError,
        BrokerErrorKind::AlreadyExists => ServerError::MetadataError,
    }
}

pub(super) fn error(request_id: u64, error: ServerError, message: impl Into<String>) -> Command {
    Command::Error(CommandError { request_id, error: error as i32, message: message.into() })
}

pub(super) fn refused(request_id: u64, reason: BrokerError) -> Command {
    error(request_id, server_error(reason.kind), reason.message)
}

pub(super) fn success(request_id: u64) -> Command {
    CommandSuccess { request_id, schema: None }.into()
}

/// SUCCESS or ERROR.
pub(super) fn outcome(request_id: u64, result: Result<(), BrokerError>) -> Command {
    match result {
        Ok(()) => success(request_id),
        Err(reason) => refused(request_id, reason),
    }
}

/// The answer to everything about transactions while there are none. The text is the original's, to the letter.
pub(super) fn no_transactions(request_id: u64) -> Command {
    error(request_id, ServerError::NotAllowedError, NO_TRANSACTIONS)
}

pub(super) const NO_TRANSACTIONS: &str = "Transaction manager is not not enabled";

pub(super) fn producer_success(request_id: u64, created: &ProducerCreated) -> Command {
    Command::ProducerSuccess(proto::CommandProducerSuccess {
        request_id,
        producer_name: created.name.clone(),
        last_sequence_id: Some(created.last_sequence_id),
        schema_version: Some(Bytes::new()),
        topic_epoch: created.topic_epoch,
        producer_ready: Some(true),
    })
}

/// `standalone`: clients reach every topic through the address they used, whatever this broker believes its own to be.
pub(super) fn lookup(request_id: u64, standalone: bool, result: Result<Lookup, BrokerError>) -> Command {
    use proto::command_lookup_topic_response::LookupType;
    let mut response = proto::CommandLookupTopicResponse { request_id, ..Default::default() };
    match result {
        Ok(found) => {
            let answer = if found.authoritative { LookupType::Connect } else { LookupType::Redirect };
            response.response = Some(answer as i32);
            response.broker_service_url = Some(found.service_url);
            response.broker_service_url_tls = found.service_url_tls;
            response.authoritative = Some(found.authoritative);
            response.proxy_through_service_url = Some(standalone);
        }
        Err(reason) => return lookup_failed(request_id, server_error(reason.kind), reason.message),
    }
    response.into()
}

pub(super) fn lookup_failed(request_id: u64, error: ServerError, message: String) -> Command {
    proto::CommandLookupTopicResponse {
        request_id,
        response: Some(proto::command_lookup_topic_response::LookupType::Failed as i32),
        error: Some(error as i32),
        message: Some(message),
        ..Default::default()
    }
    .into()
}

pub(super) fn partitions(request_id: u64, result: Result<u32, BrokerError>) -> Command {
    match result {
        Ok(partitions) => Command::PartitionMetadataResponse(proto::CommandPartitionedTopicMetadataResponse {
            request_id,
            partitions: Some(partitions),
            response: Some(proto::command_partitioned_topic_metadata_response::LookupType::Success as i32),
            ..Default::default()
        }),
        Err(reason) => partitions_failed(request_id, server_error(reason.kind), reason.message),
    }
}

pub(super) fn partitions_failed(request_id: u64, error: ServerError, message: String) -> Command {
    Command::PartitionMetadataResponse(proto::CommandPartitionedTopicMetadataResponse {
        request_id,
        response: Some(proto::command_partitioned_topic_metadata_response::LookupType::Failed as i32),
        error: Some(error as i32),
        message: Some(message),
        ..Default::default()
    })
}

/// `known_hash`: what the client holds. The list is left out when it would not change.
pub(super) fn topics(request_id: u64, known_hash: Option<&str>, result: Result<Vec<String>, BrokerError>) -> Command {
    match result {
        Ok(mut topics) => {
            let hash = pulsar_proto::topics_hash::topics_hash(&topics);
            let changed = known_hash != Some(hash.as_str());
            if !changed {
                topics.clear();
            }
            Command::GetTopicsOfNamespaceResponse(proto::CommandGetTopicsOfNamespaceResponse {
                request_id,
                topics,
                // Clients apply their pattern themselves to a list that is not filtered.
                filtered: Some(false),
                topics_hash: Some(hash),
                changed: Some(changed),
            })
        }
        Err(reason) => refused(request_id, reason),
    }
}

pub(super) fn last_message_id(request_id: u64, result: Result<LastMessageId, BrokerError>) -> Command {
    match result {
        Ok(last) => proto::CommandGetLastMessageIdResponse {
            request_id,
            last_message_id: proto::MessageIdData {
                partition: Some(last.partition),
                batch_index: Some(last.batch_index),
                ..message_id(last.position)
            },
            consumer_mark_delete_position: Some(message_id(last.mark_delete)),
        }
        .into(),
        Err(reason) => refused(request_id, reason),
    }
}

pub(super) fn consumer_stats(request_id: u64, result: Result<ConsumerSnapshot, BrokerError>) -> Command {
    let snapshot = match result {
        Ok(snapshot) => snapshot,
        Err(reason) => return consumer_stats_failed(request_id, server_error(reason.kind), reason.message),
    };
    let stats = snapshot.stats;
    proto::CommandConsumerStatsResponse {
        request_id,
        msg_rate_out: Some(stats.msg_rate_out),
        msg_throughput_out: Some(stats.msg_throughput_out),
        msg_rate_redeliver: Some(stats.msg_rate_redeliver),
        consumer_name: Some(stats.consumer_name),
        // Negative when the last batch was larger than what was left; the field has no sign.
        available_permits: Some(stats.available_permits as u64),
        unacked_messages: Some(stats.unacked_messages),
        blocked_consumer_on_unacked_msgs: Some(stats.blocked_consumer_on_unacked_msgs),
        address: Some(stats.address),
        connected_since: Some(stats.connected_since),
        r#type: Some(snapshot.sub_type.to_owned()),
        msg_rate_expired: Some(0.0),
        msg_backlog: Some(snapshot.msg_backlog),
        message_ack_rate: Some(stats.message_ack_rate),
        ..Default::default()
    }
    .into()
}

pub(super) fn consumer_stats_failed(request_id: u64, error: ServerError, message: String) -> Command {
    proto::CommandConsumerStatsResponse {
        request_id,
        error_code: Some(error as i32),
        error_message: Some(message),
        ..Default::default()
    }
    .into()
}

pub(super) fn send_error(
    producer_id: u64,
    sequence_id: u64,
    error: ServerError,
    message: impl Into<String>,
) -> Command {
    Command::SendError(proto::CommandSendError {
        producer_id,
        sequence_id,
        error: error as i32,
        message: message.into(),
    })
}

pub(super) fn ack_response(consumer_id: u64, request_id: u64, error: Option<(ServerError, String)>) -> Command {
    let (error, message) = error.unzip();
    Command::AckResponse(proto::CommandAckResponse {
        consumer_id,
        request_id: Some(request_id),
        error: error.map(|error| error as i32),
        message,
        ..Default::default()
    })
}

/// The broker closes a producer by itself.
pub(super) fn close_producer(producer_id: u64) -> Command {
    Command::CloseProducer(proto::CommandCloseProducer { producer_id, request_id: NO_REQUEST, ..Default::default() })
}

/// The broker closes a consumer by itself.
pub(super) fn close_consumer(consumer_id: u64) -> Command {
    Command::CloseConsumer(proto::CommandCloseConsumer { consumer_id, request_id: NO_REQUEST, ..Default::default() })
}

/// Ids are signed inside and unsigned on the wire: -1 is 2^64-1 there.
pub(super) fn wire_ids(position: Position) -> (u64, u64) {
    (position.ledger.0 as u64, position.entry.0 as u64)
}

/// The position of an id on the wire; see [`wire_ids`].
pub(super) fn position(ledger_id: u64, entry_id: u64) -> Position {
    Position::new(ledger_id as i64, entry_id as i64)
}

fn message_id(position: Position) -> proto::MessageIdData {
    let (ledger_id, entry_id) = wire_ids(position);
    proto::MessageIdData { ledger_id, entry_id, ..Default::default() }
}
