//! Finding topics: lookup, partitions, lists; and what is not there.

use pulsar_proto::{
    Command,
    proto::{self, ServerError},
};

use super::{
    super::NativeConfig,
    client::{Client, producer, subscribe},
    stage::on_stage,
};
use crate::{BrokerConfig, TopicType};

fn lookup(topic: &str) -> Command {
    proto::CommandLookupTopic { topic: topic.into(), request_id: 7, ..Default::default() }.into()
}

fn partitions(topic: &str) -> Command {
    proto::CommandPartitionedTopicMetadata { topic: topic.into(), request_id: 7, ..Default::default() }.into()
}

/// In one line, as a test wants to compare it.
fn line(answer: Command) -> String {
    let error = |code: Option<i32>| code.map(|code| ServerError::try_from(code).unwrap());
    match answer {
        Command::LookupTopicResponse(found) => match error(found.error) {
            Some(error) => format!("Failed({}) {error:?}", found.response == Some(2)),
            None => format!(
                "Connect({}) {} authoritative={} through={}",
                found.response == Some(1),
                found.broker_service_url(),
                found.authoritative(),
                found.proxy_through_service_url()
            ),
        },
        Command::PartitionMetadataResponse(found) => match error(found.error) {
            Some(error) => format!("Failed({}) {error:?}", found.response == Some(1)),
            None => format!("partitions {}", found.partitions()),
        },
        Command::GetTopicsOfNamespaceResponse(found) => {
            format!("{:?} {} changed={}", found.topics, found.topics_hash(), found.changed())
        }
        Command::Error(refused) => format!("{:?}", refused.error()),
        other => format!("{:?}", other.command_type()),
    }
}

async fn check(client: &mut Client, command: Command, expected: &str) {
    client.say(command.clone()).await;
    assert_eq!(line(client.next_command().await), expected, "{command:?}");
}

#[test]
fn topics_are_found_where_they_are() {
    on_stage(BrokerConfig::default(), NativeConfig::default(), async |stage| {
        let mut client = Client::hello(stage.address).await;
        let here = "Connect(true) pulsar://localhost:6650 authoritative=true through=true";
        check(&mut client, lookup("t"), here).await;
        check(&mut client, lookup("persistent://public/default/never-heard-of"), here).await;
        check(&mut client, lookup("persistent://public/nowhere/t"), "Failed(true) TopicNotFound").await;
        check(&mut client, partitions("t"), "partitions 0").await;
        check(&mut client, partitions("persistent://public/nowhere/t"), "Failed(true) TopicNotFound").await;

        let list = |hash: Option<&str>| {
            Command::from(proto::CommandGetTopicsOfNamespace {
                request_id: 7,
                namespace: "public/default".into(),
                topics_hash: hash.map(str::to_owned),
                ..Default::default()
            })
        };
        check(&mut client, list(None), "[] 00000000 changed=true").await;
        client.open_producer(1, "b").await;
        client.open_producer(2, "a").await;
        let topics = ["persistent://public/default/a".to_owned(), "persistent://public/default/b".to_owned()];
        let hash = pulsar_proto::topics_hash::topics_hash(&topics);
        check(&mut client, list(None), &format!("{topics:?} {hash} changed=true")).await;
        check(&mut client, list(Some("0")), &format!("{topics:?} {hash} changed=true")).await;
        check(&mut client, list(Some(&hash)), &format!("[] {hash} changed=false")).await;
    });
}

#[test]
fn what_may_not_come_into_being_is_not_found() {
    let config = BrokerConfig { allow_auto_topic_creation: false, ..BrokerConfig::default() };
    on_stage(config, NativeConfig::default(), async |stage| {
        let mut client = Client::hello(stage.address).await;
        check(&mut client, partitions("missing"), "Failed(true) TopicNotFound").await;
        check(&mut client, producer(1, "missing"), "TopicNotFound").await;
        check(&mut client, subscribe(1, "missing"), "TopicNotFound").await;
        // The ids are free, and the connection is as good as before.
        check(&mut client, producer(1, "missing"), "TopicNotFound").await;
        check(&mut client, producer(1, "persistent://public/nowhere/t"), "TopicNotFound").await;
        client.assert_alive().await;
    });
}

#[test]
fn partitions_come_into_being_when_they_are_asked_for() {
    let config = BrokerConfig {
        auto_topic_creation_type: TopicType::Partitioned,
        default_num_partitions: 3,
        ..BrokerConfig::default()
    };
    on_stage(config, NativeConfig::default(), async |stage| {
        let mut client = Client::hello(stage.address).await;
        let quiet = proto::CommandPartitionedTopicMetadata {
            topic: "p".into(),
            request_id: 7,
            metadata_auto_creation_enabled: Some(false),
            ..Default::default()
        };
        check(&mut client, quiet.clone().into(), "Failed(true) TopicNotFound").await;
        check(&mut client, partitions("p"), "partitions 3").await;
        check(&mut client, quiet.into(), "partitions 3").await;
        client.open_producer(1, "persistent://public/default/p-partition-2").await;
    });
}

#[test]
fn lookups_beyond_the_limit_are_refused() {
    let config = BrokerConfig { max_concurrent_lookups: 0, ..BrokerConfig::default() };
    on_stage(config, NativeConfig::default(), async |stage| {
        let mut client = Client::hello(stage.address).await;
        check(&mut client, lookup("t"), "Failed(true) TooManyRequests").await;
        check(&mut client, partitions("t"), "Failed(true) TooManyRequests").await;
        client.open_producer(1, "t").await;
    });
}
