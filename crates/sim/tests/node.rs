//! Cuts whole nodes' histories at every write, lets disks fail and run full, and leaves out each sync of the log in turn.
//! (Those of the metadata store are left out in `metadata.rs`.)

use std::collections::BTreeSet;

use disk::SyncPoint;
use disk::simulated::Fault;
use sim::{NodeHistory, Plan, Played, Tally, Violation, cut_everywhere, find_missing_sync, play, tell};

/// Everything that has to happen in the histories, or they prove nothing.
const INTERESTING: [&str; 14] = [
    "acked",
    "add unknown",
    "added",
    "closed",
    "cursor created",
    "cursor deleted",
    "read",
    "reopened",
    "rolled over",
    "seek",
    "segment reused",
    "settled",
    "topic deleted",
    "trimmed",
];

fn kept(result: Result<Played, Box<Violation>>) -> Played {
    result.unwrap_or_else(|violation| panic!("{}", tell::<NodeHistory>(violation)))
}

#[test]
fn promises_are_kept_wherever_a_short_history_is_cut() {
    let mut tally = Tally::default();
    for seed in 0..4 {
        let plan = Plan { seed, steps: 40, ..Plan::default() };
        cut_everywhere::<NodeHistory>(plan, &mut tally)
            .unwrap_or_else(|violation| panic!("{}", tell::<NodeHistory>(violation)));
    }
    println!("short histories: {} played, {} cuts, {} recoveries", tally.histories, tally.cuts, tally.recoveries);
}

#[test]
fn promises_are_kept_in_long_histories() {
    let mut tally = Tally::default();
    for seed in 1000..1300 {
        let cut = (seed % 4 != 0).then_some(seed * 7919 % 3000);
        tally.add(&kept(play::<NodeHistory>(Plan { seed, steps: 200, cut, ..Plan::default() })));
    }
    println!(
        "long histories: {} played, {} cuts, {} recoveries, {:?}",
        tally.histories, tally.cuts, tally.recoveries, tally.counts
    );
    let happened: BTreeSet<&str> = tally.counts.keys().copied().collect();
    assert_eq!(happened, BTreeSet::from(INTERESTING));
    // A new sync point of the product belongs into the list of its crate, which the tests of missing syncs go through.
    let known: BTreeSet<SyncPoint> = bookie::SYNC_POINTS.into_iter().chain(metadata::sync_points::ALL).collect();
    let hit: BTreeSet<SyncPoint> = tally.syncs.keys().copied().collect();
    assert!(hit.is_subset(&known), "not in a list: {:?}", hit.difference(&known));
    assert!(bookie::SYNC_POINTS.iter().all(|point| hit.contains(point)), "never reached: {:?}", known.difference(&hit));
}

#[test]
fn promises_are_kept_when_an_operation_fails() {
    let mut failed = 0;
    for seed in 2000..2300 {
        let fault = if seed % 3 == 0 { Fault::NoSpace } else { Fault::Io };
        let plan = Plan { seed, steps: 80, fault: Some((seed * 7919 % 900, fault)), ..Plan::default() };
        failed += kept(play::<NodeHistory>(plan)).counts.get("add unknown").copied().unwrap_or(0);
    }
    assert!(failed > 0);
}

/// Each of them once lost something.
#[test]
fn promises_are_kept_in_histories_that_broke_them_before() {
    let cut = |seed, steps, cut| Plan { seed, steps, cut: Some(cut), ..Plan::default() };
    let plans = [
        cut(5, 80, 84),
        cut(0, 40, 270),
        cut(2, 40, 181),
        Plan { seed: 12, steps: 80, ..Plan::default() },
        Plan { seed: 202, steps: 150, ..Plan::default() },
        cut(202_090, 150, 3610),
        Plan { fault: Some((320, Fault::Io)), ..cut(103_280, 400, 1120) },
    ];
    for plan in plans {
        kept(play::<NodeHistory>(plan));
    }
}

#[test]
fn promises_are_kept_when_the_disk_is_full() {
    let mut tally = Tally::default();
    for seed in 3000..3120 {
        // What bookie and metadata store keep free, an empty metadata store, and little more.
        let capacity = Some(9_800_000 + (seed % 20) * 60_000);
        tally.add(&kept(play::<NodeHistory>(Plan { seed, steps: 120, capacity, ..Plan::default() })));
    }
    println!("full disks: {:?}", tally.counts);
    assert!(tally.counts["add refused"] > 0 && tally.counts["space came back"] > 0);
}

#[test]
fn damage_is_noticed_and_never_served() {
    let mut tally = Tally::default();
    for seed in 4000..4200 {
        let plan = Plan { seed, steps: 100, flips: 1 + (seed % 3) as u32, ..Plan::default() };
        tally.add(&kept(play::<NodeHistory>(plan)));
    }
    println!("damage: {:?}", tally.counts);
    assert!(tally.counts["damage found"] > 0);
}

#[test]
fn every_sync_of_the_log_is_needed() {
    for point in bookie::SYNC_POINTS {
        let violation = find_missing_sync::<NodeHistory>(point, 80, 0..200, 20);
        let violation = violation.unwrap_or_else(|| panic!("nothing is lost without {point:?}"));
        println!("without {}: {:?}: {}", point.0, violation.plan, violation.broken);
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for cut in [None, Some(300)] {
        let plan = Plan { seed: 7, steps: 100, cut, ..Plan::default() };
        assert_eq!(kept(play::<NodeHistory>(plan)), kept(play::<NodeHistory>(plan)));
    }
}
