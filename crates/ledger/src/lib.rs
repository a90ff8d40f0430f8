//! The BookKeeper client: ledgers, their writers, their recovery, and reading them.
//!
//! Lives here: who may add and when an entry counts as written ([`LedgerWriter`]), where a ledger ends whose writer is gone
//! ([`Recovery`]), and the slow operations around both: create, open, close, delete, read, list ([`Ledgers`]).
//! Must never know: topics, cursors, managed ledgers, how a bookie stores or a store replicates. A bookie is reached through
//! [`BookieAccess`] alone. Nothing here spawns, sleeps or needs a runtime: any executor can poll these futures.
//! Read first: [`BookieAccess`], [`LedgerWriter`], [`Ledgers`].
//! Tests: `writer/tests.rs` and `recovery/tests.rs` (tables over the cores), `tests/` (a scripted bookie and a metadata store
//! in memory).
//!
//! **Invariants.** Entries are confirmed in order, each by `ack_quorum` different bookies, and none after fencing. A ledger's
//! end is decided once, by compare-and-set on its metadata. Only a proof of absence ends a recovery; a damaged entry, an
//! unknown state or no answer never does. A listing is complete or an error.

mod access;
mod error;
mod initialize;
mod ledgers;
mod list;
mod recover;
mod recovery;
mod writer;

pub use access::BookieAccess;
pub use bookkeeper_proto::Fenced;
pub use error::LedgerError;
pub use initialize::initialize;
pub use ledgers::{LedgerHandle, Ledgers, LedgersConfig, Verify};
pub use recovery::{Recovery, RecoveryEffect, RecoveryError, RecoveryEvent};
pub use writer::{AddError, LedgerWriter, NewAdd, NotOpen, Quorums, WriterEffect, WriterEvent};
