//! The embedded store's file: what is refused, what is kept, what a commit thread saves.

#![allow(clippy::unwrap_used, reason = "a test's helpers are tests, too")]

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use common::{block_on, clock, now};
use disk::{Disk, RealDisk};
use metadata::{
    CreateMode, EmbeddedStore, Expected, MAX_VALUE_BYTES, MetadataError, MetadataStore, Mode, OpenError, SessionState,
};

fn disk(folder: &Path) -> Arc<dyn Disk> {
    Arc::new(RealDisk::open(folder).unwrap())
}

fn open(folder: &Path, mode: Mode) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::open(disk(folder), Path::new("metadata"), clock(), mode)
}

/// What another process finds after `kill -9` of the one that has the folder open.
fn killed(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir_in(folder.parent().unwrap()).unwrap();
    fs::create_dir(copy.path().join("metadata")).unwrap();
    fs::copy(folder.join("metadata/metadata.db"), copy.path().join("metadata/metadata.db")).unwrap();
    copy
}

#[test]
fn a_foreign_file_is_refused_and_left_alone() {
    for content in [&b""[..], b"HULSE", b"something else, of some length", &[0; 8192]] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("metadata/metadata.db");
        fs::create_dir(folder.path().join("metadata")).unwrap();
        fs::write(&file, content).unwrap();
        let error = open(folder.path(), Mode::Inline).err().unwrap();
        assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains("metadata/metadata.db"), "{error}");
        assert_eq!(fs::read(&file).unwrap(), content);
    }
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path(), Mode::Inline).unwrap());
    let file = folder.path().join("metadata/metadata.db");
    let mut content = fs::read(&file).unwrap();
    content[11] = 2;
    fs::write(&file, &content).unwrap();
    let error = open(folder.path(), Mode::Inline).err().unwrap();
    assert!(matches!(error, OpenError::Newer { found: 2, supported: 1, .. }), "{error}");
    assert!(error.to_string().contains("start the newer version"), "{error}");
    assert!(fs::read(&file).unwrap() == content);
}

#[test]
fn a_damaged_file_is_an_error_and_not_an_empty_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Mode::Inline).unwrap();
    now(store.put("/a", vec![7; 100_000].into(), Expected::Any)).unwrap();
    drop(store);
    let file = folder.path().join("metadata/metadata.db");
    let whole = fs::read(&file).unwrap();
    let header_gone = [&whole[..4096], &[0; 4096], &whole[8192..]].concat();
    for damaged in [&whole[..4096 + 100], &whole[..whole.len() / 2], &header_gone] {
        fs::write(&file, damaged).unwrap();
        let error = open(folder.path(), Mode::Inline).err().unwrap();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    }
}

#[test]
fn the_beginnings_of_a_store_are_cleaned_up() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("metadata")).unwrap();
    fs::write(folder.path().join("metadata/metadata.db.new"), "half").unwrap();
    let store = open(folder.path(), Mode::Inline).unwrap();
    now(store.put("/a", Bytes::new(), Expected::Any)).unwrap();
    let names = fs::read_dir(folder.path().join("metadata")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["metadata.db"]);
}

/// A folder of format 1, as its first version wrote it. It opens for ever.
#[test]
fn the_golden_file_of_format_1_opens() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("metadata")).unwrap();
    let mut file = Vec::new();
    let golden = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-1/metadata.db.gz")).unwrap();
    std::io::copy(&mut flate2::read::GzDecoder::new(&*golden), &mut file).unwrap();
    fs::write(folder.path().join("metadata/metadata.db"), file).unwrap();

    let store = open(folder.path(), Mode::Inline).unwrap();
    let node = now(store.get("/ledgers/LAYOUT")).unwrap().unwrap();
    assert_eq!(node.value, "layout 1");
    assert_eq!((node.stat.version, node.stat.created_ms, node.stat.modified_ms), (1, 1000, 1001));
    assert_eq!(now(store.children("/")).unwrap(), ["bookies", "ids", "ledgers"]);
    assert!(!now(store.exists("/bookies/b1")).unwrap(), "was ephemeral");
    let next = now(store.create("/ids/ID-", Bytes::new(), CreateMode::PersistentSequential)).unwrap();
    assert_eq!(next.path, "/ids/ID-0000000001");
}

/// How the golden file was made, which the next format's will be, too.
#[test]
fn the_golden_history_still_runs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = open(folder, Mode::Inline).unwrap();
    now(store.put("/ledgers/LAYOUT", "layout 0".into(), Expected::Absent)).unwrap();
    now(store.put("/ledgers/LAYOUT", "layout 1".into(), Expected::Version(0))).unwrap();
    now(store.create("/bookies/b1", Bytes::new(), CreateMode::Ephemeral)).unwrap();
    now(store.create("/ids/ID-", Bytes::new(), CreateMode::PersistentSequential)).unwrap();
    // As kill -9 leaves it: not closed. `gzip -9 -n` made it the golden file.
    let golden = killed(folder);
    assert!(golden.path().join("metadata/metadata.db").exists());
}

#[test]
fn a_store_that_was_killed_opens_with_everything() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Mode::Threaded).unwrap();
    for number in 0..50 {
        block_on(store.put(&format!("/a/{number}"), vec![1; 300].into(), Expected::Absent)).unwrap();
    }
    block_on(store.create("/b", Bytes::new(), CreateMode::Ephemeral)).unwrap();
    let found = killed(folder.path());
    let store = open(found.path(), Mode::Threaded).unwrap();
    assert_eq!(block_on(store.children("/a")).unwrap().len(), 50);
    assert!(!block_on(store.exists("/b")).unwrap());
}

#[test]
fn what_waits_is_committed_together() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Mode::Threaded).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..20 {
                    block_on(store.put(&format!("/a/{thread}/{number}"), Bytes::new(), Expected::Absent)).unwrap();
                }
            });
        }
    });
    let stats = store.stats();
    assert_eq!(stats.writes, 320);
    assert!(stats.commits < 320, "{stats:?}");
}

#[test]
fn close_commits_what_is_queued_and_ends_everything() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Mode::Threaded).unwrap();
    let mut watch = store.watch("/");
    let mut session = store.session();
    block_on(store.put("/a", Bytes::new(), Expected::Any)).unwrap();
    store.close().unwrap();
    store.close().unwrap();
    assert!(watch.try_next().is_some() && watch.try_next().is_some());
    assert_eq!(block_on(watch.next()), None);
    assert_eq!(block_on(session.changed()).state, SessionState::Lost);
    assert!(matches!(block_on(store.put("/b", Bytes::new(), Expected::Any)), Err(MetadataError::Closed)));
    assert!(matches!(block_on(store.get("/a")), Err(MetadataError::Closed)));
    drop(store);
    assert!(block_on(open(folder.path(), Mode::Threaded).unwrap().exists("/a")).unwrap());
}

#[test]
fn values_have_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Mode::Threaded).unwrap();
    block_on(store.put("/a", vec![1; MAX_VALUE_BYTES].into(), Expected::Any)).unwrap();
    let error = block_on(store.put("/a", vec![1; MAX_VALUE_BYTES + 1].into(), Expected::Any)).unwrap_err();
    assert!(matches!(error, MetadataError::TooLarge { .. }), "{error}");
}
