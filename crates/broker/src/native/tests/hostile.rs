//! What strangers and broken clients send, and what each of them gets.

use bytes::BytesMut;

use pulsar_proto::{
    Command, NO_REQUEST, PayloadBlock,
    frame::{encode_command, encode_payload_command},
    proto::{self, ServerError, base_command::Type},
};

use super::{
    super::{ConnectionLimits, NativeConfig},
    client::{Client, Next, block, flow, hello, producer, send, subscribe},
    stage::on_stage,
};
use crate::BrokerConfig;

/// When the bytes are sent.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// As the first thing on the connection.
    AtOnce,
    /// After the handshake, with producer 1 and consumer 1 open.
    Connected,
}

use When::{AtOnce, Connected};

/// Sends `bytes`, and compares what comes back: `Type`, `Type:ServerError` for refusals, and at last `closed` or `open`.
async fn check(address: std::net::SocketAddr, what: &str, when: When, bytes: &[u8], expected: &str) {
    let mut client = match when {
        AtOnce => Client::connect(address).await,
        Connected => {
            let mut client = Client::hello(address).await;
            client.open_producer(1, "hostile").await;
            client.open_consumer(1, "hostile").await;
            client
        }
    };
    client.write(bytes).await;
    // Whoever is still served answers this; PING is tolerated in every state.
    client.say(Command::Ping(proto::CommandPing {})).await;
    // Answers of a shard may come before or after that one.
    let (mut got, mut end) = (Vec::new(), None);
    while end.is_none() || got.len() + 1 < expected.split(' ').count() {
        match client.next().await {
            Next::Closed => {
                end = Some("closed");
                break;
            }
            Next::Frame(frame) if matches!(frame.command, Command::Pong(_)) => end = Some("open"),
            Next::Frame(frame) => got.push(name(&frame.command)),
        }
    }
    got.extend(end.map(str::to_owned));
    assert_eq!(got.join(" "), expected, "{what}");
}

fn name(command: &Command) -> String {
    let error = match command {
        Command::Error(error) => Some(error.error),
        Command::SendError(error) => Some(error.error),
        Command::LookupTopicResponse(response) => response.error,
        Command::PartitionMetadataResponse(response) => response.error,
        Command::ConsumerStatsResponse(response) => response.error_code,
        Command::GetSchemaResponse(response) => response.error_code,
        Command::GetOrCreateSchemaResponse(response) => response.error_code,
        Command::AckResponse(response) => response.error,
        _ => None,
    };
    let command = command.command_type();
    match error.map(|code| ServerError::try_from(code).unwrap()) {
        Some(error) => format!("{command:?}:{error:?}"),
        None => format!("{command:?}"),
    }
}

fn named_producer(name: &str, topic: &str) -> Command {
    proto::CommandProducer {
        topic: topic.into(),
        producer_id: 9,
        request_id: 1,
        producer_name: Some(name.into()),
        ..Default::default()
    }
    .into()
}

fn schema(schema_type: i32) -> proto::Schema {
    proto::Schema { r#type: schema_type, ..Default::default() }
}

fn with_schema(schema_type: i32) -> Command {
    proto::CommandProducer {
        topic: "typed".into(),
        producer_id: 2,
        request_id: 1,
        schema: Some(schema(schema_type)),
        ..Default::default()
    }
    .into()
}

fn latecomer() -> proto::CommandSubscribe {
    proto::CommandSubscribe {
        topic: "typed".into(),
        subscription: "s".into(),
        sub_type: proto::command_subscribe::SubType::Shared as i32,
        consumer_id: 2,
        request_id: 1,
        ..Default::default()
    }
}

fn said(command: impl Into<Command>) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    encode_command(command, &mut bytes);
    bytes.to_vec()
}

fn message(send: proto::CommandSend, payload: &[u8]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    encode_payload_command(send, payload.len(), &mut bytes);
    bytes.extend_from_slice(payload);
    bytes.to_vec()
}

/// A frame around the bytes of a command.
fn framed(command: &[u8]) -> Vec<u8> {
    let size = command.len() as u32;
    [&(size + 4).to_be_bytes()[..], &size.to_be_bytes(), command].concat()
}

fn damaged() -> PayloadBlock {
    let mut bytes = block(b"hello").bytes().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    PayloadBlock::parse(bytes.into()).unwrap()
}

fn wrong_metadata_size() -> Vec<u8> {
    let body = [&1000u32.to_be_bytes()[..], b"x"].concat();
    [&[0x0e, 0x01][..], &crc32c::crc32c(&body).to_be_bytes(), &body].concat()
}

fn cases() -> Vec<(&'static str, When, Vec<u8>, &'static str)> {
    let http = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec();
    let good = block(b"hello").bytes().to_vec();
    let long = "x".repeat(2000);
    let pair = proto::KeyValue { key: "k".into(), value: long };
    let seek = |consumer_id, message_publish_time| proto::CommandSeek {
        consumer_id,
        request_id: 1,
        message_publish_time,
        ..Default::default()
    };
    let none = proto::schema::Type::None as i32;
    let json = proto::schema::Type::Json as i32;
    let any = proto::schema::Type::AutoConsume as i32;
    let id = proto::MessageIdData { ledger_id: 1, entry_id: 1, ..Default::default() };
    let ack = |consumer_id, ids: usize, ack_type: i32| proto::CommandAck {
        consumer_id,
        ack_type,
        message_id: vec![id.clone(); ids],
        request_id: Some(1),
        ..Default::default()
    };
    vec![
        // ---- frames
        ("another protocol", AtOnce, http.clone(), "closed"),
        ("another protocol later", Connected, http, "closed"),
        ("all ones", AtOnce, vec![0xff; 100], "closed"),
        ("all zeros", AtOnce, vec![0; 100], "closed"),
        ("frame of 100 MiB", Connected, (100u32 << 20).to_be_bytes().to_vec(), "closed"),
        ("frame one byte too large", Connected, (5_242_880u32 + 10_240 + 1).to_be_bytes().to_vec(), "closed"),
        (
            "command longer than its frame",
            Connected,
            [&8u32.to_be_bytes()[..], &100u32.to_be_bytes(), b"abcd"].concat(),
            "closed",
        ),
        ("frame too short for a command size", Connected, vec![0, 0, 0, 2, 0, 0], "closed"),
        ("empty command", Connected, framed(b""), "closed"),
        ("not a command", Connected, framed(b"\xff\xff\xff\xff"), "closed"),
        // ---- commands
        ("unknown command", Connected, framed(&[0x08, 100]), "closed"),
        ("unused number", Connected, framed(&[0x08, 45]), "closed"),
        ("command of a later version", Connected, framed(&[0x08, 70]), "closed"),
        ("FLOW without its sub-message", Connected, framed(&[0x08, 11]), "closed"),
        ("FLOW with an empty sub-message", Connected, framed(&[0x08, 11, 0x5a, 0]), "closed"),
        (
            "a broker's command",
            Connected,
            said(Command::Success(Box::new(proto::CommandSuccess { request_id: 1, schema: None }))),
            "closed",
        ),
        (
            "answer to a challenge nobody sent",
            Connected,
            said(Command::AuthResponse(proto::CommandAuthResponse::default())),
            "closed",
        ),
        // ---- handshake
        (
            "LOOKUP before CONNECT",
            AtOnce,
            said(proto::CommandLookupTopic { topic: "t".into(), request_id: 1, ..Default::default() }),
            "closed",
        ),
        ("SEND before CONNECT", AtOnce, message(send(1, 0), &good), "closed"),
        ("PING before CONNECT", AtOnce, said(Command::Ping(proto::CommandPing {})), "open"),
        ("second CONNECT", Connected, said(hello(21)), "closed"),
        ("version from the future", AtOnce, said(hello(1000)), "Connected open"),
        ("negative version", AtOnce, said(hello(-1)), "Connected open"),
        // ---- publishing
        ("checksum does not match", Connected, message(send(1, 0), damaged().bytes()), "SendError:ChecksumError open"),
        ("no checksum at all", Connected, message(send(1, 0), &block(b"hello").without_checksum()), "SendReceipt open"),
        (
            "metadata size beyond the message",
            Connected,
            message(send(1, 0), &wrong_metadata_size()),
            "SendError:MetadataError open",
        ),
        ("payload too short for a checksum", Connected, message(send(1, 0), &[0x0e, 0x01, 1]), "closed"),
        ("no payload", Connected, said(send(1, 0)), "SendError:MetadataError open"),
        ("producer never opened", Connected, message(send(7, 0), &good), "closed"),
        (
            "no messages in it",
            Connected,
            message(proto::CommandSend { num_messages: Some(0), ..send(1, 0) }, &good),
            "SendError:NotAllowedError open",
        ),
        (
            "fewer than no messages",
            Connected,
            message(proto::CommandSend { num_messages: Some(-5), ..send(1, 0) }, &good),
            "SendError:NotAllowedError open",
        ),
        (
            "highest below lowest",
            Connected,
            message(proto::CommandSend { highest_sequence_id: Some(1), ..send(1, 5) }, &good),
            "SendReceipt open",
        ),
        (
            "in a transaction",
            Connected,
            message(proto::CommandSend { txnid_least_bits: Some(1), txnid_most_bits: Some(0), ..send(1, 0) }, &good),
            "SendError:NotAllowedError open",
        ),
        (
            "to a shadow topic",
            Connected,
            message(proto::CommandSend { message_id: Some(Box::new(id.clone())), ..send(1, 0) }, &good),
            "SendError:NotAllowedError open",
        ),
        // ---- producers
        ("producer again", Connected, said(producer(1, "hostile")), "ProducerSuccess open"),
        ("name in use", Connected, said(named_producer("bystander", "bystander")), "Error:ProducerBusy open"),
        (
            "producer, bad domain",
            Connected,
            said(producer(2, "http://public/default/t")),
            "Error:InvalidTopicName open",
        ),
        ("producer, two parts", Connected, said(producer(2, "a/b")), "Error:InvalidTopicName open"),
        ("producer, no name", Connected, said(producer(2, "")), "Error:InvalidTopicName open"),
        (
            "producer, bad tenant",
            Connected,
            said(producer(2, "persistent://a b/default/t")),
            "Error:InvalidTopicName open",
        ),
        (
            "close a producer never opened",
            Connected,
            said(Command::CloseProducer(proto::CommandCloseProducer {
                producer_id: 7,
                request_id: 1,
                ..Default::default()
            })),
            "Success open",
        ),
        // ---- consumers
        ("consumer again", Connected, said(subscribe(1, "hostile")), "Success open"),
        ("consumer, no topic", Connected, said(subscribe(2, "")), "Error:InvalidTopicName open"),
        (
            "unknown subscription type",
            Connected,
            said(proto::CommandSubscribe {
                topic: "t".into(),
                subscription: "s".into(),
                sub_type: 9,
                ..Default::default()
            }),
            "closed",
        ),
        (
            "large consumer metadata",
            Connected,
            said(proto::CommandSubscribe {
                topic: "t".into(),
                subscription: "s".into(),
                consumer_id: 2,
                metadata: vec![pair],
                ..Default::default()
            }),
            "Error:MetadataError open",
        ),
        ("FLOW of nothing", Connected, said(flow(1, 0)), "closed"),
        ("FLOW for nobody", Connected, said(flow(7, 0)), "open"),
        ("ACK for nobody", Connected, said(Command::Ack(ack(7, 1, 0))), "open"),
        ("ACK of nothing", Connected, said(Command::Ack(ack(1, 0, 0))), "AckResponse open"),
        ("ACK of an unknown kind", Connected, said(Command::Ack(ack(1, 1, 5))), "closed"),
        ("cumulative ACK of two", Connected, said(Command::Ack(ack(1, 2, 1))), "AckResponse open"),
        (
            "ACK in a transaction",
            Connected,
            said(Command::Ack(proto::CommandAck {
                txnid_least_bits: Some(1),
                txnid_most_bits: Some(0),
                ..ack(1, 1, 0)
            })),
            "AckResponse:NotAllowedError open",
        ),
        (
            "redelivery for nobody",
            Connected,
            said(Command::RedeliverUnacknowledgedMessages(proto::CommandRedeliverUnacknowledgedMessages {
                consumer_id: 7,
                ..Default::default()
            })),
            "open",
        ),
        (
            "unsubscribe nobody",
            Connected,
            said(Command::Unsubscribe(proto::CommandUnsubscribe { consumer_id: 7, request_id: 1, force: None })),
            "Error:MetadataError open",
        ),
        ("seek nobody", Connected, said(seek(7, Some(1))), "Error:MetadataError open"),
        ("seek nowhere", Connected, said(seek(1, None)), "Error:MetadataError open"),
        (
            "last message of nobody",
            Connected,
            said(Command::GetLastMessageId(proto::CommandGetLastMessageId { consumer_id: 7, request_id: 1 })),
            "Error:MetadataError open",
        ),
        (
            "stats of nobody",
            Connected,
            said(Command::ConsumerStats(proto::CommandConsumerStats { consumer_id: 7, request_id: 1 })),
            "ConsumerStatsResponse:ConsumerNotFound open",
        ),
        (
            "close a consumer never opened",
            Connected,
            said(Command::CloseConsumer(proto::CommandCloseConsumer {
                consumer_id: 7,
                request_id: 1,
                ..Default::default()
            })),
            "Success open",
        ),
        // ---- finding topics
        (
            "lookup, bad name",
            Connected,
            said(proto::CommandLookupTopic { topic: "a/b".into(), request_id: 1, ..Default::default() }),
            "LookupResponse:InvalidTopicName open",
        ),
        (
            "partitions, bad name",
            Connected,
            said(proto::CommandPartitionedTopicMetadata {
                topic: "persistent://x".into(),
                request_id: 1,
                ..Default::default()
            }),
            "PartitionedMetadataResponse:InvalidTopicName open",
        ),
        (
            "topics of a bad name",
            Connected,
            said(proto::CommandGetTopicsOfNamespace { request_id: 1, namespace: "a".into(), ..Default::default() }),
            "closed",
        ),
        (
            "lookup through a listener",
            Connected,
            said(proto::CommandLookupTopic {
                topic: "t".into(),
                request_id: 1,
                advertised_listener_name: Some("external".into()),
                ..Default::default()
            }),
            "LookupResponse:ServiceNotReady open",
        ),
        // ---- what is not there
        ("producer with a schema", Connected, said(with_schema(json)), "Error:NotAllowedError open"),
        ("producer of bytes", Connected, said(with_schema(none)), "ProducerSuccess open"),
        ("producer with a schema of a later version", Connected, said(with_schema(1000)), "closed"),
        ("producer for all schemas", Connected, said(with_schema(any)), "Error:NotAllowedError open"),
        (
            "consumer with a schema",
            Connected,
            said(proto::CommandSubscribe { schema: Some(schema(json)), ..latecomer() }),
            "Error:NotAllowedError open",
        ),
        (
            "consumer of all schemas",
            Connected,
            said(proto::CommandSubscribe { schema: Some(schema(any)), ..latecomer() }),
            "Success open",
        ),
        (
            "consumer from an hour ago",
            Connected,
            said(proto::CommandSubscribe { start_message_rollback_duration_sec: Some(3600), ..latecomer() }),
            "Error:NotAllowedError open",
        ),
        (
            "cumulative ACK with properties",
            Connected,
            said(Command::Ack(proto::CommandAck {
                properties: vec![proto::KeyLongValue { key: "k".into(), value: 1 }],
                ..ack(1, 1, 1)
            })),
            "AckResponse:NotAllowedError open",
        ),
        (
            "schema",
            Connected,
            said(Command::GetSchema(proto::CommandGetSchema {
                request_id: 1,
                topic: "t".into(),
                schema_version: None,
            })),
            "GetSchemaResponse:TopicNotFound open",
        ),
        (
            "transaction",
            Connected,
            said(Command::NewTxn(proto::CommandNewTxn { request_id: 1, ..Default::default() })),
            "Error:NotAllowedError open",
        ),
        (
            "coordinator",
            Connected,
            said(Command::TcClientConnectRequest(proto::CommandTcClientConnectRequest { request_id: 1, tc_id: 0 })),
            "Error:NotAllowedError open",
        ),
        (
            "topic list watcher",
            Connected,
            said(Command::WatchTopicList(proto::CommandWatchTopicList {
                request_id: 1,
                watcher_id: 1,
                namespace: "public/default".into(),
                topics_pattern: ".*".into(),
                topics_hash: None,
            })),
            "Error:NotAllowedError open",
        ),
    ]
}

#[test]
fn each_gets_what_it_deserves_and_nobody_else_notices() {
    on_stage(BrokerConfig::default(), NativeConfig::default(), async |stage| {
        let mut bystander = Client::hello(stage.address).await;
        bystander.say(named_producer("bystander", "bystander")).await;
        assert_eq!(bystander.next_type().await, Some(Type::ProducerSuccess));
        let cases = cases();
        for (index, (what, when, bytes, expected)) in cases.iter().enumerate() {
            check(stage.address, what, *when, bytes, expected).await;
            bystander.publish(9, index as u64, b"still here").await;
            assert_eq!(bystander.next_type().await, Some(Type::SendReceipt), "after {what}");
        }
        assert_eq!(stage.entries("bystander").await, cases.len() as u64);
        // Only what was answered with a receipt was stored.
        let stored = cases.iter().filter(|case| case.3.starts_with("SendReceipt")).count();
        assert_eq!(stage.entries("hostile").await, stored as u64);
        assert_eq!(stage.door.stats().checksum_errors, 1);
    });
}

#[test]
fn where_encryption_is_required_plain_messages_are_refused() {
    on_stage(BrokerConfig::default(), NativeConfig::default(), async |stage| {
        let namespace = pulsar_proto::NamespaceName::parse("public/default").unwrap();
        stage.broker.update_namespace(&namespace, |policies| policies.encryption_required = true).await.unwrap();
        let mut client = Client::hello(stage.address).await;
        client.say(producer(1, "secret")).await;
        assert_eq!(client.next_type().await, Some(Type::Error), "a producer that does not encrypt");
        let request = |encrypted| proto::CommandProducer {
            topic: "secret".into(),
            producer_id: 1,
            request_id: 1,
            encrypted: Some(encrypted),
            ..Default::default()
        };
        client.say(request(true)).await;
        assert_eq!(client.next_type().await, Some(Type::ProducerSuccess));
        client.publish(1, 0, b"plain").await;
        assert_eq!(name(&client.next_command().await), "SendError:MetadataError");
        let metadata = proto::MessageMetadata {
            producer_name: "p".into(),
            encryption_keys: vec![proto::EncryptionKeys { key: "k".into(), ..Default::default() }],
            ..Default::default()
        };
        let block = PayloadBlock::build(&metadata, b"cipher");
        client.say_with_payload(send(1, 1), block.bytes()).await;
        assert_eq!(client.next_type().await, Some(Type::SendReceipt));
    });
}

#[test]
fn a_frame_cut_anywhere_harms_nobody() {
    on_stage(BrokerConfig::default(), NativeConfig::default(), async |stage| {
        let whole = [said(hello(21)), said(producer(1, "cut")), message(send(1, 0), block(b"hello").bytes())].concat();
        for cut in 0..whole.len() {
            let mut client = Client::connect(stage.address).await;
            client.write(&whole[..cut]).await;
            client.finish().await;
            while client.next().await != Next::Closed {}
        }
        assert_eq!(stage.entries("cut").await, 0);
        // The same bytes one by one are as good as all at once.
        let mut client = Client::connect(stage.address).await;
        for byte in &whole {
            client.write(&[*byte]).await;
        }
        assert_eq!(client.next_type().await, Some(Type::Connected));
        // SEND before the producer is open is a breach.
        assert!(matches!(client.next_type().await, Some(Type::ProducerSuccess) | None));
    });
}

#[test]
fn the_limit_of_connections_is_told_and_a_place_is_free_again() {
    let native = NativeConfig { limits: ConnectionLimits { total: Some(1), per_ip: None }, ..NativeConfig::default() };
    on_stage(BrokerConfig::default(), native, async |stage| {
        let mut first = Client::hello(stage.address).await;
        let mut second = Client::connect(stage.address).await;
        second.say(hello(21)).await;
        match second.next_command().await {
            Command::Error(error) => {
                assert_eq!(error.request_id, NO_REQUEST);
                assert_eq!(error.error, ServerError::NotAllowedError as i32);
                assert_eq!(error.message, "Reached the maximum number of connections");
            }
            other => panic!("expected an error, got {other:?}"),
        }
        assert_eq!(second.next().await, Next::Closed);
        first.assert_alive().await;
        first.finish().await;
        assert_eq!(first.next().await, Next::Closed);
        let _third = Client::hello(stage.address).await;
    });
}
