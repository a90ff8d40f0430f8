//! Each command of a client: what it asks of the broker, and what is refused here.
//!
//! Publishes, acknowledgements, permits and redelivery requests are posted at once, in the order of arrival; everything
//! that needs an answer from the broker runs beside them.

mod consuming;
mod finding;
mod publishing;

use std::collections::BTreeMap;

use pulsar_proto::{
    Command, Frame, PayloadBlock,
    proto::{self, KeyValue, ServerError, base_command::Type, schema::Type as SchemaType},
};

use super::{
    close_reason::CloseReason,
    connection::Connection,
    replies,
    session::{Heard, Peer, Verdict},
};

impl Connection {
    pub(super) fn serve_command(&mut self, frame: Frame) -> Result<(), CloseReason> {
        let Frame { command, payload } = frame;
        let heard = match &command {
            Command::Connect(connect) => Heard::Connect(peer_of(connect)),
            Command::Ping(_) => Heard::Ping,
            Command::Pong(_) => Heard::Pong,
            _ => Heard::Request,
        };
        match self.session.heard(heard) {
            Verdict::Pong => self.answer(Command::Pong(proto::CommandPong {})),
            Verdict::Welcome => self.welcome(),
            Verdict::Nothing => {}
            Verdict::Close(breach) => return Err(CloseReason::Session(breach)),
            Verdict::Serve => return self.serve_request(command, payload),
        }
        Ok(())
    }

    fn welcome(&mut self) {
        let Some(peer) = self.session.peer() else { return };
        let connected = proto::CommandConnected {
            server_version: self.shared.config.server_version.clone(),
            protocol_version: Some(peer.protocol_version),
            max_message_size: i32::try_from(self.shared.broker.config().max_message_bytes).ok(),
            feature_flags: Some(proto::FeatureFlags {
                supports_get_partitioned_metadata_without_auto_creation: Some(true),
                ..Default::default()
            }),
        };
        self.peer.client_version = Some(peer.client_version.as_str().into());
        self.shared.counters.handshake();
        self.answer(connected.into());
    }

    fn serve_request(&mut self, command: Command, payload: Option<PayloadBlock>) -> Result<(), CloseReason> {
        match command {
            Command::Send(send) => {
                let block = payload.ok_or(CloseReason::MissingField(Type::Send))?;
                return self.send(send, block);
            }
            Command::Ack(ack) => self.ack(ack),
            Command::Flow(flow) => {
                if let Some(consumer) = self.consumers.open(flow.consumer_id) {
                    if flow.message_permits == 0 {
                        return Err(CloseReason::NoPermits(flow.consumer_id));
                    }
                    consumer.flow(flow.message_permits);
                }
            }
            Command::RedeliverUnacknowledgedMessages(request) => self.redeliver(request),
            Command::Producer(request) => return self.open_producer(*request),
            Command::Subscribe(request) => return self.subscribe(*request),
            Command::CloseProducer(close) => self.close_producer(close),
            Command::CloseConsumer(close) => self.close_consumer(close),
            Command::Unsubscribe(request) => self.unsubscribe(request),
            Command::Seek(seek) => self.seek(*seek),
            Command::GetLastMessageId(request) => self.get_last_message_id(request),
            Command::ConsumerStats(request) => self.consumer_stats(request),
            Command::LookupTopic(request) => self.lookup(*request),
            Command::PartitionMetadata(request) => self.partition_metadata(*request),
            Command::GetTopicsOfNamespace(request) => return self.topics_of_namespace(*request),

            // Nothing is registered yet, so no topic has a schema.
            Command::GetSchema(request) => self.answer(
                proto::CommandGetSchemaResponse {
                    request_id: request.request_id,
                    error_code: Some(ServerError::TopicNotFound as i32),
                    error_message: Some("Topic not found or no-schema".into()),
                    ..Default::default()
                }
                .into(),
            ),
            Command::GetOrCreateSchema(request) => {
                self.answer(Command::GetOrCreateSchemaResponse(proto::CommandGetOrCreateSchemaResponse {
                    request_id: request.request_id,
                    error_code: Some(ServerError::NotAllowedError as i32),
                    error_message: Some("schemas are not supported by this broker".into()),
                    ..Default::default()
                }));
            }

            Command::WatchTopicList(request) => self.answer(replies::error(
                request.request_id,
                ServerError::NotAllowedError,
                "Unable to create topic list watcher: topic list watching is not enabled",
            )),
            Command::WatchTopicListClose(request) => self.answer(replies::success(request.request_id)),

            Command::TcClientConnectRequest(request) => self.answer(replies::no_transactions(request.request_id)),
            Command::NewTxn(request) => self.answer(replies::no_transactions(request.request_id)),
            Command::AddPartitionToTxn(request) => self.answer(replies::no_transactions(request.request_id)),
            Command::AddSubscriptionToTxn(request) => self.answer(replies::no_transactions(request.request_id)),
            Command::EndTxn(request) => self.answer(replies::no_transactions(request.request_id)),
            Command::EndTxnOnPartition(request) => self.answer(replies::no_transactions(request.request_id)),
            Command::EndTxnOnSubscription(request) => self.answer(replies::no_transactions(request.request_id)),

            // The session takes the first three; the others only ever come from brokers, except for AUTH_RESPONSE, which
            // answers a challenge that was never sent.
            Command::Connect(_)
            | Command::Ping(_)
            | Command::Pong(_)
            | Command::Connected(_)
            | Command::SendReceipt(_)
            | Command::SendError(_)
            | Command::Message(_)
            | Command::Success(_)
            | Command::Error(_)
            | Command::ProducerSuccess(_)
            | Command::PartitionMetadataResponse(_)
            | Command::LookupTopicResponse(_)
            | Command::ConsumerStatsResponse(_)
            | Command::ReachedEndOfTopic(_)
            | Command::GetLastMessageIdResponse(_)
            | Command::ActiveConsumerChange(_)
            | Command::GetTopicsOfNamespaceResponse(_)
            | Command::GetSchemaResponse(_)
            | Command::AuthChallenge(_)
            | Command::AuthResponse(_)
            | Command::AckResponse(_)
            | Command::GetOrCreateSchemaResponse(_)
            | Command::NewTxnResponse(_)
            | Command::AddPartitionToTxnResponse(_)
            | Command::AddSubscriptionToTxnResponse(_)
            | Command::EndTxnResponse(_)
            | Command::EndTxnOnPartitionResponse(_)
            | Command::EndTxnOnSubscriptionResponse(_)
            | Command::TcClientConnectResponse(_)
            | Command::WatchTopicListSuccess(_)
            | Command::WatchTopicUpdate(_)
            | Command::TopicMigrated(_) => return Err(CloseReason::NotForBroker(command.command_type())),
        }
        Ok(())
    }
}

fn peer_of(connect: &proto::CommandConnect) -> Peer {
    let flags = connect.feature_flags.as_ref();
    Peer::new(
        connect.protocol_version(),
        connect.client_version.clone(),
        flags.is_some_and(proto::FeatureFlags::supports_partial_producer),
    )
}

/// A key that occurs twice keeps its last value.
fn properties(pairs: Vec<KeyValue>) -> BTreeMap<String, String> {
    pairs.into_iter().map(|pair| (pair.key, pair.value)).collect()
}

/// Bytes that nobody interprets: what a producer or consumer without a schema exchanges, too.
fn is_plain_bytes(schema: &proto::Schema) -> bool {
    schema.r#type == SchemaType::None as i32
}

fn no_schemas(schema: &proto::Schema) -> String {
    let name = SchemaType::try_from(schema.r#type).map_or("unknown", |known| known.as_str_name());
    format!("schemas are not supported yet: a schema of type {name} was asked for, only plain bytes are exchanged")
}
