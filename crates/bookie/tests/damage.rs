//! Files that are not what was written: cut at every byte, bits flipped, missing, foreign, newer. Nothing is served that was not written,
//! nothing that was acknowledged is called absent, and what lies behind the damage can be read.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bookie::{BookieConfig, BookieCore, OpenError, Recovered};
use bookkeeper_proto::{AddOp, BookieError, EntryId, LedgerId};
use common::{add, add_all, add_op, config, delete, entry_bytes, fence, read, write_lac};
use disk::simulated::SimDisk;
use disk::{BLOCK, Disk, OpenMode, SyncPoint};

const COPY: SyncPoint = SyncPoint("test");

fn small() -> BookieConfig {
    BookieConfig { segment_bytes: 32 << 10, ..config() }
}

fn try_open(disk: &SimDisk) -> Result<(BookieCore, Recovered), OpenError> {
    BookieCore::open(small(), Arc::new(disk.clone()))
}

fn open(disk: &SimDisk) -> (BookieCore, Recovered) {
    try_open(disk).unwrap()
}

/// A copy of a disk on which everything is durable.
fn copy(disk: &SimDisk) -> SimDisk {
    disk.after_crash(0)
}

fn sync_all(disk: &SimDisk) {
    for path in disk.files().keys() {
        disk.open(path, OpenMode::Write).unwrap().sync(COPY).unwrap();
    }
}

/// One unsealed segment with four commits of ledgers 1 and 2; where each commit begins, and the end.
fn unsealed() -> (SimDisk, Vec<u64>) {
    let disk = SimDisk::new(1);
    let (mut core, _) = open(&disk);
    for commit in 0..4 {
        add_all(&mut core, vec![add_op(1, commit, 700), add_op(2, commit, 300)]);
    }
    sync_all(&disk);
    (disk, (1..=5).map(|i| i * BLOCK as u64).collect())
}

const SEGMENT: &str = "log/1.seg";

#[test]
fn a_segment_cut_at_any_byte_of_its_last_commit_loses_no_other() {
    let (disk, commits) = unsealed();
    let (last, end) = (commits[3], commits[4]);
    let record_bytes = 40 + 2 * 16 + 2 * 32 + 1000;
    for cut in last..end {
        let disk = copy(&disk);
        let file = disk.open(Path::new(SEGMENT), OpenMode::Write).unwrap();
        let len = file.len().unwrap();
        file.set_len(cut).unwrap();
        // A torn write leaves zeros behind, a lost length nothing.
        if cut % 2 == 0 {
            file.set_len(len).unwrap();
        }
        let (mut core, recovered) = open(&disk);
        assert!(recovered.damage.is_empty(), "{recovered:?}");
        for entry in 0..3 {
            assert_eq!(read(&core, 1, entry).unwrap(), entry_bytes(1, entry, entry - 1, 700, 0));
            assert_eq!(read(&core, 2, entry).unwrap(), entry_bytes(2, entry, entry - 1, 300, 0));
        }
        // All of the last commit, or nothing.
        let is_whole = cut >= last + record_bytes;
        for (ledger, len) in [(1, 700), (2, 300)] {
            match read(&core, ledger, 3) {
                Ok(bytes) => assert!(is_whole && bytes == entry_bytes(ledger, 3, 2, len, 0)),
                Err(error) => assert!(!is_whole && matches!(error, BookieError::NoEntry { .. }), "{error:?}"),
            }
        }
        add(&mut core, 1, 4, 100).unwrap();
        let (core, recovered) = open(&disk);
        assert!(recovered.damage.is_empty());
        assert!(read(&core, 1, 4).is_ok() && read(&core, 1, 2).is_ok());
    }
}

/// What an entry of the log may look like after damage at `offset`.
fn check_entry(core: &BookieCore, ledger: i64, entry: i64, len: usize, may_be_cut: bool, offset: u64) {
    match read(core, ledger, entry) {
        Ok(bytes) => assert_eq!(bytes, entry_bytes(ledger, entry, entry - 1, len, 0), "offset {offset}"),
        Err(BookieError::Damaged { file, .. }) => assert!(file.ends_with(".seg"), "{file}"),
        Err(BookieError::UnknownLedgerState { .. }) => {}
        Err(BookieError::NoEntry { .. } | BookieError::NoLedger { .. }) if may_be_cut => {}
        Err(error) => panic!("entry {entry} of ledger {ledger}, damage at {offset}: {error:?}"),
    }
}

#[test]
fn a_flipped_bit_in_the_tail_is_found_and_hides_no_other_entry() {
    let (disk, commits) = unsealed();
    let mut reported = 0;
    for offset in (0..commits[4]).step_by(7) {
        let disk = copy(&disk);
        disk.flip_bit(Path::new(SEGMENT), offset, (offset % 8) as u8).unwrap();
        let (core, recovered) = match try_open(&disk) {
            Ok(opened) => opened,
            // A single segment without a header cannot be told from a foreign file.
            Err(OpenError::Foreign { .. } | OpenError::Newer { .. }) if offset < BLOCK as u64 => continue,
            Err(error) => panic!("offset {offset}: {error:?}"),
        };
        reported += recovered.damage.len();
        let mut readable = 0;
        for entry in 0..4 {
            let is_last = entry == 3;
            check_entry(&core, 1, entry, 700, is_last, offset);
            check_entry(&core, 2, entry, 300, is_last, offset);
            readable += usize::from(read(&core, 1, entry).is_ok()) + usize::from(read(&core, 2, entry).is_ok());
        }
        assert!(readable >= 6, "offset {offset}: only {readable} entries can be read");
        for damage in &recovered.damage {
            assert!(
                (damage.offset..damage.offset + damage.len.max(BLOCK as u64)).contains(&offset),
                "{damage:?} {offset}"
            );
        }
    }
    assert!(reported > 100, "{reported}");
}

/// A few sealed segments, then one in use.
fn sealed() -> SimDisk {
    let disk = SimDisk::new(1);
    let (mut core, _) = open(&disk);
    write_lac(&mut core, 3, 9).unwrap();
    fence(&mut core, 4).unwrap();
    for entry in 0..20 {
        add_all(&mut core, vec![add_op(1, entry, 1700), add_op(2, entry, 300)]);
    }
    assert!(core.reader().stats().segments >= 4);
    sync_all(&disk);
    disk
}

#[test]
fn a_flipped_bit_in_a_sealed_segment_is_found_and_hides_no_other_entry() {
    let disk = sealed();
    for offset in (0..32 << 10).step_by(19) {
        let disk = copy(&disk);
        disk.flip_bit(Path::new("log/1.seg"), offset, (offset % 8) as u8).unwrap();
        let (mut core, recovered) = open(&disk);
        let mut readable = 0;
        for entry in 0..20 {
            check_entry(&core, 1, entry, 1700, false, offset);
            check_entry(&core, 2, entry, 300, false, offset);
            readable += usize::from(read(&core, 1, entry).is_ok()) + usize::from(read(&core, 2, entry).is_ok());
        }
        assert!(readable >= 38, "offset {offset}: only {readable} entries can be read, {recovered:?}");
        if recovered.damage.is_empty() {
            assert_eq!(core.reader().read_lac(LedgerId(3)).unwrap().last_add_confirmed, EntryId(9));
            assert!(matches!(add(&mut core, 4, 0, 10), Err(BookieError::Fenced { .. })));
        }
        assert!(add(&mut core, 1, 20, 10).is_ok());
    }
}

#[test]
fn a_segment_without_its_index_is_scanned_and_sealed_again() {
    let disk = sealed();
    let footer_at = (32 << 10) - BLOCK as u64;
    disk.flip_bit(Path::new("log/2.seg"), footer_at + 30, 1).unwrap();
    let (core, recovered) = open(&disk);
    assert_eq!(recovered.scanned_segments, 2, "that one, and the newest");
    assert_eq!(read(&core, 1, 7).unwrap(), entry_bytes(1, 7, 6, 1700, 0));
    let (_, recovered) = open(&disk);
    assert_eq!(recovered.scanned_segments, 1);
}

#[test]
fn damage_in_the_middle_of_the_tail_never_becomes_absence() {
    let (disk, commits) = unsealed();
    disk.flip_bit(Path::new(SEGMENT), commits[1] + 8, 0).unwrap();
    for _ in 0..2 {
        let (mut core, recovered) = open(&disk);
        assert_eq!(recovered.damage.len(), 1);
        assert_eq!((recovered.damage[0].path.as_path(), recovered.damage[0].offset), (Path::new(SEGMENT), commits[1]));
        for entry in [0, 2, 3] {
            assert!(read(&core, 1, entry).is_ok(), "entry {entry}");
        }
        match read(&core, 1, 1) {
            Err(BookieError::Damaged { file, offset, .. }) => assert_eq!((&*file, offset), ("1.seg", commits[1])),
            other => panic!("{other:?}"),
        }
        assert!(matches!(read(&core, 99, 0), Err(BookieError::UnknownLedgerState { .. })));
        // The log goes on, and ledgers that begin behind the damage are not concerned.
        let born_later = core.reader().ledgers().len() as i64 + 100;
        add(&mut core, born_later, 0, 10).unwrap();
        assert!(read(&core, born_later, 0).is_ok());
    }
}

#[test]
fn whole_commits_missing_at_the_end_of_an_old_segment_are_reported() {
    let disk = sealed();
    let path = Path::new("log/1.seg");
    let file = disk.open(path, OpenMode::Write).unwrap();
    // Commits, index and footer are gone from some point on.
    file.set_len(4 * BLOCK as u64).unwrap();
    file.set_len(32 << 10).unwrap();
    let (core, recovered) = open(&disk);
    assert_eq!(recovered.damage.len(), 1, "{recovered:?}");
    assert_eq!(recovered.damage[0].offset, 4 * BLOCK as u64);
    let damaged = (0..20).filter(|entry| matches!(read(&core, 1, *entry), Err(BookieError::Damaged { .. }))).count();
    assert!(damaged > 0);
    assert!((0..20).all(|entry| !matches!(read(&core, 1, entry), Err(BookieError::NoEntry { .. }))));
}

#[test]
fn what_is_not_this_log_is_refused() {
    type Spoil = fn(&SimDisk);
    let cases: [(&str, Spoil, &str); 5] = [
        ("missing", |disk| disk.remove(Path::new("log/2.seg")).unwrap(), "`log/2.seg` is missing although"),
        (
            "renamed",
            |disk| disk.rename(Path::new("log/2.seg"), Path::new("log/1000.seg")).unwrap(),
            "`log/1000.seg` is not a segment of this log",
        ),
        (
            "foreign",
            |disk| {
                let file = disk.create(Path::new("log/1000.seg"), OpenMode::Write).unwrap();
                file.write_all_at(b"PK\x03\x04 something else altogether", 0).unwrap();
            },
            "`log/1000.seg` is not a segment of this log",
        ),
        (
            "empty",
            |disk| drop(disk.create(Path::new("log/1000.seg"), OpenMode::Write).unwrap()),
            "`log/1000.seg` is not a segment of this log",
        ),
        (
            "newer",
            |disk| {
                let file = disk.open(Path::new("log/1.seg"), OpenMode::Write).unwrap();
                let mut block = vec![0; BLOCK];
                file.read_at(&mut block, 0).unwrap();
                block[8..16].copy_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0]);
                let checksum = crc32c::crc32c(&block);
                block[12..16].copy_from_slice(&checksum.to_le_bytes());
                file.write_all_at(&block, 0).unwrap();
            },
            "`log/1.seg` has format version 2, this program knows versions up to 1",
        ),
    ];
    for (name, spoil, expected) in cases {
        let disk = copy(&sealed());
        spoil(&disk);
        let error = try_open(&disk).err().unwrap_or_else(|| panic!("{name}: opened"));
        assert!(error.to_string().starts_with(expected), "{name}: {error}");
    }
}

#[test]
fn a_commit_inside_a_payload_does_not_pass_for_one() {
    // A client wraps a log's first commits into an entry, block-aligned. Only if it knew the log's number would they be taken for the log's own.
    let (source, _) = unsealed();
    let file = source.open(Path::new(SEGMENT), OpenMode::Read).unwrap();
    let mut forged = vec![0; 2 * BLOCK];
    file.read_at(&mut forged, BLOCK as u64).unwrap();
    // The entry is the second record of its commit, behind its ledger's state.
    let before_payload = 40 + 16 + 31 + 16 + 32;
    let payload = [vec![0; BLOCK - before_payload], forged].concat();
    let bytes = [entry_bytes(7, 0, -1, 0, 0).to_vec(), payload].concat();
    for (log_number, passes) in [(Some(99), false), (small().log_number, true)] {
        let disk = SimDisk::new(1);
        let config = BookieConfig { log_number, segment_bytes: 64 << 10, ..small() };
        let (mut core, _) = BookieCore::open(config, Arc::new(disk.clone())).unwrap();
        let bytes = bookkeeper_proto::EntryBuf::verbatim(bytes.clone().into()).unwrap();
        add_all(&mut core, vec![AddOp { bytes, ..add_op(7, 0, 0) }]).remove(0).unwrap();
        sync_all(&disk);
        // Damage to the commit's header makes the scan look at every block behind it.
        disk.flip_bit(Path::new(SEGMENT), BLOCK as u64, 0).unwrap();
        let (core, _) = open(&disk);
        assert_eq!(!core.reader().ledgers().is_empty(), passes);
    }
}

const GOLDEN: &str = "tests/golden/v1";

/// A log with everything a log can hold: two segments, the first one sealed.
fn write_golden() -> SimDisk {
    let disk = SimDisk::new(1);
    let (mut core, _) = open(&disk);
    fence(&mut core, 4).unwrap();
    write_lac(&mut core, 3, 9).unwrap();
    add(&mut core, 5, 0, 100).unwrap();
    delete(&mut core, 5).unwrap();
    for entry in 0..4 {
        add_all(&mut core, vec![add_op(1, entry, 1700), add_op(2, entry * 2, 300)]);
    }
    disk
}

#[test]
fn the_golden_folder_opens_and_is_what_would_be_written_today() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    let written = write_golden();
    let disk = SimDisk::new(2);
    disk.create_dir(Path::new("log")).unwrap();
    let mut names: Vec<PathBuf> = written.files().into_keys().collect();
    names.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    assert_eq!(names.len(), 2);
    for path in names {
        let file = written.open(&path, OpenMode::Read).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        let golden = folder.join(path.file_name().unwrap());
        if std::env::var_os("WRITE_GOLDEN").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&golden, &bytes).unwrap();
        }
        let expected = std::fs::read(&golden).unwrap();
        assert!(bytes == expected, "{} differs: a change of format needs a new version", golden.display());
        disk.create(&path, OpenMode::Write).unwrap().write_all_at(&expected, 0).unwrap();
    }
    let (mut core, recovered) = open(&disk);
    assert_eq!((recovered.segments, recovered.scanned_segments, recovered.ledgers), (2, 1, 4));
    assert!(recovered.damage.is_empty());
    for entry in 0..4 {
        assert_eq!(read(&core, 1, entry).unwrap(), entry_bytes(1, entry, entry - 1, 1700, 0));
        assert_eq!(read(&core, 2, entry * 2).unwrap(), entry_bytes(2, entry * 2, entry * 2 - 1, 300, 0));
    }
    assert_eq!(core.reader().read_lac(LedgerId(3)).unwrap().last_add_confirmed, EntryId(9));
    assert!(matches!(add(&mut core, 4, 0, 10), Err(BookieError::Fenced { .. })));
    assert!(matches!(read(&core, 5, 0), Err(BookieError::NoLedger { .. })));
}
