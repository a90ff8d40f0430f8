//! One storage node: entries of ledgers, kept in one append-only log that is written once.
//!
//! Lives here: the log's files (`format`, `index`, `scan`, `open`), the rules about keys, fences, LACs and deletions and the group
//! commit ([`BookieCore`]), reads ([`BookieReader`]), and the thread that runs the core ([`Bookie`]).
//! Must never know: topics, cursors, ensembles, the metadata store; how a request travelled.
//! Read first: [`Request`], [`BookieCore`], then `core/plan.rs` for the decisions, `format.rs` for the bytes, `state.rs` for
//! what is in memory and `core/segments.rs` for how segments come and go.
//! Tests: `tests/` (rules, crashes at every byte, damage, full and failing disks, golden folder), tables beside the decisions.
//!
//! The log is a folder of segments. A segment takes commits until it is full, is then sealed with an index, and is freed whole when all
//! ledgers with entries in it are deleted. **Invariant:** a block that holds acknowledged bytes is not given other bytes before every byte
//! in the segment is dead and what the segment alone knew (keys, fences, LACs, deletion marks) is durable elsewhere. **Invariant:** the
//! commits alone rebuild everything; an index is only a short cut. Left for later: compaction of segments that live in part.

mod commit;
mod config;
mod core;
mod error;
mod format;
mod index;
mod open;
mod reader;
mod scan;
mod shell;
mod state;
mod stats;

pub use crate::config::BookieConfig;
pub use crate::core::{
    BookieCore, Chore, Done, Request, SYNC_COMMIT, SYNC_FREED_NAME, SYNC_SEGMENT_HEADER, SYNC_SEGMENT_NAME,
};
pub use crate::error::{Damage, OpenError, Recovered};
pub use crate::open::{SYNC_FOUND_COMMITS, SYNC_FOUND_NAMES, SYNC_LOG_FOLDER};
pub use crate::reader::{BookieReader, LastAddConfirmed, LogEnd};
pub use crate::shell::Bookie;
pub use crate::stats::Stats;

/// Every sync that the log issues. Leaving out any of them can lose what was acknowledged.
pub const SYNC_POINTS: [disk::SyncPoint; 7] = [
    SYNC_COMMIT,
    SYNC_SEGMENT_HEADER,
    SYNC_SEGMENT_NAME,
    SYNC_FREED_NAME,
    SYNC_LOG_FOLDER,
    SYNC_FOUND_NAMES,
    SYNC_FOUND_COMMITS,
];
