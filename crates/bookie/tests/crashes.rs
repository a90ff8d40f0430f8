//! Random histories on a disk that keeps only what was synced: adds, fences, deletions, kills and crashes, and a check of everything
//! that was promised after each start. Then the same with one sync left out, which must be found out.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use bookie::{BookieCore, Request, SYNC_POINTS};
use bookkeeper_proto::{AddOp, AddSink, BookieError, EntryBuf, EntryId, LedgerId, Remedy};
use bytes::Bytes;
use common::{Collected, KEY, OTHER_KEY, Process, add_op, config, entry_bytes, lac_blob};
use disk::SyncPoint;
use disk::simulated::{Fault, SimDisk};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const SEEDS: u64 = 150;

/// What a client knows about something it asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Known {
    #[default]
    No,
    Maybe,
    Yes,
}

#[derive(Default)]
struct ModelLedger {
    next: i64,
    acked: BTreeMap<i64, Bytes>,
    unknown: BTreeMap<i64, Vec<Bytes>>,
    fenced: Known,
    deleted: Known,
    lac: i64,
    maybe_lac: i64,
}

struct History {
    disk: SimDisk,
    process: Process,
    core: BookieCore,
    rng: SmallRng,
    ledgers: BTreeMap<i64, ModelLedger>,
    next_ledger: i64,
    crashes: u64,
}

type Outcome = Result<(), String>;

fn open(disk: &SimDisk) -> Result<(Process, BookieCore), String> {
    let process = Process::new(disk.clone());
    let mut opened = BookieCore::open(config(), Arc::new(process.clone()));
    // A fault that meets the start makes it fail, and the next one succeed.
    while matches!(&opened, Err(error) if format!("{error:?}").contains("injected")) {
        opened = BookieCore::open(config(), Arc::new(process.clone()));
    }
    let (core, recovered) = opened.map_err(|error| format!("cannot open: {error:?}"))?;
    if !recovered.damage.is_empty() {
        return Err(format!("damage without a cause: {:?}", recovered.damage));
    }
    Ok((process, core))
}

impl History {
    fn begin(seed: u64, skipped: Option<SyncPoint>) -> Result<History, String> {
        let disk = SimDisk::new(seed);
        if let Some(point) = skipped {
            disk.skip_sync(point);
        }
        let (process, core) = open(&disk)?;
        let rng = SmallRng::seed_from_u64(seed);
        Ok(History { disk, process, core, rng, ledgers: BTreeMap::new(), next_ledger: 1, crashes: 0 })
    }

    fn step(&mut self) -> Outcome {
        match self.rng.random_range(0..100) {
            0..80 => self.work(),
            80..88 => {
                // Killed, not crashed: what was not synced is still there to be read.
                self.process.kill_after(self.rng.random_range(0..12));
                for _ in 0..30 {
                    if self.process.is_dead() {
                        break;
                    }
                    self.work()?;
                }
                (self.process, self.core) = open(&self.disk)?;
                self.check()
            }
            88..97 => {
                let ahead = self.rng.random_range(0..12);
                self.disk.crash_at(self.disk.op_count() + ahead);
                for _ in 0..30 {
                    if self.disk.has_crashed() {
                        break;
                    }
                    self.work()?;
                }
                self.crash()
            }
            _ => {
                self.core.tick();
                self.core.tick();
                Ok(())
            }
        }
    }

    fn crash(&mut self) -> Outcome {
        self.crashes += 1;
        self.disk.crash_now();
        self.disk = self.disk.after_crash(self.rng.random());
        if self.rng.random_bool(0.3) {
            // The start itself is cut, once.
            self.disk.crash_at(self.rng.random_range(0..4));
            if open(&self.disk).is_err() || self.disk.has_crashed() {
                self.disk.crash_now();
                self.disk = self.disk.after_crash(self.rng.random());
            }
            self.disk.crash_at(u64::MAX);
        }
        (self.process, self.core) = open(&self.disk)?;
        self.check()
    }

    /// One batch of requests.
    fn work(&mut self) -> Outcome {
        if self.rng.random_bool(0.03) {
            let fault = if self.rng.random_bool(0.5) { Fault::Io } else { Fault::NoSpace };
            self.disk.fail_op(self.disk.op_count() + self.rng.random_range(0..6), fault);
        }
        let collected = Arc::new(Collected::default());
        let sink: Arc<dyn AddSink> = collected.clone();
        let answers = Arc::new(Mutex::new(Vec::new()));
        let mut requests = Vec::new();
        let mut posted: Vec<(AddOp, Bytes, bool)> = Vec::new();
        let mut changes = Vec::new();
        for _ in 0..self.rng.random_range(1..6) {
            let alive = self.ledgers.iter().filter(|(_, ledger)| ledger.deleted == Known::No);
            let alive: Vec<i64> = alive.map(|(id, _)| *id).collect();
            let ledger = if alive.is_empty() || self.rng.random_bool(0.05) {
                self.next_ledger += 1;
                self.next_ledger - 1
            } else {
                alive[self.rng.random_range(0..alive.len())]
            };
            let salt = self.rng.random();
            let len = self.rng.random_range(0..2000);
            let kind = self.rng.random_range(0..100);
            let model = self.ledgers.entry(ledger).or_default();
            match kind {
                0..90 => {
                    let id = model.next;
                    model.next += 1;
                    let bytes = entry_bytes(ledger, id, id - 1, len, salt);
                    let recovery = model.fenced != Known::No;
                    let bytes_buf = EntryBuf::verbatim(bytes.clone()).unwrap();
                    let op = AddOp { recovery, bytes: bytes_buf, ..add_op(ledger, id, 0) };
                    posted.push((op.clone(), bytes, recovery));
                    requests.push(Request::Add { op, sink: sink.clone() });
                }
                kind => {
                    let number = changes.len();
                    let to = answers.clone();
                    let done = Box::new(move |result| to.lock().push((number, result)));
                    let id = LedgerId(ledger);
                    changes.push((kind, ledger));
                    requests.push(match kind {
                        90..93 => {
                            model.fenced = model.fenced.max_maybe();
                            Request::Fence { ledger: id, key: KEY, done }
                        }
                        93..97 => {
                            model.maybe_lac = model.maybe_lac.max(model.lac) + 100;
                            Request::WriteLac { ledger: id, key: KEY, blob: lac_blob(ledger, model.maybe_lac), done }
                        }
                        _ => {
                            model.deleted = model.deleted.max_maybe();
                            Request::Delete { ledger: id, done }
                        }
                    });
                }
            }
        }
        self.core.commit(requests);
        for (done, (op, bytes, recovery)) in collected.take().into_iter().zip(posted) {
            let model = self.ledgers.get_mut(&op.ledger.0).unwrap();
            match done.result {
                Ok(stored) if stored == bytes => {
                    model.acked.insert(op.entry.0, bytes);
                }
                Ok(_) => return Err(format!("entry {op:?} was acknowledged with other bytes")),
                Err(BookieError::Fenced { .. }) if model.fenced != Known::No && !recovery => {}
                Err(BookieError::NoLedger { .. }) if model.deleted != Known::No => {}
                Err(BookieError::ReadOnly { .. }) => {}
                Err(error) if error.remedy() == Remedy::OutcomeUnknown => {
                    model.unknown.entry(op.entry.0).or_default().push(bytes);
                }
                Err(error) => return Err(format!("unexpected answer to {op:?}: {error:?}")),
            }
        }
        for (number, result) in answers.lock().drain(..) {
            let (kind, ledger) = changes[number];
            let model = self.ledgers.get_mut(&ledger).unwrap();
            match (kind, result) {
                (90..93, Ok(())) => model.fenced = Known::Yes,
                (93..97, Ok(())) => model.lac = model.maybe_lac,
                (97.., Ok(())) => model.deleted = Known::Yes,
                _ => {}
            }
        }
        Ok(())
    }

    /// Everything that was promised is there; what is there counts as promised from now on.
    fn check(&mut self) -> Outcome {
        let reader = self.core.reader();
        for (id, model) in &mut self.ledgers {
            let ledger = LedgerId(*id);
            if model.deleted == Known::Yes || (model.deleted == Known::Maybe && !reader.ledgers().contains(&ledger)) {
                model.deleted = Known::Yes;
                if reader.ledgers().contains(&ledger) {
                    return Err(format!("ledger {id} was deleted and is back"));
                }
                continue;
            }
            model.deleted = Known::No;
            for entry in 0..model.next {
                let read = reader.read(ledger, EntryId(entry));
                match (model.acked.get(&entry), model.unknown.get(&entry), read) {
                    (Some(expected), _, Ok(found)) if *expected == found => {}
                    (Some(_), _, read) => return Err(format!("entry {entry} of ledger {id} is lost: {read:?}")),
                    (None, Some(possible), Ok(found)) if possible.contains(&found) => {
                        model.acked.insert(entry, found);
                    }
                    (None, _, Err(BookieError::NoEntry { .. } | BookieError::NoLedger { .. })) => {
                        // Told to be absent, it must stay so.
                        model.unknown.remove(&entry);
                    }
                    (None, _, read) => return Err(format!("entry {entry} of ledger {id}: {read:?}")),
                }
            }
            if let Ok(lac) = reader.read_lac(ledger) {
                let explicit =
                    lac.explicit.as_deref().map_or(0, |blob| i64::from_be_bytes(blob[8..16].try_into().unwrap()));
                if explicit < model.lac || explicit > model.maybe_lac {
                    return Err(format!(
                        "explicit LAC of ledger {id} is {explicit}, not {}..={}",
                        model.lac, model.maybe_lac
                    ));
                }
                model.lac = explicit;
                let last = model.acked.keys().last().copied().unwrap_or(-1);
                if lac.last_entry.0 != last {
                    return Err(format!("last entry of ledger {id} is {:?}, not {last}", lac.last_entry));
                }
            } else if model.lac > 0 || !model.acked.is_empty() || model.fenced == Known::Yes {
                return Err(format!("ledger {id} is unknown"));
            }
        }
        self.check_fences()
    }

    fn check_fences(&mut self) -> Outcome {
        let known = self.core.reader().ledgers();
        for (id, model) in &mut self.ledgers {
            if model.deleted == Known::Yes || !known.contains(&LedgerId(*id)) {
                continue;
            }
            let stranger = AddOp { key: OTHER_KEY, ..add_op(*id, model.next, 1) };
            match common::add_all(&mut self.core, vec![stranger]).remove(0) {
                Err(BookieError::Unauthorized { .. }) => {}
                other => return Err(format!("ledger {id} has lost its key: {other:?}")),
            }
            let entry = model.next;
            let op = add_op(*id, entry, 1);
            let bytes = op.bytes.to_bytes();
            match (model.fenced, common::add_all(&mut self.core, vec![op]).remove(0)) {
                (Known::Yes | Known::Maybe, Err(BookieError::Fenced { .. })) => model.fenced = Known::Yes,
                (Known::No | Known::Maybe, Ok(_)) => {
                    model.fenced = Known::No;
                    model.acked.insert(entry, bytes);
                    model.next += 1;
                }
                // A fault was still waiting for its operation.
                (Known::No | Known::Maybe, Err(BookieError::ReadOnly { .. })) => {}
                (Known::No | Known::Maybe, Err(error)) if error.remedy() == Remedy::OutcomeUnknown => {
                    model.unknown.entry(entry).or_default().push(bytes);
                    model.next += 1;
                }
                (fenced, other) => return Err(format!("ledger {id}, fenced: {fenced:?}, add: {other:?}")),
            }
        }
        Ok(())
    }
}

impl Known {
    fn max_maybe(self) -> Known {
        if self == Known::Yes { Known::Yes } else { Known::Maybe }
    }
}

fn run(seed: u64, steps: usize, skipped: Option<SyncPoint>) -> Result<History, String> {
    let mut history = History::begin(seed, skipped)?;
    for step in 0..steps {
        history.step().map_err(|error| format!("seed {seed}, step {step}: {error}"))?;
    }
    history.crash().map_err(|error| format!("seed {seed}, at the end: {error}"))?;
    Ok(history)
}

#[test]
fn what_was_acknowledged_survives() {
    let mut crashes = 0;
    let mut freed = 0;
    for seed in 0..SEEDS {
        let history = run(seed, 150, None).unwrap_or_else(|error| panic!("{error}"));
        crashes += history.crashes;
        freed += history.core.reader().stats().free_segments;
    }
    assert!(crashes > 300, "only {crashes} crashes prove little");
    assert!(freed > 0, "no segment was ever freed");
}

#[test]
fn no_sync_can_be_left_out() {
    for point in SYNC_POINTS {
        let found = (0..300).find_map(|seed| run(seed, 150, Some(point)).err());
        println!("{point:?}: {found:?}");
        assert!(found.is_some(), "leaving out {point:?} was not noticed");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let trace = |seed| run(seed, 60, None).unwrap_or_else(|error| panic!("{error}")).disk.trace();
    assert_eq!(trace(5), trace(5));
}
