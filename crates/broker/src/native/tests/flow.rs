//! What comes in goes out, and what cannot go on waits without harm.

use std::time::Duration;

use tokio::time::sleep;

use pulsar_proto::{
    Command, NO_REQUEST,
    proto::{self, base_command::Type},
};

use super::{
    super::NativeConfig,
    client::{Client, Next, block, flow, hello, producer, subscribe},
    stage::{Stage, on_stage, until},
};
use crate::BrokerConfig;

#[test]
fn the_handshake_tells_what_the_original_tells() {
    on_stage(BrokerConfig::default(), NativeConfig::default(), async |stage| {
        for (version, agreed) in [(21, 21), (22, 21), (4, 4), (0, 0)] {
            let mut client = Client::connect(stage.address).await;
            client.say(hello(version)).await;
            let Command::Connected(connected) = client.next_command().await else { panic!("not CONNECTED") };
            assert_eq!(connected.server_version, "Pulsar Server4.0.1");
            assert_eq!(connected.protocol_version, Some(agreed));
            assert_eq!(connected.max_message_size, Some(5 * 1024 * 1024));
            let flags = connected.feature_flags.unwrap();
            assert!(flags.supports_get_partitioned_metadata_without_auto_creation());
            assert!(!flags.supports_topic_watchers());
        }
    });
}

#[test]
fn messages_of_every_size_come_back_as_they_were_sent() {
    on_stage(BrokerConfig::default(), NativeConfig::default(), async |stage| {
        let sizes = [0, 1, 100, 500, 600, 5_000, 70_000, 300_000, 5 * 1024 * 1024 - 100];
        let payloads: Vec<Vec<u8>> = sizes.iter().map(|size| (0..*size).map(|n| n as u8).collect()).collect();
        let mut client = Client::hello(stage.address).await;
        client.open_producer(1, "t").await;
        for (sequence_id, payload) in payloads.iter().enumerate() {
            client.publish(1, sequence_id as u64, payload).await;
        }
        for sequence_id in 0..payloads.len() {
            let Command::SendReceipt(receipt) = client.next_command().await else { panic!("not a receipt") };
            assert_eq!((receipt.producer_id, receipt.sequence_id), (1, sequence_id as u64));
            assert_eq!(receipt.message_id.unwrap().entry_id, sequence_id as u64);
        }
        assert_eq!(stage.door.publish_buffer_bytes(), 0);

        let mut consumer = Client::hello(stage.address).await;
        consumer.open_consumer(5, "t").await;
        consumer.say(flow(5, 1000)).await;
        for (index, payload) in payloads.iter().enumerate() {
            let Next::Frame(frame) = consumer.next().await else { panic!("closed") };
            let Command::Message(message) = frame.command else { panic!("not a message") };
            assert_eq!((message.consumer_id, message.message_id.entry_id), (5, index as u64));
            assert_eq!(frame.payload.unwrap(), block(payload));
        }
        consumer.assert_alive().await;
        let stats = stage.door.stats();
        assert!(stats.bytes_in > 5 << 20 && stats.bytes_out > 5 << 20);
        assert_eq!((stats.opened, stats.active, stats.handshakes), (2, 2, 2));
    });
}

#[test]
fn peers_before_version_11_get_messages_without_checksum() {
    on_stage(BrokerConfig::default(), NativeConfig::default(), async |stage| {
        let mut client = Client::hello(stage.address).await;
        client.open_producer(1, "t").await;
        client.publish(1, 0, b"hello").await;
        assert_eq!(client.next_type().await, Some(Type::SendReceipt));
        let mut old = Client::connect(stage.address).await;
        old.say(hello(10)).await;
        assert_eq!(old.next_type().await, Some(Type::Connected));
        old.open_consumer(1, "t").await;
        old.say(flow(1, 1)).await;
        let Next::Frame(frame) = old.next().await else { panic!("closed") };
        assert_eq!(frame.payload.unwrap().bytes(), &block(b"hello").without_checksum());
    });
}

#[test]
fn too_many_unanswered_publishes_stop_the_reading_and_half_of_them_start_it_again() {
    let config = BrokerConfig { max_pending_publishes_per_connection: 10, ..BrokerConfig::default() };
    on_stage(config, NativeConfig::default(), async |stage| {
        let mut client = Client::hello(stage.address).await;
        let mut other = Client::hello(stage.address).await;
        client.open_producer(1, "t").await;
        stage.bookie.hold(true);
        for sequence_id in 0..30 {
            client.publish(1, sequence_id, b"x").await;
        }
        until("ten publishes wait", async || stage.bookie.held() == 10).await;
        until("the connection is paused", async || stage.door.stats().paused == 1).await;
        client.say(Command::Ping(proto::CommandPing {})).await;
        client.assert_silent(Duration::from_millis(50)).await;
        other.assert_alive().await;

        stage.bookie.release(4);
        for _ in 0..4 {
            assert_eq!(client.next_type().await, Some(Type::SendReceipt));
        }
        assert_eq!(stage.bookie.held(), 6);
        stage.bookie.release(1);
        until("ten publishes wait again", async || stage.bookie.held() == 10).await;
        let mut receipts = 4;
        stage.bookie.hold(false);
        // The PONG comes when the connection is read again.
        let mut pongs = 0;
        while (receipts, pongs) != (30, 1) {
            match client.next_type().await {
                Some(Type::SendReceipt) => receipts += 1,
                Some(Type::Pong) => pongs += 1,
                other => panic!("unexpected {other:?}"),
            }
        }
        until("nothing is pending", async || stage.door.publish_buffer_bytes() == 0 && stage.door.stats().paused == 0)
            .await;
    });
}

#[test]
fn the_publish_buffer_stops_all_who_publish_until_there_is_room() {
    let config =
        BrokerConfig { max_publish_buffer_bytes: 400_000, max_message_bytes: 150_000, ..BrokerConfig::default() };
    on_stage(config, NativeConfig::default(), async |stage| {
        let mut clients = Vec::new();
        for _ in 0..8 {
            let mut client = Client::hello(stage.address).await;
            client.open_producer(1, "t").await;
            clients.push(client);
        }
        stage.bookie.hold(true);
        for client in &mut clients {
            client.publish(1, 0, &vec![7; 140_000]).await;
        }
        until("the buffer is full", async || stage.bookie.held() == 2).await;
        until("the others are paused", async || stage.door.stats().paused == 7 || stage.door.stats().paused == 8).await;
        assert!(stage.door.publish_buffer_bytes() <= 400_000);
        // Whoever does not publish does not wait for them.
        Client::hello(stage.address).await.assert_alive().await;
        // As each gets its receipt, another gets its turn.
        for _ in 0..8 {
            until("one waits for its receipt", async || stage.bookie.held() > 0).await;
            stage.bookie.release(1);
        }
        for client in &mut clients {
            assert_eq!(client.next_type().await, Some(Type::SendReceipt));
        }
        until("the buffer is empty", async || stage.door.publish_buffer_bytes() == 0).await;
    });
}

#[test]
fn a_lost_connection_gives_back_what_it_held() {
    on_stage(BrokerConfig::default(), NativeConfig::default(), async |stage| {
        let mut client = Client::hello(stage.address).await;
        client.open_producer(1, "t").await;
        client.open_consumer(2, "t").await;
        stage.bookie.hold(true);
        client.publish(1, 0, &[1; 1000]).await;
        until("a publish waits", async || stage.bookie.held() == 1).await;
        assert!(stage.door.publish_buffer_bytes() > 1000);
        drop(client);
        until("the connection has ended", async || stage.door.stats().active == 0).await;
        assert_eq!(stage.door.publish_buffer_bytes(), 0);
        stage.bookie.hold(false); // The receipt finds nobody, and nobody minds.
        until("its producer and consumer are gone", async || {
            let stats = stage.stats("t").await;
            stats.publishers.is_empty() && stats.subscriptions["sub"].consumers.is_empty()
        })
        .await;
        assert_eq!(stage.entries("t").await, 1);
    });
}

#[test]
fn whoever_is_closed_by_the_broker_may_still_have_messages_on_the_way() {
    on_stage(BrokerConfig::default(), NativeConfig::default(), async |stage| {
        let mut client = Client::hello(stage.address).await;
        client.open_producer(1, "t").await;
        client.open_consumer(2, "t").await;
        stage.unload("t").await;
        for _ in 0..2 {
            match client.next_command().await {
                Command::CloseProducer(close) => assert_eq!((close.producer_id, close.request_id), (1, NO_REQUEST)),
                Command::CloseConsumer(close) => assert_eq!((close.consumer_id, close.request_id), (2, NO_REQUEST)),
                other => panic!("unexpected {other:?}"),
            }
        }
        client.publish(1, 0, b"too late").await;
        client.say(flow(2, 10)).await;
        client.assert_alive().await;
        assert_eq!(stage.entries("t").await, 0);
        // And it may come back under the same id.
        client.open_producer(1, "t").await;
        client.publish(1, 0, b"again").await;
        assert_eq!(client.next_type().await, Some(Type::SendReceipt));

        let mut old = Client::connect(stage.address).await;
        old.say(hello(4)).await;
        assert_eq!(old.next_type().await, Some(Type::Connected));
        old.open_producer(1, "t").await;
        stage.unload("t").await;
        assert_eq!(old.next().await, Next::Closed);
    });
}

#[test]
fn close_is_answered_after_the_receipts() {
    on_stage(BrokerConfig::default(), NativeConfig::default(), async |stage| {
        let mut client = Client::hello(stage.address).await;
        client.open_producer(1, "t").await;
        stage.bookie.hold(true);
        for sequence_id in 0..5 {
            client.publish(1, sequence_id, b"x").await;
        }
        until("all wait", async || stage.bookie.held() == 5).await;
        let close = proto::CommandCloseProducer { producer_id: 1, request_id: 9, ..Default::default() };
        client.say(Command::CloseProducer(close)).await;
        client.assert_silent(Duration::from_millis(50)).await;
        stage.bookie.hold(false);
        let mut got = Vec::new();
        while got.last() != Some(&Type::Success) {
            got.push(client.next_type().await.unwrap());
        }
        assert_eq!(got.len(), 6);
        // Its id is unknown from now on.
        client.publish(1, 5, b"x").await;
        assert_eq!(client.next().await, Next::Closed);
    });
}

#[test]
fn two_requests_for_one_id() {
    on_stage(BrokerConfig::default(), NativeConfig::default(), async |stage| {
        let mut client = Client::hello(stage.address).await;
        // In one write, so that the second comes while the first is under way.
        let mut bytes = bytes::BytesMut::new();
        for command in [producer(1, "t"), producer(1, "t"), subscribe(2, "t"), subscribe(2, "t")] {
            pulsar_proto::frame::encode_command(command, &mut bytes);
        }
        client.write(&bytes).await;
        let mut got: Vec<String> = Vec::new();
        for _ in 0..4 {
            got.push(match client.next_command().await {
                Command::Error(error) => format!("{:?} {}", error.error(), error.message),
                other => format!("{:?}", other.command_type()),
            });
        }
        got.sort();
        assert_eq!(
            got,
            [
                "ProducerSuccess",
                "ServiceNotReady Consumer is already present on the connection",
                "ServiceNotReady Producer is already present on the connection",
                "Success",
            ]
        );
    });
}

fn impatient() -> BrokerConfig {
    BrokerConfig { keep_alive_interval: Duration::from_millis(200), ..BrokerConfig::default() }
}

#[test]
fn silent_peers_are_given_up() {
    on_stage(impatient(), NativeConfig::default(), async |stage| {
        let mut mute = Client::connect(stage.address).await;
        assert_eq!(mute.next().await, Next::Closed);
        assert_eq!(stage.door.stats().refused, 1);

        let mut deaf = Client::hello(stage.address).await;
        assert_eq!(deaf.next_type().await, Some(Type::Ping));
        assert_eq!(deaf.next().await, Next::Closed);

        let mut alive = Client::hello(stage.address).await;
        for _ in 0..3 {
            assert_eq!(alive.next_type().await, Some(Type::Ping));
            alive.say(Command::Pong(proto::CommandPong {})).await;
        }
    });
}

#[test]
fn a_peer_we_do_not_read_is_not_called_silent() {
    let config = BrokerConfig { max_pending_publishes_per_connection: 1, ..impatient() };
    on_stage(config, NativeConfig::default(), async |stage| {
        let mut client = Client::hello(stage.address).await;
        client.open_producer(1, "t").await;
        stage.bookie.hold(true);
        client.publish(1, 0, b"x").await;
        until("it is paused", async || stage.door.stats().paused == 1).await;
        sleep(Duration::from_millis(900)).await;
        stage.bookie.release(1);
        let mut got = Vec::new();
        while got.last() != Some(&Type::SendReceipt) {
            got.push(client.next_type().await.expect("closed although it was us who did not read"));
        }
    });
}

#[test]
fn stopping_ends_every_connection() {
    on_stage(BrokerConfig::default(), NativeConfig::default(), async |stage| {
        let Stage { door, address, .. } = stage;
        let mut client = Client::hello(address).await;
        client.open_producer(1, "t").await;
        let idle = Client::connect(address).await;
        until("both are known", async || door.stats().active == 2).await;
        let stats = door.stats_source();
        let stopped = tokio::spawn(door.stop());
        assert_eq!(client.next().await, Next::Closed);
        drop((client, idle));
        stopped.await.unwrap();
        assert_eq!(stats().active, 0);
        assert!(tokio::net::TcpStream::connect(address).await.is_err());
    });
}
