//! Names out of URL paths.

use axum::http::StatusCode;
use broker::door::{NamespaceName, TopicName};

use crate::reply::Refusal;

fn wrong(error: impl std::fmt::Display) -> Refusal {
    Refusal::new(StatusCode::PRECONDITION_FAILED, error.to_string())
}

pub(crate) fn namespace(tenant: &str, namespace: &str) -> Result<NamespaceName, Refusal> {
    NamespaceName::parse(&format!("{tenant}/{namespace}")).map_err(wrong)
}

/// `local` as decoded from the URL.
pub(crate) fn persistent(tenant: &str, namespace: &str, local: &str) -> Result<TopicName, Refusal> {
    TopicName::parse(&format!("persistent://{tenant}/{namespace}/{local}")).map_err(wrong)
}
