//! An endless log over ledgers, and the cursors on it: what a topic and its subscriptions store.
//!
//! What lives here: [`ManagedLedger`], a plain state machine (adds, rollover, recovery, trimming, cursors), the entry
//! cache, and the original's formats of it all ([`formats`]). Slow work is data, too: a [`Task`] that the shell runs with
//! a [`Context`] and whose [`TaskResult`] it feeds back.
//!
//! What this room must never know: producers, consumers, commands, sockets, threads, clocks. It takes [`Now`] and gives
//! [`Effect`]s; there is no tokio in here, so that a simulator can poll everything.
//!
//! Read first: [`ManagedLedger`], [`Effect`], [`Ack`].
//!
//! **Invariants.** Adds are confirmed in order, each durable, none after fencing. An acknowledgement whose
//! [`Effect::AckDone`] said `Ok` is durable. A ledger is named in `ManagedLedgerInfo` before an add to it is confirmed,
//! and no longer named there before it is deleted. The index never goes back.
//!
//! Tests: beside the code; `tests/model.rs` plays random histories with crashes against a simple model, `tests/stories.rs`
//! tells single ones; `tests/world` is the bookie, store and shell they run in.

pub mod formats;

mod acked;
mod acks;
mod appender;
mod cache;
mod config;
mod cursor;
mod cursor_ledger;
mod effect;
mod entry;
mod index_runs;
mod limits;
mod line;
mod managed_ledger;
mod position;
mod task;

pub use cache::CacheBudget;
pub use config::{ManagedLedgerConfig, Retention, RetentionSize, RetentionTime};
pub use cursor::{Ack, Backlog, InitialPosition, NewCursor};
pub use effect::{AddError, CloseError, CursorError, CursorId, Effect, Effects, Event, NewEntry, Now, ReadError};
pub use entry::Entry;
pub use managed_ledger::{LedgerStats, ManagedLedger, OpenError, OpenOptions, Read, ReadLimit, Stats};
pub use position::Position;
pub use task::{Context, Task, TaskResult};
