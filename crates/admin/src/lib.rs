//! The HTTP door: admin REST, lookup, health and metrics.
//!
//! What lives here: the original's paths, status codes and JSON on top of the broker's typed door. What it must never
//! know: how topics work, command frames, ledgers. Read first: [`serve`], then `reply` (the one place that chooses
//! status codes). Tests: end to end with the real binary (`tests/e2e/test_standalone.py`), tables beside the code.

mod brokers;
mod clusters;
mod health;
mod lookup;
mod metrics;
mod namespaces;
mod path;
mod policies;
mod reply;
mod tenants;
mod topics;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use broker::Broker;

pub use metrics::Sample;

/// Largest request body that is read, in bytes; policies and topic lists are far smaller.
const MAX_BODY_BYTES: usize = 1 << 20;

/// What the HTTP door stands on.
#[derive(Clone)]
pub struct Admin {
    broker: Broker,
    inner: Arc<Inner>,
}

struct Inner {
    /// `/status.html` answers OK only while this file exists; `None`: always.
    status_file: Option<PathBuf>,
    /// Version of the original that clients are told.
    version: &'static str,
    /// Samples of the rooms below the broker (storage, metadata, process), gathered when asked.
    samples: Box<dyn Fn() -> Vec<Sample> + Send + Sync>,
}

impl Admin {
    /// `samples` is called for each scrape and must be cheap.
    pub fn new(
        broker: Broker,
        status_file: Option<PathBuf>,
        version: &'static str,
        samples: impl Fn() -> Vec<Sample> + Send + Sync + 'static,
    ) -> Self {
        Self { broker, inner: Arc::new(Inner { status_file, version, samples: Box::new(samples) }) }
    }
}

/// Answers requests on `listener` until `stop` resolves; those under way are answered first.
pub async fn serve(
    listener: tokio::net::TcpListener,
    admin: Admin,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(admin)).with_graceful_shutdown(stop).await
}

/// Every path that is served; all others answer 404 as the original does.
fn router(admin: Admin) -> Router {
    Router::new()
        .nest("/admin/v2/brokers", brokers::routes())
        .nest("/admin/v2/clusters", clusters::routes())
        .nest("/admin/v2/tenants", tenants::routes())
        .nest("/admin/v2/namespaces", namespaces::routes())
        .nest("/admin/v2/persistent", topics::routes())
        .nest("/lookup/v2/topic", lookup::routes())
        .merge(metrics::routes())
        .merge(brokers::status_routes())
        .fallback(reply::unknown_path)
        .method_not_allowed_fallback(reply::wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(admin)
}
