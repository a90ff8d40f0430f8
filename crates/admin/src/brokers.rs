//! This broker: version, readiness, health.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::json;

use crate::reply::{self, Answer, Refusal};
use crate::{Admin, health};

pub(crate) fn routes() -> Router<Admin> {
    Router::new()
        .route("/", get(active))
        .route("/{cluster}", get(active_in))
        .route("/health", get(health_check))
        .route("/ready", get(ready))
        .route("/version", get(version))
        .route("/leaderBroker", get(leader))
}

pub(crate) fn status_routes() -> Router<Admin> {
    Router::new().route("/status.html", get(status))
}

async fn active(State(admin): State<Admin>) -> Answer {
    reply::json([&admin.broker.config().broker_id])
}

async fn active_in(State(admin): State<Admin>, Path(cluster): Path<String>) -> Answer {
    match admin.broker.cluster(&cluster).await? {
        Some(_) if cluster == admin.broker.config().cluster => active(State(admin)).await,
        Some(_) => reply::json([""; 0]),
        None => Err(Refusal::new(StatusCode::NOT_FOUND, "Cluster does not exist")),
    }
}

async fn health_check(State(admin): State<Admin>) -> Answer {
    health::check(&admin.broker).await?;
    reply::text("ok")
}

async fn ready() -> Answer {
    reply::text("ok")
}

async fn version(State(admin): State<Admin>) -> Answer {
    reply::text(admin.inner.version)
}

async fn leader(State(admin): State<Admin>) -> Answer {
    let config = admin.broker.config();
    reply::json(json!({ "brokerId": config.broker_id, "serviceUrl": config.web_service_url }))
}

async fn status(State(admin): State<Admin>) -> Answer {
    if admin.inner.status_file.as_ref().is_some_and(|file| !file.exists()) {
        return Err(Refusal::new(StatusCode::NOT_FOUND, "the status file does not exist"));
    }
    reply::text("OK")
}
