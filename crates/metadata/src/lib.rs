//! Where a cluster keeps what it knows about itself: a tree of small versioned nodes.
//!
//! What lives here: the [`MetadataStore`] trait (compare-and-set by version, ephemeral and sequential nodes, recursive
//! watches, sessions) and the stores behind it: [`MemoryStore`] for tests and [`EmbeddedStore`], one file on the local
//! disk, for `standalone`. The trait is what ZooKeeper and etcd can also keep, no more.
//!
//! What this room must never know: what a node's bytes mean. Ledgers, topics and brokers are other rooms' words.
//!
//! Read first: [`MetadataStore`], [`MetadataError`], [`Event`]; then `tree` (the rules of the tree, one place for every
//! local store) and `embedded` (how a commit becomes durable).
//!
//! Tests: [`conformance`] holds one function per rule of the trait; `tests/conformance.rs` runs it against every store,
//! `tests/crash.rs` cuts the embedded store's disk at every write, `tests/embedded.rs` is about its file.
//!
//! **Invariants.** Every parent of a node exists. A write whose future returned `Ok` survives `kill -9` and power loss. A
//! write whose outcome is not known is never reported as failed. A sequence number is never given out twice.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub mod conformance;
mod embedded;
mod memory;
mod path;
mod session;
mod tree;
mod watch;

pub use embedded::{EmbeddedStore, Mode, OpenError, StoreStats, sync_points};
pub use memory::MemoryStore;
pub use path::{MAX_PATH_BYTES, parent_of};
pub use session::{Session, SessionState, SessionWatch};
pub use watch::{Event, WATCH_QUEUE_EVENTS, Watch};

/// Largest value of a node. ZooKeeper's own default is 1 MiB, so portable callers stay well below.
pub const MAX_VALUE_BYTES: usize = 8 << 20;

/// Milliseconds since the Unix epoch. Stores ask it for the created and modified times, and for nothing else.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// A tree of nodes, each with a value and a version.
///
/// Paths are absolute (`/a/b`), without empty components or a trailing `/`. The root `/` always exists, can be read, and
/// cannot be written. A future that is dropped after its first poll may or may not have had its effect.
#[async_trait]
pub trait MetadataStore: Send + Sync {
    /// The node at `path`, or `None`. Sees every write that was acknowledged before the call.
    async fn get(&self, path: &str) -> Result<Option<Node>, MetadataError>;

    /// Writes a node's value if its version is as expected. A node that comes into being is persistent, starts at version
    /// 0, and brings its missing parents (with empty values) along; an existing ephemeral node stays ephemeral.
    async fn put(&self, path: &str, value: Bytes, expected: Expected) -> Result<Stat, MetadataError>;

    /// Creates a node; [`MetadataError::BadVersion`] if it is there already (never for sequential modes). Missing
    /// parents come along, persistent and empty. An ephemeral node cannot have children.
    ///
    /// Sequential modes append the parent's next number as `%010d` directly to `path` (`/ledgers/idgen/ID-` becomes
    /// `/ledgers/idgen/ID-0000000000`); the whole path is in [`Created`].
    async fn create(&self, path: &str, value: Bytes, mode: CreateMode) -> Result<Created, MetadataError>;

    /// Deletes a node without children. [`Expected::Absent`] makes no sense here and is answered with `BadVersion`.
    async fn delete(&self, path: &str, expected: Expected) -> Result<(), MetadataError>;

    /// Deletes a node and all below it; no error if there is none. Remote stores may stop half-way when they fail:
    /// call it again.
    async fn delete_recursive(&self, path: &str) -> Result<(), MetadataError>;

    /// Names (not paths) of the nodes directly below `path`, sorted by their bytes; empty if there is no such node.
    async fn children(&self, path: &str) -> Result<Vec<String>, MetadataError>;

    /// Whether there is a node.
    async fn exists(&self, path: &str) -> Result<bool, MetadataError>;

    /// Changes of the node `prefix` and of all below it (`/a` covers `/a` and `/a/b`, not `/ab`), from now on, in the
    /// order they took effect. An event is delivered after a read would see the change.
    fn watch(&self, prefix: &str) -> Watch;

    /// The session that owns this store's ephemeral nodes.
    fn session(&self) -> SessionWatch;
}

/// A node as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub value: Bytes,
    pub stat: Stat,
}

/// What is known about a node besides its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Counts this node's writes from 0; starts anew when a node is deleted and created again.
    pub version: i64,
    pub created_ms: u64,
    pub modified_ms: u64,
    /// Goes away with the session that created it.
    pub ephemeral: bool,
    /// Ephemeral and created by this store's present session.
    pub mine: bool,
}

/// Which version a write expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Whatever is there, or nothing.
    Any,
    /// No node.
    Absent,
    /// A node with exactly this version.
    Version(i64),
}

/// How long a created node lives and who names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    Persistent,
    Ephemeral,
    PersistentSequential,
    EphemeralSequential,
}

impl CreateMode {
    pub fn is_ephemeral(self) -> bool {
        matches!(self, CreateMode::Ephemeral | CreateMode::EphemeralSequential)
    }

    pub fn is_sequential(self) -> bool {
        matches!(self, CreateMode::PersistentSequential | CreateMode::EphemeralSequential)
    }
}

/// A node that has just come into being.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// With the number that a sequential mode appended.
    pub path: String,
    pub stat: Stat,
}

/// Why an operation had no (known) effect.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MetadataError {
    /// The path itself is wrong; the same call will always fail.
    #[error("cannot use metadata path `{path}`: {reason}")]
    InvalidPath { path: String, reason: &'static str },
    #[error("value for metadata node `{path}` has {size} bytes: at most {MAX_VALUE_BYTES} are allowed")]
    TooLarge { path: String, size: usize },
    /// Lost a race (or: is there already). Read again, decide again.
    #[error("metadata node `{path}` is not as expected: wanted {expected:?}, found version {found:?}")]
    BadVersion { path: String, expected: Expected, found: Option<i64> },
    #[error("no metadata node `{path}`")]
    NotFound { path: String },
    #[error("metadata node `{path}` has children")]
    NotEmpty { path: String },
    #[error("metadata node `{path}` is ephemeral and cannot have children")]
    EphemeralParent { path: String },
    /// The session is over and with it its ephemeral nodes; nothing was written.
    #[error("the metadata session is lost")]
    SessionLost,
    /// The write may have taken effect, now or later: read before deciding anything.
    #[error("the outcome of the metadata write is unknown: {reason}")]
    OutcomeUnknown { reason: Arc<str> },
    /// Nothing was written; worth trying again once there is room.
    #[error("cannot write metadata: only {available_bytes} bytes are left on the disk; free some space")]
    Full { available_bytes: u64 },
    /// An earlier commit failed. The store takes no more writes until the process is restarted.
    #[error("metadata store takes no more writes: {reason}; restart the process once the disk is healthy")]
    Stopped { reason: Arc<str> },
    #[error("metadata store is closed")]
    Closed,
    /// A read failed, or a write before anything could have taken effect.
    #[error("metadata I/O failed: {0}")]
    Io(#[source] Arc<io::Error>),
}

impl MetadataError {
    /// Another writer was first: `BadVersion`, which is also how "exists already" is told.
    pub fn is_bad_version(&self) -> bool {
        matches!(self, MetadataError::BadVersion { .. })
    }

    pub fn is_not_found(&self) -> bool {
        matches!(self, MetadataError::NotFound { .. })
    }

    /// The write may have happened.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, MetadataError::OutcomeUnknown { .. })
    }

    /// Nothing happened, and the same call may succeed later without the caller changing anything.
    pub fn is_retryable(&self) -> bool {
        matches!(self, MetadataError::Full { .. } | MetadataError::SessionLost)
    }
}
