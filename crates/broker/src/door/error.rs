//! What a door may answer when the broker says no.

use std::fmt;

/// Why a request was refused: one kind for each answer a door can give. The doors translate it by one exhaustive
/// `match` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BrokerErrorKind {
    /// Nothing more precise is known.
    Unknown,
    /// The metadata store failed, or an id names nothing. Clients retry.
    Metadata,
    /// A durable write failed or its outcome is unknown. Clients reconnect and send again.
    Persistence,
    ConsumerBusy,
    /// Not here or not now: fenced, loading, not owned, shutting down. Clients look up again.
    ServiceNotReady,
    ProducerBlockedQuotaExceeded,
    TopicNotFound,
    SubscriptionNotFound,
    ConsumerNotFound,
    TooManyRequests,
    TopicTerminated,
    ProducerBusy,
    InvalidTopicName,
    IncompatibleSchema,
    ConsumerAssign,
    NotAllowed,
    ProducerFenced,
    /// Admin only: the object to be created is there.
    AlreadyExists,
    /// Admin only: the tenant, namespace or cluster is not there.
    NotFound,
    /// Admin only: the object cannot be changed in its present state (connected clients, non-empty namespace).
    PreconditionFailed,
    /// Admin only: a value is not acceptable.
    InvalidArgument,
}

/// A refused request: its kind for the peer's reaction, and a text for a human.
#[derive(Clone, Debug, thiserror::Error)]
pub struct BrokerError {
    pub kind: BrokerErrorKind,
    pub message: String,
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl BrokerError {
    pub fn new(kind: BrokerErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn stopping() -> Self {
        Self::new(BrokerErrorKind::ServiceNotReady, "the broker is stopping")
    }
}
