//! What a bookie answers: keys, fences, LACs, deletions, full and failing disks.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use bookie::{Bookie, BookieConfig, BookieCore, Request};
use bookkeeper_proto::{AddOp, AddSink, BookieError, EntryBuf, EntryId, LedgerId, Remedy};
use common::{
    Collected, KEY, OTHER_KEY, Process, add, add_all, add_op, ask, config, delete, entry_bytes, fence, lac_blob, read,
    write_lac,
};
use disk::Disk;
use disk::simulated::{Fault, Op, SimDisk};

fn open(disk: &SimDisk) -> BookieCore {
    let (core, recovered) = BookieCore::open(config(), Arc::new(disk.clone())).unwrap();
    assert!(recovered.damage.is_empty(), "{recovered:?}");
    core
}

/// A short name for an answer.
fn name<T>(result: &Result<T, BookieError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(BookieError::NoLedger { .. }) => "no ledger",
        Err(BookieError::NoEntry { .. }) => "no entry",
        Err(BookieError::Fenced { .. }) => "fenced",
        Err(BookieError::Unauthorized { .. }) => "unauthorized",
        Err(BookieError::BadRequest { .. }) => "bad request",
        Err(BookieError::TooLarge { .. }) => "too large",
        Err(BookieError::ReadOnly { .. }) => "read-only",
        Err(BookieError::TooManyRequests { .. }) => "too many",
        Err(BookieError::WriteFailed { .. }) => "unknown outcome",
        Err(BookieError::Damaged { .. }) => "damaged",
        Err(BookieError::UnknownLedgerState { .. }) => "unknown state",
        Err(BookieError::ReadFailed { .. }) => "read failed",
        Err(BookieError::Gone { .. }) => "gone",
    }
}

/// Requests and answers, one after the other, on ledgers 1 and 2; `restart` closes the bookie and opens it again.
///
/// `a E` add entry E to ledger 1, `A E` with the wrong key, `r E` by recovery, `f` fence, `F` with the wrong key, `d` delete,
/// `l E` explicit LAC, `? E` read, `last`, `lac`.
fn check(requests: &str, expected: &str) {
    let disk = SimDisk::new(1);
    let mut core = open(&disk);
    let mut answers = Vec::new();
    let id = LedgerId(1);
    for request in requests.split(", ") {
        let (kind, number) = request.split_once(' ').unwrap_or((request, "0"));
        let entry: i64 = number.parse().unwrap();
        let answer = match kind {
            "a" => name(&add(&mut core, 1, entry, 10)).to_owned(),
            "A" => {
                let op = AddOp { key: OTHER_KEY, ..add_op(1, entry, 10) };
                name(&add_all(&mut core, vec![op])[0]).to_owned()
            }
            "r" => {
                let op = AddOp { recovery: true, ..add_op(1, entry, 10) };
                name(&add_all(&mut core, vec![op])[0]).to_owned()
            }
            "big" => name(&add(&mut core, 1, entry, 1 << 20)).to_owned(),
            "liar" => {
                let bytes = EntryBuf::verbatim(entry_bytes(2, entry, -1, 10, 0)).unwrap();
                name(&add_all(&mut core, vec![AddOp { bytes, ..add_op(1, entry, 10) }])[0]).to_owned()
            }
            "f" => name(&fence(&mut core, 1)).to_owned(),
            "F" => name(&ask(&mut core, |done| Request::Fence { ledger: id, key: OTHER_KEY, done })).to_owned(),
            "d" => name(&delete(&mut core, 1)).to_owned(),
            "l" => name(&write_lac(&mut core, 1, entry)).to_owned(),
            "l-short" => {
                let blob = lac_blob(1, 1).slice(..8);
                name(&ask(&mut core, |done| Request::WriteLac { ledger: id, key: KEY, blob, done })).to_owned()
            }
            "?" => name(&read(&core, 1, entry)).to_owned(),
            "last" => core.reader().last_entry(id).map_or_else(|e| name::<()>(&Err(e)).to_owned(), |e| e.to_string()),
            "lac" => {
                let lac = core.reader().read_lac(id).map(|lac| lac.last_add_confirmed);
                lac.map_or_else(|e| name::<()>(&Err(e)).to_owned(), |e| e.to_string())
            }
            "ledgers" => core.reader().ledgers().len().to_string(),
            "restart" => {
                core = open(&disk);
                continue;
            }
            other => panic!("unknown request {other}"),
        };
        answers.push(answer);
    }
    assert_eq!(answers.join(", "), expected, "{requests}");
}

#[test]
fn answers() {
    check("? 0, last, lac, ledgers", "no ledger, no ledger, no ledger, 0");
    check("a 0, ? 0, ? 1, last, lac, ledgers", "ok, ok, no entry, 0, -1, 1");
    check("a 0, a 1, a 2, lac, restart, lac, last", "ok, ok, ok, 1, 1, 2");
    // The first add brings the key.
    check("a 0, A 1, F, restart, A 1, a 1", "ok, unauthorized, unauthorized, unauthorized, ok");
    check("A 0, a 0", "ok, unauthorized");
    // A fence holds for all but recovery, also across a restart, and makes an unknown ledger known.
    check("a 0, f, a 1, r 1, ? 1, restart, a 2, r 2", "ok, ok, fenced, ok, ok, fenced, ok");
    check("f, a 0, restart, a 0, last, ? 0", "ok, fenced, fenced, -1, no entry");
    check("f, f, A 0", "ok, ok, unauthorized");
    // Explicit LAC counts beside the headers'.
    check("a 0, l 7, lac, restart, lac, a 1, lac", "ok, ok, 7, 7, ok, 7");
    check("l 3, lac, ? 3, l-short", "ok, 3, no entry, bad request");
    check("a 0, a 1, a 2, l 0, lac", "ok, ok, ok, ok, 1");
    // A deleted ledger is unknown to everybody and stays so.
    check(
        "a 0, d, ? 0, a 1, r 1, f, last, ledgers",
        "ok, ok, no ledger, no ledger, no ledger, no ledger, no ledger, 0",
    );
    check("a 0, d, restart, ? 0, a 1, d, ledgers", "ok, ok, no ledger, no ledger, ok, 0");
    check("d, a 0", "ok, ok");
    // Entries may have gaps, come twice or in any order; ids are never negative.
    check("a 5, ? 5, ? 4, a 3, ? 3, ? 4, last", "ok, ok, no entry, ok, ok, no entry, 5");
    check("a 0, a 0, ? 0, restart, ? 0, last", "ok, ok, ok, ok, 0");
    check("a -1, a -9223372036854775807", "bad request, bad request");
    check("liar 0, ledgers", "bad request, 0");
    check("big 0, a 0, ? 0", "too large, ok, ok");
}

#[test]
fn a_commit_answers_each_sink_once_and_in_order() {
    let mut core = open(&SimDisk::new(1));
    let (a, b) = (Arc::new(Collected::default()), Arc::new(Collected::default()));
    let sinks: [Arc<dyn AddSink>; 2] = [a.clone(), b.clone()];
    let requests = (0..20).map(|i| Request::Add { op: add_op(1 + i % 3, i, 100), sink: sinks[i as usize % 2].clone() });
    core.commit(requests);
    for (collected, first) in [(a, 0), (b, 1)] {
        let calls = collected.take_calls();
        assert_eq!(calls.len(), 1);
        let entries: Vec<i64> = calls[0].iter().map(|done| done.entry.0).collect();
        assert_eq!(entries, (first..20).step_by(2).collect::<Vec<i64>>());
        assert!(calls[0].iter().all(|done| done.owner == 42 && done.result.is_ok()));
    }
    assert_eq!(core.reader().stats().commits, 1);
}

#[test]
fn the_order_between_a_fence_and_adds_of_one_commit_holds() {
    let mut core = open(&SimDisk::new(1));
    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn AddSink> = collected.clone();
    let add = |entry| Request::Add { op: add_op(1, entry, 10), sink: sink.clone() };
    core.commit([add(0), Request::Fence { ledger: LedgerId(1), key: KEY, done: Box::new(|_| {}) }, add(1)]);
    let answers: Vec<&str> = collected.take().iter().map(|done| name(&done.result)).collect();
    assert_eq!(answers, ["ok", "fenced"]);
}

/// Fills a few segments with two ledgers.
fn fill(core: &mut BookieCore, ledger: i64, entries: std::ops::Range<i64>) {
    for entry in entries {
        add(core, ledger, entry, 3000).unwrap();
    }
}

#[test]
fn old_entries_are_read_from_sealed_segments_and_after_a_restart() {
    let disk = SimDisk::new(1);
    let mut core = open(&disk);
    for entry in 0..100 {
        let len = |ledger: i64| 200 + (entry * ledger % 7) as usize * 300;
        add_all(&mut core, vec![add_op(1, entry, len(1)), add_op(2, entry * 3, len(2))]);
    }
    assert!(core.reader().stats().segments > 4);
    for _ in 0..2 {
        for entry in 0..100 {
            let len = |ledger: i64| 200 + (entry * ledger % 7) as usize * 300;
            assert_eq!(read(&core, 1, entry).unwrap(), entry_bytes(1, entry, entry - 1, len(1), 0));
            let bytes = entry_bytes(2, entry * 3, entry * 3 - 1, len(2), 0);
            assert_eq!(read(&core, 2, entry * 3).unwrap(), bytes);
            assert_eq!(name(&read(&core, 2, entry * 3 + 1)), "no entry");
        }
        core = open(&disk);
    }
}

#[test]
fn many_entries_are_read_together() {
    let disk = SimDisk::new(1);
    let mut core = open(&disk);
    for _ in 0..1 {
        add_all(&mut core, (0..60).map(|entry| add_op(1, entry, 500)).collect());
    }
    let reader = core.reader();
    let range = |first, last, max| reader.read_many(LedgerId(1), EntryId(first), EntryId(last), max).unwrap();
    let before = reader.stats().reads_from_disk;
    let all = range(0, 59, usize::MAX);
    assert_eq!(all.len(), 60);
    assert!(reader.stats().reads_from_disk - before < 10, "{:?}", reader.stats());
    assert!((0..60).all(|i| all[i as usize] == entry_bytes(1, i, i - 1, 500, 0)));
    assert_eq!(range(10, 20, 3 * 532).len(), 3);
    assert_eq!(range(10, 20, 1).len(), 1, "at least one");
    assert_eq!(range(58, 99, usize::MAX).len(), 2, "up to where there is something");
}

#[test]
fn dead_segments_are_recycled_and_what_they_knew_lives_on() {
    let disk = SimDisk::new(1);
    let mut core = open(&disk);
    // Ledger 1 keeps its key and its fence in the first segment only, and holds no entries.
    fence(&mut core, 1).unwrap();
    write_lac(&mut core, 1, 5).unwrap();
    for round in 0..12 {
        let ledger = 10 + round;
        fill(&mut core, ledger, 0..30);
        delete(&mut core, ledger).unwrap();
    }
    core.tick();
    let stats = core.reader().stats();
    assert!(stats.segments <= 4, "{stats:?}");
    assert!(disk.files().len() <= 6, "{:?}", disk.files());
    let renames = |disk: &SimDisk| {
        disk.ops()
            .iter()
            .filter(|op| matches!(op, Op::Rename(from, _) if from.extension().is_some_and(|e| e == "free")))
            .count()
    };
    assert!(renames(&disk) > 5);
    for _ in 0..2 {
        core = open(&disk);
        assert_eq!(core.reader().ledgers(), [LedgerId(1)]);
        assert_eq!(core.reader().read_lac(LedgerId(1)).unwrap().last_add_confirmed, EntryId(5));
        assert_eq!(name(&add(&mut core, 1, 0, 10)), "fenced");
    }
}

#[test]
fn a_full_disk_refuses_entries_and_takes_them_again() {
    let disk = SimDisk::new(1);
    let mut core = open(&disk);
    fill(&mut core, 1, 0..20);
    disk.set_capacity_bytes(Some(disk.used_bytes() + (160 << 10)));
    let mut refused = None;
    for entry in 0..200 {
        match add(&mut core, 2, entry, 3000) {
            Ok(_) => {}
            Err(BookieError::ReadOnly { .. }) => {
                refused = Some(entry);
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
    let refused = refused.expect("the disk is full at some time");
    assert!(core.is_read_only() && core.reader().stats().read_only);
    // Reads, fences and deletions go on.
    assert_eq!(read(&core, 2, refused - 1).unwrap().len(), 3032);
    assert_eq!(name(&read(&core, 2, refused)), "no entry");
    fence(&mut core, 2).unwrap();
    delete(&mut core, 1).unwrap();
    // The dead segments are room enough.
    core.tick();
    add(&mut core, 3, 0, 3000).unwrap();
    assert!(!core.is_read_only());
    let core = open(&disk);
    assert_eq!(read(&core, 2, 0).unwrap().len(), 3032);
    assert_eq!(read(&core, 3, 0).unwrap().len(), 3032);
}

#[test]
fn a_write_that_hits_the_end_of_the_disk_is_not_acknowledged_and_may_be_repeated() {
    let disk = SimDisk::new(1);
    let mut core = open(&disk);
    add(&mut core, 1, 0, 100).unwrap();
    disk.fail_op(disk.op_count(), Fault::NoSpace);
    assert_eq!(name(&add(&mut core, 1, 1, 100)), "read-only");
    core.tick();
    add(&mut core, 1, 1, 100).unwrap();
    let core = open(&disk);
    assert!(read(&core, 1, 1).is_ok());
}

#[test]
fn after_a_failed_write_or_sync_the_outcome_is_unknown_and_the_segment_takes_no_more() {
    // Operation 0 is the commit's write, 1 its sync.
    for failing in [0, 1] {
        let disk = SimDisk::new(1);
        let mut core = open(&disk);
        add(&mut core, 1, 0, 100).unwrap();
        disk.fail_op(disk.op_count() + failing, Fault::Io);
        let failed = add_all(&mut core, vec![add_op(1, 1, 100), add_op(2, 0, 100)]);
        assert!(failed.iter().all(|result| result.as_ref().unwrap_err().remedy() == Remedy::OutcomeUnknown));
        let before = disk.op_count();
        add_all(&mut core, vec![add_op(1, 2, 100), add_op(2, 1, 100)]).into_iter().for_each(|result| {
            result.unwrap();
        });
        let written: Vec<Op> = disk.ops()[before as usize..].to_vec();
        assert!(
            !written.iter().any(|op| matches!(op, Op::Write { path, .. } if path.ends_with("1.seg"))),
            "{written:?}"
        );
        for seed in 0..20 {
            let mut core = open(&disk.after_crash(seed));
            assert!(read(&core, 1, 0).is_ok() && read(&core, 1, 2).is_ok() && read(&core, 2, 1).is_ok());
            // The key of ledger 2 was in the failed commit first.
            let op = AddOp { key: OTHER_KEY, ..add_op(2, 5, 1) };
            assert_eq!(name(&add_all(&mut core, vec![op])[0]), "unauthorized");
        }
    }
}

#[test]
fn a_disk_that_fails_for_good_makes_the_bookie_read_only() {
    let disk = SimDisk::new(1);
    let process = Process::new(disk.clone());
    let (mut core, _) = BookieCore::open(config(), Arc::new(process.clone())).unwrap();
    add(&mut core, 1, 0, 100).unwrap();
    process.kill_after(0);
    assert_eq!(name(&add(&mut core, 1, 1, 100)), "unknown outcome");
    assert_eq!(name(&add(&mut core, 1, 2, 100)), "read-only");
    assert_eq!(name(&fence(&mut core, 1)), "read-only");
    assert!(read(&core, 1, 0).is_ok());
    core.tick();
    assert!(core.is_read_only());
    process.kill_after(i64::MAX);
    core.tick();
    add(&mut core, 1, 3, 100).unwrap();
}

#[test]
fn at_full_load_few_bytes_are_written_beside_the_entries() {
    let disk = SimDisk::new(1);
    let config = BookieConfig { segment_bytes: 8 << 20, commit_bytes: 1 << 20, ..config() };
    let (mut core, _) = BookieCore::open(config, Arc::new(disk.clone())).unwrap();
    for batch in 0..20 {
        add_all(&mut core, (0..1000).map(|i| add_op(1, batch * 1000 + i, 1024)).collect());
    }
    let stats = core.reader().stats();
    let ratio = disk.written_bytes() as f64 / stats.entry_bytes as f64;
    assert!(ratio < 1.03, "{ratio} {stats:?}");
    assert!(stats.commits < 60, "{stats:?}");
}

#[test]
fn the_thread_commits_what_is_posted_and_closes_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let real: Arc<dyn Disk> = Arc::new(disk::RealDisk::open(folder.path()).unwrap());
    let config = BookieConfig { segment_bytes: 1 << 20, reserve_bytes: 0, ..BookieConfig::default() };
    let (bookie, _) = Bookie::open(config.clone(), real.clone()).unwrap();
    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn AddSink> = collected.clone();
    for entry in 0..5000 {
        bookie.add(add_op(1, entry, 1000), &sink);
    }
    let fenced = bookie.fence(LedgerId(1), KEY).unwrap();
    assert_eq!(fenced.last_add_confirmed, EntryId(4998));
    assert_eq!(fenced.last_entry.unwrap(), entry_bytes(1, 4999, 4998, 1000, 0));
    bookie.close();
    let done = collected.take();
    assert_eq!(done.len(), 5000);
    assert!(done.iter().enumerate().all(|(i, done)| done.entry.0 == i as i64 && done.result.is_ok()));
    bookie.add(add_op(1, 5000, 10), &sink);
    assert_eq!(name(&collected.take()[0].result), "gone");
    drop(bookie);

    let (bookie, recovered) = Bookie::open(config, real).unwrap();
    assert_eq!((recovered.ledgers, recovered.scanned_segments), (1, 1), "{recovered:?}");
    for entry in [0, 1, 2500, 4999] {
        assert_eq!(bookie.read(LedgerId(1), EntryId(entry)).unwrap(), entry_bytes(1, entry, entry - 1, 1000, 0));
    }
    assert_eq!(bookie.last_entry(LedgerId(1)).unwrap(), EntryId(4999));
    bookie.delete(LedgerId(1)).unwrap();
    assert_eq!(name(&bookie.read(LedgerId(1), EntryId(0))), "no ledger");
}
