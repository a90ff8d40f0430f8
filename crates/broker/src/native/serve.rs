//! Each command of a client: what it asks of the broker, and what is refused here.
//!
//! Publishes, acknowledgements, permits and redelivery requests are posted at once, in the order of arrival; everything
//! that needs an answer from the broker runs beside them.

use std::{collections::BTreeMap, rc::Rc, sync::Arc};

use bytes::Bytes;

use pulsar_proto::{
    Command, Frame, NamespaceName, PayloadBlock, TopicName,
    message_metadata::MetadataPeek,
    proto::{self, KeyValue, ServerError, base_command::Type, command_ack::AckType, schema::Type as SchemaType},
};

use super::{
    close_reason::CloseReason,
    connection::Connection,
    replies,
    resources::{Closing, ConsumerSlot, Done, ProducerSlot, still_opening},
    session::{Heard, Peer, Verdict},
};
use crate::door::{
    AccessMode, Ack, AckId, AckIds, AckRequest, InitialPosition, NewConsumer, NewProducer, Publish, Redeliver, SeekTo,
    StartMessageId, SubscriptionType, TopicsMode,
};

/// `maxConsumerMetadataSize`: keys and values together, in bytes.
const MAX_CONSUMER_METADATA: usize = 1024;

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

    // ---- publishing

    fn send(&mut self, send: proto::CommandSend, block: PayloadBlock) -> Result<(), CloseReason> {
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
                let bytes = publish.payload.len();
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

    fn open_producer(&mut self, request: proto::CommandProducer) -> Result<(), CloseReason> {
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

    fn close_producer(&mut self, close: proto::CommandCloseProducer) {
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

    // ---- consuming

    fn subscribe(&mut self, request: proto::CommandSubscribe) -> Result<(), CloseReason> {
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

    fn close_consumer(&mut self, close: proto::CommandCloseConsumer) {
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

    fn ack(&mut self, ack: proto::CommandAck) {
        let Some(consumer) = self.consumers.open(ack.consumer_id) else { return };
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

    fn redeliver(&mut self, request: proto::CommandRedeliverUnacknowledgedMessages) {
        let Some(consumer) = self.consumers.open(request.consumer_id) else { return };
        let what = if request.message_ids.is_empty() {
            Redeliver::All
        } else {
            let ids = request.message_ids.iter();
            Redeliver::Some(ids.map(|id| replies::position(id.ledger_id, id.entry_id)).collect())
        };
        consumer.redeliver(what, request.consumer_epoch);
    }

    fn unsubscribe(&mut self, request: proto::CommandUnsubscribe) {
        let (consumer_id, request_id, force) = (request.consumer_id, request.request_id, request.force());
        let Some(consumer) = self.consumers.open(consumer_id).cloned() else {
            return self.answer(no_consumer(request_id));
        };
        self.start(async move {
            let result = consumer.unsubscribe(force).await;
            Done::Unsubscribed { consumer_id, request_id, result }
        });
    }

    fn seek(&mut self, seek: proto::CommandSeek) {
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

    fn get_last_message_id(&mut self, request: proto::CommandGetLastMessageId) {
        let request_id = request.request_id;
        let Some(consumer) = self.consumers.open(request.consumer_id).cloned() else {
            return self.answer(no_consumer(request_id));
        };
        self.start(async move { Done::Answer(replies::last_message_id(request_id, consumer.last_message_id().await)) });
    }

    fn consumer_stats(&mut self, request: proto::CommandConsumerStats) {
        let request_id = request.request_id;
        let Some(consumer) = self.consumers.open(request.consumer_id).cloned() else {
            let message = format!("Consumer {} not found", request.consumer_id);
            let error = ServerError::ConsumerNotFound;
            return self.answer(replies::consumer_stats_failed(request_id, error, message));
        };
        self.start(async move { Done::Answer(replies::consumer_stats(request_id, consumer.stats().await)) });
    }

    // ---- finding topics

    fn lookup(&mut self, request: proto::CommandLookupTopic) {
        let request_id = request.request_id;
        let topic = match TopicName::parse(&request.topic) {
            Ok(topic) => topic,
            Err(error) => {
                return self.answer(replies::lookup_failed(
                    request_id,
                    ServerError::InvalidTopicName,
                    invalid_topic(&error),
                ));
            }
        };
        if let Some(listener) = request.advertised_listener_name.filter(|name| !name.is_empty()) {
            let message = format!("the broker do not have {listener} listener");
            return self.answer(replies::lookup_failed(request_id, ServerError::ServiceNotReady, message));
        }
        let Ok(permit) = Arc::clone(&self.shared.lookups).try_acquire_owned() else {
            let error = ServerError::TooManyRequests;
            return self.answer(replies::lookup_failed(request_id, error, TOO_MANY_LOOKUPS.into()));
        };
        let (broker, standalone) = (self.shared.broker.clone(), self.shared.config.standalone);
        self.start(async move {
            let result = broker.lookup(&topic).await;
            drop(permit);
            Done::Answer(replies::lookup(request_id, standalone, result))
        });
    }

    fn partition_metadata(&mut self, request: proto::CommandPartitionedTopicMetadata) {
        let request_id = request.request_id;
        let topic = match TopicName::parse(&request.topic) {
            Ok(topic) => topic,
            Err(error) => {
                return self.answer(replies::partitions_failed(
                    request_id,
                    ServerError::InvalidTopicName,
                    invalid_topic(&error),
                ));
            }
        };
        let Ok(permit) = Arc::clone(&self.shared.lookups).try_acquire_owned() else {
            let error = ServerError::TooManyRequests;
            return self.answer(replies::partitions_failed(request_id, error, TOO_MANY_LOOKUPS.into()));
        };
        let (broker, auto_create) = (self.shared.broker.clone(), request.metadata_auto_creation_enabled());
        self.start(async move {
            let result = broker.partitions(&topic, auto_create).await;
            drop(permit);
            Done::Answer(replies::partitions(request_id, result))
        });
    }

    fn topics_of_namespace(&mut self, request: proto::CommandGetTopicsOfNamespace) -> Result<(), CloseReason> {
        use proto::command_get_topics_of_namespace::Mode;
        let request_id = request.request_id;
        let mode = match request.mode() {
            Mode::Persistent => TopicsMode::Persistent,
            Mode::NonPersistent => TopicsMode::NonPersistent,
            Mode::All => TopicsMode::All,
        };
        let Ok(namespace) = NamespaceName::parse(&request.namespace) else {
            return Err(CloseReason::BadNamespace(request.namespace));
        };
        let Ok(permit) = Arc::clone(&self.shared.lookups).try_acquire_owned() else {
            self.answer(replies::error(request_id, ServerError::TooManyRequests, TOO_MANY_LOOKUPS));
            return Ok(());
        };
        let broker = self.shared.broker.clone();
        self.start(async move {
            let result = broker.topics(&namespace, mode, false).await;
            drop(permit);
            Done::Answer(replies::topics(request_id, request.topics_hash.as_deref(), result))
        });
        Ok(())
    }

    /// The topic, or an ERROR.
    fn topic(&mut self, request_id: u64, name: &str) -> Option<TopicName> {
        match TopicName::parse(name) {
            Ok(topic) => Some(topic),
            Err(error) => {
                self.answer(replies::error(request_id, ServerError::InvalidTopicName, invalid_topic(&error)));
                None
            }
        }
    }
}

const TOO_MANY_LOOKUPS: &str = "Failed due to too many pending lookup requests";

fn invalid_topic(error: &impl std::fmt::Display) -> String {
    format!("Invalid topic name: {error}")
}

fn no_consumer(request_id: u64) -> Command {
    replies::error(request_id, ServerError::MetadataError, "Consumer not found")
}

/// Bytes that nobody interprets: what a producer or consumer without a schema exchanges, too.
fn is_plain_bytes(schema: &proto::Schema) -> bool {
    schema.r#type == SchemaType::None as i32
}

fn no_schemas(schema: &proto::Schema) -> String {
    let name = SchemaType::try_from(schema.r#type).map_or("unknown", |known| known.as_str_name());
    format!("schemas are not supported yet: a schema of type {name} was asked for, only plain bytes are exchanged")
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
