//! `ManagedLedgerInfo`, the node that says which ledgers there are: one compare-and-set at a time, repeated until it is
//! settled. Rollover, recovery, trimming and termination are changes of it.

use bookkeeper_proto::{EntryId, LedgerId};
use bytes::Bytes;
use metadata::{Expected, Stat};
use prost::Message;

use super::*;
use crate::formats::{ManagedLedgerInfo, NestedPositionInfo};
use crate::limits::trimmable;
use crate::line::Part;
use crate::task::PutError;

/// Ours: the index of the next message when the node was written, so that trimming everything does not reset it.
pub(crate) const NEXT_INDEX: &str = "hulse.next-index";

pub(super) struct InfoPut {
    /// Sealed before the node is written.
    close: Option<(LedgerId, EntryId, u64)>,
    value: Bytes,
    then: Then,
    /// The last attempt failed; try again then (monotonic milliseconds).
    retry_at: Option<u64>,
}

impl InfoPut {
    /// Whether an attempt is on its way.
    pub(super) fn is_running(&self) -> bool {
        self.retry_at.is_none()
    }
}

/// What the written node means.
#[expect(clippy::large_enum_variant, reason = "one at a time, and rarely")]
enum Then {
    /// `sealed` is closed, or gone if it was empty; adds go to `next`.
    Switched {
        sealed: LedgerId,
        part: Part,
        next: Appender,
        recovered: bool,
    },
    /// These are no longer named: they may be deleted.
    Trimmed(Vec<LedgerId>),
    Terminated {
        at: Position,
        token: u64,
    },
    Property {
        key: String,
        value: String,
        token: u64,
    },
}

impl ManagedLedger {
    /// Closes the drained open ledger and goes on in the next one.
    pub(super) fn switch(&mut self, now: Now, out: &mut Effects) {
        let Writing::Open { appender, roll: Roll::Ready(next), .. } =
            std::mem::replace(&mut self.writing, Writing::Switching)
        else {
            unreachable!("asked for by the caller");
        };
        let sealed = appender.ledger();
        let close = (sealed, appender.last_confirmed(), appender.length());
        let part = Part { closed_ms: Some(now.unix_ms), ..self.line.get(sealed).cloned().unwrap_or_default() };
        self.put_switched(sealed, part, next, Some(close), out);
    }

    /// Takes over what recovery found, and goes on in the next ledger.
    pub(super) fn name_recovered(&mut self, now: Now, found: Recovered, next: Appender, out: &mut Effects) {
        let Writing::Recovering { ledger, .. } = self.writing else { return };
        let part = Part {
            entries: (found.last.0 + 1) as u64,
            bytes: found.length,
            closed_ms: Some(now.unix_ms),
            offload_context: None,
        };
        let known = self.line.get(ledger).map_or(0, |part| part.entries);
        if part.entries < known {
            return self
                .fence(format!("ledger {ledger} lost confirmed entries: {} of {known} are left", part.entries), out);
        }
        // Adds whose outcome was unknown may be there, with the indexes they were given.
        self.confirmed_index = self.confirmed_index.max(found.next_index.unwrap_or(0));
        self.sent_index = self.confirmed_index;
        self.put_switched(ledger, part, next, None, out);
    }

    fn put_switched(
        &mut self,
        sealed: LedgerId,
        part: Part,
        next: Appender,
        close: Option<(LedgerId, EntryId, u64)>,
        out: &mut Effects,
    ) {
        let recovered = close.is_none();
        let mut line = self.line.clone();
        replace(&mut line, sealed, &part);
        line.insert(next.ledger(), Part::default());
        let info = self.info_of(&line, self.terminated);
        self.start_put(info, close, Then::Switched { sealed, part, next, recovered }, out);
    }

    /// Deletes consumed ledgers that retention does not keep.
    pub(super) fn trim(&mut self, now: Now, out: &mut Effects) {
        if self.info_put.is_some()
            || self.closing.is_some()
            || !matches!(self.writing, Writing::Open { .. } | Writing::Terminated)
        {
            return;
        }
        let chosen = trimmable(&self.line, self.slowest_durable(), self.config.retention, now.unix_ms);
        if chosen.is_empty() {
            return;
        }
        let mut line = self.line.clone();
        chosen.iter().for_each(|&ledger| line.remove(ledger));
        let info = self.info_of(&line, self.terminated);
        self.start_put(info, None, Then::Trimmed(chosen), out);
    }

    /// Before the first entry that is not being trimmed: no cursor may start, or go back, to before it.
    pub(super) fn kept_start(&self) -> Position {
        let trimming = match &self.info_put {
            Some(InfoPut { then: Then::Trimmed(ledgers), .. }) => ledgers.as_slice(),
            _ => &[],
        };
        let first = self.line.iter().map(|(ledger, _)| ledger).find(|ledger| !trimming.contains(ledger));
        let end = self.last_confirmed();
        first.map_or(end, |ledger| end.min(Position { ledger, entry: EntryId::NONE }))
    }

    /// Stores a property of the topic; [`Effect::AckDone`] tells when it is durable. At most one change of the node runs at
    /// a time: `false` means "not now, try again".
    #[must_use]
    pub fn set_property(&mut self, key: &str, value: &str, token: u64, out: &mut Effects) -> bool {
        let ready =
            matches!(self.writing, Writing::Open { roll: Roll::NotDue | Roll::RetryAt(_), .. } | Writing::Terminated);
        if !ready || self.info_put.is_some() || self.closing.is_some() {
            return false;
        }
        let mut info = self.info_of(&self.line, self.terminated);
        set(&mut info.properties, key, value.to_owned());
        self.start_put(info, None, Then::Property { key: key.to_owned(), value: value.to_owned(), token }, out);
        true
    }

    /// Puts the end of the topic into the node, closing the drained open ledger.
    pub(super) fn put_terminated(&mut self, now: Now, token: u64, out: &mut Effects) {
        let Writing::Open { appender, .. } = std::mem::replace(&mut self.writing, Writing::Switching) else {
            unreachable!("asked for by the caller");
        };
        let ledger = appender.ledger();
        let close = (ledger, appender.last_confirmed(), appender.length());
        if let Some(part) = self.line.get_mut(ledger) {
            part.closed_ms = Some(now.unix_ms);
        }
        let at = self.line.last();
        let info = self.info_of(&self.line, Some(at));
        self.start_put(info, Some(close), Then::Terminated { at, token }, out);
    }

    pub(super) fn info_of(&self, line: &Line, terminated: Option<Position>) -> ManagedLedgerInfo {
        let mut properties = self.properties.clone();
        set(&mut properties, NEXT_INDEX, self.confirmed_index.to_string());
        ManagedLedgerInfo {
            ledger_info: line.to_infos(),
            terminated_position: terminated
                .map(|at| NestedPositionInfo { ledger_id: at.ledger.0, entry_id: at.entry.0 }),
            properties,
        }
    }

    fn start_put(
        &mut self,
        info: ManagedLedgerInfo,
        close: Option<(LedgerId, EntryId, u64)>,
        then: Then,
        out: &mut Effects,
    ) {
        assert!(self.info_put.is_none(), "two changes of one node");
        let put = InfoPut { close, value: info.encode_to_vec().into(), then, retry_at: None };
        self.run_put(&put, out);
        self.info_put = Some(put);
    }

    fn run_put(&self, put: &InfoPut, out: &mut Effects) {
        let work = Work::Put {
            close: put.close,
            path: self.path.clone(),
            value: put.value.clone(),
            expected: Expected::Version(self.info_version),
        };
        run(out, Purpose::Info, work);
    }

    pub(super) fn drive_info(&mut self, now: Now, out: &mut Effects) {
        if let Some(mut put) = self.info_put.take() {
            if put.retry_at.is_some_and(|at| at <= now.monotonic_ms) {
                put.retry_at = None;
                self.run_put(&put, out);
            }
            self.info_put = Some(put);
        }
    }

    pub(super) fn info_was_put(&mut self, now: Now, result: Result<Stat, PutError>, out: &mut Effects) {
        let Some(mut put) = self.info_put.take() else { return };
        match result {
            Ok(stat) => {
                self.info_version = stat.version;
                self.info_is(now, put.then, out);
            }
            Err(PutError::Put(error)) if error.is_bad_version() || error.is_not_found() => {
                self.fence(format!("node {} was changed by somebody else", self.path), out);
            }
            Err(PutError::Close(error @ ledger::LedgerError::ClosedElsewhere { .. })) => {
                self.fence(format!("the open ledger was closed by somebody else ({error})"), out);
            }
            // The node may say either: nothing else may be tried before this one is settled.
            Err(error) => {
                tracing::warn!(managed_ledger = %self.name, ?error, "cannot write the managed ledger's node, trying again");
                put.retry_at = Some(now.monotonic_ms + RETRY_MS);
                self.info_put = Some(put);
            }
        }
    }

    fn info_is(&mut self, now: Now, then: Then, out: &mut Effects) {
        match then {
            Then::Switched { sealed, part, next, recovered } => {
                let before = self.last_confirmed();
                let empty = part.entries == 0;
                replace(&mut self.line, sealed, &part);
                if empty {
                    out.push(delete_ledger(sealed));
                }
                tracing::info!(managed_ledger = %self.name, ledger = %sealed, entries = part.entries, next = %next.ledger(), "ledger sealed");
                self.open_for_adds(now, next, out);
                if recovered {
                    out.push(Effect::WritesResumed);
                    if self.last_confirmed() != before {
                        out.push(Effect::NewEntries);
                    }
                }
                self.trim(now, out);
            }
            Then::Trimmed(ledgers) => {
                for ledger in ledgers {
                    tracing::info!(managed_ledger = %self.name, %ledger, "ledger trimmed");
                    self.line.remove(ledger);
                    out.push(delete_ledger(ledger));
                }
                self.cache.drop_before(self.line.start());
                // Non-durable cursors hold nothing back: they go on behind what is gone.
                self.cursors.values_mut().for_each(|slot| slot.cursor.acks.settle(&self.line));
            }
            Then::Terminated { at, token } => {
                self.terminated = Some(at);
                self.writing = Writing::Terminated;
                self.fail_queued(&AddError::Terminated, out);
                out.push(Effect::Closed { token, result: Ok(()) });
            }
            Then::Property { key, value, token } => {
                set(&mut self.properties, &key, value);
                out.push(Effect::AckDone { token, result: Ok(()) });
            }
        }
    }
}

/// Ledgers without entries are not kept.
fn replace(line: &mut Line, ledger: LedgerId, part: &Part) {
    if part.entries == 0 {
        line.remove(ledger);
    } else {
        line.insert(ledger, part.clone());
    }
}

fn set(properties: &mut Vec<KeyValue>, key: &str, value: String) {
    match properties.iter_mut().find(|property| property.key == key) {
        Some(property) => property.value = value,
        None => properties.push(KeyValue { key: key.to_owned(), value }),
    }
}
