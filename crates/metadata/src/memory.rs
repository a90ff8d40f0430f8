//! A tree in memory, for tests: shared by any number of sessions, each of which a test can lose and regain.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::path;
use crate::session::SessionCell;
use crate::tree::{self, Fault, Now, Op, Record, Reply, Space};
use crate::watch::Watchers;
use crate::{
    Clock, CreateMode, Created, Event, Expected, MetadataError, MetadataStore, Node, Session, SessionState,
    SessionWatch, Stat, Watch,
};

/// One session on a tree in memory. Nothing is durable.
pub struct MemoryStore {
    shared: Arc<Shared>,
    session: SessionCell,
    watchers: Arc<Watchers>,
}

struct Shared {
    clock: Clock,
    tree: Mutex<Tree>,
}

#[derive(Default)]
struct Tree {
    space: MemorySpace,
    /// Every session's watches, so that they hear each other's changes.
    watchers: Vec<Arc<Watchers>>,
    last_session: u64,
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl MemoryStore {
    /// An empty tree whose clock ticks once a write.
    pub fn new() -> MemoryStore {
        let ticks = AtomicU64::new(1);
        MemoryStore::with_clock(Arc::new(move || ticks.fetch_add(1, Ordering::Relaxed)))
    }

    pub fn with_clock(clock: Clock) -> MemoryStore {
        MemoryStore::on(Arc::new(Shared { clock, tree: Mutex::default() }))
    }

    /// Another session on the same tree.
    pub fn connect(&self) -> MemoryStore {
        MemoryStore::on(self.shared.clone())
    }

    /// Ends the session: its ephemeral nodes go, and every call fails until [`MemoryStore::regain_session`].
    pub fn lose_session(&self) {
        let Session { generation, .. } = self.session.get();
        let mut tree = self.shared.tree.lock();
        self.session.set(Session { state: SessionState::Lost, generation });
        self.write(&mut tree, &Op::EndSession { session: generation }, generation)
            .expect("ending a session is never refused");
    }

    /// A new session after a lost one; watches are told to start over.
    pub fn regain_session(&self) {
        let mut tree = self.shared.tree.lock();
        tree.last_session += 1;
        self.session.set(Session { state: SessionState::Alive, generation: tree.last_session });
        self.watchers.publish(&[Event::Resync]);
    }

    fn on(shared: Arc<Shared>) -> MemoryStore {
        let watchers = Arc::new(Watchers::default());
        let mut tree = shared.tree.lock();
        tree.last_session += 1;
        tree.watchers.push(watchers.clone());
        let session = SessionCell::new(tree.last_session);
        drop(tree);
        MemoryStore { shared, session, watchers }
    }

    fn alive(&self) -> Result<u64, MetadataError> {
        match self.session.get() {
            Session { state: SessionState::Alive, generation } => Ok(generation),
            _ => Err(MetadataError::SessionLost),
        }
    }

    fn submit(&self, op: &Op) -> Result<Reply, MetadataError> {
        let mut tree = self.shared.tree.lock();
        let session = self.alive()?;
        self.write(&mut tree, op, session)
    }

    fn write(&self, tree: &mut Tree, op: &Op, session: u64) -> Result<Reply, MetadataError> {
        let now = Now { ms: (self.shared.clock)(), session };
        let mut events = Vec::new();
        let reply = match tree::apply(&mut tree.space, op, now, &mut events) {
            Ok(reply) => reply,
            Err(Fault::Refused(error)) => return Err(error),
            Err(Fault::Space(never)) => match never {},
        };
        tree.watchers.iter().for_each(|watchers| watchers.publish(&events));
        Ok(reply)
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        if self.alive().is_ok() {
            self.lose_session();
        }
        self.shared.tree.lock().watchers.retain(|watchers| !Arc::ptr_eq(watchers, &self.watchers));
        self.watchers.close();
    }
}

#[async_trait]
impl MetadataStore for MemoryStore {
    async fn get(&self, path: &str) -> Result<Option<Node>, MetadataError> {
        path::check(path)?;
        let session = self.alive()?;
        let Ok(record) = self.shared.tree.lock().space.get(path);
        Ok(record.map(|record| record.into_node(session)))
    }

    async fn put(&self, path: &str, value: Bytes, expected: Expected) -> Result<Stat, MetadataError> {
        self.submit(&Op::put(path, value, expected)?).map(Reply::into_stat)
    }

    async fn create(&self, path: &str, value: Bytes, mode: CreateMode) -> Result<Created, MetadataError> {
        let session = self.alive()?;
        self.submit(&Op::create(path, value, mode, session)?).map(Reply::into_created)
    }

    async fn delete(&self, path: &str, expected: Expected) -> Result<(), MetadataError> {
        self.submit(&Op::delete(path, expected)?).map(drop)
    }

    async fn delete_recursive(&self, path: &str) -> Result<(), MetadataError> {
        self.submit(&Op::delete_recursive(path)?).map(drop)
    }

    async fn children(&self, path: &str) -> Result<Vec<String>, MetadataError> {
        path::check(path)?;
        self.alive()?;
        let skip = if path == "/" { 1 } else { path.len() + 1 };
        let tree = self.shared.tree.lock();
        let children = tree.space.below(path, 1).map(|path| path[skip..].to_owned());
        Ok(children.collect())
    }

    async fn exists(&self, path: &str) -> Result<bool, MetadataError> {
        path::check(path)?;
        self.alive()?;
        let Ok(exists) = self.shared.tree.lock().space.exists(path);
        Ok(exists)
    }

    fn watch(&self, prefix: &str) -> Watch {
        self.watchers.watch(prefix)
    }

    fn session(&self) -> SessionWatch {
        self.session.watch()
    }
}

#[derive(Default)]
struct MemorySpace {
    nodes: BTreeMap<Vec<u8>, Record>,
    numbers: HashMap<String, u64>,
}

impl MemorySpace {
    fn below(&self, path: &str, levels: u16) -> impl Iterator<Item = &str> {
        let (first, end) = path::keys_below(path, levels);
        self.nodes.range(first..end).filter_map(|(key, _)| path::of_key(key))
    }
}

impl Space for MemorySpace {
    type Error = Infallible;

    fn get(&self, path: &str) -> Result<Option<Record>, Infallible> {
        Ok(if path == "/" { Some(tree::root()) } else { self.nodes.get(&path::key(path)).cloned() })
    }

    fn exists(&self, path: &str) -> Result<bool, Infallible> {
        Ok(path == "/" || self.nodes.contains_key(&path::key(path)))
    }

    fn has_children(&self, path: &str) -> Result<bool, Infallible> {
        Ok(self.below(path, 1).next().is_some())
    }

    fn descendants(&self, path: &str) -> Result<Vec<String>, Infallible> {
        let levels = (1..).map(|levels| self.below(path, levels).map(str::to_owned).collect::<Vec<_>>());
        Ok(levels.take_while(|level| !level.is_empty()).flatten().collect())
    }

    fn ephemerals(&self, session: u64) -> Result<Vec<String>, Infallible> {
        let owned = self.nodes.iter().filter(|(_, record)| record.owner == Some(session));
        Ok(owned.filter_map(|(key, _)| path::of_key(key)).map(str::to_owned).collect())
    }

    fn put(&mut self, path: &str, record: &Record) -> Result<(), Infallible> {
        self.nodes.insert(path::key(path), record.clone());
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<(), Infallible> {
        self.nodes.remove(&path::key(path));
        Ok(())
    }

    fn next_number(&mut self, parent: &str) -> Result<u64, Infallible> {
        let next = self.numbers.entry(parent.to_owned()).or_default();
        *next += 1;
        Ok(*next - 1)
    }
}
