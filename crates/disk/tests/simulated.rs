//! The simulated disk is held to its promises: what was synced is there, what was not is any mixture of its past, and every kind
//! of loss really happens.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::simulated::{Fault, SimDisk, is_crashed};
use disk::{Disk, DiskFile, OpenMode, SyncPoint};
use proptest::prelude::*;

const FILE: SyncPoint = SyncPoint("test.file");
const DIR: SyncPoint = SyncPoint("test.dir");
const SECTOR: usize = 512;

#[derive(Clone, Debug)]
enum Step {
    Write { file: usize, offset: u64, len: usize, byte: u8 },
    SetLen { file: usize, len: u64 },
    Sync { file: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let file = 0..3_usize;
    prop_oneof![
        4 => (file.clone(), 0..20_000_u64, 1..9000_usize, 1..255_u8)
            .prop_map(|(file, offset, len, byte)| Step::Write { file, offset, len, byte }),
        1 => (file.clone(), 0..20_000_u64).prop_map(|(file, len)| Step::SetLen { file, len }),
        2 => file.prop_map(|file| Step::Sync { file }),
    ]
}

fn name(file: usize) -> PathBuf {
    PathBuf::from(format!("d/{file}"))
}

fn read(disk: &SimDisk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let mut bytes = vec![0; file.len()? as usize];
    let n = file.read_at(&mut bytes, 0)?;
    assert_eq!(n, bytes.len());
    Ok(bytes)
}

fn sector(bytes: &[u8], at: usize) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    let from = bytes.get(at..).unwrap_or(&[]);
    let n = from.len().min(SECTOR);
    sector[..n].copy_from_slice(&from[..n]);
    sector
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Every length and every sector found after a crash is one the file had since its last sync; without a crash, every byte
    /// is the last one written.
    #[test]
    fn a_crash_leaves_a_mixture_of_the_past_since_the_last_sync(
        steps in prop::collection::vec(step(), 0..40), cut in 0..60_u64, seed: u64,
    ) {
        let disk = SimDisk::new(seed);
        disk.create_dir(Path::new("d")).unwrap();
        let files: Vec<Arc<dyn DiskFile>> = (0..3).map(|n| disk.create(&name(n), OpenMode::Write).unwrap()).collect();
        disk.sync_dir(Path::new("d"), DIR).unwrap();
        disk.sync_dir(Path::new(""), DIR).unwrap();
        let set_up = disk.op_count();
        disk.crash_at(set_up + cut);
        // Per file, its states since its last successful sync, oldest first.
        let mut pasts = vec![vec![Vec::<u8>::new()]; 3];
        for step in steps {
            let done = match step {
                Step::Write { file, offset, len, byte } => {
                    let mut now = pasts[file].last().unwrap().clone();
                    let end = offset as usize + len;
                    now.resize(now.len().max(end), 0);
                    now[offset as usize..end].fill(byte);
                    pasts[file].push(now);
                    files[file].write_all_at(&vec![byte; len], offset)
                }
                Step::SetLen { file, len } => {
                    let mut now = pasts[file].last().unwrap().clone();
                    now.resize(len as usize, 0);
                    pasts[file].push(now);
                    files[file].set_len(len)
                }
                Step::Sync { file } => {
                    let done = files[file].sync(FILE);
                    if done.is_ok() {
                        let now = pasts[file].pop().unwrap();
                        pasts[file] = vec![now];
                    }
                    done
                }
            };
            match done {
                Ok(()) => prop_assert!(!disk.has_crashed()),
                Err(error) => {
                    prop_assert!(is_crashed(&error) && disk.has_crashed());
                    prop_assert_eq!(disk.op_count(), set_up + cut + 1);
                    break;
                }
            }
        }
        if !disk.has_crashed() {
            for (n, past) in pasts.iter().enumerate() {
                prop_assert_eq!(&read(&disk, &name(n)).unwrap(), past.last().unwrap());
            }
        }
        for again in 0..4 {
            let found = disk.after_crash(seed ^ again);
            for (n, past) in pasts.iter().enumerate() {
                let bytes = read(&found, &name(n)).unwrap();
                prop_assert!(past.iter().any(|state| state.len() == bytes.len()), "length {}", bytes.len());
                for at in (0..bytes.len()).step_by(SECTOR) {
                    let mut got = sector(&bytes, at);
                    // A sector may come from a longer past; what lies beyond the surviving end is then cut off.
                    let inside = (bytes.len() - at).min(SECTOR);
                    got[inside..].fill(0);
                    let known = past.iter().any(|state| sector(state, at)[..inside] == got[..inside]);
                    prop_assert!(known, "file {n}: sector at {at} was never so");
                }
                if past.len() == 1 {
                    prop_assert_eq!(&bytes, &past[0]);
                }
            }
            // What was found is durable: another crash changes nothing.
            prop_assert_eq!(found.files(), found.after_crash(seed).files());
        }
    }
}

/// What can become of two unsynced blocks, an unsynced entry and an unsynced rename: all of it does become.
#[test]
fn every_kind_of_loss_happens() {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("d")).unwrap();
    disk.sync_dir(Path::new(""), DIR).unwrap();
    let file = disk.create(Path::new("d/a"), OpenMode::Write).unwrap();
    file.write_all_at(&[1; 8192], 0).unwrap();
    file.sync(FILE).unwrap();
    disk.create(Path::new("d/old"), OpenMode::Write).unwrap();
    disk.sync_dir(Path::new("d"), DIR).unwrap();
    file.write_all_at(&[2; 4096], 0).unwrap();
    file.write_all_at(&[3; 8192], 4096).unwrap();
    let new = disk.create(Path::new("d/new"), OpenMode::Write).unwrap();
    new.write_all_at(b"x", 0).unwrap();
    disk.rename(Path::new("d/old"), Path::new("d/renamed")).unwrap();
    disk.create_dir(Path::new("d/sub")).unwrap();
    disk.remove(Path::new("d/a")).unwrap();

    let mut seen = BTreeMap::<&str, u32>::new();
    for seed in 0..1000 {
        let found = disk.after_crash(seed);
        let mut saw = |what, was: bool| *seen.entry(what).or_default() += u32::from(was);
        let names = found.list(Path::new("d")).unwrap();
        let has = |name: &str| names.iter().any(|n| n == name);
        assert!(has("old") != has("renamed"), "a rename is never half done: {names:?}");
        saw("rename lost", has("old"));
        saw("rename kept", has("renamed"));
        saw("folder lost", !has("sub"));
        saw("removal lost", has("a"));
        saw("removal kept", !has("a"));
        saw("creation lost", !has("new"));
        saw("creation kept, content lost", has("new") && read(&found, Path::new("d/new")).unwrap().is_empty());
        saw("length kept, bytes lost", has("new") && read(&found, Path::new("d/new")).unwrap() == [0]);
        saw("rename kept, earlier creation lost", has("renamed") && !has("new"));
        if has("a") {
            let bytes = read(&found, Path::new("d/a")).unwrap();
            let (first, second) = (bytes[0], bytes[4096]);
            saw("nothing kept", bytes == [1; 8192]);
            saw("reordered", first == 1 && second == 3);
            saw("length lost, bytes kept", second == 3 && bytes.len() == 8192);
            saw("torn", bytes[..4096].contains(&1) && bytes[..4096].contains(&2));
        }
    }
    assert!(seen.values().all(|&times| times > 0), "{seen:?}");
}

/// A synced file in a folder that was never synced itself can vanish with it.
#[test]
fn syncing_a_file_or_folder_does_not_make_its_own_entry_durable() {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("d/e")).unwrap();
    let file = disk.create(Path::new("d/e/f"), OpenMode::Write).unwrap();
    file.sync(FILE).unwrap();
    disk.sync_dir(Path::new("d/e"), DIR).unwrap();
    let missing = |disk: &SimDisk| (0..50).filter(|seed| disk.after_crash(*seed).files().is_empty()).count();
    assert!(missing(&disk) > 0);
    disk.sync_dir(Path::new("d"), DIR).unwrap();
    assert!(missing(&disk) > 0);
    disk.sync_dir(Path::new(""), DIR).unwrap();
    assert_eq!(missing(&disk), 0);
}

#[test]
fn a_skipped_sync_reports_success_and_keeps_nothing() {
    let disk = SimDisk::new(1);
    disk.skip_sync(FILE);
    let file = disk.create(Path::new("f"), OpenMode::Write).unwrap();
    disk.sync_dir(Path::new(""), DIR).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    file.sync(FILE).unwrap();
    assert!((0..50).any(|seed| read(&disk.after_crash(seed), Path::new("f")).unwrap().is_empty()));
    file.sync(SyncPoint("another")).unwrap();
    assert!((0..50).all(|seed| read(&disk.after_crash(seed), Path::new("f")).unwrap() == b"x"));
    assert_eq!(disk.syncs(), BTreeMap::from([(FILE, 1), (DIR, 1), (SyncPoint("another"), 1)]));
}

#[test]
fn a_killed_process_loses_nothing_until_the_machine_crashes() {
    let disk = SimDisk::new(1);
    disk.create(Path::new("f"), OpenMode::Write).unwrap().write_all_at(b"x", 0).unwrap();
    disk.crash_now();
    let found = disk.after_kill(1);
    assert_eq!(read(&found, Path::new("f")).unwrap(), b"x");
    assert!((0..50).any(|seed| found.after_crash(seed).files().is_empty()));
    found.open(Path::new("f"), OpenMode::Write).unwrap().sync(FILE).unwrap();
    found.sync_dir(Path::new(""), DIR).unwrap();
    assert!((0..50).all(|seed| read(&found.after_crash(seed), Path::new("f")).unwrap() == b"x"));
}

#[test]
fn a_failed_sync_drops_what_was_dirty_and_a_later_one_does_not_bring_it_back() {
    let disk = SimDisk::new(1);
    let file = disk.create(Path::new("f"), OpenMode::Write).unwrap();
    file.set_len(4096).unwrap();
    file.sync(FILE).unwrap();
    disk.sync_dir(Path::new(""), DIR).unwrap();
    let mut lost = 0;
    for byte in 1..50 {
        file.write_all_at(&[byte], 0).unwrap();
        disk.fail_op(disk.op_count(), Fault::Io);
        file.sync(FILE).unwrap_err();
        file.sync(FILE).unwrap();
        assert_eq!(read(&disk, Path::new("f")).unwrap()[0], byte, "readers still see it");
        lost += u32::from(read(&disk.after_crash(1), Path::new("f")).unwrap()[0] != byte);
    }
    assert!(lost > 0);
}

#[test]
fn a_full_disk_refuses_new_blocks_only() {
    let disk = SimDisk::new(1);
    disk.set_capacity_bytes(Some(8192));
    let file = disk.create(Path::new("f"), OpenMode::Write).unwrap();
    file.write_all_at(&[1; 8192], 0).unwrap();
    assert_eq!((disk.used_bytes(), disk.available_bytes().unwrap()), (8192, 0));
    let full = file.write_all_at(&[1; 1], 8192).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    file.write_all_at(&[2; 8192], 0).unwrap();
    disk.remove(Path::new("f")).unwrap();
    assert_eq!(disk.available_bytes().unwrap(), 8192);
    disk.fail_op(disk.op_count(), Fault::NoSpace);
    let full = disk.create(Path::new("g"), OpenMode::Write).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn direct_writes_must_be_aligned() {
    let disk = SimDisk::new(1);
    let file = disk.create(Path::new("f"), OpenMode::Direct).unwrap();
    let block = disk::AlignedBuf::zeroed(8192);
    file.write_all_at(&block[..4096], 4096).unwrap();
    for (buf, offset) in [(&block[..4096], 1), (&block[..4000], 0), (&block[1..4097], 0)] {
        assert_eq!(file.write_all_at(buf, offset).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn the_same_seed_gives_the_same_disk_and_a_flipped_bit_stays() {
    let run = |seed| {
        let disk = SimDisk::new(seed);
        let file = disk.create(Path::new("f"), OpenMode::Write).unwrap();
        file.write_all_at(&[9; 30_000], 0).unwrap();
        disk.crash_now();
        assert!(is_crashed(&file.sync(FILE).unwrap_err()));
        let found = disk.after_crash(seed);
        (disk.trace(), read(&found, Path::new("f")).ok())
    };
    for seed in 0..50 {
        assert_eq!(run(seed), run(seed));
    }
    let disk = SimDisk::new(1);
    disk.create(Path::new("f"), OpenMode::Write).unwrap().write_all_at(&[0; 10], 0).unwrap();
    disk.flip_bit(Path::new("f"), 3, 4).unwrap();
    assert_eq!(read(&disk, Path::new("f")).unwrap(), [0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
}
