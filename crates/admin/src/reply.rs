//! Answers: the one place that chooses status codes for what the broker says.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use broker::{BrokerError, BrokerErrorKind};
use serde_json::json;

/// A refused request.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    reason: String,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// `{"reason":"…"}`
    Json,
    Text,
}

pub(crate) type Answer = Result<Response, Refusal>;

impl Refusal {
    pub(crate) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), form: Form::Json }
    }

    /// Puts an endpoint's own code where the original has one; refusals of another status stay as they are.
    pub(crate) fn instead_of(self, usual: StatusCode, own: StatusCode) -> Self {
        if self.status == usual { Self { status: own, ..self } } else { self }
    }
}

#[cfg(test)]
impl Refusal {
    /// Code and reason.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.status.as_u16(), self.reason)
    }
}

impl From<BrokerError> for Refusal {
    fn from(error: BrokerError) -> Self {
        use BrokerErrorKind as Kind;
        let status = match error.kind {
            Kind::TopicNotFound | Kind::SubscriptionNotFound | Kind::ConsumerNotFound | Kind::NotFound => {
                StatusCode::NOT_FOUND
            }
            Kind::AlreadyExists => StatusCode::CONFLICT,
            Kind::PreconditionFailed | Kind::InvalidTopicName | Kind::InvalidArgument => {
                StatusCode::PRECONDITION_FAILED
            }
            Kind::ConsumerBusy | Kind::ProducerBusy => StatusCode::PRECONDITION_FAILED,
            Kind::NotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Kind::TopicTerminated => StatusCode::NOT_ACCEPTABLE,
            Kind::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Kind::ServiceNotReady => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Unknown
            | Kind::Metadata
            | Kind::Persistence
            | Kind::ProducerBlockedQuotaExceeded
            | Kind::IncompatibleSchema
            | Kind::ConsumerAssign
            | Kind::ProducerFenced => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, reason: error.message, form: Form::Json }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self.form {
            Form::Json => (self.status, Json(json!({ "reason": self.reason }))).into_response(),
            Form::Text => (self.status, self.reason).into_response(),
        }
    }
}

/// What every deletion may be asked.
#[derive(serde::Deserialize)]
pub(crate) struct ForceQuery {
    force: Option<bool>,
}

impl ForceQuery {
    /// Whether to delete what is in use, too.
    pub(crate) fn force(&self) -> bool {
        self.force.unwrap_or(false)
    }
}

/// 204, the original's answer to almost every successful change.
pub(crate) fn done() -> Answer {
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(crate) fn json<T: serde::Serialize>(value: T) -> Answer {
    Ok(Json(value).into_response())
}

pub(crate) fn text(body: impl Into<String>) -> Answer {
    Ok(([(header::CONTENT_TYPE, "text/plain")], body.into()).into_response())
}

/// The original's web server answers with a page of its own here, so clients fall back on the status line.
pub(crate) async fn unknown_path() -> Response {
    (StatusCode::NOT_FOUND, Html("<html><body><h2>HTTP ERROR 404 Not Found</h2></body></html>")).into_response()
}

pub(crate) async fn wrong_method() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, Html("<html><body><h2>HTTP ERROR 405 Method Not Allowed</h2></body></html>"))
        .into_response()
}

/// Reads a JSON body: `None` when it is empty, 400 with plain text when it is malformed.
pub(crate) fn body<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<Option<T>, Refusal> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    serde_json::from_slice(bytes).map(Some).map_err(|error| Refusal {
        status: StatusCode::BAD_REQUEST,
        reason: format!("cannot read the JSON body: {error}"),
        form: Form::Text,
    })
}
