//! One cursor: what is acknowledged, and how that becomes durable.
//!
//! A durable cursor writes to a ledger of its own, made when the first acknowledgement has to be stored. Each entry is a
//! valid `PositionInfo` with the exact mark-delete position. A full snapshot has no [`CursorDelta`](crate::formats::CursorDelta); the entries after it
//! carry what came since the entry before them. A snapshot too large for one entry is cut: its parts still name the
//! snapshot before it, only the last part names the new one, so that a crash in between loses nothing.
//!
//! A new cursor ledger becomes the truth in this order: created, whole snapshot durable, `ManagedCursorInfo` points to it
//! (compare-and-set), then the acknowledgements it covers are confirmed and the old ledger is deleted.

use bookkeeper_proto::{AddDone, EntryId, LedgerId};

use crate::acks::{Acks, Changes, partial_info, range_info};
use crate::appender::Appender;
use crate::config::ManagedLedgerConfig;
use crate::cursor_ledger::{CursorLedger, InFlight, Progress};
use crate::effect::{Effect, Effects, Now};
use crate::formats::{LongProperty, ManagedCursorInfo, StringProperty};
use crate::line::Line;
use crate::position::Position;

/// What a consumer acknowledges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ack {
    /// One entry. `remaining`: the words of the batch's bit set, bit 1 = message not acknowledged; empty = all are.
    Individual { position: Position, remaining: Vec<i64> },
    /// Everything up to and including an entry; `remaining` as above, for the last entry only.
    Cumulative { position: Position, remaining: Vec<i64> },
}

/// Where a new cursor starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialPosition {
    Earliest,
    Latest,
    /// Everything up to and including this counts as acknowledged.
    After(Position),
}

/// A cursor to create.
#[derive(Clone, Debug)]
pub struct NewCursor {
    /// The subscription's plain name; its path is encoded in here.
    pub name: String,
    pub initial: InitialPosition,
    /// Non-durable cursors live in memory and hold nothing back from trimming.
    pub durable: bool,
    /// `properties` of the original (`pulsar.replicated.subscription`, …).
    pub properties: Vec<(String, i64)>,
    /// `cursorProperties`: the subscription's properties.
    pub cursor_properties: Vec<(String, String)>,
}

/// What a cursor has not acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    pub entries: u64,
    /// As good as known: from the index where one broker's run covers the backlog, else estimated from the average batch.
    pub messages: u64,
}

/// What the managed ledger has to do for a cursor at the side.
#[derive(Debug)]
pub(crate) enum CursorWork {
    CreateLedger,
    /// Compare-and-set of the cursor's node.
    PutInfo(ManagedCursorInfo),
    DeleteLedger(LedgerId),
}

pub(crate) struct Cursor {
    pub name: String,
    pub acks: Acks,
    pub store: Option<Store>,
    changes: Changes,
    /// Receipts wanted for changes that are in no append yet.
    waiting: Vec<u64>,
}

/// The durable side of a cursor.
pub(crate) struct Store {
    pub info_version: i64,
    properties: Vec<LongProperty>,
    cursor_properties: Vec<StringProperty>,
    /// The ledger that the node names.
    pub in_info: Option<LedgerId>,
    /// Open for appends; the node names it.
    current: Option<CursorLedger>,
    next: Next,
    last_write_ms: u64,
    /// The next write has to be a whole snapshot: deltas cannot express it.
    reset: bool,
}

/// How far the next cursor ledger is.
enum Next {
    NotNeeded,
    Creating,
    /// Waits for the append in flight of the current one.
    Created(CursorLedger),
    /// Its first snapshot is being written.
    Snapshotting(CursorLedger),
    /// The node is being changed to name it; until that is settled nothing else is tried, because the node may name it
    /// already. `retry_at`: the last attempt failed.
    Installing {
        ledger: CursorLedger,
        info: ManagedCursorInfo,
        retry_at: Option<u64>,
    },
    /// Something failed; try again then (monotonic milliseconds).
    RetryAt(u64),
    /// The whole state goes into the node; `retry_at` as above.
    Closing {
        info: ManagedCursorInfo,
        retry_at: Option<u64>,
    },
    /// It is there.
    Closed,
}

const RETRY_MS: u64 = 1000;

impl Cursor {
    pub(crate) fn new(name: String, acks: Acks, store: Option<Store>) -> Cursor {
        Cursor { name, acks, store, changes: Changes::default(), waiting: Vec::new() }
    }

    /// Applies an acknowledgement; its receipt, if wanted, comes when it is durable.
    pub(crate) fn ack(&mut self, ack: &Ack, token: Option<u64>, line: &Line, out: &mut Effects) {
        match ack {
            Ack::Individual { position, remaining } => self.acks.ack(*position, remaining, line, &mut self.changes),
            Ack::Cumulative { position, remaining } => {
                self.acks.ack_through(*position, remaining, line, &mut self.changes);
            }
        }
        self.want_receipt(token, out);
    }

    /// The subscription's properties; none for a non-durable cursor.
    pub(crate) fn properties(&self) -> impl Iterator<Item = (String, String)> {
        let stored = self.store.iter().flat_map(|store| &store.cursor_properties);
        stored.map(|property| (property.name.clone(), property.value.clone()))
    }

    /// Forgets all acknowledgements after `mark_delete`.
    pub(crate) fn reset(&mut self, mark_delete: Position, token: Option<u64>, out: &mut Effects) {
        self.acks = Acks::new(mark_delete);
        self.changes = Changes { mark_delete: true, ..Changes::default() };
        if let Some(store) = &mut self.store {
            store.reset = true;
        }
        self.want_receipt(token, out);
    }

    fn want_receipt(&mut self, token: Option<u64>, out: &mut Effects) {
        let Some(token) = token else { return };
        match &self.store {
            // An acknowledgement that changed nothing may repeat one that is still in flight: it waits for that one.
            Some(store) if !self.changes.is_empty() || store.is_writing() => self.waiting.push(token),
            _ => out.push(Effect::AckDone { token, result: Ok(()) }),
        }
    }

    /// Starts whatever can be started now. `work` collects what the managed ledger has to run.
    pub(crate) fn drive(
        &mut self,
        now: Now,
        owner: u64,
        config: &ManagedLedgerConfig,
        out: &mut Effects,
        work: &mut Vec<CursorWork>,
    ) {
        let Some(store) = &mut self.store else {
            self.changes.clear();
            return;
        };
        let lazily_due = !self.changes.is_empty()
            && now.monotonic_ms.saturating_sub(store.last_write_ms) >= config.lazy_cursor_interval.as_millis() as u64;
        let wanted = !self.waiting.is_empty() || lazily_due;
        store.next = match std::mem::replace(&mut store.next, Next::NotNeeded) {
            Next::NotNeeded if store.current.is_none() && wanted => {
                work.push(CursorWork::CreateLedger);
                Next::Creating
            }
            Next::NotNeeded if store.current.as_ref().is_some_and(|ledger| ledger.is_full(now, config)) => {
                work.push(CursorWork::CreateLedger);
                Next::Creating
            }
            Next::RetryAt(at) if at <= now.monotonic_ms => {
                work.push(CursorWork::CreateLedger);
                Next::Creating
            }
            Next::Created(mut ledger) if store.current.as_ref().is_none_or(|current| current.in_flight.is_none()) => {
                let tokens = std::mem::take(&mut self.waiting);
                ledger.append_snapshot(&self.acks, &store.properties, config, owner, tokens, out);
                self.changes.clear();
                store.reset = false;
                store.last_write_ms = now.monotonic_ms;
                Next::Snapshotting(ledger)
            }
            Next::Installing { ledger, info, retry_at: Some(at) } if at <= now.monotonic_ms => {
                work.push(CursorWork::PutInfo(info.clone()));
                Next::Installing { ledger, info, retry_at: None }
            }
            Next::Closing { info, retry_at: Some(at) } if at <= now.monotonic_ms => {
                work.push(CursorWork::PutInfo(info.clone()));
                Next::Closing { info, retry_at: None }
            }
            other => other,
        };
        let free = matches!(store.next, Next::NotNeeded | Next::Creating | Next::RetryAt(_));
        if let Some(ledger) = &mut store.current
            && free
            && wanted
            && ledger.in_flight.is_none()
        {
            let tokens = std::mem::take(&mut self.waiting);
            let changes = std::mem::take(&mut self.changes);
            if std::mem::take(&mut store.reset) || ledger.snapshot_is_due(config) || !self.acks.has_holes() {
                ledger.append_snapshot(&self.acks, &store.properties, config, owner, tokens, out);
            } else {
                ledger.append_delta(&self.acks, &changes, &store.properties, owner, tokens, out);
            }
            store.last_write_ms = now.monotonic_ms;
        }
    }

    /// The cursor ledger asked for was created, or not.
    pub(crate) fn ledger_created(&mut self, now: Now, created: Option<Appender>, work: &mut Vec<CursorWork>) {
        let Some(store) = &mut self.store else { return };
        match (std::mem::replace(&mut store.next, Next::NotNeeded), created) {
            (Next::Creating, Some(appender)) => store.next = Next::Created(CursorLedger::new(appender, now)),
            (Next::Creating, None) => store.next = Next::RetryAt(now.monotonic_ms + RETRY_MS),
            // Closed or failed meanwhile: nobody needs it.
            (other, created) => {
                store.next = other;
                work.extend(created.map(|appender| CursorWork::DeleteLedger(appender.ledger())));
            }
        }
    }

    /// Whether a change of its node is on its way.
    pub(crate) fn is_changing_its_node(&self) -> bool {
        let next = self.store.as_ref().map(|store| &store.next);
        matches!(next, Some(Next::Installing { retry_at: None, .. } | Next::Closing { retry_at: None, .. }))
    }

    /// Whether an answer of a bookie for `ledger` belongs to this cursor.
    pub(crate) fn writes_to(&self, ledger: LedgerId) -> bool {
        let Some(store) = &self.store else { return false };
        let next = match &store.next {
            Next::Snapshotting(next) => Some(next),
            _ => None,
        };
        store.current.iter().chain(next).any(|cursor_ledger| cursor_ledger.appender.ledger() == ledger)
    }

    pub(crate) fn appended(&mut self, now: Now, done: AddDone, out: &mut Effects, work: &mut Vec<CursorWork>) {
        let Some(store) = &mut self.store else { return };
        let ledger = done.ledger;
        if let Next::Snapshotting(next) = &mut store.next
            && next.appender.ledger() == ledger
        {
            match next.on_done(done) {
                Progress::Going => {}
                Progress::Durable(tokens) => {
                    let info = ManagedCursorInfo {
                        cursors_ledger_id: ledger.0,
                        ..store.info_of(self.acks.mark_delete(), now)
                    };
                    let Next::Snapshotting(mut next) = std::mem::replace(&mut store.next, Next::NotNeeded) else {
                        return;
                    };
                    // Confirmed when the node names this ledger, not before.
                    next.in_flight = Some(InFlight { last: EntryId::NONE, tokens });
                    store.next = Next::Installing { ledger: next, info: info.clone(), retry_at: None };
                    work.push(CursorWork::PutInfo(info));
                }
                Progress::Failed(tokens) => {
                    self.retry(now, tokens, Some(ledger), work);
                }
            }
            return;
        }
        let Some(current) = store.current.as_mut().filter(|current| current.appender.ledger() == ledger) else {
            return;
        };
        match current.on_done(done) {
            Progress::Going => {}
            Progress::Durable(tokens) => confirm(tokens, out),
            Progress::Failed(tokens) => {
                // The ledger takes no more appends. The next one starts with a snapshot, which covers what failed here.
                store.current = None;
                self.waiting.splice(0..0, tokens);
                self.changes.mark_delete = true;
                if matches!(store.next, Next::NotNeeded) {
                    store.next = Next::RetryAt(now.monotonic_ms);
                }
            }
        }
    }

    /// The node was changed as asked for (by an install or a close), or not.
    pub(crate) fn info_put(&mut self, now: Now, version: Option<i64>, out: &mut Effects, work: &mut Vec<CursorWork>) {
        let Some(store) = &mut self.store else { return };
        match (std::mem::replace(&mut store.next, Next::NotNeeded), version) {
            (Next::Installing { ledger: mut next, .. }, Some(version)) => {
                store.info_version = version;
                let old = store.in_info.replace(next.appender.ledger());
                work.extend(old.map(CursorWork::DeleteLedger));
                confirm(next.in_flight.take().map(|flight| flight.tokens).unwrap_or_default(), out);
                store.current = Some(next);
            }
            (Next::Installing { ledger, info, .. }, None) => {
                store.next = Next::Installing { ledger, info, retry_at: Some(now.monotonic_ms + RETRY_MS) };
            }
            (Next::Closing { info, .. }, None) => {
                store.next = Next::Closing { info, retry_at: Some(now.monotonic_ms + RETRY_MS) };
            }
            (Next::Closing { .. }, Some(version)) => {
                store.info_version = version;
                work.extend(store.in_info.take().map(CursorWork::DeleteLedger));
                store.current = None;
                store.next = Next::Closed;
                confirm(std::mem::take(&mut self.waiting), out);
            }
            (other, _) => store.next = other,
        }
    }

    fn retry(&mut self, now: Now, tokens: Vec<u64>, useless: Option<LedgerId>, work: &mut Vec<CursorWork>) {
        let Some(store) = &mut self.store else { return };
        store.next = Next::RetryAt(now.monotonic_ms + RETRY_MS);
        self.waiting.splice(0..0, tokens);
        // What the failed snapshot covered is in no ledger that counts.
        self.changes.mark_delete = true;
        store.reset = true;
        work.extend(useless.map(CursorWork::DeleteLedger));
    }

    /// Starts the clean close if nothing is in flight; `false`: ask again after the next event.
    ///
    /// A cursor with few ranges goes into its node, one with many ends its ledger with a snapshot.
    pub(crate) fn close(
        &mut self,
        now: Now,
        owner: u64,
        config: &ManagedLedgerConfig,
        out: &mut Effects,
        work: &mut Vec<CursorWork>,
    ) -> bool {
        let Some(store) = &mut self.store else { return true };
        if matches!(store.next, Next::NotNeeded | Next::RetryAt(_))
            && store.current.as_ref().is_none_or(|current| current.in_flight.is_none())
        {
            let unwritten = !self.changes.is_empty() || !self.waiting.is_empty() || store.reset;
            if !unwritten && store.in_info.is_none() {
                return true;
            }
            let holes = self.acks.count_ranges(config.max_ranges_in_metadata + 1) + self.acks.partial().count();
            let small = holes <= config.max_ranges_in_metadata;
            if small {
                let info = store.full_info(&self.acks, now);
                store.next = Next::Closing { info: info.clone(), retry_at: None };
                self.changes.clear();
                work.push(CursorWork::PutInfo(info));
            } else if unwritten {
                let tokens = std::mem::take(&mut self.waiting);
                match &mut store.current {
                    Some(current) => {
                        current.append_snapshot(&self.acks, &store.properties, config, owner, tokens, out);
                        self.changes.clear();
                        store.reset = false;
                    }
                    None => {
                        self.waiting = tokens;
                        work.push(CursorWork::CreateLedger);
                        store.next = Next::Creating;
                    }
                }
            } else {
                return true;
            }
            return false;
        }
        self.drive(now, owner, config, out, work);
        self.store.as_ref().is_none_or(|store| matches!(store.next, Next::Closed))
    }

    /// All receipts still waited for, for when they will never come.
    pub(crate) fn take_tokens(&mut self) -> Vec<u64> {
        let mut tokens = Vec::new();
        if let Some(store) = &mut self.store {
            let next = match &mut store.next {
                Next::Created(ledger) | Next::Snapshotting(ledger) | Next::Installing { ledger, .. } => Some(ledger),
                Next::NotNeeded | Next::Creating | Next::RetryAt(_) | Next::Closing { .. } | Next::Closed => None,
            };
            let flights = store.current.iter_mut().chain(next).filter_map(|ledger| ledger.in_flight.take());
            tokens.extend(flights.flat_map(|flight| flight.tokens));
        }
        tokens.append(&mut self.waiting);
        tokens
    }

    /// All ledgers that go when the cursor is deleted.
    pub(crate) fn ledgers(&self) -> Vec<LedgerId> {
        let Some(store) = &self.store else { return Vec::new() };
        let next = match &store.next {
            Next::Created(ledger) | Next::Snapshotting(ledger) | Next::Installing { ledger, .. } => {
                Some(ledger.appender.ledger())
            }
            Next::NotNeeded | Next::Creating | Next::RetryAt(_) | Next::Closing { .. } | Next::Closed => None,
        };
        store.in_info.into_iter().chain(next).collect()
    }
}

fn confirm(tokens: Vec<u64>, out: &mut Effects) {
    out.extend(tokens.into_iter().map(|token| Effect::AckDone { token, result: Ok(()) }));
}

impl Store {
    /// A cursor whose node says `info`.
    pub(crate) fn new(info: &ManagedCursorInfo, info_version: i64) -> Store {
        Store {
            info_version,
            properties: info.properties.clone(),
            cursor_properties: info.cursor_properties.clone(),
            in_info: (info.cursors_ledger_id >= 0).then_some(LedgerId(info.cursors_ledger_id)),
            current: None,
            next: Next::NotNeeded,
            last_write_ms: 0,
            reset: false,
        }
    }

    /// Takes over what the last entry of the cursor ledger says.
    pub(crate) fn set_properties(&mut self, properties: Vec<LongProperty>) {
        self.properties = properties;
    }

    fn is_writing(&self) -> bool {
        let next = !matches!(self.next, Next::NotNeeded | Next::RetryAt(_));
        next || self.current.as_ref().is_some_and(|ledger| ledger.in_flight.is_some())
    }

    fn info_of(&self, mark_delete: Position, now: Now) -> ManagedCursorInfo {
        ManagedCursorInfo {
            cursors_ledger_id: -1,
            mark_delete_ledger_id: Some(mark_delete.ledger.0),
            mark_delete_entry_id: Some(mark_delete.entry.0),
            properties: self.properties.clone(),
            last_active: Some(now.unix_ms as i64),
            cursor_properties: self.cursor_properties.clone(),
            ..ManagedCursorInfo::default()
        }
    }

    fn full_info(&self, acks: &Acks, now: Now) -> ManagedCursorInfo {
        ManagedCursorInfo {
            individual_deleted_messages: acks.ranges().map(range_info).collect(),
            batched_entry_deletion_index_info: acks.partial().map(partial_info).collect(),
            ..self.info_of(acks.mark_delete(), now)
        }
    }
}

/// The first node of a new cursor.
pub(crate) fn first_info(cursor: &NewCursor, mark_delete: Position, now: Now) -> ManagedCursorInfo {
    let long = |(name, value): &(String, i64)| LongProperty { name: name.clone(), value: *value };
    let string = |(name, value): &(String, String)| StringProperty { name: name.clone(), value: value.clone() };
    ManagedCursorInfo {
        cursors_ledger_id: -1,
        mark_delete_ledger_id: Some(mark_delete.ledger.0),
        mark_delete_entry_id: Some(mark_delete.entry.0),
        properties: cursor.properties.iter().map(long).collect(),
        last_active: Some(now.unix_ms as i64),
        cursor_properties: cursor.cursor_properties.iter().map(string).collect(),
        ..ManagedCursorInfo::default()
    }
}
