//! The cursors of a managed ledger: creating, acknowledging, deleting, and running what their cores ask for.

use metadata::{Expected, MetadataError, Stat};
use prost::Message;
use pulsar_proto::topic_name::encode_form;

use super::*;
use crate::acks::Acks;
use crate::cursor::{Ack, Backlog, Cursor, CursorWork, InitialPosition, NewCursor, Store, first_info};
use crate::effect::CursorError;
use crate::task::PutError;

pub(super) struct Slot {
    pub cursor: Cursor,
    pub phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its node is being written.
    Creating {
        token: u64,
    },
    Live,
    /// Its node is being deleted.
    Deleting {
        token: u64,
    },
}

impl ManagedLedger {
    /// The cursors that exist, with their names.
    pub fn cursors(&self) -> impl Iterator<Item = (CursorId, &str)> {
        self.cursors
            .iter()
            .filter(|(_, slot)| slot.phase == Phase::Live)
            .map(|(&id, slot)| (id, slot.cursor.name.as_str()))
    }

    #[must_use]
    pub fn cursor_named(&self, name: &str) -> Option<CursorId> {
        self.cursors().find(|(_, cursor)| *cursor == name).map(|(id, _)| id)
    }

    /// What [`NewCursor::cursor_properties`] said; empty for a non-durable cursor, whose creator has to remember them.
    #[must_use]
    pub fn cursor_properties(&self, id: CursorId) -> BTreeMap<String, String> {
        self.cursors.get(&id).map(|slot| slot.cursor.properties().collect()).unwrap_or_default()
    }

    /// Creates a cursor; [`Effect::CursorCreated`] follows when its node is durable, at once for a non-durable one.
    pub fn create_cursor(&mut self, now: Now, new: NewCursor, token: u64, out: &mut Effects) {
        let refused = match &self.writing {
            Writing::Fenced { reason } => Some(CursorError::Fenced { reason: reason.clone() }),
            Writing::Closed => Some(CursorError::Closed),
            _ if self.closing.is_some() => Some(CursorError::Closed),
            _ if self.cursors.values().any(|slot| slot.cursor.name == new.name) => {
                Some(CursorError::Exists { name: new.name.clone() })
            }
            _ => None,
        };
        if let Some(error) = refused {
            out.push(Effect::CursorCreated { token, result: Err(error) });
            return;
        }
        let mark_delete = match new.initial {
            InitialPosition::Earliest => self.kept_start(),
            InitialPosition::Latest => self.last_confirmed(),
            InitialPosition::After(position) => position.clamp(self.kept_start(), self.last_confirmed()),
        };
        self.last_cursor += 1;
        let id = CursorId(self.last_cursor);
        let acks = Acks::new(mark_delete);
        if !new.durable {
            let cursor = Cursor::new(new.name, acks, None);
            self.cursors.insert(id, Slot { cursor, phase: Phase::Live });
            out.push(Effect::CursorCreated { token, result: Ok(id) });
            return;
        }
        let info = first_info(&new, mark_delete, now);
        let work = Work::Put {
            close: None,
            path: self.cursor_path(&new.name),
            value: info.encode_to_vec().into(),
            expected: Expected::Absent,
        };
        // In the map from now on, so that trimming waits for it.
        let cursor = Cursor::new(new.name, acks, Some(Store::new(&info, 0)));
        self.cursors.insert(id, Slot { cursor, phase: Phase::Creating { token } });
        run(out, Purpose::CreateCursor(id), work);
    }

    pub(super) fn cursor_created(&mut self, id: CursorId, result: Result<Stat, PutError>, out: &mut Effects) {
        let Some(slot) = self.cursors.get_mut(&id) else { return };
        let Phase::Creating { token } = slot.phase else { return };
        let name = slot.cursor.name.clone();
        let result = match result {
            Ok(stat) => {
                slot.phase = Phase::Live;
                if let Some(store) = &mut slot.cursor.store {
                    store.info_version = stat.version;
                }
                Ok(id)
            }
            Err(PutError::Put(error)) if error.is_bad_version() => Err(CursorError::Exists { name }),
            Err(PutError::Put(source)) => Err(CursorError::Metadata { name, source }),
            Err(PutError::Close(_)) => unreachable!("nothing was to be closed"),
        };
        if result.is_err() {
            self.cursors.remove(&id);
        }
        out.push(Effect::CursorCreated { token, result });
    }

    /// Deletes a cursor for good; receipts it still owes fail. [`Effect::CursorDeleted`] follows.
    pub fn delete_cursor(&mut self, id: CursorId, token: u64, out: &mut Effects) {
        let fenced = match &self.writing {
            Writing::Fenced { reason } => Some(CursorError::Fenced { reason: reason.clone() }),
            Writing::Closed => Some(CursorError::Closed),
            _ if self.closing.is_some() => Some(CursorError::Closed),
            _ => None,
        };
        let slot = self.cursors.get_mut(&id).filter(|slot| slot.phase == Phase::Live);
        let slot = match (fenced, slot) {
            (None, Some(slot)) => slot,
            (error, _) => {
                let error = error.unwrap_or(CursorError::NotFound);
                return out.push(Effect::CursorDeleted { token, result: Err(error) });
            }
        };
        fail_tokens(slot.cursor.take_tokens(), &CursorError::NotFound, out);
        if slot.cursor.store.is_none() {
            self.cursors.remove(&id);
            return out.push(Effect::CursorDeleted { token, result: Ok(()) });
        }
        slot.phase = Phase::Deleting { token };
        self.delete_cursor_node(id, out);
    }

    /// Not while a change of the node is on its way: a cursor of the same name, created after the deletion, starts at the same
    /// version, and the late change would take its node for the old one.
    fn delete_cursor_node(&self, id: CursorId, out: &mut Effects) {
        let Some(slot) = self.cursors.get(&id).filter(|slot| !slot.cursor.is_changing_its_node()) else { return };
        let path = self.cursor_path(&slot.cursor.name);
        run(out, Purpose::DeleteCursor(id), Work::DeleteNode { path });
    }

    pub(super) fn cursor_deleted(
        &mut self,
        now: Now,
        id: CursorId,
        result: Result<(), MetadataError>,
        out: &mut Effects,
    ) {
        let Some(slot) = self.cursors.get_mut(&id) else { return };
        let Phase::Deleting { token } = slot.phase else { return };
        match result {
            Ok(()) => {
                // The node is gone: nobody can find these ledgers any more.
                out.extend(slot.cursor.ledgers().into_iter().map(delete_ledger));
                self.cursors.remove(&id);
                out.push(Effect::CursorDeleted { token, result: Ok(()) });
                self.trim(now, out);
            }
            Err(source) => {
                slot.phase = Phase::Live;
                let error = CursorError::Metadata { name: slot.cursor.name.clone(), source };
                out.push(Effect::CursorDeleted { token, result: Err(error) });
            }
        }
    }

    /// Acknowledges. With a token, [`Effect::AckDone`] follows when it is durable (at once on a non-durable cursor).
    /// Without one, it becomes durable within [`ManagedLedgerConfig::lazy_cursor_interval`] and is repeated to consumers
    /// after a crash before that.
    ///
    /// Acknowledging twice, or what is trimmed, changes nothing; what is beyond the end is refused.
    pub fn ack(&mut self, now: Now, id: CursorId, ack: &Ack, token: Option<u64>, out: &mut Effects) {
        let end = self.last_confirmed();
        let (Ack::Individual { position, .. } | Ack::Cumulative { position, .. }) = ack;
        let refused = if *position > end { Some(CursorError::BeyondEnd { position: *position }) } else { None };
        if !self.is_usable(id, refused, token, out) {
            return;
        }
        if let Some(slot) = self.cursors.get_mut(&id) {
            slot.cursor.ack(ack, token, &self.line, out);
        }
        self.cursor_changed(now, id, out);
    }

    /// Takes all acknowledgements back and makes the first entry after `mark_delete` the next one (seek). With a token,
    /// [`Effect::AckDone`] follows when it is durable.
    pub fn reset_cursor(
        &mut self,
        now: Now,
        id: CursorId,
        mark_delete: Position,
        token: Option<u64>,
        out: &mut Effects,
    ) {
        let mark_delete = mark_delete.clamp(self.kept_start(), self.last_confirmed());
        if !self.is_usable(id, None, token, out) {
            return;
        }
        if let Some(slot) = self.cursors.get_mut(&id) {
            slot.cursor.reset(mark_delete, token, out);
        }
        self.cursor_changed(now, id, out);
    }

    /// Else the receipt is answered with the reason.
    fn is_usable(&self, id: CursorId, refused: Option<CursorError>, token: Option<u64>, out: &mut Effects) -> bool {
        let error = match &self.writing {
            Writing::Fenced { reason } => Some(CursorError::Fenced { reason: reason.clone() }),
            Writing::Closed => Some(CursorError::Closed),
            _ if self.closing.is_some() => Some(CursorError::Closed),
            _ if self.cursors.get(&id).is_none_or(|slot| slot.phase != Phase::Live) => Some(CursorError::NotFound),
            _ => refused,
        };
        let usable = error.is_none();
        if let (Some(error), Some(token)) = (error, token) {
            out.push(Effect::AckDone { token, result: Err(error) });
        }
        usable
    }

    /// Everything up to and including this is acknowledged.
    #[must_use]
    pub fn mark_delete(&self, id: CursorId) -> Option<Position> {
        self.cursors.get(&id).map(|slot| slot.cursor.acks.mark_delete())
    }

    /// Whether the whole entry is acknowledged; true if there is no such cursor.
    #[must_use]
    pub fn is_acked(&self, id: CursorId, position: Position) -> bool {
        self.cursors.get(&id).is_none_or(|slot| slot.cursor.acks.contains(position))
    }

    /// Of a partly acknowledged batch, the bits of the messages that remain.
    #[must_use]
    pub fn ack_set(&self, id: CursorId, position: Position) -> Option<&[i64]> {
        self.cursors.get(&id).and_then(|slot| slot.cursor.acks.remaining(position))
    }

    /// The first entry at or after `from` that the cursor has not acknowledged; past the end, where the next one will lie.
    #[must_use]
    pub fn next_unacked(&self, id: CursorId, from: Position) -> Position {
        match self.cursors.get(&id) {
            Some(slot) => slot.cursor.acks.next_unacked(from, &self.line),
            None => self.line.at_or_after(from),
        }
    }

    /// What the cursor has not acknowledged.
    #[must_use]
    pub fn backlog(&self, id: CursorId) -> Backlog {
        let Some(slot) = self.cursors.get(&id) else { return Backlog::default() };
        let acks = &slot.cursor.acks;
        let after = self.line.count(acks.mark_delete(), self.last_confirmed());
        let entries = after.saturating_sub(acks.acked_entries());
        // Where the index is known, messages after the mark-delete position; acknowledged entries in proportion.
        let messages = match self.indexes.next_index(acks.mark_delete()) {
            Some(index) if after > 0 => {
                let span = u128::from(self.confirmed_index.saturating_sub(index));
                (span * u128::from(entries) / u128::from(after)) as u64
            }
            _ => entries,
        };
        Backlog { entries, messages: messages.max(entries) }
    }

    /// The mark-delete position of the slowest durable cursor.
    pub(super) fn slowest_durable(&self) -> Option<Position> {
        let durable = self.cursors.values().filter(|slot| slot.cursor.store.is_some());
        durable.map(|slot| slot.cursor.acks.mark_delete()).min()
    }

    pub(super) fn cursor_path(&self, name: &str) -> String {
        format!("{}/{}", self.path, encode_form(name))
    }

    fn cursor_changed(&mut self, now: Now, id: CursorId, out: &mut Effects) {
        self.with_cursor(id, out, |cursor, ml, out, work| cursor.drive(now, ml.owner, ml.config, out, work));
    }

    pub(super) fn drive_cursors(&mut self, now: Now, out: &mut Effects) {
        if self.is_over() || self.closing.is_some() {
            return;
        }
        let live: Vec<CursorId> =
            self.cursors.iter().filter(|(_, slot)| slot.phase == Phase::Live).map(|(&id, _)| id).collect();
        for id in live {
            self.cursor_changed(now, id, out);
        }
    }

    pub(super) fn cursor_appended(&mut self, now: Now, done: AddDone, out: &mut Effects) {
        let id = self.cursors.iter().find(|(_, slot)| slot.cursor.writes_to(done.ledger)).map(|(&id, _)| id);
        // Nobody's: an answer for a ledger, or from a time, that is over.
        let Some(id) = id else { return };
        if self.is_over() || self.cursors.get(&id).is_none_or(|slot| slot.phase != Phase::Live) {
            return;
        }
        let idle = self.closing.is_none();
        self.with_cursor(id, out, |cursor, ml, out, work| {
            cursor.appended(now, done, out, work);
            if idle {
                cursor.drive(now, ml.owner, ml.config, out, work);
            }
        });
    }

    pub(super) fn cursor_ledger_created(
        &mut self,
        now: Now,
        id: CursorId,
        created: Result<Appender, ledger::LedgerError>,
        out: &mut Effects,
    ) {
        if let Err(error) = &created {
            tracing::warn!(managed_ledger = %self.name, %error, "cannot create a cursor ledger, trying again");
        }
        let wanted = !self.is_over() && self.cursors.get(&id).is_some_and(|slot| slot.phase == Phase::Live);
        if wanted {
            self.with_cursor(id, out, |cursor, _, _, work| cursor.ledger_created(now, created.ok(), work));
        } else {
            out.extend(created.ok().map(|appender| delete_ledger(appender.ledger())));
        }
    }

    pub(super) fn cursor_info_put(
        &mut self,
        now: Now,
        id: CursorId,
        result: Result<Stat, PutError>,
        out: &mut Effects,
    ) {
        let Some(slot) = self.cursors.get_mut(&id) else { return };
        let is_deleting = matches!(slot.phase, Phase::Deleting { .. });
        let version = match result {
            Ok(stat) => Some(stat.version),
            Err(PutError::Put(error)) if error.is_bad_version() || error.is_not_found() => {
                let name = slot.cursor.name.clone();
                return self.fence(format!("the node of cursor `{name}` was changed by somebody else"), out);
            }
            Err(error) => {
                tracing::warn!(managed_ledger = %self.name, cursor = %slot.cursor.name, ?error, "cannot write the cursor's node, trying again");
                None
            }
        };
        self.with_cursor(id, out, |cursor, _, out, work| cursor.info_put(now, version, out, work));
        if is_deleting {
            self.delete_cursor_node(id, out);
        }
    }

    /// Lets a cursor's core decide, and runs what it asks for.
    pub(super) fn with_cursor<R>(
        &mut self,
        id: CursorId,
        out: &mut Effects,
        decide: impl FnOnce(&mut Cursor, Around<'_>, &mut Effects, &mut Vec<CursorWork>) -> R,
    ) -> Option<R> {
        let around = Around { owner: self.owner, config: &self.config };
        let slot = self.cursors.get_mut(&id)?;
        let mut asked = Vec::new();
        let answer = decide(&mut slot.cursor, around, out, &mut asked);
        if asked.is_empty() {
            return Some(answer);
        }
        let name = slot.cursor.name.clone();
        let version = slot.cursor.store.as_ref().map_or(0, |store| store.info_version);
        for work in asked {
            match work {
                CursorWork::CreateLedger => {
                    let custom = opening::custom_metadata(&self.name, Some(&name));
                    run(out, Purpose::CursorLedger(id), Work::CreateLedger { custom });
                }
                CursorWork::PutInfo(info) => {
                    let work = Work::Put {
                        close: None,
                        path: self.cursor_path(&name),
                        value: info.encode_to_vec().into(),
                        expected: Expected::Version(version),
                    };
                    run(out, Purpose::CursorInfo(id), work);
                }
                CursorWork::DeleteLedger(ledger) => out.push(delete_ledger(ledger)),
            }
        }
        Some(answer)
    }

    pub(super) fn fail_cursors(&mut self, reason: &str, out: &mut Effects) {
        let error = || CursorError::Fenced { reason: reason.to_owned() };
        let mut gone = Vec::new();
        for (&id, slot) in &mut self.cursors {
            fail_tokens(slot.cursor.take_tokens(), &error(), out);
            match std::mem::replace(&mut slot.phase, Phase::Live) {
                Phase::Creating { token } => {
                    gone.push(id);
                    out.push(Effect::CursorCreated { token, result: Err(error()) });
                }
                Phase::Deleting { token } => out.push(Effect::CursorDeleted { token, result: Err(error()) }),
                Phase::Live => {}
            }
        }
        gone.iter().for_each(|id| drop(self.cursors.remove(id)));
    }
}

/// What a cursor's core sees of its managed ledger.
pub(super) struct Around<'a> {
    pub owner: u64,
    pub config: &'a ManagedLedgerConfig,
}

fn fail_tokens(tokens: Vec<u64>, error: &CursorError, out: &mut Effects) {
    out.extend(tokens.into_iter().map(|token| Effect::AckDone { token, result: Err(error.clone()) }));
}
