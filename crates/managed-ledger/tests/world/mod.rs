//! A world for managed ledgers without threads or a runtime: one bookie in memory whose answers come when the test says
//! so, a metadata store that forgets to answer, and an executor that polls once.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use async_trait::async_trait;
use bookkeeper_proto::{
    AddDone, AddOp, AddSink, BookieError, BookieId, DigestType, EntryHeader, EntryId, Fenced, LedgerId, MasterKey,
};
use bytes::Bytes;
use ledger::{BookieAccess, Ledgers, LedgersConfig};
use managed_ledger::{
    CacheBudget, Context, Effect, Effects, Event, ManagedLedger, ManagedLedgerConfig, NewEntry, Now, OpenError,
    OpenOptions, Task,
};
use metadata::{
    CreateMode, Created, Expected, MemoryStore, MetadataError, MetadataStore, Node, SessionWatch, Stat, Watch,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Polls a future that never has to wait.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("nothing here waits"),
    }
}

#[derive(Default)]
pub(crate) struct MemoryBookie {
    state: Mutex<Stored>,
}

#[derive(Default)]
struct Stored {
    entries: BTreeMap<(LedgerId, EntryId), Bytes>,
    fenced: HashSet<LedgerId>,
}

impl MemoryBookie {
    pub(crate) fn store(&self, op: &AddOp) -> Result<Bytes, BookieError> {
        let mut stored = self.state.lock();
        if stored.fenced.contains(&op.ledger) && !op.recovery {
            return Err(BookieError::Fenced { ledger: op.ledger });
        }
        let bytes = op.bytes.to_bytes();
        stored.entries.insert((op.ledger, op.entry), bytes.clone());
        Ok(bytes)
    }
}

#[async_trait]
impl BookieAccess for MemoryBookie {
    fn add(&self, op: AddOp, sink: &Arc<dyn AddSink>) {
        let result = self.store(&op);
        sink.added(vec![AddDone { ledger: op.ledger, entry: op.entry, owner: op.owner, result }]);
    }

    async fn read(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: usize,
    ) -> Result<Vec<Bytes>, BookieError> {
        let stored = self.state.lock();
        let mut entries: Vec<Bytes> = Vec::new();
        let mut bytes = 0;
        for entry in first.0..=last.0 {
            let Some(found) = stored.entries.get(&(ledger, EntryId(entry))) else { break };
            bytes += found.len();
            if bytes > max_bytes && !entries.is_empty() {
                break;
            }
            entries.push(found.clone());
        }
        if entries.is_empty() { Err(BookieError::NoEntry { ledger, entry: first }) } else { Ok(entries) }
    }

    async fn fence(&self, ledger: LedgerId, _: MasterKey) -> Result<Fenced, BookieError> {
        let mut stored = self.state.lock();
        stored.fenced.insert(ledger);
        let range = (ledger, EntryId(0))..=(ledger, EntryId(i64::MAX));
        let last_entry = stored.entries.range(range.clone()).next_back().map(|(_, bytes)| bytes.clone());
        let lac = |(_, bytes): (_, &Bytes)| EntryHeader::decode(bytes).unwrap().last_add_confirmed;
        let last_add_confirmed = stored.entries.range(range).map(lac).max().unwrap_or(EntryId::NONE);
        Ok(Fenced { last_add_confirmed, last_entry })
    }

    async fn read_lac(&self, _: LedgerId) -> Result<EntryId, BookieError> {
        Ok(EntryId::NONE)
    }

    async fn forget(&self, ledger: LedgerId) -> Result<(), BookieError> {
        self.state.lock().entries.retain(|(of, _), _| *of != ledger);
        Ok(())
    }
}

/// A store of which some writes have an unknown outcome.
pub(crate) struct ForgetfulStore {
    pub(crate) inner: MemoryStore,
    rng: Mutex<StdRng>,
    /// In a thousand.
    pub(crate) forgets: Mutex<u32>,
}

impl ForgetfulStore {
    fn forgets(&self) -> bool {
        self.rng.lock().random_range(0..1000) < *self.forgets.lock()
    }

    fn coin(&self) -> bool {
        self.rng.lock().random()
    }
}

fn unknown<T>() -> Result<T, MetadataError> {
    Err(MetadataError::OutcomeUnknown { reason: "the test says so".into() })
}

#[async_trait]
impl MetadataStore for ForgetfulStore {
    async fn get(&self, path: &str) -> Result<Option<Node>, MetadataError> {
        self.inner.get(path).await
    }

    async fn put(&self, path: &str, value: Bytes, expected: Expected) -> Result<Stat, MetadataError> {
        if self.forgets() {
            if self.coin() {
                self.inner.put(path, value, expected).await?;
            }
            return unknown();
        }
        self.inner.put(path, value, expected).await
    }

    async fn create(&self, path: &str, value: Bytes, mode: CreateMode) -> Result<Created, MetadataError> {
        self.inner.create(path, value, mode).await
    }

    async fn delete(&self, path: &str, expected: Expected) -> Result<(), MetadataError> {
        if self.forgets() {
            if self.coin() {
                self.inner.delete(path, expected).await?;
            }
            return unknown();
        }
        self.inner.delete(path, expected).await
    }

    async fn delete_recursive(&self, path: &str) -> Result<(), MetadataError> {
        self.inner.delete_recursive(path).await
    }

    async fn children(&self, path: &str) -> Result<Vec<String>, MetadataError> {
        self.inner.children(path).await
    }

    async fn exists(&self, path: &str) -> Result<bool, MetadataError> {
        self.inner.exists(path).await
    }

    fn watch(&self, prefix: &str) -> Watch {
        self.inner.watch(prefix)
    }

    fn session(&self) -> SessionWatch {
        self.inner.session()
    }
}

/// Everything that survives a crash.
pub(crate) struct World {
    pub(crate) bookie: Arc<MemoryBookie>,
    pub(crate) store: Arc<ForgetfulStore>,
    pub(crate) context: Context,
    pub(crate) now: Now,
}

pub(crate) const NAME: &str = "public/default/persistent/t";

impl World {
    pub(crate) fn new(seed: u64, config: ManagedLedgerConfig) -> World {
        let bookie = Arc::new(MemoryBookie::default());
        let store = Arc::new(ForgetfulStore {
            inner: MemoryStore::new(),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            forgets: Mutex::new(0),
        });
        let metadata: Arc<dyn MetadataStore> = store.clone();
        block_on(ledger::initialize(&*metadata, "instance")).unwrap();
        let access: Arc<dyn BookieAccess> = bookie.clone();
        let ledgers = Ledgers::new(
            metadata.clone(),
            vec![(BookieId::from("bookie:3181"), access)],
            LedgersConfig::default(),
            StdRng::seed_from_u64(seed),
        );
        let context = Context {
            metadata,
            ledgers: Arc::new(ledgers),
            digest: DigestType::Crc32c,
            config: Arc::new(config),
            cache: Arc::new(CacheBudget::new(400)),
        };
        World { bookie, store, context, now: Now { unix_ms: 1_700_000_000_000, monotonic_ms: 5_000 } }
    }

    #[expect(clippy::result_large_err, reason = "rare")]
    pub(crate) fn try_open(&self) -> Result<ManagedLedger, OpenError> {
        let options =
            OpenOptions { owner: 7, create_if_missing: true, config: None, properties: vec![], now: self.now };
        block_on(ManagedLedger::open(&self.context, NAME, options))
    }

    pub(crate) fn open(&self) -> ManagedLedger {
        self.try_open().unwrap()
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now.unix_ms += ms;
        self.now.monotonic_ms += ms;
    }
}

/// The shell of one open managed ledger: appends on their way, tasks not yet run.
#[derive(Default)]
pub(crate) struct Shell {
    pub(crate) appends: VecDeque<AddOp>,
    pub(crate) tasks: Vec<Task>,
    /// What concerns the test, not the shell.
    pub(crate) seen: Vec<Effect>,
}

impl Shell {
    pub(crate) fn take(&mut self, out: &mut Effects) {
        for effect in out.drain(..) {
            match effect {
                Effect::Append(op) => self.appends.push_back(op),
                Effect::Run(task) => self.tasks.push(task),
                other => self.seen.push(other),
            }
        }
    }

    /// The bookie answers the oldest `count` appends in one commit.
    pub(crate) fn deliver(&mut self, world: &World, ml: &mut ManagedLedger, count: usize) {
        let count = count.min(self.appends.len());
        let done: Vec<AddDone> = self.appends.drain(..count).map(|op| done(&op, world.bookie.store(&op))).collect();
        let mut out = Effects::new();
        ml.appended(world.now, done, &mut out);
        self.take(&mut out);
    }

    /// The oldest append fails, written or not.
    pub(crate) fn fail_one(&mut self, world: &World, ml: &mut ManagedLedger, written: bool) {
        let Some(op) = self.appends.pop_front() else { return };
        if written {
            let _ = world.bookie.store(&op);
        }
        let failed = done(&op, Err(BookieError::Gone { ledger: op.ledger }));
        let mut out = Effects::new();
        ml.on_event(world.now, Event::Appended(failed), &mut out);
        self.take(&mut out);
    }

    pub(crate) fn run_task(&mut self, world: &World, ml: &mut ManagedLedger, index: usize) {
        let task = self.tasks.swap_remove(index);
        let result = block_on(task.run(&world.context));
        let mut out = Effects::new();
        ml.on_event(world.now, Event::Finished(result), &mut out);
        self.take(&mut out);
    }

    /// Until nothing is on its way.
    pub(crate) fn settle(&mut self, world: &mut World, ml: &mut ManagedLedger) {
        for _ in 0..1000 {
            if !self.appends.is_empty() {
                self.deliver(world, ml, usize::MAX);
            } else if !self.tasks.is_empty() {
                self.run_task(world, ml, 0);
            } else {
                return;
            }
        }
        panic!(
            "does not settle: {:?} {:?} {:?}",
            self.appends,
            self.tasks,
            &self.seen[self.seen.len().saturating_sub(9)..]
        );
    }

    pub(crate) fn tick(&mut self, world: &World, ml: &mut ManagedLedger) {
        let mut out = Effects::new();
        ml.tick(world.now, &mut out);
        self.take(&mut out);
    }

    pub(crate) fn add(&mut self, world: &World, ml: &mut ManagedLedger, token: u64, messages: u32) {
        let payload = Bytes::from(format!("payload {token}"));
        let payload_crc = crc32c::crc32c(&payload);
        let mut out = Effects::new();
        ml.add(world.now, NewEntry { payload, payload_crc, messages, token }, &mut out);
        self.take(&mut out);
    }
}

fn done(op: &AddOp, result: Result<Bytes, BookieError>) -> AddDone {
    AddDone { ledger: op.ledger, entry: op.entry, owner: op.owner, result }
}
