//! The embedded store on a disk that keeps only what was synced: cut at every operation of a history, started again, and
//! compared with a tree in memory that was given the same writes.

#![allow(clippy::unwrap_used, reason = "a test's helpers are tests, too")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use common::{block_on, clock, now};
use disk::simulated::{Fault, Op, SimDisk};
use metadata::{
    CreateMode, EmbeddedStore, Expected, MemoryStore, MetadataError, MetadataStore, Mode, OpenError, sync_points,
};

/// What the history does, in this order.
#[derive(Clone, Copy, Debug)]
enum Step {
    Put(&'static str, usize),
    Number,
    Ephemeral(&'static str),
    Delete(&'static str),
    DeleteRecursive(&'static str),
    ExpireSession,
    Reopen,
}

const HISTORY: &[Step] = &[
    Step::Put("/ledgers/a", 100),
    Step::Put("/ledgers/a", 3_000),
    Step::Number,
    Step::Ephemeral("/bookies/b1"),
    Step::Put("/ledgers/deep/er/node", 10),
    // Makes the file grow.
    Step::Put("/ledgers/large", 300_000),
    Step::Reopen,
    Step::Number,
    Step::Delete("/ledgers/a"),
    Step::Ephemeral("/bookies/b2"),
    Step::Put("/ledgers/large", 20),
    Step::ExpireSession,
    Step::DeleteRecursive("/ledgers"),
    Step::Put("/ledgers/again", 7_000),
    Step::Number,
];

/// Path → value and version; without ephemeral nodes, which no restart keeps.
type Dump = BTreeMap<String, (Bytes, i64)>;

async fn dump(store: &dyn MetadataStore) -> Dump {
    let mut found = Dump::new();
    let mut open = vec!["/".to_owned()];
    while let Some(path) = open.pop() {
        let node = store.get(&path).await.unwrap().unwrap();
        let base = if path == "/" { "" } else { &path };
        open.extend(store.children(&path).await.unwrap().iter().map(|child| format!("{base}/{child}")));
        if !node.stat.ephemeral {
            found.insert(path, (node.value, node.stat.version));
        }
    }
    found
}

fn open(disk: &SimDisk) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::open(Arc::new(disk.clone()), Path::new("data/metadata"), clock(), Mode::Inline)
}

/// What a run knew when it ended.
struct Known {
    /// With everything that was acknowledged.
    acknowledged: Dump,
    /// With the one write that was under way, too.
    possible: Dump,
    numbers: Vec<String>,
}

/// Plays the history until the disk fails, against the model.
fn play(disk: &SimDisk, history: &[Step]) -> Known {
    let model = MemoryStore::new();
    let mut known = Known { acknowledged: now(dump(&model)), possible: now(dump(&model)), numbers: Vec::new() };
    let Ok(mut store) = open(disk) else { return known };
    for step in history {
        if let Step::Reopen = step {
            let _ = store.close();
            model.lose_session();
            model.regain_session();
            match open(disk) {
                Ok(opened) => store = opened,
                Err(_) => return known,
            }
            continue;
        }
        now(perform(*step, &model)).unwrap();
        known.possible = now(dump(&model));
        let result = match step {
            Step::ExpireSession => now(store.expire_session()).map(|()| None),
            step => now(perform(*step, &store)),
        };
        match result {
            Ok(number) => known.numbers.extend(number),
            Err(_) => return known,
        }
        known.acknowledged = now(dump(&model));
    }
    known
}

async fn perform(step: Step, store: &dyn MetadataStore) -> Result<Option<String>, MetadataError> {
    match step {
        Step::Put(path, len) => store.put(path, vec![len as u8; len].into(), Expected::Any).await.map(|_| None),
        Step::Number => {
            let created = store.create("/ids/ID-", Bytes::new(), CreateMode::EphemeralSequential).await?;
            Ok(Some(created.path))
        }
        Step::Ephemeral(path) => store.create(path, "here".into(), CreateMode::Ephemeral).await.map(|_| None),
        Step::Delete(path) => store.delete(path, Expected::Any).await.map(|()| None),
        Step::DeleteRecursive(path) => store.delete_recursive(path).await.map(|()| None),
        // The model's session is of no interest: dumps leave ephemeral nodes out.
        Step::ExpireSession | Step::Reopen => Ok(None),
    }
}

/// Whether what a restart finds is what was promised.
fn check(disk: &SimDisk, known: &Known) -> Result<(), String> {
    let store = open(disk).map_err(|error| error.to_string())?;
    let found = now(dump(&store));
    if found != known.acknowledged && found != known.possible {
        return Err(format!("found {:?}, acknowledged {:?}", found.keys(), known.acknowledged.keys()));
    }
    for path in ["/bookies/b1", "/bookies/b2"] {
        if now(store.exists(path)).unwrap() {
            return Err(format!("ephemeral node {path} survived"));
        }
    }
    let number = now(perform(Step::Number, &store)).map_err(|error| error.to_string())?;
    if number.iter().any(|number| known.numbers.contains(number)) {
        return Err(format!("{number:?} came back"));
    }
    now(store.put("/new", Bytes::new(), Expected::Any)).map(drop).map_err(|error| error.to_string())
}

fn ops_of_whole_history() -> Vec<Op> {
    let disk = SimDisk::new(0);
    let known = play(&disk, HISTORY);
    assert_eq!(known.acknowledged, known.possible, "the history runs to its end on a healthy disk");
    assert_eq!(known.numbers.len(), 3);
    disk.ops()
}

#[test]
fn every_cut_leaves_what_was_acknowledged_and_nothing_half() {
    let ops = ops_of_whole_history();
    assert!(ops.iter().any(|op| matches!(op, Op::Sync(_, sync_points::GROW))), "the history makes the file grow");
    for cut in 0..ops.len() as u64 {
        let disk = SimDisk::new(cut);
        disk.crash_at(cut);
        let known = play(&disk, HISTORY);
        for seed in 0..2 {
            let found = disk.after_crash(cut * 31 + seed);
            check(&found, &known)
                .unwrap_or_else(|error| panic!("cut {cut} ({:?}), seed {seed}: {error}", ops[cut as usize]));
        }
    }
}

#[test]
fn a_crash_while_starting_again_loses_nothing_either() {
    let ops = ops_of_whole_history().len() as u64;
    for cut in (0..ops).step_by(19) {
        let disk = SimDisk::new(cut);
        disk.crash_at(cut);
        let known = play(&disk, HISTORY);
        for second in 0..8 {
            let found = disk.after_crash(cut);
            found.crash_at(second);
            drop(open(&found));
            check(&found.after_crash(second), &known)
                .unwrap_or_else(|error| panic!("cut {cut}, then {second}: {error}"));
        }
    }
}

#[test]
fn every_sync_is_needed() {
    let ops = ops_of_whole_history().len() as u64;
    let points =
        [sync_points::FOLDER, sync_points::CREATE, sync_points::APPEAR, sync_points::GROW, sync_points::COMMIT];
    for point in points {
        let lost = (0..ops).any(|cut| {
            let disk = SimDisk::new(cut);
            disk.skip_sync(point);
            disk.crash_at(cut);
            let known = play(&disk, HISTORY);
            (0..2).any(|seed| check(&disk.after_crash(cut * 31 + seed), &known).is_err())
        });
        assert!(lost, "nothing is lost without {point:?}: is it needed, or does the history not show it?");
    }
}

#[test]
fn a_failed_write_or_sync_stops_the_store_and_tells_the_truth() {
    let ops = ops_of_whole_history();
    for (at, op) in (0..).zip(&ops) {
        let fault = if matches!(op, Op::Write { .. }) && at % 2 == 0 { Fault::NoSpace } else { Fault::Io };
        let disk = SimDisk::new(at);
        disk.fail_op(at, fault);
        let model = MemoryStore::new();
        let Ok(store) = open(&disk) else { continue };
        for step in HISTORY.iter().filter(|step| !matches!(step, Step::Reopen | Step::ExpireSession)) {
            let before = now(dump(&model));
            now(perform(*step, &model)).unwrap();
            let Err(error) = now(perform(*step, &store)) else { continue };
            let stopped = now(store.put("/x", Bytes::new(), Expected::Any)).unwrap_err();
            assert!(matches!(stopped, MetadataError::Stopped { .. }), "{stopped:?}");
            assert!(matches!(now(store.get("/x")), Err(MetadataError::Stopped { .. })));
            drop(store);
            let store = open(&disk.after_crash(at)).unwrap();
            let found = now(dump(&store));
            match error {
                MetadataError::Io(_) => assert_eq!(found, before, "op {at} {step:?}"),
                MetadataError::OutcomeUnknown { .. } => {
                    assert!(found == before || found == now(dump(&model)), "op {at} {step:?}");
                }
                error => panic!("op {at} {step:?}: {error}"),
            }
            break;
        }
    }
}

#[test]
fn a_full_disk_refuses_growth_and_recovers() {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();
    now(store.put("/a", Bytes::new(), Expected::Any)).unwrap();
    disk.set_capacity_bytes(Some(disk.used_bytes() + (4 << 20)));
    let full = now(store.put("/a", Bytes::new(), Expected::Any)).unwrap_err();
    assert!(matches!(full, MetadataError::Full { .. }) && full.is_retryable(), "{full}");
    assert!(now(store.exists("/a")).unwrap());
    now(store.delete("/a", Expected::Any)).unwrap();
    disk.set_capacity_bytes(None);
    now(store.put("/a", Bytes::new(), Expected::Any)).unwrap();
}

#[test]
fn a_commit_costs_one_sync() {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();
    now(store.put("/a", Bytes::new(), Expected::Any)).unwrap();
    let syncs = |disk: &SimDisk| disk.syncs().values().sum::<u64>();
    let before = syncs(&disk);
    for _ in 0..50 {
        now(store.put("/a", "some value".into(), Expected::Any)).unwrap();
    }
    assert_eq!(syncs(&disk) - before, 50);
    now(store.delete("/b", Expected::Any)).unwrap_err();
    assert_eq!(syncs(&disk) - before, 50, "a refusal needs no commit");
}

/// Many threads, each counting up in a node of its own, until the disk dies.
#[test]
fn what_the_commit_thread_acknowledged_survives() {
    for cut in [25, 40, 77, 130, 200, 333] {
        let disk = SimDisk::new(cut);
        disk.crash_at(cut);
        let opened = EmbeddedStore::open(Arc::new(disk.clone()), Path::new("metadata"), clock(), Mode::Threaded);
        let Ok(store) = opened else { continue };
        let acknowledged: Vec<i64> = std::thread::scope(|scope| {
            let count = |thread: i64| {
                let store = &store;
                move || {
                    let path = format!("/count/{thread}");
                    (0..).find(|_| block_on(store.put(&path, Bytes::new(), Expected::Any)).is_err()).unwrap_or(0)
                }
            };
            let threads: Vec<_> = (0..8).map(|thread| scope.spawn(count(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        drop(store);
        for seed in 0..4 {
            let found = disk.after_crash(seed);
            let store = EmbeddedStore::open(Arc::new(found), Path::new("metadata"), clock(), Mode::Inline).unwrap();
            for (thread, count) in acknowledged.iter().enumerate() {
                let node = now(store.get(&format!("/count/{thread}"))).unwrap();
                let writes = node.map_or(0, |node| node.stat.version + 1);
                assert!(writes == *count || writes == count + 1, "{count} acknowledged, {writes} found");
            }
        }
    }
}
