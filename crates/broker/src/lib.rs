//! Topics: who may write to them, who gets what is in them, and who owns them.
//!
//! Lives here: tenants, namespaces and bundle ownership (`ownership`), the shards that own topics, topics with
//! their producers, subscriptions and dispatchers, statistics; in [`native`] the door of the binary protocol.
//! Must never know: command frames and error codes (only `native` does), HTTP, how a bookie stores, files.
//! Read first: [`door`] (what may be asked), then `shard`, `topic`, `subscription`.
//! Tests: beside the cores, `tests/end_to_end/` through the door, and `native/tests/` through a socket.

pub mod door;
pub mod native;
pub mod stats;

mod config;
mod mailbox;
mod outboxes;
mod ownership;
mod shard;
mod subscription;
mod tenancy;
mod time_text;
mod topic;

pub use config::{BrokerConfig, TopicType};
pub use door::{Broker, BrokerError, BrokerErrorKind};
