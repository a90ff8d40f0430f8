//! Persistent topics and their subscriptions.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post, put};
use broker::door::{PartitionedTopicMetadata, Position, TopicName, TopicsMode};
use serde::Deserialize;
use serde_json::json;

use crate::reply::{self, Answer, ForceQuery, Refusal};
use crate::{Admin, path};

type TopicPath = Path<(String, String, String)>;
type SubscriptionPath = Path<(String, String, String, String)>;

pub(crate) fn routes() -> Router<Admin> {
    Router::new()
        .route("/{tenant}/{namespace}", get(list))
        .route("/{tenant}/{namespace}/partitioned", get(list_partitioned))
        .route("/{tenant}/{namespace}/{topic}", put(create).delete(remove))
        .route(
            "/{tenant}/{namespace}/{topic}/partitions",
            get(partitions).put(create_partitions).post(update_partitions).delete(remove_partitions),
        )
        .route("/{tenant}/{namespace}/{topic}/stats", get(stats))
        .route("/{tenant}/{namespace}/{topic}/internalStats", get(internal_stats))
        .route("/{tenant}/{namespace}/{topic}/unload", put(unload))
        .route("/{tenant}/{namespace}/{topic}/lastMessageId", get(last_message_id))
        .route("/{tenant}/{namespace}/{topic}/subscriptions", get(subscriptions))
        .route(
            "/{tenant}/{namespace}/{topic}/subscription/{subscription}",
            put(create_subscription).merge(delete(remove_subscription)),
        )
        .route("/{tenant}/{namespace}/{topic}/subscription/{subscription}/skip_all", post(skip_all))
}

#[derive(Deserialize)]
struct ListQuery {
    #[serde(rename = "includeSystemTopic")]
    include_system_topic: Option<bool>,
}

fn topic(parts: &(String, String, String)) -> Result<TopicName, Refusal> {
    path::persistent(&parts.0, &parts.1, &parts.2)
}

async fn list(
    State(admin): State<Admin>,
    Path((tenant, namespace)): Path<(String, String)>,
    Query(query): Query<ListQuery>,
) -> Answer {
    let name = path::namespace(&tenant, &namespace)?;
    let system = query.include_system_topic.unwrap_or(false);
    reply::json(admin.broker.topics(&name, TopicsMode::Persistent, system).await?)
}

async fn list_partitioned(State(admin): State<Admin>, Path((tenant, namespace)): Path<(String, String)>) -> Answer {
    reply::json(admin.broker.partitioned_topics(&path::namespace(&tenant, &namespace)?).await?)
}

async fn create(State(admin): State<Admin>, Path(parts): TopicPath, body: Bytes) -> Answer {
    if reply::body::<BTreeMap<String, String>>(&body)?.is_some_and(|properties| !properties.is_empty()) {
        return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "topic properties are not supported yet"));
    }
    admin.broker.create_topic(&topic(&parts)?).await?;
    reply::done()
}

async fn remove(State(admin): State<Admin>, Path(parts): TopicPath, Query(query): Query<ForceQuery>) -> Answer {
    admin.broker.delete_topic(&topic(&parts)?, query.force()).await?;
    reply::done()
}

async fn partitions(State(admin): State<Admin>, Path(parts): TopicPath) -> Answer {
    let topic = topic(&parts)?;
    match admin.broker.partitioned_metadata(&topic).await? {
        Some(metadata) => reply::json(metadata),
        None => {
            let exists = admin.broker.topics(&topic.namespace(), TopicsMode::Persistent, true).await?;
            if exists.iter().any(|name| name == topic.as_str()) {
                reply::json(PartitionedTopicMetadata::default())
            } else {
                Err(Refusal::new(StatusCode::NOT_FOUND, format!("Topic {} not found", topic.as_str())))
            }
        }
    }
}

/// A plain number, or the whole metadata with its own content type.
#[derive(Deserialize)]
#[serde(untagged)]
enum Partitions {
    Count(i64),
    Metadata(PartitionedTopicMetadata),
}

async fn create_partitions(State(admin): State<Admin>, Path(parts): TopicPath, body: Bytes) -> Answer {
    let metadata = match reply::body::<Partitions>(&body)? {
        Some(Partitions::Count(count)) => {
            PartitionedTopicMetadata { partitions: u32::try_from(count).unwrap_or(0), ..Default::default() }
        }
        Some(Partitions::Metadata(metadata)) => metadata,
        None => PartitionedTopicMetadata::default(),
    };
    if metadata.partitions == 0 {
        return Err(Refusal::new(StatusCode::NOT_ACCEPTABLE, "Number of partitions should be greater than 0"));
    }
    admin.broker.create_partitioned_topic(&topic(&parts)?, metadata).await?;
    reply::done()
}

async fn update_partitions(State(admin): State<Admin>, Path(parts): TopicPath, body: Bytes) -> Answer {
    let count = reply::body::<u32>(&body)?.unwrap_or(0);
    admin.broker.update_partitions(&topic(&parts)?, count).await.map_err(|error| {
        // The original's code for fewer partitions than now.
        Refusal::from(error).instead_of(StatusCode::PRECONDITION_FAILED, StatusCode::UNPROCESSABLE_ENTITY)
    })?;
    reply::done()
}

async fn remove_partitions(
    State(admin): State<Admin>,
    Path(parts): TopicPath,
    Query(query): Query<ForceQuery>,
) -> Answer {
    admin.broker.delete_partitioned_topic(&topic(&parts)?, query.force()).await?;
    reply::done()
}

async fn stats(State(admin): State<Admin>, Path(parts): TopicPath) -> Answer {
    reply::json(admin.broker.topic_stats(&topic(&parts)?).await?)
}

async fn internal_stats(State(admin): State<Admin>, Path(parts): TopicPath) -> Answer {
    reply::json(admin.broker.topic_internal_stats(&topic(&parts)?).await?)
}

async fn unload(State(admin): State<Admin>, Path(parts): TopicPath) -> Answer {
    admin.broker.unload_topic(&topic(&parts)?).await?;
    reply::done()
}

async fn last_message_id(State(admin): State<Admin>, Path(parts): TopicPath) -> Answer {
    let topic = topic(&parts)?;
    let position = admin.broker.last_message_id(&topic).await?;
    let partition = topic.partition_index().map_or(-1, i64::from);
    reply::json(json!({ "ledgerId": position.ledger.0, "entryId": position.entry.0, "partitionIndex": partition }))
}

async fn subscriptions(State(admin): State<Admin>, Path(parts): TopicPath) -> Answer {
    reply::json(admin.broker.subscriptions(&topic(&parts)?).await?)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MessageIdBody {
    ledger_id: i64,
    entry_id: i64,
    #[serde(default)]
    properties: BTreeMap<String, String>,
}

async fn create_subscription(
    State(admin): State<Admin>,
    Path((tenant, namespace, local, subscription)): SubscriptionPath,
    body: Bytes,
) -> Answer {
    let at = match reply::body::<MessageIdBody>(&body)? {
        Some(id) if !id.properties.is_empty() => {
            let reason = "properties of a subscription created over REST are not supported yet";
            return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, reason));
        }
        Some(id) => Position::new(id.ledger_id, id.entry_id),
        None => Position::LATEST,
    };
    let topic = path::persistent(&tenant, &namespace, &local)?;
    admin.broker.create_subscription(&topic, &subscription, at).await?;
    reply::done()
}

async fn remove_subscription(
    State(admin): State<Admin>,
    Path((tenant, namespace, local, subscription)): SubscriptionPath,
    Query(query): Query<ForceQuery>,
) -> Answer {
    let topic = path::persistent(&tenant, &namespace, &local)?;
    admin.broker.delete_subscription(&topic, &subscription, query.force()).await?;
    reply::done()
}

async fn skip_all(
    State(admin): State<Admin>,
    Path((tenant, namespace, local, subscription)): SubscriptionPath,
) -> Answer {
    admin.broker.skip_all(&path::persistent(&tenant, &namespace, &local)?, &subscription).await?;
    reply::done()
}
