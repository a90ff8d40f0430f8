//! Lookup over HTTP.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use broker::door::TopicName;
use serde_json::json;

use crate::Admin;
use crate::reply::{self, Answer, Refusal};

pub(crate) fn routes() -> Router<Admin> {
    Router::new().route("/{domain}/{tenant}/{namespace}/{topic}", get(lookup))
}

async fn lookup(
    State(admin): State<Admin>,
    Path((domain, tenant, namespace, local)): Path<(String, String, String, String)>,
) -> Answer {
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
