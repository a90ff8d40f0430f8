//! The Pulsar binary protocol as data: frames, commands, message metadata, batches, compression, names and ids.
//!
//! What lives here: everything needed to turn bytes into typed values and back (protocol version 21), without any I/O.
//! What it must never know: sockets, topics that live somewhere, ledgers on a disk, or how a broker decides.
//! Whatever reads bytes here has bounded memory and never panics: the bytes come from strangers.
//!
//! Read first: [`frame::FrameDecoder`] (bytes to commands), [`proto`] (the command types, written down in
//! `proto/PulsarApi.proto`), [`topic_name::TopicName`].
//! Tests: beside each module; golden bytes of the original in `tests/golden.rs`, hostile input in `tests/hostile.rs`,
//! the same for a fuzzer in `fuzz/`.

pub mod batch;
pub mod command;
pub mod compression;
pub mod entry_metadata;
pub mod frame;
pub mod hash;
pub mod message_id;
pub mod message_metadata;
mod required;
pub mod topic_name;
pub mod topics_hash;
pub mod wire;

/// The wire types, generated from `proto/PulsarApi.proto`.
///
/// An enum the reader does not know counts as absent: use the generated getters (`subscribe.sub_type()`), not the raw `i32` fields.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/pulsar.proto.rs"));
}

pub use command::{Command, DecodeError};
pub use frame::{Frame, FrameDecoder, FrameError, PayloadBlock};
pub use message_id::MessageId;
pub use topic_name::{Domain, NamespaceName, TopicName};

/// The protocol version Hulse speaks; CONNECTED carries the smaller of this and the client's.
pub const PROTOCOL_VERSION: i32 = 21;

/// The request id of an ERROR or CLOSE_* that answers no request (2^64 - 1, "-1" of the original).
pub const NO_REQUEST: u64 = u64::MAX;
