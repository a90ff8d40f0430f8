//! Namespaces and their policies, as far as something acts on them.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, put};
use broker::door::{Policies, RetentionPolicies, TopicsMode};
use serde::Deserialize;

use crate::reply::{self, Answer, ForceQuery, Refusal};
use crate::{Admin, path, policies};

pub(crate) fn routes() -> Router<Admin> {
    Router::new()
        .route("/{tenant}", get(list))
        .route("/{tenant}/{namespace}", get(read).put(create).delete(remove))
        .route("/{tenant}/{namespace}/topics", get(topics))
        .route("/{tenant}/{namespace}/bundles", get(bundles))
        .route("/{tenant}/{namespace}/retention", get(retention).post(set_retention).delete(clear_retention))
        .route("/{tenant}/{namespace}/unload", put(unload))
}

async fn list(State(admin): State<Admin>, Path(tenant): Path<String>) -> Answer {
    reply::json(admin.broker.namespaces(&tenant).await?)
}

async fn policies_of(admin: &Admin, tenant: &str, namespace: &str) -> Result<Policies, Refusal> {
    let name = path::namespace(tenant, namespace)?;
    let found = admin.broker.namespace(&name).await?;
    found.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "Namespace does not exist"))
}

async fn read(State(admin): State<Admin>, Path((tenant, namespace)): Path<(String, String)>) -> Answer {
    reply::json(policies_of(&admin, &tenant, &namespace).await?)
}

async fn create(State(admin): State<Admin>, Path((tenant, namespace)): Path<(String, String)>, body: Bytes) -> Answer {
    let policies = reply::body::<Policies>(&body)?;
    if let Some(policies) = &policies {
        policies::check(policies, &admin.broker.config().cluster)?;
    }
    admin.broker.create_namespace(&path::namespace(&tenant, &namespace)?, policies).await?;
    reply::done()
}

async fn remove(
    State(admin): State<Admin>,
    Path((tenant, namespace)): Path<(String, String)>,
    Query(query): Query<ForceQuery>,
) -> Answer {
    if query.force() {
        // `forceDeleteNamespaceAllowed` is false.
        let reason = "Broker doesn't allow forced deletion of namespaces";
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, reason));
    }
    admin.broker.delete_namespace(&path::namespace(&tenant, &namespace)?).await.map_err(|error| {
        // The original's code for a namespace that still has topics.
        Refusal::from(error).instead_of(StatusCode::PRECONDITION_FAILED, StatusCode::CONFLICT)
    })?;
    reply::done()
}

#[derive(Deserialize)]
struct TopicsQuery {
    mode: Option<String>,
    #[serde(rename = "includeSystemTopic")]
    include_system_topic: Option<bool>,
}

async fn topics(
    State(admin): State<Admin>,
    Path((tenant, namespace)): Path<(String, String)>,
    Query(query): Query<TopicsQuery>,
) -> Answer {
    let mode = match query.mode.as_deref() {
        None | Some("PERSISTENT") => TopicsMode::Persistent,
        Some("NON_PERSISTENT") => TopicsMode::NonPersistent,
        Some("ALL") => TopicsMode::All,
        Some(other) => {
            let reason = format!("mode `{other}` is unknown: expected PERSISTENT, NON_PERSISTENT or ALL");
            return Err(Refusal::new(StatusCode::BAD_REQUEST, reason));
        }
    };
    let name = path::namespace(&tenant, &namespace)?;
    reply::json(admin.broker.topics(&name, mode, query.include_system_topic.unwrap_or(false)).await?)
}

async fn bundles(State(admin): State<Admin>, Path((tenant, namespace)): Path<(String, String)>) -> Answer {
    reply::json(policies_of(&admin, &tenant, &namespace).await?.bundles)
}

async fn retention(State(admin): State<Admin>, Path((tenant, namespace)): Path<(String, String)>) -> Answer {
    match policies_of(&admin, &tenant, &namespace).await?.retention_policies {
        Some(retention) => reply::json(retention),
        // An unset policy is 200 with an empty body, which clients read as null.
        None => Ok(Default::default()),
    }
}

async fn set_retention(
    State(admin): State<Admin>,
    Path((tenant, namespace)): Path<(String, String)>,
    body: Bytes,
) -> Answer {
    let retention = reply::body::<RetentionPolicies>(&body)?;
    change_retention(&admin, &tenant, &namespace, retention).await
}

async fn clear_retention(State(admin): State<Admin>, Path((tenant, namespace)): Path<(String, String)>) -> Answer {
    change_retention(&admin, &tenant, &namespace, None).await
}

async fn change_retention(admin: &Admin, tenant: &str, namespace: &str, to: Option<RetentionPolicies>) -> Answer {
    if let Some(retention) = &to {
        policies::check_retention(retention)?;
    }
    let name = path::namespace(tenant, namespace)?;
    admin.broker.update_namespace(&name, |policies| policies.retention_policies.clone_from(&to)).await?;
    reply::done()
}

async fn unload(State(admin): State<Admin>, Path((tenant, namespace)): Path<(String, String)>) -> Answer {
    let name = path::namespace(&tenant, &namespace)?;
    for topic in admin.broker.topics(&name, TopicsMode::Persistent, true).await? {
        let topic = broker::door::TopicName::parse(&topic)
            .map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        admin.broker.unload_topic(&topic).await?;
    }
    reply::done()
}
