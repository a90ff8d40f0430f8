//! What one commit holds: the decisions about its requests, and their answers once it is known what became of it.

use std::collections::VecDeque;
use std::sync::Arc;

use bookkeeper_proto::{AddDone, AddOp, AddSink, BookieError, LedgerId, MasterKey};
use bytes::Bytes;
use rustc_hash::FxHashSet;

use super::{BookieCore, Done, Mode, Request, WriteError};
use crate::format::{MAX_LAC_BLOB_LEN, RECORD_HEAD_LEN, STATE_LEN, SegmentId, StateRecord};
use crate::state::{Ledger, LogState};

/// What is left to do for a request once the commit's outcome is known, in the order of the requests.
pub(super) enum Step {
    Added { op: AddOp, sink: Arc<dyn AddSink>, at: usize },
    Refused { done: AddDone, sink: Arc<dyn AddSink> },
    Call { ledger: LedgerId, done: Done },
    CallWith { result: Result<(), BookieError>, done: Done },
}

pub(super) enum Record {
    /// The index of its [`Step::Added`].
    Entry(usize),
    State(StateRecord),
    Freed(SegmentId),
}

/// One commit in the making.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) records: Vec<Record>,
    /// Of the records, heads included.
    pub(super) bytes: usize,
    pub(super) state_bytes: u64,
    pub(super) entries: u64,
    /// Ledgers with a state record among the records.
    pub(super) saving: FxHashSet<LedgerId>,
    pub(super) steps: Vec<Step>,
}

impl Plan {
    pub(super) fn push_state(&mut self, state: StateRecord) {
        let body_len = STATE_LEN + state.explicit_lac.as_ref().map_or(0, Bytes::len);
        self.bytes += RECORD_HEAD_LEN + body_len;
        self.state_bytes += body_len as u64;
        self.saving.insert(state.ledger);
        self.records.push(Record::State(state));
    }

    pub(super) fn push_freed(&mut self, segment: SegmentId) {
        self.bytes += RECORD_HEAD_LEN + 8;
        self.records.push(Record::Freed(segment));
    }

    pub(super) fn states(&mut self, record: Option<StateRecord>) {
        if let Some(record) = record {
            self.push_state(record);
        }
    }
}

impl BookieCore {
    /// Decides about requests from the front of the queue, as many as fit into one commit.
    pub(super) fn plan(&mut self, requests: &mut VecDeque<Request>) -> Plan {
        let mut plan = Plan::default();
        let Some(first) = requests.front() else { return plan };
        let for_entries = requests.iter().any(|request| matches!(request, Request::Add { .. }));
        // What is too large for any segment is refused, and needs no room.
        let largest = self.shared.config.max_entry_bytes() + 2 * RECORD_HEAD_LEN + STATE_LEN + MAX_LAC_BLOB_LEN;
        let least = Some(first.record_bytes()).filter(|bytes| *bytes <= largest).unwrap_or_default();
        let all: usize = requests.iter().map(Request::record_bytes).sum();
        self.make_room(least, for_entries.then_some(all.min(self.shared.config.commit_bytes).max(least)));

        let shared = self.shared.clone();
        let mut state = shared.state.write();
        while let Some(request) = requests.front() {
            let bytes = request.record_bytes();
            let is_first = plan.steps.is_empty();
            let fits = plan.bytes + bytes <= self.shared.config.commit_bytes && self.fits(&state, &plan, bytes);
            if !is_first && !fits {
                break;
            }
            let Some(request) = requests.pop_front() else { break };
            match request {
                Request::Add { op, sink } => match self.decide_add(&mut state, &op, &mut plan) {
                    Ok(()) => {
                        plan.bytes += RECORD_HEAD_LEN + op.bytes.len();
                        plan.entries += 1;
                        plan.records.push(Record::Entry(plan.steps.len()));
                        plan.steps.push(Step::Added { op, sink, at: 0 });
                    }
                    Err(error) => plan.steps.push(Step::Refused { done: add_done(&op, Err(error)), sink }),
                },
                Request::Fence { ledger, key, done } => {
                    let change = |ledger: &mut Ledger| !std::mem::replace(&mut ledger.fenced, true);
                    let result = self.decide_change(&mut state, ledger, key, change, &mut plan);
                    plan.steps.push(call(ledger, result, done));
                }
                Request::WriteLac { ledger, key, blob, done } => {
                    let is_sound = (16..=MAX_LAC_BLOB_LEN).contains(&blob.len());
                    let result = if is_sound {
                        let change = |ledger: &mut Ledger| ledger.explicit_lac.replace(blob.clone()) != Some(blob);
                        self.decide_change(&mut state, ledger, key, change, &mut plan)
                    } else {
                        Err(bad_request(ledger, "explicit LAC: expected 16 to 1024 bytes"))
                    };
                    plan.steps.push(call(ledger, result, done));
                }
                Request::Delete { ledger, done } => {
                    let result = self.decide_delete(&mut state, ledger, &mut plan);
                    plan.steps.push(call(ledger, result, done));
                }
            }
        }
        plan
    }

    fn decide_add(&self, state: &mut LogState, op: &AddOp, plan: &mut Plan) -> Result<(), BookieError> {
        let id = op.ledger;
        let header = op.bytes.header();
        if op.entry.0 < 0 || id.0 < 0 {
            return Err(bad_request(id, "negative ledger or entry id"));
        }
        if (header.ledger, header.entry) != (id, op.entry) {
            return Err(bad_request(id, "the entry's header names another entry"));
        }
        let max = self.shared.config.max_entry_bytes();
        if op.bytes.len() > max {
            return Err(BookieError::TooLarge { ledger: id, entry: op.entry, len: op.bytes.len(), max });
        }
        let refused = self.refuses(id);
        match state.ledgers.get_mut(&id) {
            Some(ledger) if ledger.deleted => Err(BookieError::NoLedger { ledger: id }),
            Some(Ledger { key: None, .. }) => {
                let detail = "the record with its master key is lost".into();
                Err(BookieError::UnknownLedgerState { ledger: id, detail })
            }
            Some(ledger) if ledger.key != Some(op.key) => Err(BookieError::Unauthorized { ledger: id }),
            Some(ledger) if ledger.fenced && !op.recovery => Err(BookieError::Fenced { ledger: id }),
            _ if refused.is_some() => refused.map_or(Ok(()), Err),
            Some(ledger) => {
                // Only after a failed commit, or when the ledger began in this very one.
                if ledger.saved_in.is_none() && !plan.saving.contains(&id) {
                    plan.states(ledger.record(id));
                }
                Ok(())
            }
            None => {
                let ledger = Ledger::new(Some(op.key), self.current_id());
                plan.states(ledger.record(id));
                state.ledgers.insert(id, ledger);
                Ok(())
            }
        }
    }

    fn decide_change(
        &self,
        state: &mut LogState,
        id: LedgerId,
        key: MasterKey,
        change: impl FnOnce(&mut Ledger) -> bool,
        plan: &mut Plan,
    ) -> Result<(), BookieError> {
        if id.0 < 0 {
            return Err(bad_request(id, "negative ledger id"));
        }
        if let Mode::Failed(reason) = &self.mode {
            return Err(BookieError::ReadOnly { ledger: id, reason: reason.clone() });
        }
        let current = self.current_id();
        let ledger = state.ledgers.entry(id).or_insert_with(|| Ledger::new(Some(key), current));
        if ledger.deleted {
            return Err(BookieError::NoLedger { ledger: id });
        }
        // A ledger whose key record is lost takes the first key that comes: its recovery must be possible.
        if *ledger.key.get_or_insert(key) != key {
            return Err(BookieError::Unauthorized { ledger: id });
        }
        if change(ledger) || ledger.saved_in.is_none() {
            ledger.saved_in = None;
            plan.states(ledger.record(id));
        }
        Ok(())
    }

    fn decide_delete(&mut self, state: &mut LogState, id: LedgerId, plan: &mut Plan) -> Result<(), BookieError> {
        if let Mode::Failed(reason) = &self.mode {
            return Err(BookieError::ReadOnly { ledger: id, reason: reason.clone() });
        }
        let Some(ledger) = state.ledgers.get(&id) else { return Ok(()) };
        if ledger.deleted && ledger.saved_in.is_some() {
            return Ok(());
        }
        state.mark_deleted(id);
        self.may_collect = true;
        if let Some(ledger) = state.ledgers.get_mut(&id) {
            ledger.saved_in = None;
            plan.states(ledger.record(id));
        }
        Ok(())
    }

    /// Why entries are refused now, if they are.
    fn refuses(&self, ledger: LedgerId) -> Option<BookieError> {
        let reason = match &self.mode {
            Mode::Writable => return None,
            Mode::Full => "the disk is full".into(),
            Mode::Failed(reason) => reason.clone(),
        };
        Some(BookieError::ReadOnly { ledger, reason })
    }
}

fn bad_request(ledger: LedgerId, detail: &'static str) -> BookieError {
    BookieError::BadRequest { ledger, detail: detail.into() }
}

fn add_done(op: &AddOp, result: Result<Bytes, BookieError>) -> AddDone {
    AddDone { ledger: op.ledger, entry: op.entry, owner: op.owner, result }
}

fn call(ledger: LedgerId, result: Result<(), BookieError>, done: Done) -> Step {
    match result {
        Ok(()) => Step::Call { ledger, done },
        Err(_) => Step::CallWith { result, done },
    }
}

/// Answers the requests of one commit: one call per sink, each sink's adds in their order, then the others.
pub(super) fn answer(steps: Vec<Step>, commit: Option<&Bytes>, error: Option<&WriteError>) {
    let mut sinks: Vec<(Arc<dyn AddSink>, Vec<AddDone>)> = Vec::new();
    let mut calls = Vec::new();
    for step in steps {
        let (done, sink) = match step {
            Step::Added { op, sink, at } => {
                let start = at + RECORD_HEAD_LEN;
                let result = match (error, commit) {
                    (None, Some(commit)) => Ok(commit.slice(start..start + op.bytes.len())),
                    (Some(error), _) => Err(error.about(op.ledger)),
                    (None, None) => unreachable!("an accepted add is a record, and records make a commit"),
                };
                (add_done(&op, result), sink)
            }
            Step::Refused { done, sink } => (done, sink),
            Step::Call { ledger, done } => {
                calls.push((error.map_or(Ok(()), |error| Err(error.about(ledger))), done));
                continue;
            }
            Step::CallWith { result, done } => {
                calls.push((result, done));
                continue;
            }
        };
        match sinks.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &sink)) {
            Some((_, batch)) => batch.push(done),
            None => sinks.push((sink, vec![done])),
        }
    }
    for (sink, batch) in sinks {
        sink.added(batch);
    }
    for (result, done) in calls {
        done(result);
    }
}
