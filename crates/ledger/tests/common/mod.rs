//! A bookie and a metadata store in memory that do what a script says, and an executor that a test turns by hand.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use bookkeeper_proto::{
    AddDone, AddOp, AddSink, BookieError, BookieId, EntryHeader, EntryId, Fenced, LedgerId, MasterKey,
};
use bytes::Bytes;
use ledger::{BookieAccess, LedgerWriter, Ledgers, LedgersConfig, NewAdd, WriterEffect, WriterEvent};
use metadata::{
    CreateMode, Created, Expected, MemoryStore, MetadataError, MetadataStore, Node, SessionWatch, Stat, Watch,
};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Runs a future that never waits for anything: proof that it needs no runtime.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    for _ in 0..10_000 {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
    panic!("the future waits for something that never comes");
}

/// Lets others run once.
pub(crate) fn pause() -> impl Future<Output = ()> {
    let mut paused = false;
    std::future::poll_fn(move |context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut paused, true) { Poll::Ready(()) } else { Poll::Pending }
    })
}

pub(crate) fn poll_once<T>(task: &mut Option<Pin<Box<dyn Future<Output = T> + '_>>>) -> Option<T> {
    let Poll::Ready(value) = task.as_mut()?.as_mut().poll(&mut Context::from_waker(Waker::noop())) else { return None };
    *task = None;
    Some(value)
}

/// What a bookie does, kept in memory. Adds wait in a queue until they are committed, unless `commits_at_once`.
#[derive(Default)]
pub(crate) struct MemoryBookie {
    state: Mutex<BookieState>,
    pauses: bool,
    commits_at_once: bool,
}

#[derive(Default)]
struct BookieState {
    ledgers: HashMap<LedgerId, StoredLedger>,
    queue: VecDeque<(AddOp, Arc<dyn AddSink>)>,
    damaged: HashSet<(LedgerId, EntryId)>,
    forgotten: Vec<LedgerId>,
    fails_all: Option<BookieError>,
    fences: usize,
}

struct StoredLedger {
    key: MasterKey,
    fenced: bool,
    entries: BTreeMap<EntryId, Bytes>,
}

impl MemoryBookie {
    pub(crate) fn committing_at_once() -> Arc<MemoryBookie> {
        Arc::new(MemoryBookie { commits_at_once: true, ..MemoryBookie::default() })
    }

    pub(crate) fn pausing() -> Arc<MemoryBookie> {
        Arc::new(MemoryBookie { pauses: true, ..MemoryBookie::default() })
    }

    /// Makes the oldest posted add durable, or refuses it.
    pub(crate) fn commit_one(&self) -> bool {
        let (done, sink) = {
            let mut state = self.state.lock();
            let Some((op, sink)) = state.queue.pop_front() else { return false };
            let result = state.write(&op);
            (AddDone { ledger: op.ledger, entry: op.entry, owner: op.owner, result }, sink)
        };
        sink.added(vec![done]);
        true
    }

    pub(crate) fn damage(&self, ledger: LedgerId, entry: i64) {
        self.state.lock().damaged.insert((ledger, EntryId(entry)));
    }

    pub(crate) fn heal(&self) {
        self.state.lock().damaged.clear();
        self.state.lock().fails_all = None;
    }

    pub(crate) fn fail_all(&self, error: BookieError) {
        self.state.lock().fails_all = Some(error);
    }

    pub(crate) fn overwrite(&self, ledger: LedgerId, entry: i64, bytes: Bytes) {
        let mut state = self.state.lock();
        let stored = state.ledgers.get_mut(&ledger).expect("the ledger is known");
        stored.entries.insert(EntryId(entry), bytes).expect("the entry is there");
    }

    pub(crate) fn stored(&self, ledger: LedgerId, entry: i64) -> Option<Bytes> {
        self.state.lock().ledgers.get(&ledger)?.entries.get(&EntryId(entry)).cloned()
    }

    pub(crate) fn forgotten(&self) -> Vec<LedgerId> {
        self.state.lock().forgotten.clone()
    }

    pub(crate) fn fences(&self) -> usize {
        self.state.lock().fences
    }

    pub(crate) fn ledgers(&self) -> usize {
        self.state.lock().ledgers.len()
    }

    async fn arrive(&self) -> Result<(), BookieError> {
        if self.pauses {
            pause().await;
        }
        self.state.lock().fails_all.clone().map_or(Ok(()), Err)
    }
}

impl BookieState {
    fn ledger(&mut self, ledger: LedgerId, key: MasterKey) -> Result<&mut StoredLedger, BookieError> {
        let stored =
            self.ledgers.entry(ledger).or_insert_with(|| StoredLedger { key, fenced: false, entries: BTreeMap::new() });
        if stored.key == key { Ok(stored) } else { Err(BookieError::Unauthorized { ledger }) }
    }

    fn write(&mut self, op: &AddOp) -> Result<Bytes, BookieError> {
        if let Some(error) = &self.fails_all {
            return Err(error.clone());
        }
        let stored = self.ledger(op.ledger, op.key)?;
        if stored.fenced && !op.recovery {
            return Err(BookieError::Fenced { ledger: op.ledger });
        }
        let bytes = op.bytes.to_bytes();
        assert_eq!(op.bytes.crc32c(), crc32c::crc32c(&bytes), "checksum of the whole entry");
        stored.entries.insert(op.entry, bytes.clone());
        Ok(bytes)
    }
}

#[async_trait]
impl BookieAccess for MemoryBookie {
    fn add(&self, op: AddOp, sink: &Arc<dyn AddSink>) {
        self.state.lock().queue.push_back((op, sink.clone()));
        while self.commits_at_once && self.commit_one() {}
    }

    async fn read(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: usize,
    ) -> Result<Vec<Bytes>, BookieError> {
        self.arrive().await?;
        let state = self.state.lock();
        let stored = state.ledgers.get(&ledger).ok_or(BookieError::NoLedger { ledger })?;
        let mut entries: Vec<Bytes> = Vec::new();
        for entry in (first.0..=last.0).map(EntryId) {
            let found = stored.entries.get(&entry).ok_or(BookieError::NoEntry { ledger, entry });
            let found = found.and_then(|bytes| {
                let (file, detail) = ("memory".into(), "checksum".into());
                let damaged = BookieError::Damaged { ledger, entry, file, offset: 0, detail };
                if state.damaged.contains(&(ledger, entry)) { Err(damaged) } else { Ok(bytes.clone()) }
            });
            let so_far: usize = entries.iter().map(Bytes::len).sum();
            match found {
                Err(error) if entries.is_empty() => return Err(error),
                Err(_) => break,
                Ok(bytes) if !entries.is_empty() && so_far + bytes.len() > max_bytes => break,
                Ok(bytes) => entries.push(bytes),
            }
        }
        Ok(entries)
    }

    async fn fence(&self, ledger: LedgerId, key: MasterKey) -> Result<Fenced, BookieError> {
        self.arrive().await?;
        let mut state = self.state.lock();
        state.fences += 1;
        let stored = state.ledger(ledger, key)?;
        stored.fenced = true;
        let lac = |bytes: &Bytes| EntryHeader::decode(bytes).expect("a stored entry").last_add_confirmed;
        let last_add_confirmed = stored.entries.values().map(lac).max().unwrap_or(EntryId::NONE);
        let last_entry = stored.entries.values().next_back().cloned();
        Ok(Fenced { last_add_confirmed, last_entry })
    }

    async fn read_lac(&self, ledger: LedgerId) -> Result<EntryId, BookieError> {
        self.arrive().await?;
        let state = self.state.lock();
        let stored = state.ledgers.get(&ledger).ok_or(BookieError::NoLedger { ledger })?;
        let lac = |bytes: &Bytes| EntryHeader::decode(bytes).expect("a stored entry").last_add_confirmed;
        Ok(stored.entries.values().map(lac).max().unwrap_or(EntryId::NONE))
    }

    async fn forget(&self, ledger: LedgerId) -> Result<(), BookieError> {
        self.arrive().await?;
        self.state.lock().forgotten.push(ledger);
        Ok(())
    }
}

/// A store in memory whose next calls fail as scripted.
pub(crate) struct ScriptedStore {
    pub(crate) inner: MemoryStore,
    pub(crate) pauses: bool,
    faults: Mutex<Vec<Fault>>,
}

struct Fault {
    operation: &'static str,
    path_part: &'static str,
    takes_effect: bool,
    error: MetadataError,
}

impl ScriptedStore {
    pub(crate) fn new() -> Arc<ScriptedStore> {
        Arc::new(ScriptedStore { inner: MemoryStore::new(), pauses: false, faults: Mutex::default() })
    }

    pub(crate) fn pausing() -> Arc<ScriptedStore> {
        Arc::new(ScriptedStore { inner: MemoryStore::new(), pauses: true, faults: Mutex::default() })
    }

    /// The next `operation` on a path with `path_part` in it fails, once.
    pub(crate) fn fail_once(&self, operation: &'static str, path_part: &'static str, error: MetadataError) {
        self.faults.lock().push(Fault { operation, path_part, takes_effect: false, error });
    }

    /// The same, but its answer gets lost after it took effect.
    pub(crate) fn lose_answer_once(&self, operation: &'static str, path_part: &'static str) {
        let error = MetadataError::OutcomeUnknown { reason: "test".into() };
        self.faults.lock().push(Fault { operation, path_part, takes_effect: true, error });
    }

    async fn arrive(&self, operation: &str, path: &str) -> Option<Fault> {
        if self.pauses {
            pause().await;
        }
        let mut faults = self.faults.lock();
        let hit = faults.iter().position(|fault| fault.operation == operation && path.contains(fault.path_part))?;
        Some(faults.remove(hit))
    }
}

/// Performs the call unless a fault prevents it, and answers as the fault says.
macro_rules! scripted {
    ($self:ident, $operation:literal, $path:expr, $call:expr) => {{
        let fault = $self.arrive($operation, $path).await;
        match fault {
            Some(Fault { takes_effect: false, error, .. }) => Err(error),
            Some(Fault { takes_effect: true, error, .. }) => $call.await.and(Err(error)),
            None => $call.await,
        }
    }};
}

#[async_trait]
impl MetadataStore for ScriptedStore {
    async fn get(&self, path: &str) -> Result<Option<Node>, MetadataError> {
        scripted!(self, "get", path, self.inner.get(path))
    }

    async fn put(&self, path: &str, value: Bytes, expected: Expected) -> Result<Stat, MetadataError> {
        scripted!(self, "put", path, self.inner.put(path, value, expected))
    }

    async fn create(&self, path: &str, value: Bytes, mode: CreateMode) -> Result<Created, MetadataError> {
        scripted!(self, "create", path, self.inner.create(path, value, mode))
    }

    async fn delete(&self, path: &str, expected: Expected) -> Result<(), MetadataError> {
        scripted!(self, "delete", path, self.inner.delete(path, expected))
    }

    async fn delete_recursive(&self, path: &str) -> Result<(), MetadataError> {
        scripted!(self, "delete_recursive", path, self.inner.delete_recursive(path))
    }

    async fn children(&self, path: &str) -> Result<Vec<String>, MetadataError> {
        scripted!(self, "children", path, self.inner.children(path))
    }

    async fn exists(&self, path: &str) -> Result<bool, MetadataError> {
        scripted!(self, "exists", path, self.inner.exists(path))
    }

    fn watch(&self, prefix: &str) -> Watch {
        self.inner.watch(prefix)
    }

    fn session(&self) -> SessionWatch {
        self.inner.session()
    }
}

pub(crate) fn client(
    store: &Arc<ScriptedStore>,
    bookies: &[Arc<MemoryBookie>],
    config: LedgersConfig,
    seed: u64,
) -> Ledgers {
    let named = |(i, bookie): (usize, &Arc<MemoryBookie>)| {
        (BookieId(format!("bookie-{i}:3181")), bookie.clone() as Arc<dyn BookieAccess>)
    };
    let bookies = bookies.iter().enumerate().map(named).collect();
    Ledgers::new(store.clone(), bookies, config, StdRng::seed_from_u64(seed))
}

/// Keeps what one bookie said, for the test to hand it to the writer.
pub(crate) struct Inbox {
    bookie: usize,
    events: Mutex<VecDeque<WriterEvent>>,
}

impl AddSink for Inbox {
    fn added(&self, done: Vec<AddDone>) {
        let event = |done: AddDone| WriterEvent::Added { bookie: self.bookie, entry: done.entry, result: done.result };
        self.events.lock().extend(done.into_iter().map(event));
    }
}

/// The shell around a writer: performs its effects.
pub(crate) struct Writing {
    pub(crate) writer: LedgerWriter,
    inboxes: Vec<Arc<Inbox>>,
    pub(crate) confirmed: Vec<EntryId>,
    pub(crate) failed: Vec<(EntryId, ledger::AddError)>,
    pub(crate) sealed: Option<(EntryId, u64)>,
}

impl Writing {
    pub(crate) fn new(writer: LedgerWriter, bookies: usize) -> Writing {
        let inboxes = (0..bookies).map(|bookie| Arc::new(Inbox { bookie, events: Mutex::default() })).collect();
        Writing { writer, inboxes, confirmed: Vec::new(), failed: Vec::new(), sealed: None }
    }

    /// `false`: the writer takes no more.
    pub(crate) fn add(&mut self, ledgers: &Ledgers, payload: &'static [u8]) -> bool {
        let mut out = Vec::new();
        let payload_crc = crc32c::crc32c(payload);
        let payload = Bytes::from_static(payload);
        let added = self.writer.add(NewAdd { prefix: b"", payload, payload_crc, owner: 9 }, &mut out).is_ok();
        self.perform(ledgers, out);
        added
    }

    /// Hands over one answer of the bookie.
    pub(crate) fn deliver(&mut self, ledgers: &Ledgers, bookie: usize) -> bool {
        let event = self.inboxes[bookie].events.lock().pop_front();
        let Some(event) = event else { return false };
        self.tell(ledgers, event);
        true
    }

    pub(crate) fn deliver_all(&mut self, ledgers: &Ledgers) {
        (0..self.inboxes.len()).for_each(|bookie| while self.deliver(ledgers, bookie) {});
    }

    pub(crate) fn tell(&mut self, ledgers: &Ledgers, event: WriterEvent) {
        let mut out = Vec::new();
        self.writer.on_event(event, &mut out);
        self.perform(ledgers, out);
    }

    fn perform(&mut self, ledgers: &Ledgers, effects: Vec<WriterEffect>) {
        for effect in effects {
            match effect {
                WriterEffect::Send { bookie, op } => {
                    let sink: Arc<dyn AddSink> = self.inboxes[bookie].clone();
                    ledgers.bookie(bookie).add(op, &sink);
                }
                WriterEffect::Confirmed { entry, .. } => self.confirmed.push(entry),
                WriterEffect::Failed { entry, error, .. } => self.failed.push((entry, error)),
                WriterEffect::Seal { last_entry, length } => self.sealed = Some((last_entry, length)),
            }
        }
    }
}
