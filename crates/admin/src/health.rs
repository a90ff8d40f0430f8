//! The health check: a message goes through this broker's own topic and its storage.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::StatusCode;
use broker::Broker;
use broker::door::{NewProducer, Outgoing, Peer, Publish, TopicName};
use bytes::Bytes;
use pulsar_proto::PayloadBlock;
use pulsar_proto::proto::MessageMetadata;

use crate::reply::Refusal;

/// The original's client gives up after as long.
const DEADLINE: Duration = Duration::from_secs(30);

/// Publishes one message to `persistent://pulsar/<broker id>/healthcheck` and returns once it is durable.
pub(crate) async fn check(broker: &Broker) -> Result<(), Refusal> {
    tokio::time::timeout(DEADLINE, publish(broker)).await.unwrap_or_else(|_| {
        Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no receipt for the health check's message in 30 s"))
    })
}

async fn publish(broker: &Broker) -> Result<(), Refusal> {
    let name = format!("persistent://pulsar/{}/healthcheck", broker.config().broker_id);
    let topic =
        TopicName::parse(&name).map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let outbox = broker.new_outbox();
    let request = NewProducer {
        topic,
        producer_id: 0,
        name: None,
        epoch: 0,
        user_provided_name: false,
        access_mode: Default::default(),
        topic_epoch: None,
        encrypted: false,
        metadata: BTreeMap::new(),
        initial_subscription: None,
        supports_partial_producer: false,
        peer: Peer::default(),
        outbox: outbox.clone(),
    };
    let (producer, created) = broker.create_producer(request).await?;
    let (payload, payload_crc) = message(&created.name)?;
    producer.send(Publish {
        sequence_id: 0,
        highest_sequence_id: None,
        messages: 1,
        payload,
        payload_crc,
        is_chunk: false,
    });
    let mut answers = Vec::new();
    let result = loop {
        outbox.ready().await;
        outbox.take(&mut answers);
        let answer = answers.drain(..).find_map(|outgoing| match outgoing {
            Outgoing::Receipt { .. } => Some(Ok(())),
            Outgoing::SendError { message, .. } => {
                Some(Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, message.to_string())))
            }
            _ => None,
        });
        if let Some(answer) = answer {
            break answer;
        }
    };
    producer.close().await;
    result
}

fn message(producer: &str) -> Result<(Bytes, u32), Refusal> {
    let metadata = MessageMetadata { producer_name: producer.to_owned(), ..Default::default() };
    let block = PayloadBlock::build(&metadata, b"health");
    let crc = block.verify().map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok((block.bytes().clone(), crc))
}
