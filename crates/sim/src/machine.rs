//! One machine: the product's own parts on one simulated disk, and the order in which they get to run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bookie::{BookieConfig, BookieCore, BookieReader, Request};
use bookkeeper_proto::{
    AddDone, AddOp, AddSink, BookieError, BookieId, DigestType, EntryId, Fenced, LedgerId, MasterKey,
};
use bytes::Bytes;
use disk::simulated::SimDisk;
use ledger::{BookieAccess, Ledgers, LedgersConfig, Quorums, Verify};
use managed_ledger::{CacheBudget, Context, ManagedLedgerConfig};
use metadata::{EmbeddedStore, Mode};
use parking_lot::Mutex;
use rand::rngs::{SmallRng, StdRng};
use rand::{Rng, SeedableRng};

use crate::broken::Broken;
use crate::executor;
use crate::harness::{Record, Trouble};
use crate::sorted_writes::SortedWrites;

/// Metadata store, bookie and ledger client of one process.
pub(crate) struct Machine {
    pub(crate) disk: SimDisk,
    pub(crate) bookie: Arc<InlineBookie>,
    pub(crate) context: Context,
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) sink: Arc<dyn AddSink>,
}

/// The bookie's core and what waits for its next commit. Nothing is committed but by [`InlineBookie::commit`].
pub(crate) struct InlineBookie {
    core: Mutex<BookieCore>,
    reader: BookieReader,
    waiting: Mutex<Vec<Request>>,
}

/// Answers of the bookie on their way to the topics.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<Vec<AddDone>>);

/// Turns of the log that a waiting future may take before it counts as stuck.
pub(crate) const PATIENCE: usize = 10_000;

impl Machine {
    /// Starts everything on what the disk holds. `None` if the disk crashed meanwhile.
    pub(crate) fn start(
        disk: &SimDisk,
        config: &Arc<ManagedLedgerConfig>,
        rng: &mut SmallRng,
        record: &mut Record,
    ) -> Result<Option<Machine>, Broken> {
        macro_rules! started {
            ($what:expr, $result:expr) => {
                match $result {
                    Ok(started) => started,
                    Err(_) if disk.has_crashed() => return Ok(None),
                    Err(error) => return Err(Broken(format!("cannot start {}: {error}", $what))),
                }
            };
        }
        let plain: Arc<dyn disk::Disk> = Arc::new(disk.clone());
        let sorted = Arc::new(SortedWrites(plain.clone()));
        let store = EmbeddedStore::open(sorted, Path::new("metadata"), Arc::new(|| 1), Mode::Inline);
        let store = Arc::new(started!("the metadata store", store));
        let initialized = executor::run(ledger::initialize(&*store, "sim"), 1, || ());
        started!("the cluster", initialized.expect("an inline store answers at once"));

        let (core, recovered) = started!("the bookie", BookieCore::open(bookie_config(), plain));
        if record.trouble() == Trouble::Damaged {
            record.tell(|| format!("damage found: {:?}", recovered.damage));
            if !recovered.damage.is_empty() {
                record.count("damage found");
            }
        } else if !recovered.damage.is_empty() {
            return Err(Broken(format!("the log is damaged after a crash: {:?}", recovered.damage)));
        }
        let reader = core.reader();
        let bookie = Arc::new(InlineBookie { core: Mutex::new(core), reader, waiting: Mutex::default() });
        let arrivals = Arc::new(Arrivals::default());
        let ledgers = Ledgers::new(
            store.clone(),
            vec![(BookieId::from("sim:3181"), bookie.clone() as Arc<dyn BookieAccess>)],
            LedgersConfig {
                quorums: Quorums::new(1, 1, 1).expect("one of one of one"),
                digest: DigestType::Crc32c,
                password: Bytes::new(),
                verify: Verify::Digest,
            },
            StdRng::seed_from_u64(rng.random()),
        );
        let context = Context {
            metadata: store,
            ledgers: Arc::new(ledgers),
            digest: DigestType::Crc32c,
            config: config.clone(),
            cache: Arc::new(CacheBudget::new(if rng.random_bool(0.5) { 1 << 20 } else { 0 })),
        };
        let sink: Arc<dyn AddSink> = arrivals.clone();
        Ok(Some(Machine { disk: disk.clone(), bookie, context, arrivals, sink }))
    }

    /// Runs a future to its end; the log commits whenever it waits.
    pub(crate) fn run<T>(&self, task: impl Future<Output = T>) -> Result<T, Broken> {
        let answer = executor::run(task, PATIENCE, || self.bookie.commit());
        answer.ok_or_else(|| Broken("a future waits for something that never comes".to_owned()))
    }
}

/// The bookie leaves more room than the metadata store asks for, as in production: a full disk must not stop both.
pub(crate) const RESERVE_BYTES: u64 = 9 << 20;

/// Numbers so small that segments are sealed, freed and reused within a few dozen adds.
fn bookie_config() -> BookieConfig {
    BookieConfig {
        folder: PathBuf::from("log"),
        segment_bytes: 48 << 10,
        commit_bytes: 16 << 10,
        recent_bytes: 16 << 10,
        index_cache_bytes: 4 << 10,
        reserve_bytes: RESERVE_BYTES,
        pool_segments: 2,
        log_number: Some(7),
        ..BookieConfig::default()
    }
}

impl InlineBookie {
    /// Makes everything that waits durable, and answers it.
    pub(crate) fn commit(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        if !waiting.is_empty() {
            self.core.lock().commit(waiting);
        }
    }

    /// Housekeeping of an idle bookie.
    pub(crate) fn tick(&self) {
        self.core.lock().tick();
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Posts a request and waits for the commit that answers it.
    async fn ask(&self, request: impl FnOnce(bookie::Done) -> Request) -> Result<(), BookieError> {
        let answer = Arc::new(Mutex::new(None));
        let slot = answer.clone();
        self.waiting.lock().push(request(Box::new(move |result| *slot.lock() = Some(result))));
        std::future::poll_fn(|_| answer.lock().take().map_or(std::task::Poll::Pending, std::task::Poll::Ready)).await
    }
}

#[async_trait]
impl BookieAccess for InlineBookie {
    fn add(&self, op: AddOp, sink: &Arc<dyn AddSink>) {
        self.waiting.lock().push(Request::Add { op, sink: sink.clone() });
    }

    async fn read(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: usize,
    ) -> Result<Vec<Bytes>, BookieError> {
        self.reader.read_many(ledger, first, last, max_bytes)
    }

    async fn fence(&self, ledger: LedgerId, key: MasterKey) -> Result<Fenced, BookieError> {
        self.ask(|done| Request::Fence { ledger, key, done }).await?;
        self.reader.fenced(ledger)
    }

    async fn read_lac(&self, ledger: LedgerId) -> Result<EntryId, BookieError> {
        Ok(self.reader.read_lac(ledger)?.last_add_confirmed)
    }

    async fn forget(&self, ledger: LedgerId) -> Result<(), BookieError> {
        self.ask(|done| Request::Delete { ledger, done }).await
    }
}

impl AddSink for Arrivals {
    fn added(&self, done: Vec<AddDone>) {
        self.0.lock().extend(done);
    }
}

impl Arrivals {
    pub(crate) fn take(&self) -> Vec<AddDone> {
        std::mem::take(&mut *self.0.lock())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
