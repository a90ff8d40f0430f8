//! The formats of Apache BookKeeper: what an entry, a ledger's metadata and a ledger's path look like, and the words in
//! which a bookie and its clients speak to each other.
//!
//! Lives here: entry header and digests ([`entry`]), the add operation and a bookie's errors ([`op`]), ledger metadata in
//! all three versions ([`ledger_metadata`]), the tree under `/ledgers` ([`ledger_path`], [`layout`]).
//! Must never know: sockets, files, clocks, metadata stores; nothing here does I/O.
//! Read first: [`EntryBuf`], [`EntryView`], [`AddOp`], [`BookieError`], [`LedgerMetadata`].
//! Tests: `tests/golden.rs` (bytes written by BookKeeper 4.17.1), `tests/properties.rs`, `fuzz/`.

pub mod entry;
pub mod layout;
pub mod ledger_metadata;
pub mod ledger_path;
pub mod op;

mod digest;
mod ids;
mod text_format;

pub use digest::{Digest, DigestType, Digester, MasterKey};
pub use entry::{ENTRY_HEADER_LEN, EntryBuf, EntryError, EntryHeader, EntryView, MAX_PREFIX_LEN};
pub use ids::{BookieId, EntryId, LedgerId};
pub use ledger_metadata::{LedgerMetadata, LedgerState, Segment};
pub use op::{AddDone, AddOp, AddSink, BookieError, Fenced, Remedy};
