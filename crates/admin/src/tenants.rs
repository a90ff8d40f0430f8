//! Tenants.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use broker::door::TenantInfo;

use crate::Admin;
use crate::reply::{self, Answer, ForceQuery, Refusal};

pub(crate) fn routes() -> Router<Admin> {
    Router::new().route("/", get(list)).route("/{tenant}", get(read).put(create).post(update).delete(remove))
}

async fn list(State(admin): State<Admin>) -> Answer {
    reply::json(admin.broker.tenants().await?)
}

async fn read(State(admin): State<Admin>, Path(tenant): Path<String>) -> Answer {
    match admin.broker.tenant(&tenant).await? {
        Some(info) => reply::json(info),
        None => Err(Refusal::new(StatusCode::NOT_FOUND, "Tenant does not exist")),
    }
}

async fn create(State(admin): State<Admin>, Path(tenant): Path<String>, body: Bytes) -> Answer {
    let info = reply::body::<TenantInfo>(&body)?.unwrap_or_default();
    admin.broker.create_tenant(&tenant, info).await?;
    reply::done()
}

async fn update(State(admin): State<Admin>, Path(tenant): Path<String>, body: Bytes) -> Answer {
    let info = reply::body::<TenantInfo>(&body)?.unwrap_or_default();
    admin.broker.update_tenant(&tenant, info).await?;
    reply::done()
}

async fn remove(State(admin): State<Admin>, Path(tenant): Path<String>, Query(query): Query<ForceQuery>) -> Answer {
    if query.force() {
        // `forceDeleteTenantAllowed` is false.
        let reason = "Broker doesn't allow forced deletion of tenants";
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, reason));
    }
    admin.broker.delete_tenant(&tenant).await.map_err(|error| {
        // The original's code for a tenant that still has namespaces.
        Refusal::from(error).instead_of(StatusCode::PRECONDITION_FAILED, StatusCode::CONFLICT)
    })?;
    reply::done()
}
