//! Why a connection ends.

use std::io;

use pulsar_proto::{FrameError, proto::base_command::Type};

use super::{admission::Refused, session::Breach};

/// Every reason but the first five is the peer's fault: there is nothing sensible to answer, so the connection is closed
/// without a word, as the original does.
#[derive(Debug, thiserror::Error)]
pub(super) enum CloseReason {
    #[error("closed by the peer")]
    ByPeer,
    #[error("lost")]
    Lost(#[source] io::Error),
    #[error("the broker is stopping")]
    Stopping,
    #[error("refused: {0}")]
    Refused(Refused),
    /// Its unread messages keep others from getting theirs. They are sent again when it comes back.
    #[error("the peer has stopped reading while others wait for the memory that its messages take")]
    NotReading,
    #[error(transparent)]
    Session(Breach),
    #[error("cannot read a frame")]
    Frame(#[from] FrameError),
    #[error("command {0:?} is not for a broker")]
    NotForBroker(Type),
    #[error("command {0:?} lacks a required field, or has an unknown value in it")]
    MissingField(Type),
    #[error("SEND for producer {0}, which is not open")]
    NoProducer(u64),
    #[error("FLOW without permits for consumer {0}")]
    NoPermits(u64),
    #[error("cannot parse namespace `{0}`")]
    BadNamespace(String),
    /// It would not understand that only one of its producers or consumers is closed.
    #[error("a client of protocol version {0} must be closed as a whole")]
    TooOldToClosePart(i32),
}

impl CloseReason {
    /// Whether what was already said should still reach the peer.
    pub(super) fn is_polite(&self) -> bool {
        matches!(self, Self::Stopping | Self::Refused(_))
    }
}
