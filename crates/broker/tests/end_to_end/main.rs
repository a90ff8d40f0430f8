//! The broker through its typed door: metadata and bookie lie in memory, everything between is the product's.

mod bookie;
mod world;

use std::sync::atomic::Ordering;
use std::time::Duration;

use broker::BrokerErrorKind;
use broker::door::{
    Ack, AckId, AckRequest, Broker, InitialPosition, Outgoing, Position, Redeliver, SeekTo, StartMessageId,
    SubscriptionType, TopicsMode,
};

use world::{Client, World, ack, publish, send, text, topic};

const TOPIC: &str = "persistent://public/default/t";

#[tokio::test]
async fn what_is_sent_is_received_in_order_and_survives_the_broker() {
    let world = World::new();
    let broker = world.start().await;
    let mut client = Client::new(&broker);
    let producer = client.produce_to(TOPIC).await.unwrap();
    let sent = send(&mut client, &producer, "a b c d").await;

    let consumer = client.subscribe(TOPIC, "s", SubscriptionType::Exclusive).await.unwrap();
    consumer.flow(2);
    assert_eq!(client.messages(2).await, "a b");
    consumer.flow(10);
    assert_eq!(client.messages(2).await, "c d");
    // A caught-up consumer gets what comes.
    producer.send(publish(4, b"e", None));
    let (receipt, message) = (client.receipt().await, client.message().await);
    assert_eq!((receipt.0, text(&message), message.position), (4, "e".to_owned(), receipt.1));

    consumer.ack(AckRequest { ack: Ack::Cumulative(AckId { position: sent[1], ack_set: None }), request_id: Some(7) });
    assert_eq!(client.ack_response().await, 7);
    consumer.ack(ack(sent[3], None, Some(8)));
    assert_eq!(client.ack_response().await, 8);

    let stats = broker.topic_stats(&topic(TOPIC)).await.unwrap();
    assert_eq!((stats.msg_in_counter, stats.msg_out_counter, stats.publishers.len()), (5, 5, 1));
    assert_eq!(stats.subscriptions["s"].msg_backlog, 2);

    broker.shutdown().await;
    assert!(matches!(client.next().await, Outgoing::CloseProducer { .. }));
    assert!(matches!(client.next().await, Outgoing::CloseConsumer { .. }));

    let broker = world.start().await;
    let mut client = Client::new(&broker);
    let consumer = client.subscribe(TOPIC, "s", SubscriptionType::Exclusive).await.unwrap();
    consumer.flow(10);
    assert_eq!(client.messages(2).await, "c e", "what was acknowledged does not come again, all else does");
    let last = consumer.last_message_id().await.unwrap();
    assert_eq!((last.position, last.batch_index), (receipt.1, -1));
    broker.shutdown().await;
}

#[tokio::test]
async fn shared_consumers_take_turns_and_what_is_not_acknowledged_comes_again() {
    let world = World::new();
    let broker = world.start().await;
    let (mut one, mut two, mut sender) = (Client::new(&broker), Client::new(&broker), Client::new(&broker));
    let producer = sender.produce_to(TOPIC).await.unwrap();
    let first = one.subscribe(TOPIC, "s", SubscriptionType::Shared).await.unwrap();
    let second = two.subscribe(TOPIC, "s", SubscriptionType::Shared).await.unwrap();
    let busy = one.subscribe(TOPIC, "s", SubscriptionType::Exclusive).await.err().unwrap();
    assert_eq!(busy.kind, BrokerErrorKind::ConsumerBusy);

    first.flow(2);
    second.flow(2);
    // One by one: what is read together goes to one consumer.
    let sent = [send(&mut sender, &producer, "a").await, send(&mut sender, &producer, "b").await].concat();
    let received = (one.messages(1).await, two.messages(1).await);
    assert!(received == ("a".into(), "b".into()) || received == ("b".into(), "a".into()), "{received:?}");
    let (mine, theirs) = if received.0 == "a" { (sent[0], sent[1]) } else { (sent[1], sent[0]) };

    // Asked for again.
    first.redeliver(Redeliver::Some(vec![mine]), None);
    let again = tokio::select! { message = one.message() => message, message = two.message() => message };
    assert_eq!((text(&again), again.redelivery_count), (received.0.clone(), 1));

    // Acknowledged by the other one, and after its consumer has gone nothing of it is left.
    first.ack(ack(theirs, None, Some(1)));
    assert_eq!(one.ack_response().await, 1);
    first.ack(ack(mine, None, Some(2)));
    assert_eq!(one.ack_response().await, 2);
    second.close().await;
    drop(first);
    let third = one.subscribe(TOPIC, "s", SubscriptionType::Shared).await.unwrap();
    third.flow(10);
    send(&mut sender, &producer, "c").await;
    assert_eq!(one.messages(1).await, "c");
    broker.shutdown().await;
}

#[tokio::test]
async fn a_consumer_that_goes_leaves_its_messages_to_the_others() {
    let world = World::new();
    let broker = world.start().await;
    let (mut one, mut two) = (Client::new(&broker), Client::new(&broker));
    let producer = one.produce_to(TOPIC).await.unwrap();
    send(&mut one, &producer, "a b c").await;
    let first = one.subscribe(TOPIC, "s", SubscriptionType::Shared).await.unwrap();
    first.flow(100);
    assert_eq!(one.messages(3).await, "a b c");
    let second = two.subscribe(TOPIC, "s", SubscriptionType::Shared).await.unwrap();
    second.flow(100);
    drop(first);
    assert_eq!(two.messages(3).await, "a+1 b+1 c+1");
    broker.shutdown().await;
}

#[tokio::test]
async fn part_of_a_batch_can_be_acknowledged() {
    let world = World::new();
    let broker = world.start().await;
    let mut client = Client::new(&broker);
    let producer = client.produce_to(TOPIC).await.unwrap();
    producer.send(publish(0, b"batch", Some(4)));
    let (_, position) = client.receipt().await;
    let consumer = client.subscribe(TOPIC, "s", SubscriptionType::Shared).await.unwrap();
    consumer.flow(1);
    assert_eq!(client.message().await.ack_set, None, "a whole batch goes out on one permit");
    assert_eq!(consumer.stats().await.unwrap().stats.available_permits, -3);
    assert_eq!(consumer.last_message_id().await.unwrap().batch_index, 3);
    consumer.ack(ack(position, Some(&[0b0101]), Some(1)));
    assert_eq!(client.ack_response().await, 1);
    assert_eq!(consumer.stats().await.unwrap().stats.unacked_messages, 2);
    consumer.flow(100);
    consumer.redeliver(Redeliver::All, None);
    let again = client.message().await;
    assert_eq!((again.ack_set.as_deref(), again.redelivery_count), (Some(&[0b0101][..]), 1));
    consumer.ack(ack(position, None, Some(2)));
    assert_eq!(client.ack_response().await, 2);
    let stats = broker.topic_stats(&topic(TOPIC)).await.unwrap();
    assert_eq!(stats.subscriptions["s"].unacked_messages, 0);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_failed_write_disconnects_the_producers_and_nothing_confirmed_is_lost() {
    let world = World::new();
    let broker = world.start().await;
    let mut client = Client::new(&broker);
    let producer = client.produce_to(TOPIC).await.unwrap();
    // Without a subscription nothing would hold the sealed ledger back from trimming.
    let consumer = client.subscribe(TOPIC, "s", SubscriptionType::Exclusive).await.unwrap();
    send(&mut client, &producer, "a").await;
    world.bookie.failing.store(1, Ordering::SeqCst);
    producer.send(publish(1, b"b", None));
    match client.next().await {
        Outgoing::SendError { sequence_id: 1, kind: BrokerErrorKind::Persistence, .. } => {}
        other => panic!("expected an error, got {other:?}"),
    }
    assert!(matches!(client.next().await, Outgoing::CloseProducer { producer_id: 1 }));
    // The client comes back, and is refused only while the ledger is being recovered.
    let producer = loop {
        match client.produce_to(TOPIC).await {
            Ok(producer) => break producer,
            Err(error) => assert_eq!(error.kind, BrokerErrorKind::ServiceNotReady),
        }
        tokio::task::yield_now().await;
    };
    send(&mut client, &producer, "b c").await;
    consumer.flow(10);
    assert_eq!(client.messages(3).await, "a b c");
    broker.shutdown().await;
}

#[tokio::test]
async fn a_lost_session_closes_the_topics() {
    let world = World::new();
    let broker = world.start().await;
    let mut client = Client::new(&broker);
    let producer = client.produce_to(TOPIC).await.unwrap();
    send(&mut client, &producer, "a").await;
    let _consumer = client.subscribe(TOPIC, "s", SubscriptionType::Exclusive).await.unwrap();
    world.lose_session();
    assert!(matches!(client.next().await, Outgoing::CloseProducer { .. }));
    assert!(matches!(client.next().await, Outgoing::CloseConsumer { .. }));
    let refused = client.produce_to(TOPIC).await.err().unwrap();
    assert!(matches!(refused.kind, BrokerErrorKind::ServiceNotReady | BrokerErrorKind::Metadata), "{refused:?}");
    world.regain_session();
    let message = loop {
        let consumer = match client.subscribe(TOPIC, "s", SubscriptionType::Exclusive).await {
            Ok(consumer) => consumer,
            Err(error) => {
                assert_eq!(error.kind, BrokerErrorKind::ServiceNotReady, "{error}");
                tokio::task::yield_now().await;
                continue;
            }
        };
        consumer.flow(1);
        match client.next().await {
            Outgoing::Message(message) => break message,
            // Opened before the broker heard of the new session, which closes everything once more.
            Outgoing::CloseConsumer { .. } => {}
            other => panic!("expected a message, got {other:?}"),
        }
    };
    assert_eq!(text(&message), "a");
    broker.shutdown().await;
}

#[tokio::test]
async fn a_slow_connection_stops_the_dispatch_until_it_has_drained() {
    let world = World::new();
    let broker = world.start().await;
    let (mut client, mut reader) = (Client::new(&broker), Client::new(&broker));
    let producer = client.produce_to(TOPIC).await.unwrap();
    let payload = vec![7; 1 << 20];
    for sequence_id in 0..30 {
        producer.send(publish(sequence_id, &payload, None));
        client.receipt().await;
    }
    let consumer = reader.subscribe(TOPIC, "s", SubscriptionType::Exclusive).await.unwrap();
    consumer.flow(1000);
    // What the broker holds for the connection stays bounded, whatever it is allowed to send.
    while reader.outbox.bytes() < 2 << 20 {
        tokio::task::yield_now().await;
    }
    consumer.stats().await.unwrap();
    assert!(reader.outbox.bytes() <= 4 << 20, "{} bytes queued", reader.outbox.bytes());
    for index in 0..30 {
        let message = reader.message().await;
        assert!(message.position.entry.0 == index, "{message:?}");
    }
    broker.shutdown().await;
}

#[tokio::test]
async fn topics_come_into_being_as_policies_allow() {
    let world = World::new();
    let broker = world.start().await;
    let mut client = Client::new(&broker);
    let kind = |result: Result<u32, broker::BrokerError>| result.map_err(|error| error.kind);
    let missing = "persistent://public/nowhere/t";
    assert_eq!(kind(broker.partitions(&topic(missing), true).await), Err(BrokerErrorKind::TopicNotFound));
    assert_eq!(client.produce_to(missing).await.err().unwrap().kind, BrokerErrorKind::TopicNotFound);
    assert_eq!(broker.lookup(&topic(missing)).await.err().unwrap().kind, BrokerErrorKind::TopicNotFound);
    assert!(broker.lookup(&topic(TOPIC)).await.unwrap().local);

    assert_eq!(kind(broker.partitions(&topic(TOPIC), false).await), Err(BrokerErrorKind::TopicNotFound));
    assert_eq!(kind(broker.partitions(&topic(TOPIC), true).await), Ok(0));
    let mut request = client.consumer(TOPIC, "s", SubscriptionType::Exclusive);
    request.force_topic_creation = false;
    assert_eq!(broker.subscribe(request).await.err().unwrap().kind, BrokerErrorKind::TopicNotFound);
    assert_eq!(broker.topic_stats(&topic(TOPIC)).await.err().unwrap().kind, BrokerErrorKind::TopicNotFound);

    let partitioned = topic("persistent://public/default/parted");
    let metadata = broker::door::PartitionedTopicMetadata { partitions: 2, ..Default::default() };
    broker.create_partitioned_topic(&partitioned, metadata.clone()).await.unwrap();
    let again = broker.create_partitioned_topic(&partitioned, metadata).await.err().unwrap();
    assert_eq!(again.kind, BrokerErrorKind::AlreadyExists);
    assert_eq!(kind(broker.partitions(&partitioned, false).await), Ok(2));
    assert!(client.produce_to("persistent://public/default/parted-partition-1").await.is_ok());
    let beyond = client.produce_to("persistent://public/default/parted-partition-2").await.err().unwrap();
    assert_eq!(beyond.kind, BrokerErrorKind::TopicNotFound);

    broker.create_topic(&topic(TOPIC)).await.unwrap();
    let namespace = pulsar_proto::NamespaceName::parse("public/default").unwrap();
    let names =
        ["parted-partition-0", "parted-partition-1", "t"].map(|name| format!("persistent://public/default/{name}"));
    assert_eq!(broker.topics(&namespace, TopicsMode::All, false).await.unwrap(), names);
    broker.delete_partitioned_topic(&partitioned, true).await.unwrap();
    broker.delete_topic(&topic(TOPIC), false).await.unwrap();
    assert!(broker.topics(&namespace, TopicsMode::All, false).await.unwrap().is_empty());
    assert_eq!(broker.namespaces("public").await.unwrap(), ["public/default"]);
    assert_eq!(broker.tenants().await.unwrap(), ["public", "pulsar"]);
    broker.shutdown().await;
}

#[tokio::test]
async fn producer_names_are_unique() {
    let world = World::new();
    let broker = world.start().await;
    let (mut one, mut two) = (Client::new(&broker), Client::new(&broker));
    let (_a, first) = one.produce_as(TOPIC, None).await.unwrap();
    let (_b, second) = one.produce_as(TOPIC, None).await.unwrap();
    assert_eq!((first.as_str(), second.as_str()), ("standalone-0-0", "standalone-0-1"));
    let (mine, _) = one.produce_as(TOPIC, Some("me")).await.unwrap();
    assert_eq!(two.produce_as(TOPIC, Some("me")).await.err().unwrap().kind, BrokerErrorKind::ProducerBusy);
    mine.close().await;
    assert!(two.produce_as(TOPIC, Some("me")).await.is_ok());
    broker.shutdown().await;
}

#[tokio::test]
async fn readers_and_seeks_begin_where_they_are_told() {
    let world = World::new();
    let broker = world.start().await;
    let mut client = Client::new(&broker);
    let producer = client.produce_to(TOPIC).await.unwrap();
    let sent = send(&mut client, &producer, "a b c").await;
    for (start, expected) in [
        (StartMessageId { position: Position::EARLIEST, batch_index: -1 }, "a b c"),
        (StartMessageId { position: sent[0], batch_index: -1 }, "b c"),
        (StartMessageId { position: sent[1], batch_index: 0 }, "b c"),
    ] {
        let mut request = client.consumer(TOPIC, "reader", SubscriptionType::Exclusive);
        (request.durable, request.start_message_id) = (false, Some(start));
        let reader = broker.subscribe(request).await.unwrap();
        reader.flow(100);
        assert_eq!(client.messages(expected.split(' ').count()).await, expected);
        reader.close().await;
        assert!(!broker.subscriptions(&topic(TOPIC)).await.unwrap().contains(&"reader".to_owned()));
    }
    let mut request = client.consumer(TOPIC, "s", SubscriptionType::Exclusive);
    request.initial_position = InitialPosition::Latest;
    let mut consumer = broker.subscribe(request).await.unwrap();
    for (to, expected) in [(Position::EARLIEST, "a b c"), (sent[1], "b c")] {
        consumer.seek(SeekTo::Position { position: to, ack_set: None }).await.unwrap();
        assert!(matches!(client.next().await, Outgoing::CloseConsumer { .. }));
        consumer = client.subscribe(TOPIC, "s", SubscriptionType::Exclusive).await.unwrap();
        consumer.flow(100);
        assert_eq!(client.messages(expected.split(' ').count()).await, expected);
    }
    // Into a batch: what comes before is taken as acknowledged.
    producer.send(publish(3, b"batch", Some(4)));
    let (_, batch) = client.receipt().await;
    assert_eq!(client.messages(1).await, "batch");
    consumer.seek(SeekTo::Position { position: batch, ack_set: Some([0b1100].into()) }).await.unwrap();
    assert!(matches!(client.next().await, Outgoing::CloseConsumer { .. }));
    consumer = client.subscribe(TOPIC, "s", SubscriptionType::Exclusive).await.unwrap();
    consumer.flow(100);
    assert_eq!(client.message().await.ack_set.as_deref(), Some(&[0b1100][..]));
    consumer.unsubscribe(false).await.unwrap();
    assert!(broker.subscriptions(&topic(TOPIC)).await.unwrap().is_empty());
    broker.shutdown().await;
}

#[tokio::test]
async fn a_subscription_keeps_the_properties_it_was_created_with() {
    let world = World::new();
    let broker = world.start().await;
    let mut client = Client::new(&broker);
    let mut request = client.consumer(TOPIC, "s", SubscriptionType::Exclusive);
    request.subscription_properties.insert("team".to_owned(), "a".to_owned());
    let consumer = broker.subscribe(request).await.unwrap();
    consumer.close().await;
    broker.unload_topic(&topic(TOPIC)).await.unwrap();
    let _consumer = client.subscribe(TOPIC, "s", SubscriptionType::Exclusive).await.unwrap();
    let stats = broker.topic_stats(&topic(TOPIC)).await.unwrap();
    assert_eq!(stats.subscriptions["s"].subscription_properties["team"], "a");
    broker.shutdown().await;
}

#[tokio::test]
async fn changed_policies_reach_topics_that_are_open() {
    let world = World::new();
    let broker = world.start().await;
    let mut client = Client::new(&broker);
    let _consumer = client.subscribe(TOPIC, "s", SubscriptionType::Shared).await.unwrap();
    let namespace = topic(TOPIC).namespace();
    broker.update_namespace(&namespace, |policies| policies.max_consumers_per_topic = Some(1)).await.unwrap();
    let refused = async {
        loop {
            match client.subscribe(TOPIC, "s", SubscriptionType::Shared).await {
                Ok(consumer) => consumer.close().await,
                Err(error) => break error,
            }
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(10), refused).await.expect("the new limit counts");
    assert_eq!(refused.kind, BrokerErrorKind::ConsumerBusy);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_producer_may_bring_a_subscription_that_keeps_what_it_sends() {
    let world = World::new();
    let broker = world.start().await;
    let mut client = Client::new(&broker);
    let mut request = client.producer(TOPIC, None);
    request.initial_subscription = Some("dlq".to_owned());
    let (producer, _) = broker.create_producer(request).await.unwrap();
    send(&mut client, &producer, "a").await;
    let consumer = client.subscribe(TOPIC, "dlq", SubscriptionType::Shared).await.unwrap();
    consumer.flow(1);
    assert_eq!(client.messages(1).await, "a");
    broker.shutdown().await;
}

#[tokio::test]
async fn a_stopped_broker_refuses() {
    let world = World::new();
    let broker: Broker = world.start().await;
    broker.shutdown().await;
    let error = Client::new(&broker).produce_to(TOPIC).await.err().unwrap();
    assert_eq!(error.kind, BrokerErrorKind::ServiceNotReady);
}
