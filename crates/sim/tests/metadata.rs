//! Cuts the metadata store's histories at every write, and leaves out each of its syncs in turn.

use std::collections::BTreeSet;

use disk::SyncPoint;
use metadata::sync_points;
use sim::{MetadataHistory, Plan, Tally, cut_everywhere, find_missing_sync, play};

#[test]
fn promises_are_kept_wherever_the_history_is_cut() {
    let mut tally = Tally::default();
    for seed in 0..3 {
        let plan = Plan { seed, steps: 25, ..Plan::default() };
        cut_everywhere::<MetadataHistory>(plan, &mut tally)
            .unwrap_or_else(|violation| panic!("{}", sim::tell::<MetadataHistory>(violation)));
    }
    println!("metadata: {} played, {} cuts, {:?}", tally.histories, tally.cuts, tally.counts);
    // A new sync point of the store belongs into its list, which the test of missing syncs goes through.
    let hit: BTreeSet<SyncPoint> = tally.syncs.keys().copied().collect();
    assert_eq!(hit, BTreeSet::from(sync_points::ALL));
    assert!(tally.counts.len() == 4 && tally.counts.values().all(|&times| times > 0), "{:?}", tally.counts);
}

#[test]
fn every_sync_is_needed() {
    for point in sync_points::ALL {
        let violation = find_missing_sync::<MetadataHistory>(point, 25, 0..20, 50);
        let violation = violation.unwrap_or_else(|| panic!("nothing is lost without {point:?}"));
        println!(
            "without {}: seed {}, cut {:?}: {}",
            point.0, violation.plan.seed, violation.plan.cut, violation.broken
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for cut in [None, Some(30)] {
        let plan = Plan { seed: 7, steps: 25, cut, ..Plan::default() };
        assert_eq!(play::<MetadataHistory>(plan).unwrap(), play::<MetadataHistory>(plan).unwrap());
    }
}
