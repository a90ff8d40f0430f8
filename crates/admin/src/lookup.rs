//! Lookup over HTTP.

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use broker::door::TopicName;
use serde::Deserialize;
use serde_json::json;

use crate::Admin;
use crate::reply::{self, Answer, Refusal};

pub(crate) fn routes() -> Router<Admin> {
    Router::new().route("/{domain}/{tenant}/{namespace}/{topic}", get(lookup))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LookupQuery {
    listener_name: Option<String>,
}

async fn lookup(
    State(admin): State<Admin>,
    Path((domain, tenant, namespace, local)): Path<(String, String, String, String)>,
    Query(query): Query<LookupQuery>,
    headers: HeaderMap,
) -> Answer {
    let named = headers.get("X-Pulsar-ListenerName").and_then(|name| name.to_str().ok());
    if let Some(listener) = query.listener_name.as_deref().or(named).filter(|name| !name.is_empty()) {
        let reason = format!("the broker do not have {listener} listener");
        return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, reason));
    }
    let topic = TopicName::parse(&format!("{domain}://{tenant}/{namespace}/{local}"))
        .map_err(|error| Refusal::new(StatusCode::PRECONDITION_FAILED, error.to_string()))?;
    let owner = admin.broker.lookup(&topic).await?;
    let mut answer = json!({
        "brokerUrl": owner.service_url,
        "httpUrl": owner.web_service_url,
        "nativeUrl": owner.service_url,
        "brokerUrlSsl": "",
    });
    if let Some(url) = owner.service_url_tls {
        answer["brokerUrlTls"] = url.into();
    }
    if let Some(url) = owner.web_service_url_tls {
        answer["httpUrlTls"] = url.into();
    }
    reply::json(answer)
}
