//! The core: one managed ledger as a plain state machine.
//!
//! This file holds the state and the write path. Beside it: `opening` (loading and recovery), `info` (the one node and its
//! compare-and-set, trimming), `reading`, `cursors`, `closing`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bookkeeper_proto::{AddDone, BookieError, EntryId, LedgerId};
use bytes::Bytes;
use pulsar_proto::entry_metadata::EntryPrefix;

use crate::appender::Appender;
use crate::cache::{CacheBudget, EntryCache};
use crate::config::ManagedLedgerConfig;
use crate::effect::{AddError, CursorId, Effect, Effects, Event, NewEntry, Now};
use crate::formats::KeyValue;
use crate::index_runs::IndexRuns;
use crate::limits::rollover_is_due;
use crate::line::Line;
use crate::position::Position;
use crate::task::{Outcome, Purpose, Recovered, Task, TaskResult, Work};

mod closing;
mod cursors;
mod info;
mod opening;
mod reading;

pub use opening::{OpenError, OpenOptions};
pub use reading::{Read, ReadLimit};

use closing::Closing;
use cursors::Slot;
use info::InfoPut;
use reading::PendingRead;

/// An endless log over ledgers, and its cursors. Owned by one shard; every method returns at once.
pub struct ManagedLedger {
    name: String,
    path: String,
    owner: u64,
    config: Arc<ManagedLedgerConfig>,
    budget: Arc<CacheBudget>,

    line: Line,
    properties: Vec<KeyValue>,
    terminated: Option<Position>,
    info_version: i64,
    /// The compare-and-set of `ManagedLedgerInfo` that runs now, or is to be repeated. Never two at once.
    info_put: Option<InfoPut>,

    writing: Writing,
    /// Sent to the open ledger, not confirmed yet, in order.
    adding: VecDeque<Adding>,
    /// Waiting for the next ledger, in order.
    queued: VecDeque<NewEntry>,
    /// Index of the next message to be added, and of the next one to be confirmed.
    sent_index: u64,
    confirmed_index: u64,
    indexes: IndexRuns,
    scratch: Vec<(EntryId, Bytes)>,

    cursors: BTreeMap<CursorId, Slot>,
    last_cursor: u64,

    cache: EntryCache,
    reads: Vec<PendingRead>,
    readers: BTreeMap<u64, Position>,

    closing: Option<Closing>,
}

/// Where adds go.
enum Writing {
    /// To this ledger.
    Open {
        appender: Appender,
        opened_ms: u64,
        roll: Roll,
    },
    /// The open ledger is sealed, and the next one is being named in `ManagedLedgerInfo`: adds wait.
    Switching,
    /// A write failed; the end of this ledger is being found: adds are refused.
    Recovering {
        ledger: LedgerId,
        confirmed: Option<(EntryId, u64)>,
        step: Recovery,
    },
    Terminated,
    Closed,
    Fenced {
        reason: String,
    },
}

/// How far the open ledger's successor is.
enum Roll {
    NotDue,
    Creating,
    /// Adds wait until everything sent is confirmed.
    Ready(Appender),
    RetryAt(u64),
}

enum Recovery {
    Finding,
    Found(Recovered),
    Creating(Recovered),
    Created(Recovered, Appender),
    /// In `info_put`.
    Naming,
    /// Monotonic milliseconds.
    RetryAt(u64),
}

struct Adding {
    token: u64,
    entry: EntryId,
    /// Of the first message.
    first_index: u64,
    messages: u32,
    /// Payload with prefix.
    bytes: usize,
}

const RETRY_MS: u64 = 1000;

impl ManagedLedger {
    /// As it was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &ManagedLedgerConfig {
        &self.config
    }

    /// Puts other settings in force.
    pub fn set_config(&mut self, config: Arc<ManagedLedgerConfig>) {
        self.config = config;
    }

    /// The last confirmed entry: readers may go up to it. Entry -1 while there is none.
    #[must_use]
    pub fn last_confirmed(&self) -> Position {
        self.line.last()
    }

    /// Before the first entry that is still there.
    #[must_use]
    pub fn start(&self) -> Position {
        self.line.start()
    }

    /// The first entry at or after `position`; past the end, where the next one will lie.
    #[must_use]
    pub fn at_or_after(&self, position: Position) -> Position {
        self.line.at_or_after(position)
    }

    /// The last position before `position`.
    #[must_use]
    pub fn preceding(&self, position: Position) -> Position {
        self.line.preceding(position)
    }

    /// Number of messages confirmed since the topic began, trimmed ones included: the index of the next one.
    #[must_use]
    pub fn next_index(&self) -> u64 {
        self.confirmed_index
    }

    /// User and system properties of the topic.
    #[must_use]
    pub fn property(&self, key: &str) -> Option<&str> {
        self.properties.iter().find(|property| property.key == key).map(|property| property.value.as_str())
    }

    /// Where the topic was terminated.
    #[must_use]
    pub fn terminated(&self) -> Option<Position> {
        self.terminated
    }

    /// Whether an add would be taken (sent or queued) now.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.closing.is_none() && matches!(self.writing, Writing::Open { .. } | Writing::Switching)
    }

    /// What statistics want to know.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let ledgers = self.line.iter().map(|(ledger, part)| LedgerStats {
            ledger,
            entries: part.entries,
            bytes: part.bytes,
            closed_ms: part.closed_ms,
        });
        Stats {
            entries: self.line.entries(),
            bytes: self.line.bytes(),
            pending_adds: self.adding.len() + self.queued.len(),
            cached_bytes: self.cache.bytes(),
            ledgers: ledgers.collect(),
        }
    }

    /// Appends an entry. [`Effect::Added`] or [`Effect::AddFailed`] follows, in the order of the adds, now or later.
    pub fn add(&mut self, now: Now, entry: NewEntry, out: &mut Effects) {
        assert!(entry.messages > 0, "an entry holds at least one message");
        let refused = match &self.writing {
            _ if self.closing.is_some() => AddError::Closed,
            Writing::Open { roll: Roll::Ready(_), .. } | Writing::Switching => return self.queued.push_back(entry),
            Writing::Open { .. } => return self.send(now, entry, out),
            Writing::Recovering { .. } => AddError::Recovering,
            Writing::Terminated => AddError::Terminated,
            Writing::Closed => AddError::Closed,
            Writing::Fenced { reason } => AddError::Fenced { reason: reason.clone() },
        };
        out.push(Effect::AddFailed { token: entry.token, error: refused });
    }

    /// Sends to the open ledger.
    fn send(&mut self, now: Now, entry: NewEntry, out: &mut Effects) {
        let Writing::Open { appender, .. } = &mut self.writing else { unreachable!("asked for by the caller") };
        let first_index = self.sent_index;
        self.sent_index += u64::from(entry.messages);
        let prefix = EntryPrefix::new(now.unix_ms, self.sent_index - 1);
        let prefix = prefix.as_bytes();
        let bytes = prefix.len() + entry.payload.len();
        let id = appender.append(prefix, entry.payload, entry.payload_crc, self.owner, out);
        self.adding.push_back(Adding { token: entry.token, entry: id, first_index, messages: entry.messages, bytes });
    }

    /// Takes one event; the effects that follow from it are appended to `out`.
    pub fn on_event(&mut self, now: Now, event: Event, out: &mut Effects) {
        match event {
            Event::Appended(done) => self.appended(now, [done], out),
            Event::Finished(result) => {
                self.finished(now, result, out);
                self.drive(now, out);
            }
        }
    }

    /// Takes the answers of bookies, in the order they came; cheaper than one event each.
    pub fn appended(&mut self, now: Now, done: impl IntoIterator<Item = AddDone>, out: &mut Effects) {
        let before = self.last_confirmed();
        for done in done {
            match &self.writing {
                Writing::Open { appender, .. } if appender.ledger() == done.ledger => {
                    self.entry_appended(now, done, out);
                }
                _ => self.cursor_appended(now, done, out),
            }
        }
        if self.last_confirmed() != before {
            out.push(Effect::NewEntries);
        }
        if self.needs_drive(now) {
            self.drive(now, out);
        }
    }

    fn entry_appended(&mut self, now: Now, done: AddDone, out: &mut Effects) {
        let Writing::Open { appender, .. } = &mut self.writing else { return };
        let ledger = appender.ledger();
        let confirmed = &mut self.scratch;
        let result = appender.on_done(done, |entry, data| confirmed.push((entry, data)));
        for (entry, data) in self.scratch.drain(..) {
            let add = self.adding.pop_front().expect("only what was sent is confirmed");
            assert_eq!(add.entry, entry, "ledger {ledger} confirmed out of order");
            let position = Position { ledger, entry };
            let part = self.line.get_mut(ledger).expect("the open ledger is in the line");
            part.entries = entry.0 as u64 + 1;
            part.bytes += add.bytes as u64;
            self.confirmed_index = add.first_index + u64::from(add.messages);
            self.indexes.push(position, add.first_index, add.messages);
            self.cache.push(position, data, &self.budget);
            out.push(Effect::Added { token: add.token, position, index: self.confirmed_index - 1 });
        }
        if let Err(cause) = result {
            self.write_failed(now, ledger, cause, out);
        }
    }

    /// The open ledger takes no more adds. What was sent may be found by the recovery: its outcome is unknown.
    fn write_failed(&mut self, now: Now, ledger: LedgerId, cause: BookieError, out: &mut Effects) {
        tracing::warn!(managed_ledger = %self.name, %ledger, error = %cause, pending = self.adding.len(), "write failed, recovering");
        for add in self.adding.drain(..) {
            out.push(Effect::AddFailed { token: add.token, error: AddError::OutcomeUnknown(cause.clone()) });
        }
        self.fail_queued(&AddError::Recovering, out);
        // Fenced: whoever did it also decides the end. Else it is where we stopped.
        let confirmed = match &self.writing {
            Writing::Open { appender, .. } if !matches!(cause, BookieError::Fenced { .. }) => {
                Some((appender.last_confirmed(), appender.length()))
            }
            _ => None,
        };
        // A ledger that failed before it held anything was made in vain (a full disk, say): not again at once.
        let in_vain = self.line.get(ledger).is_none_or(|part| part.entries == 0);
        let step = if in_vain { Recovery::RetryAt(now.monotonic_ms + RETRY_MS) } else { Recovery::Finding };
        let recovering = Writing::Recovering { ledger, confirmed, step };
        let useless = match std::mem::replace(&mut self.writing, recovering) {
            Writing::Open { roll: Roll::Ready(next), .. } => Some(next.ledger()),
            _ => None,
        };
        out.extend(useless.map(delete_ledger));
        out.push(Effect::WritesInterrupted { cause });
        if !in_vain {
            run(out, Purpose::Recover, Work::Recover { ledger, confirmed });
        }
    }

    fn fail_queued(&mut self, error: &AddError, out: &mut Effects) {
        out.extend(self.queued.drain(..).map(|entry| Effect::AddFailed { token: entry.token, error: error.clone() }));
    }

    /// Drops what the cache may no longer hold; answers whether it holds anything still. See [`CacheBudget::edge`].
    pub fn expire_cache(&mut self) -> bool {
        self.cache.expire(&self.budget);
        self.has_cached()
    }

    /// Whether the cache holds anything.
    #[must_use]
    pub fn has_cached(&self) -> bool {
        self.cache.bytes() > 0
    }

    /// Time passed: rollover by age, trimming, lazy cursor writes, retries, cache expiry. Once a second is enough.
    pub fn tick(&mut self, now: Now, out: &mut Effects) {
        self.cache.expire(&self.budget);
        self.drive(now, out);
        self.trim(now, out);
    }

    /// Whether the write path could start something. Cheap: asked after every batch of answers.
    fn needs_drive(&self, now: Now) -> bool {
        self.closing.is_some()
            || match &self.writing {
                Writing::Open { roll: Roll::NotDue, appender, opened_ms } => {
                    self.roll_is_due(now, appender, *opened_ms)
                }
                Writing::Open { roll: Roll::Ready(_), .. } => self.adding.is_empty(),
                Writing::Recovering { .. } => true,
                _ => false,
            }
    }

    fn roll_is_due(&self, now: Now, appender: &Appender, opened_ms: u64) -> bool {
        let Some(part) = self.line.get(appender.ledger()) else { return false };
        let age = Duration::from_millis(now.monotonic_ms.saturating_sub(opened_ms));
        rollover_is_due(&self.config, part.entries, part.bytes, age)
    }

    /// Starts whatever can be started now. Idempotent.
    fn drive(&mut self, now: Now, out: &mut Effects) {
        self.drive_info(now, out);
        self.drive_writing(now, out);
        self.drive_cursors(now, out);
        self.drive_closing(now, out);
    }

    fn drive_writing(&mut self, now: Now, out: &mut Effects) {
        let due = match &self.writing {
            Writing::Open { appender, opened_ms, roll: Roll::NotDue } if self.closing.is_none() => {
                self.roll_is_due(now, appender, *opened_ms)
            }
            _ => false,
        };
        match &mut self.writing {
            Writing::Open { roll, .. } if due => {
                *roll = Roll::Creating;
                run(out, Purpose::NextLedger, self.data_ledger());
            }
            Writing::Open { roll: roll @ Roll::RetryAt(_), .. } => {
                if matches!(roll, Roll::RetryAt(at) if *at <= now.monotonic_ms) {
                    *roll = Roll::NotDue;
                }
            }
            Writing::Open { roll: Roll::Ready(_), .. } if self.adding.is_empty() && self.info_put.is_none() => {
                self.switch(now, out);
            }
            Writing::Recovering { ledger, confirmed, step } => match std::mem::replace(step, Recovery::Finding) {
                Recovery::RetryAt(at) if at <= now.monotonic_ms => {
                    run(out, Purpose::Recover, Work::Recover { ledger: *ledger, confirmed: *confirmed });
                }
                Recovery::Found(found) => {
                    *step = Recovery::Creating(found);
                    run(out, Purpose::NextLedger, self.data_ledger());
                }
                Recovery::Created(found, next) if self.info_put.is_none() => {
                    *step = Recovery::Naming;
                    self.name_recovered(now, found, next, out);
                }
                other => *step = other,
            },
            _ => {}
        }
    }

    fn data_ledger(&self) -> Work {
        Work::CreateLedger { custom: opening::custom_metadata(&self.name, None) }
    }

    fn finished(&mut self, now: Now, result: TaskResult, out: &mut Effects) {
        match (result.purpose, result.outcome) {
            (Purpose::NextLedger, Outcome::Created(created)) => self.next_ledger_created(now, created, out),
            (Purpose::Recover, Outcome::Recovered(recovered)) => {
                if let Writing::Recovering { step: step @ Recovery::Finding, ledger, .. } = &mut self.writing {
                    *step = match recovered {
                        Ok(found) => Recovery::Found(found),
                        Err(error) => {
                            tracing::warn!(managed_ledger = %self.name, %ledger, %error, "cannot recover ledger, trying again");
                            Recovery::RetryAt(now.monotonic_ms + RETRY_MS)
                        }
                    };
                }
            }
            (Purpose::Info, Outcome::Put(result)) => self.info_was_put(now, result, out),
            (Purpose::CloseLedger, Outcome::Closed(result)) => self.ledger_was_closed(result, out),
            (Purpose::Read { first }, Outcome::Read(result)) => self.read_finished(first, result, out),
            (Purpose::CursorLedger(cursor), Outcome::Created(created)) => {
                self.cursor_ledger_created(now, cursor, created, out)
            }
            (Purpose::CursorInfo(cursor), Outcome::Put(result)) => self.cursor_info_put(now, cursor, result, out),
            (Purpose::CreateCursor(cursor), Outcome::Put(result)) => self.cursor_created(cursor, result, out),
            (Purpose::DeleteCursor(cursor), Outcome::Deleted(result)) => self.cursor_deleted(now, cursor, result, out),
            (Purpose::Cleanup, _) => {}
            (purpose, outcome) => unreachable!("task for {purpose:?} brought {outcome:?}"),
        }
    }

    fn next_ledger_created(&mut self, now: Now, created: Result<Appender, ledger::LedgerError>, out: &mut Effects) {
        if let Err(error) = &created {
            tracing::warn!(managed_ledger = %self.name, %error, "cannot create the next ledger, trying again");
        }
        match (&mut self.writing, created) {
            (Writing::Open { roll: roll @ Roll::Creating, .. }, Ok(next)) => *roll = Roll::Ready(next),
            (Writing::Open { roll: roll @ Roll::Creating, .. }, Err(_)) => {
                *roll = Roll::RetryAt(now.monotonic_ms + RETRY_MS);
            }
            (Writing::Recovering { step, .. }, created) if matches!(step, Recovery::Creating(_)) => {
                let Recovery::Creating(found) = *step else { return };
                *step = match created {
                    Ok(next) => Recovery::Created(found, next),
                    Err(_) => Recovery::RetryAt(now.monotonic_ms + RETRY_MS),
                };
            }
            // Made for a state that is over (the write failed, or it was fenced meanwhile).
            (_, Ok(next)) => out.push(delete_ledger(next.ledger())),
            (_, Err(_)) => {}
        }
    }

    /// The new ledger is named in `ManagedLedgerInfo`: adds go there.
    fn open_for_adds(&mut self, now: Now, appender: Appender, out: &mut Effects) {
        self.line.insert(appender.ledger(), crate::line::Part::default());
        self.writing = Writing::Open { appender, opened_ms: now.monotonic_ms, roll: Roll::NotDue };
        for entry in std::mem::take(&mut self.queued) {
            self.send(now, entry, out);
        }
    }

    /// Somebody else owns this managed ledger: nothing is promised any more.
    fn fence(&mut self, reason: String, out: &mut Effects) {
        if matches!(self.writing, Writing::Fenced { .. } | Writing::Closed) {
            return;
        }
        tracing::warn!(managed_ledger = %self.name, reason, "fenced");
        for add in self.adding.drain(..) {
            // Sent, perhaps written: the new owner's recovery decides.
            let cause =
                BookieError::Fenced { ledger: self.line.iter().next_back().map_or(LedgerId(-1), |(ledger, _)| ledger) };
            out.push(Effect::AddFailed { token: add.token, error: AddError::OutcomeUnknown(cause) });
        }
        self.fail_queued(&AddError::Fenced { reason: reason.clone() }, out);
        self.writing = Writing::Fenced { reason: reason.clone() };
        self.info_put = None;
        self.fail_cursors(&reason, out);
        self.fail_closing(&reason, out);
        out.push(Effect::Fenced { reason });
    }

    /// Nothing may be promised or stored any more.
    fn is_over(&self) -> bool {
        matches!(self.writing, Writing::Fenced { .. } | Writing::Closed)
    }
}

fn run(out: &mut Effects, purpose: Purpose, work: Work) {
    out.push(Effect::Run(Task { purpose, work }));
}

fn delete_ledger(ledger: LedgerId) -> Effect {
    Effect::Run(Task { purpose: Purpose::Cleanup, work: Work::DeleteLedger { ledger } })
}

/// See [`ManagedLedger::stats`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    pub entries: u64,
    pub bytes: u64,
    pub pending_adds: usize,
    pub cached_bytes: usize,
    pub ledgers: Vec<LedgerStats>,
}

/// One ledger of a managed ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerStats {
    pub ledger: LedgerId,
    pub entries: u64,
    pub bytes: u64,
    /// Unix milliseconds; `None` while it is open.
    pub closed_ms: Option<u64>,
}
