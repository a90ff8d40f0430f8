//! The client over a scripted bookie and a metadata store in memory, without any runtime.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::sync::Arc;

use bookkeeper_proto::layout::HIERARCHICAL_LAYOUT;
use bookkeeper_proto::ledger_path::ledger_path;
use bookkeeper_proto::{BookieError, EntryId, LedgerId, LedgerMetadata, LedgerState, Remedy};
use bytes::Bytes;
use common::{MemoryBookie, ScriptedStore, Writing, client, run};
use ledger::{LedgerError, Ledgers, LedgersConfig, Verify, WriterEvent, initialize};
use metadata::{Expected, MetadataError, MetadataStore};

const INSTANCE: &str = "2a43d5ae-0000-4000-8000-000000000001";

struct Cluster {
    store: Arc<ScriptedStore>,
    bookie: Arc<MemoryBookie>,
    ledgers: Ledgers,
}

fn cluster() -> Cluster {
    cluster_with(LedgersConfig::default())
}

fn cluster_with(config: LedgersConfig) -> Cluster {
    let (store, bookie) = (ScriptedStore::new(), MemoryBookie::committing_at_once());
    run(initialize(&*store, INSTANCE)).unwrap();
    let ledgers = client(&store, std::slice::from_ref(&bookie), config, 1);
    Cluster { store, bookie, ledgers }
}

impl Cluster {
    /// A ledger with these entries; the last one's LAC has not reached the bookie.
    fn write(&self, payloads: &[&'static [u8]]) -> Writing {
        let mut writing = Writing::new(run(self.ledgers.create(vec![])).unwrap(), 1);
        for payload in payloads {
            assert!(writing.add(&self.ledgers, payload));
            writing.deliver_all(&self.ledgers);
        }
        writing
    }

    fn metadata(&self, ledger: LedgerId) -> LedgerMetadata {
        let node = run(self.store.get(&ledger_path(ledger))).unwrap().unwrap();
        LedgerMetadata::decode(&node.value).unwrap()
    }

    fn value(&self, path: &str) -> Option<String> {
        let node = run(self.store.get(path)).unwrap()?;
        Some(String::from_utf8(node.value.to_vec()).unwrap())
    }

    fn put(&self, path: &str) {
        run(self.store.put(path, Bytes::new(), Expected::Any)).unwrap();
    }

    fn read(&self, ledger: LedgerId, first: i64, last: i64, max_bytes: usize) -> Result<Vec<Bytes>, LedgerError> {
        let views = run(self.ledgers.read(ledger, EntryId(first), EntryId(last), max_bytes))?;
        Ok(views.iter().map(|view| view.payload()).collect())
    }
}

fn closed(last_entry: i64, length: u64) -> LedgerState {
    LedgerState::Closed { last_entry: EntryId(last_entry), length }
}

#[test]
fn initialize_is_idempotent() {
    let cluster = cluster();
    assert_eq!(run(initialize(&*cluster.store, "another")).unwrap(), INSTANCE);
    let expected = [
        ("/ledgers", ""),
        ("/ledgers/LAYOUT", HIERARCHICAL_LAYOUT),
        ("/ledgers/INSTANCEID", INSTANCE),
        ("/ledgers/available", ""),
        ("/ledgers/available/readonly", ""),
    ];
    for (path, value) in expected {
        assert_eq!(cluster.value(path).as_deref(), Some(value), "{path}");
    }
}

#[test]
fn initialize_completes_a_half_finished_run() {
    let store = ScriptedStore::new();
    store.fail_once("put", "LAYOUT", MetadataError::SessionLost);
    let error = run(initialize(&*store, INSTANCE)).unwrap_err();
    assert_eq!(error.to_string(), "cannot create `/ledgers/LAYOUT`");
    assert_eq!(run(initialize(&*store, "another")).unwrap(), INSTANCE);
}

#[test]
fn another_layout_is_refused() {
    let store = ScriptedStore::new();
    let flat = "2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1";
    run(store.put("/ledgers/LAYOUT", Bytes::from_static(flat.as_bytes()), Expected::Any)).unwrap();
    let error = run(initialize(&*store, INSTANCE)).unwrap_err();
    assert!(error.to_string().contains("FlatLedgerManagerFactory"), "{error}");
}

#[test]
fn a_new_ledger_is_metadata_alone() {
    let cluster = cluster();
    let custom = vec![("application".to_owned(), Bytes::from_static(b"pulsar"))];
    for id in 0..3 {
        let writer = run(cluster.ledgers.create(custom.clone())).unwrap();
        assert_eq!(writer.ledger(), LedgerId(id));
    }
    let metadata = cluster.metadata(LedgerId(2));
    assert_eq!((metadata.state, &metadata.custom), (LedgerState::Open, &custom));
    assert_eq!(metadata.segments[0].bookies[0].0, "bookie-0:3181");
    assert_eq!(run(cluster.store.children("/ledgers/idgen")).unwrap(), Vec::<String>::new());
    assert_eq!(cluster.bookie.ledgers(), 0, "no bookie is contacted");
}

#[test]
fn a_creator_recognises_its_own_ledger() {
    let cluster = cluster();
    cluster.store.lose_answer_once("put", "/ledgers/00");
    assert_eq!(run(cluster.ledgers.create(vec![])).unwrap().ledger(), LedgerId(0));
    cluster.store.fail_once("put", "/ledgers/00", MetadataError::OutcomeUnknown { reason: "test".into() });
    assert_eq!(run(cluster.ledgers.create(vec![])).unwrap().ledger(), LedgerId(1));
    assert_eq!(run(cluster.ledgers.list()).unwrap(), [0, 1].map(LedgerId));
}

#[test]
fn an_id_in_use_is_passed_over() {
    let cluster = cluster();
    let theirs = cluster.metadata(run(cluster.ledgers.create(vec![])).unwrap().ledger()).encode();
    for path in ["/ledgers/00/0000/L0001", "/ledgers/00/0000/L0002"] {
        run(cluster.store.put(path, theirs.clone(), Expected::Absent)).unwrap();
    }
    assert_eq!(run(cluster.ledgers.create(vec![])).unwrap().ledger(), LedgerId(3));
}

#[test]
fn what_was_written_is_read() {
    let cluster = cluster();
    let mut writing = cluster.write(&[b"one", b"two", b"three"]);
    writing.tell(&cluster.ledgers, WriterEvent::Close);
    let (ledger, (last, length)) = (writing.writer.ledger(), writing.sealed.unwrap());
    run(cluster.ledgers.close(ledger, last, length)).unwrap();
    assert_eq!(cluster.metadata(ledger).state, closed(2, 11));

    let entry = 36 + 3;
    for (first, last, max_bytes, expected) in [
        (0, 2, 1000, &["one", "two", "three"][..]),
        (1, 2, 1000, &["two", "three"]),
        (0, 0, 1000, &["one"]),
        (0, 2, 0, &["one"]),
        (0, 2, 2 * entry, &["one", "two"]),
        (0, 9, 1000, &["one", "two", "three"]),
    ] {
        assert_eq!(cluster.read(ledger, first, last, max_bytes).unwrap(), expected, "{first}..={last}, {max_bytes}");
    }
    let stored = cluster.bookie.stored(ledger, 1).unwrap();
    let payload = cluster.read(ledger, 1, 1, 1000).unwrap().remove(0);
    assert_eq!(payload.as_ptr(), stored[36..].as_ptr(), "a slice, not a copy");
    assert_eq!(cluster.read(ledger, 5, 6, 1000).unwrap_err().remedy(), Remedy::RetryElsewhere);
}

#[test]
fn recovery_finds_what_was_acknowledged() {
    for count in 0..4 {
        let cluster = cluster();
        let mut writing = cluster.write(&[&b"hello"[..]; 3][..count]);
        let ledger = writing.writer.ledger();
        for _ in 0..2 {
            let handle = run(cluster.ledgers.open_recover(ledger)).unwrap();
            assert_eq!(handle.last_confirmed, EntryId(count as i64 - 1));
            assert_eq!(handle.metadata.state, closed(count as i64 - 1, count as u64 * 5));
        }
        assert_eq!(cluster.bookie.fences(), 1, "a closed ledger is not recovered again");

        // The old writer does not know yet.
        writing.add(&cluster.ledgers, b"late");
        writing.deliver_all(&cluster.ledgers);
        assert_eq!(writing.confirmed.len(), count);
        assert_eq!(writing.failed[0].0, EntryId(count as i64));
        assert_eq!(writing.failed[0].1.remedy(), Remedy::OutcomeUnknown);
        assert!(writing.writer.is_fenced() && writing.sealed.is_none());
    }
}

#[test]
fn a_damaged_entry_is_no_end() {
    let cluster = cluster();
    let ledger = cluster.write(&[b"0", b"1", b"2"]).writer.ledger();
    let unknown = BookieError::UnknownLedgerState { ledger, detail: "folder lost".into() };
    let faults: [&dyn Fn(); 3] =
        [&|| cluster.bookie.damage(ledger, 2), &|| cluster.bookie.fail_all(unknown.clone()), &|| {
            cluster.bookie.fail_all(BookieError::Gone { ledger })
        }];
    for fault in faults {
        fault();
        let error = run(cluster.ledgers.open_recover(ledger)).unwrap_err();
        assert!(matches!(error, LedgerError::Recovery { .. }), "{error}");
        assert_eq!(error.remedy(), Remedy::RetryHere);
        assert_eq!(cluster.metadata(ledger).state, LedgerState::InRecovery);
        cluster.bookie.heal();
    }
    let handle = run(cluster.ledgers.open_recover(ledger)).unwrap();
    assert_eq!(handle.metadata.state, closed(2, 3));
}

#[test]
fn answers_that_get_lost_change_nothing() {
    let cluster = cluster();
    let ledger = cluster.write(&[b"0", b"1"]).writer.ledger();
    cluster.store.lose_answer_once("put", "/ledgers/00");
    cluster.store.lose_answer_once("put", "/ledgers/00");
    assert_eq!(run(cluster.ledgers.open_recover(ledger)).unwrap().last_confirmed, EntryId(1));

    let ledger = cluster.write(&[b"0"]).writer.ledger();
    cluster.store.lose_answer_once("put", "/ledgers/00");
    run(cluster.ledgers.close(ledger, EntryId(0), 1)).unwrap();
    cluster.store.lose_answer_once("delete", "/ledgers/00");
    let error = run(cluster.ledgers.delete(ledger)).unwrap_err();
    assert_eq!((error.remedy(), cluster.bookie.forgotten()), (Remedy::OutcomeUnknown, vec![]));
    run(cluster.ledgers.delete(ledger)).unwrap();
    assert_eq!(cluster.bookie.forgotten(), [ledger]);
}

#[test]
fn an_end_is_decided_once() {
    let cluster = cluster();
    let ledger = cluster.write(&[b"0", b"1"]).writer.ledger();
    run(cluster.ledgers.close(ledger, EntryId(0), 1)).unwrap();
    run(cluster.ledgers.close(ledger, EntryId(0), 1)).unwrap();
    let error = run(cluster.ledgers.close(ledger, EntryId(1), 2)).unwrap_err();
    assert_eq!(error.to_string(), "ledger 0 is closed at entry 0 with 1 bytes, not at 1 with 2");
    assert_eq!(run(cluster.ledgers.open_recover(ledger)).unwrap().last_confirmed, EntryId(0));
    let error = run(cluster.ledgers.close(LedgerId(77), EntryId(1), 2)).unwrap_err();
    assert!(matches!(error, LedgerError::NotFound { .. }), "{error}");
}

#[test]
fn reading_along_disturbs_nobody() {
    let cluster = cluster();
    let mut writing = cluster.write(&[]);
    let ledger = writing.writer.ledger();
    for (lac, payload) in [(-1, b"0"), (-1, b"1"), (0, b"2"), (1, b"3")] {
        assert_eq!(run(cluster.ledgers.open_read_only(ledger)).unwrap().last_confirmed, EntryId(lac));
        writing.add(&cluster.ledgers, payload);
        writing.deliver_all(&cluster.ledgers);
    }
    assert_eq!((writing.confirmed.len(), cluster.bookie.fences()), (4, 0));
    assert_eq!(cluster.metadata(ledger).state, LedgerState::Open);
    run(cluster.ledgers.close(ledger, EntryId(3), 4)).unwrap();
    assert_eq!(run(cluster.ledgers.open_read_only(ledger)).unwrap().last_confirmed, EntryId(3));
}

#[test]
fn entries_are_verified() {
    let flip = |bytes: &Bytes, at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 1;
        Bytes::from(bytes)
    };
    // (byte that is wrong, is seen by its digest, is seen without)
    for (at, with_digest, without) in
        [(7, true, true), (15, true, true), (23, true, false), (33, true, false), (37, true, false)]
    {
        for (verify, is_seen) in [(Verify::Digest, with_digest), (Verify::Identity, without)] {
            let cluster = cluster_with(LedgersConfig { verify, ..LedgersConfig::default() });
            let ledger = cluster.write(&[b"one", b"two"]).writer.ledger();
            cluster.bookie.overwrite(ledger, 1, flip(&cluster.bookie.stored(ledger, 1).unwrap(), at));
            assert_eq!(cluster.read(ledger, 1, 1, 1000).is_err(), is_seen, "byte {at}, {verify:?}");
            assert_eq!(cluster.read(ledger, 0, 1, 1000).unwrap()[0], "one", "what lies before is good");
        }
    }
}

#[test]
fn strangers_are_turned_away() {
    let cluster = cluster();
    let ledger = cluster.write(&[b"0"]).writer.ledger();
    let config = LedgersConfig { password: Bytes::from_static(b"guess"), ..LedgersConfig::default() };
    let stranger = client(&cluster.store, std::slice::from_ref(&cluster.bookie), config, 2);
    let elsewhere = client(&cluster.store, &[], LedgersConfig::default(), 3);
    for result in [run(stranger.open_recover(ledger)), run(stranger.open_read_only(ledger))] {
        assert!(matches!(result, Err(LedgerError::WrongPassword { .. })), "{result:?}");
    }
    assert!(matches!(run(elsewhere.create(vec![])), Err(LedgerError::NotEnoughBookies { .. })));
    let error = run(elsewhere.read(ledger, EntryId(0), EntryId(0), 1)).unwrap_err();
    assert!(matches!(error, LedgerError::UnknownBookie { .. }), "{error}");
    assert_eq!(cluster.metadata(ledger).state, LedgerState::Open);
    assert_eq!(cluster.bookie.fences(), 0);
}

#[test]
fn deleting_is_idempotent_and_forgets_last() {
    let cluster = cluster();
    let ledger = cluster.write(&[b"0"]).writer.ledger();
    cluster.store.fail_once("delete", "/ledgers/00", MetadataError::SessionLost);
    assert!(run(cluster.ledgers.delete(ledger)).is_err());
    assert_eq!(cluster.bookie.forgotten(), []);
    run(cluster.ledgers.delete(ledger)).unwrap();
    run(cluster.ledgers.delete(ledger)).unwrap();
    assert_eq!(cluster.bookie.forgotten(), [ledger, ledger]);
    assert!(matches!(run(cluster.ledgers.open_recover(ledger)), Err(LedgerError::NotFound { .. })));
    assert!(matches!(cluster.read(ledger, 0, 0, 10), Err(LedgerError::NotFound { .. })));
    assert_eq!(run(cluster.ledgers.list()).unwrap(), []);

    cluster.bookie.fail_all(BookieError::Gone { ledger });
    let ledger = run(cluster.ledgers.create(vec![])).unwrap().ledger();
    run(cluster.ledgers.delete(ledger)).unwrap();
}

#[test]
fn a_listing_is_complete() {
    let cluster = cluster();
    assert_eq!(run(cluster.ledgers.list()).unwrap(), []);
    let ids = [3_000_000_000, 2_147_483_647, 2_147_483_646, 10_000, 9_999, 0];
    for id in ids {
        cluster.put(&ledger_path(LedgerId(id)));
    }
    cluster.put("/ledgers/underreplication/ledgers/0000");
    cluster.put("/ledgers/cookies/bookie-0:3181");
    // Directories that have lost their last ledger.
    cluster.put("/ledgers/00/0005");
    cluster.put("/ledgers/000/0000/0077/0000");
    let mut expected = ids.map(LedgerId);
    expected.sort();
    assert_eq!(run(cluster.ledgers.list()).unwrap(), expected);

    for path in ["/ledgers", "/ledgers/00", "/ledgers/000", "/ledgers/21/4748", "/ledgers/000/0000/0021/4748"] {
        cluster.store.fail_once("children", path, MetadataError::SessionLost);
        assert!(run(cluster.ledgers.list()).is_err(), "{path}");
    }
    assert_eq!(run(cluster.ledgers.list()).unwrap(), expected);
}

#[test]
fn what_is_not_understood_fails_the_listing() {
    for path in [
        "/ledgers/L0000012345",              // the flat layout
        "/ledgers/000/0000/0000/0001/L2345", // the long layout, used for a short id
        "/ledgers/00/0001/L23456",
        "/ledgers/00/L0001",
        "/ledgers/00/0001/2345",
        "/ledgers/000/0000/L0000",
    ] {
        let cluster = cluster();
        cluster.put(path);
        let error = run(cluster.ledgers.list()).unwrap_err();
        assert!(
            matches!(&error, LedgerError::UnexpectedNode { path: found } if path.starts_with(found)),
            "{path}: {error}"
        );
    }
    let empty = client(&ScriptedStore::new(), &[], LedgersConfig::default(), 1);
    assert!(matches!(run(empty.list()), Err(LedgerError::NotInitialized)));
}
