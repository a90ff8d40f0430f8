//! Cuts the metadata store's histories at every write, and leaves out each of its syncs in turn.

use disk::SyncPoint;
use metadata::sync_points;
use sim::{MetadataHistory, Plan, Tally, cut_everywhere, find_missing_sync, play};

const POINTS: [SyncPoint; 5] =
    [sync_points::FOLDER, sync_points::CREATE, sync_points::APPEAR, sync_points::GROW, sync_points::COMMIT];

#[test]
fn promises_are_kept_wherever_the_history_is_cut() {
    let mut tally = Tally::default();
    for seed in 0..6 {
        let plan = Plan { seed, steps: 25, cut: None, skip: None };
        cut_everywhere::<MetadataHistory>(plan, &mut tally).unwrap_or_else(|violation| panic!("{violation:#?}"));
    }
    println!("metadata: {} histories, {} cuts, {:?}", tally.histories, tally.cuts, tally.counts);
    assert_eq!(tally.syncs.keys().copied().collect::<Vec<_>>(), {
        let mut points = POINTS.to_vec();
        points.sort();
        points
    });
    assert!(tally.counts.len() == 4 && tally.counts.values().all(|&times| times > 0), "{:?}", tally.counts);
}

#[test]
fn every_sync_is_needed() {
    for point in POINTS {
        let violation = find_missing_sync::<MetadataHistory>(point, 25, 0..20, 100);
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
        let plan = Plan { seed: 7, steps: 25, cut, skip: None };
        assert_eq!(play::<MetadataHistory>(plan).unwrap(), play::<MetadataHistory>(plan).unwrap());
    }
}
