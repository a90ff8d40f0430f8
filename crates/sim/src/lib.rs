//! Plays the product's own cores on a machine that crashes, and checks that every promise was kept.
//!
//! What lives here: histories (seeded workloads with a model of what was promised: [`Subject`]), the harness that cuts
//! them at every write, lets disks fail and leaves out single syncs, and a single-threaded executor. The disk is
//! [`disk::simulated::SimDisk`].
//!
//! What this room must never contain: a second implementation of anything in the product. It has no clock, no thread and
//! no randomness but the seed.
//!
//! Read first: [`Subject`], [`Plan`], [`promises::Promises`]. Tests: `tests/node.rs` and `tests/metadata.rs` play the
//! histories. One that breaks a promise prints its story and its [`Plan`], which plays it again. A new sync point goes into
//! the list of its crate (`bookie::SYNC_POINTS`, `metadata::sync_points::ALL`): the tests leave out each of them and must
//! then find something lost.

mod broken;
mod executor;
mod harness;
mod machine;
mod metadata_store;
mod node;
pub mod promises;
mod sorted_writes;

pub use broken::Broken;
pub use executor::{Executor, run};
pub use harness::{
    Counts, Plan, Played, Record, Subject, Tally, Trouble, Violation, cut_everywhere, find_missing_sync, play, tell,
};
pub use metadata_store::MetadataHistory;
pub use node::NodeHistory;
