//! The rules of [`MetadataStore`], one function each, to be run against every store: go through [`RULES`] and give each
//! rule a [`Subject`] with an empty tree.

#![allow(clippy::unwrap_used, reason = "this is test code that other crates' tests can also run")]

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{CreateMode, Event, Expected, MetadataError, MetadataStore, SessionState, WATCH_QUEUE_EVENTS, Watch};

/// A store under test.
#[async_trait]
pub trait Subject: Send + Sync {
    /// The store as it is now; [`Subject::restart`] replaces it.
    fn store(&self) -> Arc<dyn MetadataStore>;
    /// Makes the store's session end and a new one begin.
    async fn expire_session(&self);
    /// What the death and return of the process does to the store.
    async fn restart(&self);
}

/// A rule, boxed.
pub type Rule = for<'a> fn(&'a dyn Subject) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

macro_rules! rules {
    ($($name:ident),* $(,)?) => {
        /// Every rule with its name.
        pub const RULES: &[(&str, Rule)] = &[$((stringify!($name), |subject| Box::pin($name(subject)))),*];
    };
}

rules![
    a_node_that_was_never_written_is_absent,
    versions_count_from_zero,
    put_compares_versions,
    a_node_created_again_starts_at_version_zero,
    created_and_modified_times_are_kept,
    parents_come_along_empty,
    create_refuses_an_existing_node,
    one_of_many_creators_wins,
    one_of_many_writers_of_a_version_wins,
    delete_compares_versions,
    delete_refuses_a_node_with_children,
    recursive_delete_takes_exactly_the_subtree,
    children_are_names_in_order,
    the_root_can_only_be_read,
    wrong_paths_are_refused,
    a_value_of_a_megabyte_is_kept,
    sequence_numbers_have_ten_digits_and_belong_to_the_parent,
    sequence_numbers_never_come_back,
    an_ephemeral_node_knows_its_session,
    an_ephemeral_node_has_no_children,
    ephemeral_nodes_go_with_their_session,
    ephemeral_nodes_do_not_survive_a_restart,
    acknowledged_writes_survive_a_restart,
    a_watch_hears_every_kind_of_change,
    a_watch_hears_only_its_subtree,
    refused_writes_are_not_heard,
    a_slow_watch_is_told_to_start_over,
    a_new_session_tells_watches_to_start_over,
];

pub async fn a_node_that_was_never_written_is_absent(subject: &dyn Subject) {
    let store = subject.store();
    assert_eq!(store.get("/a").await.unwrap(), None);
    assert!(!store.exists("/a").await.unwrap());
    assert_eq!(store.children("/a").await.unwrap(), Vec::<String>::new());
    assert!(matches!(store.delete("/a", Expected::Any).await, Err(MetadataError::NotFound { .. })));
    store.delete_recursive("/a").await.unwrap();
}

pub async fn versions_count_from_zero(subject: &dyn Subject) {
    let store = subject.store();
    for version in 0..3 {
        assert_eq!(store.put("/a", value("x"), Expected::Any).await.unwrap().version, version);
        assert_eq!(store.get("/a").await.unwrap().unwrap().stat.version, version);
    }
}

pub async fn put_compares_versions(subject: &dyn Subject) {
    let store = subject.store();
    // (expected, version found or none) → written?
    let refused = store.put("/a", value("0"), Expected::Version(0)).await;
    assert!(matches!(refused, Err(MetadataError::BadVersion { found: None, .. })), "{refused:?}");
    store.put("/a", value("0"), Expected::Absent).await.unwrap();
    let refused = store.put("/a", value("x"), Expected::Absent).await;
    assert!(matches!(refused, Err(MetadataError::BadVersion { found: Some(0), .. })), "{refused:?}");
    let refused = store.put("/a", value("x"), Expected::Version(1)).await;
    assert!(matches!(refused, Err(MetadataError::BadVersion { found: Some(0), .. })), "{refused:?}");
    assert_eq!(store.get("/a").await.unwrap().unwrap().value, value("0"));
    assert_eq!(store.put("/a", value("1"), Expected::Version(0)).await.unwrap().version, 1);
    assert_eq!(store.get("/a").await.unwrap().unwrap().value, value("1"));
}

pub async fn a_node_created_again_starts_at_version_zero(subject: &dyn Subject) {
    let store = subject.store();
    store.put("/a", value("0"), Expected::Any).await.unwrap();
    store.put("/a", value("1"), Expected::Any).await.unwrap();
    store.delete("/a", Expected::Any).await.unwrap();
    assert_eq!(store.put("/a", value("2"), Expected::Any).await.unwrap().version, 0);
}

pub async fn created_and_modified_times_are_kept(subject: &dyn Subject) {
    let store = subject.store();
    let first = store.put("/a", value("0"), Expected::Any).await.unwrap();
    assert_eq!(first.created_ms, first.modified_ms);
    let second = store.put("/a", value("1"), Expected::Any).await.unwrap();
    assert_eq!(second.created_ms, first.created_ms);
    assert!(second.modified_ms >= first.modified_ms);
    assert_eq!(store.get("/a").await.unwrap().unwrap().stat, second);
}

pub async fn parents_come_along_empty(subject: &dyn Subject) {
    let store = subject.store();
    store.put("/a/b/c", value("x"), Expected::Absent).await.unwrap();
    for parent in ["/a", "/a/b"] {
        let node = store.get(parent).await.unwrap().unwrap();
        assert_eq!((node.value.len(), node.stat.version, node.stat.ephemeral), (0, 0, false), "{parent}");
    }
    store.create("/d/e", value("x"), CreateMode::Ephemeral).await.unwrap();
    assert!(!store.get("/d").await.unwrap().unwrap().stat.ephemeral);
    // And they stay when their last child goes.
    store.delete("/a/b/c", Expected::Any).await.unwrap();
    assert!(store.exists("/a/b").await.unwrap());
}

pub async fn create_refuses_an_existing_node(subject: &dyn Subject) {
    let store = subject.store();
    for mode in [CreateMode::Persistent, CreateMode::Ephemeral] {
        let path = format!("/a/{mode:?}");
        let created = store.create(&path, value("x"), mode).await.unwrap();
        assert_eq!((created.path, created.stat.version), (path.clone(), 0));
        let refused = store.create(&path, value("y"), mode).await.unwrap_err();
        assert!(refused.is_bad_version(), "{refused:?}");
        assert_eq!(store.get(&path).await.unwrap().unwrap().value, value("x"));
    }
}

pub async fn one_of_many_creators_wins(subject: &dyn Subject) {
    let store = subject.store();
    let tries = (0..20).map(|_| store.create("/a", Bytes::new(), CreateMode::Persistent));
    let results = all(tries).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert!(results.iter().all(|result| result.as_ref().err().is_none_or(MetadataError::is_bad_version)));
}

pub async fn one_of_many_writers_of_a_version_wins(subject: &dyn Subject) {
    let store = subject.store();
    store.put("/a", Bytes::new(), Expected::Absent).await.unwrap();
    for version in 0..3 {
        let tries = (0..20).map(|writer| store.put("/a", value(&writer.to_string()), Expected::Version(version)));
        let results = all(tries).await;
        let winners: Vec<usize> = (0..20).filter(|writer| results[*writer].is_ok()).collect();
        assert_eq!(winners.len(), 1);
        let node = store.get("/a").await.unwrap().unwrap();
        assert_eq!((node.value, node.stat.version), (value(&winners[0].to_string()), version + 1));
    }
}

pub async fn delete_compares_versions(subject: &dyn Subject) {
    let store = subject.store();
    store.put("/a", value("0"), Expected::Any).await.unwrap();
    store.put("/a", value("1"), Expected::Any).await.unwrap();
    for expected in [Expected::Version(0), Expected::Version(2), Expected::Absent] {
        assert!(store.delete("/a", expected).await.unwrap_err().is_bad_version(), "{expected:?}");
    }
    store.delete("/a", Expected::Version(1)).await.unwrap();
    assert!(!store.exists("/a").await.unwrap());
    assert!(store.delete("/a", Expected::Version(1)).await.unwrap_err().is_not_found());
}

pub async fn delete_refuses_a_node_with_children(subject: &dyn Subject) {
    let store = subject.store();
    store.put("/a/b", value("x"), Expected::Any).await.unwrap();
    let refused = store.delete("/a", Expected::Any).await;
    assert!(matches!(refused, Err(MetadataError::NotEmpty { .. })), "{refused:?}");
    store.delete("/a/b", Expected::Any).await.unwrap();
    store.delete("/a", Expected::Any).await.unwrap();
}

pub async fn recursive_delete_takes_exactly_the_subtree(subject: &dyn Subject) {
    let store = subject.store();
    for path in ["/a/b/c/d", "/a/b-c/d", "/a/b0", "/ab", "/a/b/e"] {
        store.put(path, value("x"), Expected::Any).await.unwrap();
    }
    store.delete_recursive("/a/b").await.unwrap();
    for path in ["/a/b", "/a/b/c", "/a/b/c/d", "/a/b/e"] {
        assert!(!store.exists(path).await.unwrap(), "{path}");
    }
    for path in ["/a", "/a/b-c/d", "/a/b0", "/ab"] {
        assert!(store.exists(path).await.unwrap(), "{path}");
    }
}

pub async fn children_are_names_in_order(subject: &dyn Subject) {
    let store = subject.store();
    for path in ["/a/c", "/a/b/x/y", "/a/b-d", "/a/%2F+é", "/ab", "/a/b0"] {
        store.put(path, value("x"), Expected::Any).await.unwrap();
    }
    assert_eq!(store.children("/a").await.unwrap(), ["%2F+é", "b", "b-d", "b0", "c"]);
    assert_eq!(store.children("/a/b").await.unwrap(), ["x"]);
    assert_eq!(store.children("/a/c").await.unwrap(), Vec::<String>::new());
    let top = store.children("/").await.unwrap();
    assert!(top.contains(&"a".to_owned()) && top.contains(&"ab".to_owned()), "{top:?}");
}

pub async fn the_root_can_only_be_read(subject: &dyn Subject) {
    let store = subject.store();
    assert!(store.exists("/").await.unwrap());
    assert!(store.get("/").await.unwrap().is_some());
    let refusals = [
        store.put("/", value("x"), Expected::Any).await.map(drop),
        store.create("/", value("x"), CreateMode::Persistent).await.map(drop),
        store.delete("/", Expected::Any).await,
        store.delete_recursive("/").await,
    ];
    for refusal in refusals {
        assert!(matches!(refusal, Err(MetadataError::InvalidPath { .. })), "{refusal:?}");
    }
}

pub async fn wrong_paths_are_refused(subject: &dyn Subject) {
    let store = subject.store();
    for path in ["", "a", "/a/", "//a", "/a//b", "/a\0"] {
        let refusals = [
            store.get(path).await.map(drop),
            store.put(path, value("x"), Expected::Any).await.map(drop),
            store.create(path, value("x"), CreateMode::Persistent).await.map(drop),
            store.delete(path, Expected::Any).await,
            store.delete_recursive(path).await,
            store.children(path).await.map(drop),
            store.exists(path).await.map(drop),
        ];
        for refusal in refusals {
            assert!(matches!(refusal, Err(MetadataError::InvalidPath { .. })), "{path:?} {refusal:?}");
        }
    }
}

pub async fn a_value_of_a_megabyte_is_kept(subject: &dyn Subject) {
    let store = subject.store();
    let large: Bytes = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    store.put("/a", large.clone(), Expected::Any).await.unwrap();
    assert_eq!(store.get("/a").await.unwrap().unwrap().value, large);
    store.put("/a", Bytes::new(), Expected::Version(0)).await.unwrap();
    assert_eq!(store.get("/a").await.unwrap().unwrap().value, Bytes::new());
}

pub async fn sequence_numbers_have_ten_digits_and_belong_to_the_parent(subject: &dyn Subject) {
    let store = subject.store();
    let mut numbers = Vec::new();
    for prefix in ["/ids/ID-", "/ids/ID-", "/ids/other-", "/ids/"] {
        let created = store.create(prefix, value("x"), CreateMode::PersistentSequential).await.unwrap();
        let digits = created.path.strip_prefix(prefix).unwrap();
        assert_eq!(digits.len(), 10, "{}", created.path);
        numbers.push(digits.parse::<u64>().unwrap());
        assert_eq!(store.get(&created.path).await.unwrap().unwrap().value, value("x"));
    }
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let created = store.create("/counters/name/-", Bytes::new(), CreateMode::EphemeralSequential).await.unwrap();
    assert!(created.stat.ephemeral && created.stat.mine);
    assert_eq!(created.path, "/counters/name/-0000000000");
}

pub async fn sequence_numbers_never_come_back(subject: &dyn Subject) {
    let mut seen = BTreeSet::new();
    for round in 0..3 {
        for mode in [CreateMode::PersistentSequential, CreateMode::EphemeralSequential] {
            let store = subject.store();
            let created = store.create("/ids/ID-", Bytes::new(), mode).await.unwrap();
            assert!(seen.last().is_none_or(|last| *last < created.path), "{} came back", created.path);
            seen.insert(created.path.clone());
            store.delete(&created.path, Expected::Any).await.unwrap();
        }
        if round == 1 {
            subject.restart().await;
        }
    }
}

pub async fn an_ephemeral_node_knows_its_session(subject: &dyn Subject) {
    let store = subject.store();
    let created = store.create("/a", value("0"), CreateMode::Ephemeral).await.unwrap();
    assert!(created.stat.ephemeral && created.stat.mine);
    let stat = store.put("/a", value("1"), Expected::Version(0)).await.unwrap();
    assert!(stat.ephemeral && stat.mine, "a write leaves an ephemeral node ephemeral");
    assert_eq!(store.get("/a").await.unwrap().unwrap().stat, stat);
    let stat = store.put("/b", value("0"), Expected::Any).await.unwrap();
    assert!(!stat.ephemeral && !stat.mine);
}

pub async fn an_ephemeral_node_has_no_children(subject: &dyn Subject) {
    let store = subject.store();
    store.create("/a", value("0"), CreateMode::Ephemeral).await.unwrap();
    let refusals = [
        store.put("/a/b/c", value("x"), Expected::Any).await.map(drop),
        store.create("/a/b", value("x"), CreateMode::Persistent).await.map(drop),
        store.create("/a/b-", value("x"), CreateMode::EphemeralSequential).await.map(drop),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, Err(MetadataError::EphemeralParent { .. })), "{refusal:?}");
    }
    assert_eq!(store.children("/a").await.unwrap(), Vec::<String>::new());
}

pub async fn ephemeral_nodes_go_with_their_session(subject: &dyn Subject) {
    let store = subject.store();
    let mut session = store.session();
    let before = session.current();
    assert_eq!(before.state, SessionState::Alive);
    store.create("/a/e", value("x"), CreateMode::Ephemeral).await.unwrap();
    store.put("/a/p", value("x"), Expected::Any).await.unwrap();

    subject.expire_session().await;
    while session.changed().await.state != SessionState::Alive {}
    assert!(session.current().generation > before.generation);
    assert!(!store.exists("/a/e").await.unwrap());
    assert!(store.exists("/a/p").await.unwrap());
    let again = store.create("/a/e", value("y"), CreateMode::Ephemeral).await.unwrap();
    assert!(again.stat.mine);
}

pub async fn ephemeral_nodes_do_not_survive_a_restart(subject: &dyn Subject) {
    subject.store().create("/a/e", value("x"), CreateMode::Ephemeral).await.unwrap();
    subject.store().create("/a/e-", value("x"), CreateMode::EphemeralSequential).await.unwrap();
    subject.restart().await;
    assert_eq!(subject.store().children("/a").await.unwrap(), Vec::<String>::new());
    let created = subject.store().create("/a/e", value("x"), CreateMode::Ephemeral).await.unwrap();
    assert!(created.stat.mine);
}

pub async fn acknowledged_writes_survive_a_restart(subject: &dyn Subject) {
    let store = subject.store();
    store.put("/a/b", value("0"), Expected::Any).await.unwrap();
    let stat = store.put("/a/b", value("1"), Expected::Any).await.unwrap();
    store.put("/a/c", value("0"), Expected::Any).await.unwrap();
    store.delete("/a/c", Expected::Any).await.unwrap();
    drop(store);
    subject.restart().await;
    let node = subject.store().get("/a/b").await.unwrap().unwrap();
    assert_eq!((node.value, node.stat), (value("1"), stat));
    assert_eq!(subject.store().children("/a").await.unwrap(), ["b"]);
}

pub async fn a_watch_hears_every_kind_of_change(subject: &dyn Subject) {
    let store = subject.store();
    store.put("/a", value("x"), Expected::Any).await.unwrap();
    let mut watch = store.watch("/a");
    store.put("/a/b", value("0"), Expected::Absent).await.unwrap();
    expect(&mut watch, created("/a/b")).await;
    expect(&mut watch, children_changed("/a")).await;
    store.put("/a/b", value("1"), Expected::Version(0)).await.unwrap();
    expect(&mut watch, modified("/a/b")).await;
    store.put("/a", value("y"), Expected::Any).await.unwrap();
    expect(&mut watch, modified("/a")).await;
    store.delete("/a/b", Expected::Any).await.unwrap();
    expect(&mut watch, deleted("/a/b")).await;
    expect(&mut watch, children_changed("/a")).await;

    store.create("/a/c/d", value("0"), CreateMode::Ephemeral).await.unwrap();
    expect(&mut watch, created("/a/c")).await;
    expect(&mut watch, created("/a/c/d")).await;
    store.delete_recursive("/a").await.unwrap();
    expect(&mut watch, deleted("/a/c/d")).await;
    expect(&mut watch, deleted("/a/c")).await;
    expect(&mut watch, deleted("/a")).await;
}

pub async fn a_watch_hears_only_its_subtree(subject: &dyn Subject) {
    let store = subject.store();
    store.put("/a", value("x"), Expected::Any).await.unwrap();
    let mut watch = store.watch("/a");
    for path in ["/ab", "/b/a", "/a0/c"] {
        store.put(path, value("x"), Expected::Any).await.unwrap();
    }
    store.put("/a/z", value("x"), Expected::Any).await.unwrap();
    assert_eq!(watch.next().await, Some(created("/a/z")));
}

pub async fn refused_writes_are_not_heard(subject: &dyn Subject) {
    let store = subject.store();
    store.put("/a/b", value("x"), Expected::Any).await.unwrap();
    let mut watch = store.watch("/");
    store.put("/a/b", value("y"), Expected::Version(7)).await.unwrap_err();
    store.delete("/a", Expected::Any).await.unwrap_err();
    store.delete("/nothing", Expected::Any).await.unwrap_err();
    store.put("/a/b", value("z"), Expected::Version(0)).await.unwrap();
    assert_eq!(watch.next().await, Some(modified("/a/b")));
}

pub async fn a_slow_watch_is_told_to_start_over(subject: &dyn Subject) {
    let store = subject.store();
    store.put("/a", value("x"), Expected::Any).await.unwrap();
    let mut watch = store.watch("/a");
    for _ in 0..WATCH_QUEUE_EVENTS / 64 + 1 {
        all((0..64).map(|_| store.put("/a", value("x"), Expected::Any))).await;
    }
    expect(&mut watch, Event::Resync).await;
    store.put("/a/last", value("x"), Expected::Any).await.unwrap();
    expect(&mut watch, created("/a/last")).await;
}

pub async fn a_new_session_tells_watches_to_start_over(subject: &dyn Subject) {
    let store = subject.store();
    let mut watch = store.watch("/a");
    subject.expire_session().await;
    expect(&mut watch, Event::Resync).await;
    store.put("/a", value("x"), Expected::Any).await.unwrap();
    expect(&mut watch, created("/a")).await;
}

/// Skips what a store may say besides.
async fn expect(watch: &mut Watch, expected: Event) {
    let mut skipped = Vec::new();
    while let Some(event) = watch.next().await {
        if event == expected {
            return;
        }
        skipped.push(event);
    }
    panic!("the watch ended before {expected:?}, after {skipped:?}");
}

fn value(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn created(path: &str) -> Event {
    Event::Created { path: path.into() }
}

fn modified(path: &str) -> Event {
    Event::Modified { path: path.into() }
}

fn deleted(path: &str) -> Event {
    Event::Deleted { path: path.into() }
}

fn children_changed(path: &str) -> Event {
    Event::ChildrenChanged { path: path.into() }
}

/// Runs futures side by side; results in their order.
async fn all<F: Future + Unpin>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<(F, Option<F::Output>)> = futures.map(|future| (future, None)).collect();
    std::future::poll_fn(|cx| {
        for (future, result) in running.iter_mut().filter(|(_, result)| result.is_none()) {
            if let std::task::Poll::Ready(output) = Pin::new(future).poll(cx) {
                *result = Some(output);
            }
        }
        match running.iter().all(|(_, result)| result.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    running.into_iter().filter_map(|(_, result)| result).collect()
}
