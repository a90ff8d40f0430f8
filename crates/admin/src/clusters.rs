//! Clusters.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use broker::door::ClusterData;

use crate::Admin;
use crate::reply::{self, Answer, Refusal};

pub(crate) fn routes() -> Router<Admin> {
    Router::new().route("/", get(list)).route("/{cluster}", get(read).put(create).post(update))
}

async fn list(State(admin): State<Admin>) -> Answer {
    reply::json(admin.broker.clusters().await?)
}

async fn read(State(admin): State<Admin>, Path(cluster): Path<String>) -> Answer {
    match admin.broker.cluster(&cluster).await? {
        Some(data) => reply::json(data),
        None => Err(Refusal::new(StatusCode::NOT_FOUND, "Cluster does not exist")),
    }
}

async fn create(State(admin): State<Admin>, Path(cluster): Path<String>, body: Bytes) -> Answer {
    let data = reply::body::<ClusterData>(&body)?.unwrap_or_default();
    admin.broker.create_cluster(&cluster, data).await?;
    Ok(StatusCode::OK.into_response())
}

async fn update(State(admin): State<Admin>, Path(cluster): Path<String>, body: Bytes) -> Answer {
    let data = reply::body::<ClusterData>(&body)?.unwrap_or_default();
    admin.broker.update_cluster(&cluster, data).await?;
    Ok(StatusCode::OK.into_response())
}
