//! The thread around the core: a bounded queue in front of it, nothing else.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bookkeeper_proto::{AddDone, AddOp, AddSink, BookieError, EntryId, Fenced, LedgerId, MasterKey};
use bytes::Bytes;
use disk::Disk;
use parking_lot::{Condvar, Mutex};

use crate::stats::Counters;
use crate::{
    BookieConfig, BookieCore, BookieReader, Chore, LastAddConfirmed, LogEnd, OpenError, Recovered, Request, Stats,
};

/// How often a full or failing disk is tried again, and work that can wait while the log is busy.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Below this many bytes a second the log has time for work that can wait. Above it, zeros written ahead would double what the
/// disk has to take, for a sync that is faster by a third.
const QUIET_BYTES_PER_SECOND: u64 = 32 << 20;

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    bytes: usize,
    is_closed: bool,
    /// Whether the log thread sleeps and must be woken.
    is_idle: bool,
}

struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

/// A bookie in this process: posts requests to its log thread, reads on the caller's.
///
/// [`Bookie::close`] drains and stops it; dropping it does the same.
pub struct Bookie {
    reader: BookieReader,
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Bookie {
    /// Opens or creates the log in `config.folder`, replays its tail, and starts the log thread.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(config: BookieConfig, disk: Arc<dyn Disk>) -> Result<(Bookie, Recovered), OpenError> {
        let (core, recovered) = BookieCore::open(config, disk)?;
        let reader = core.reader();
        let queue = Arc::new(Queue { waiting: Mutex::default(), arrived: Condvar::new() });
        let for_thread = queue.clone();
        let thread = std::thread::Builder::new()
            .name("bookie-log".to_owned())
            .spawn(move || run(core, &for_thread))
            .map_err(|source| OpenError::Thread { source })?;
        Ok((Bookie { reader, queue, thread: Mutex::new(Some(thread)) }, recovered))
    }

    /// Posts an add. Never blocks; the end comes through `sink`, from the log thread, or at once from this one if the queue is full or the
    /// bookie closed.
    pub fn add(&self, op: AddOp, sink: &Arc<dyn AddSink>) {
        self.post(Request::Add { op, sink: sink.clone() });
    }

    /// Posts several adds with one wake-up.
    pub fn add_all(&self, ops: impl IntoIterator<Item = AddOp>, sink: &Arc<dyn AddSink>) {
        let mut refused = Vec::new();
        {
            let mut waiting = self.queue.waiting.lock();
            for op in ops {
                refused.extend(self.enqueue(&mut waiting, Request::Add { op, sink: sink.clone() }));
            }
            self.wake(&mut waiting);
        }
        refuse(refused);
    }

    /// Posts any request; see [`Bookie::add`].
    pub fn post(&self, request: Request) {
        let refused = {
            let mut waiting = self.queue.waiting.lock();
            let refused = self.enqueue(&mut waiting, request);
            self.wake(&mut waiting);
            refused
        };
        refuse(refused);
    }

    /// Fences the ledger, making it known if it was not. Blocks until the fence is durable.
    ///
    /// # Errors
    /// [`BookieError::Unauthorized`], [`BookieError::NoLedger`] (deleted), [`BookieError::ReadOnly`], [`BookieError::WriteFailed`] (outcome
    /// unknown; no add is accepted either way), and those of [`BookieReader::read`] about the last entry.
    pub fn fence(&self, ledger: LedgerId, key: MasterKey) -> Result<Fenced, BookieError> {
        self.wait(ledger, |done| Request::Fence { ledger, key, done })?;
        self.reader.fenced(ledger)
    }

    /// Stores an explicit LAC blob, as on the wire. Blocks until it is durable.
    ///
    /// # Errors
    /// As [`Bookie::fence`], and [`BookieError::BadRequest`].
    pub fn write_lac(&self, ledger: LedgerId, key: MasterKey, blob: Bytes) -> Result<(), BookieError> {
        self.wait(ledger, |done| Request::WriteLac { ledger, key, blob, done })
    }

    /// Marks the ledger as deleted; its entries die. Blocks until the mark is durable. Deleting an unknown ledger is no error.
    ///
    /// # Errors
    /// [`BookieError::ReadOnly`], [`BookieError::WriteFailed`].
    pub fn delete(&self, ledger: LedgerId) -> Result<(), BookieError> {
        self.wait(ledger, |done| Request::Delete { ledger, done })
    }

    /// See [`BookieReader::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, ledger: LedgerId, entry: EntryId) -> Result<Bytes, BookieError> {
        self.reader.read(ledger, entry)
    }

    /// See [`BookieReader::read_many`].
    ///
    /// # Errors
    /// As there.
    pub fn read_many(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: usize,
    ) -> Result<Vec<Bytes>, BookieError> {
        self.reader.read_many(ledger, first, last, max_bytes)
    }

    /// See [`BookieReader::last_entry`].
    ///
    /// # Errors
    /// As there.
    pub fn last_entry(&self, ledger: LedgerId) -> Result<EntryId, BookieError> {
        self.reader.last_entry(ledger)
    }

    /// See [`BookieReader::read_lac`].
    ///
    /// # Errors
    /// As there.
    pub fn read_lac(&self, ledger: LedgerId) -> Result<LastAddConfirmed, BookieError> {
        self.reader.read_lac(ledger)
    }

    /// All ledgers that are not deleted, sorted.
    pub fn ledgers(&self) -> Vec<LedgerId> {
        self.reader.ledgers()
    }

    /// Whether adds are refused at the moment: the disk is full or fails.
    pub fn is_read_only(&self) -> bool {
        self.reader.shared.counters.read_only.load(std::sync::atomic::Ordering::Relaxed) != 0
    }

    /// See [`BookieReader::end`].
    pub fn end(&self) -> Option<LogEnd> {
        self.reader.end()
    }

    /// A handle for reads that outlives this one.
    pub fn reader(&self) -> BookieReader {
        self.reader.clone()
    }

    /// See [`Stats`].
    pub fn stats(&self) -> Stats {
        self.reader.stats()
    }

    /// Takes no more requests, finishes those that were posted, and stops the log thread. Everything answered is durable. Reads go on.
    pub fn close(&self) {
        {
            let mut waiting = self.queue.waiting.lock();
            waiting.is_closed = true;
            self.queue.arrived.notify_one();
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the log thread panicked");
        }
    }

    fn wait(&self, ledger: LedgerId, request: impl FnOnce(crate::Done) -> Request) -> Result<(), BookieError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.post(request(Box::new(move |result| {
            // A caller that no longer listens is none.
            let _ = sender.send(result);
        })));
        receiver.recv().unwrap_or(Err(BookieError::Gone { ledger }))
    }

    /// The request, if it is refused.
    fn enqueue(&self, waiting: &mut Waiting, request: Request) -> Option<(Request, Refusal)> {
        let config = &self.reader.shared.config;
        let bytes = request.queue_bytes();
        if waiting.is_closed {
            return Some((request, Refusal::Closed));
        }
        // An empty queue takes anything, so that no size of entry is refused for ever.
        let is_full = waiting.requests.len() >= config.queue_requests
            || (waiting.bytes + bytes > config.queue_bytes && !waiting.requests.is_empty());
        if is_full && matches!(request, Request::Add { .. }) {
            return Some((request, Refusal::Full));
        }
        waiting.bytes += bytes;
        waiting.requests.push_back(request);
        None
    }

    fn wake(&self, waiting: &mut Waiting) {
        if std::mem::take(&mut waiting.is_idle) {
            self.queue.arrived.notify_one();
        }
    }
}

impl Drop for Bookie {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Bookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bookie").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

enum Refusal {
    Full,
    /// Nothing of it was done, but the caller may not know that of requests posted before.
    Closed,
}

fn refuse(refused: impl IntoIterator<Item = (Request, Refusal)>) {
    for (request, why) in refused {
        let error = |ledger| match why {
            Refusal::Full => BookieError::TooManyRequests { ledger },
            Refusal::Closed => BookieError::Gone { ledger },
        };
        match request {
            Request::Add { op, sink } => {
                let result = Err(error(op.ledger));
                sink.added(vec![AddDone { ledger: op.ledger, entry: op.entry, owner: op.owner, result }]);
            }
            Request::Fence { ledger, done, .. }
            | Request::WriteLac { ledger, done, .. }
            | Request::Delete { ledger, done } => done(Err(error(ledger))),
        }
    }
}

/// How much the log has to do, by the second.
struct Pace {
    began: Instant,
    bytes: u64,
    is_quiet: bool,
}

impl Pace {
    fn is_quiet(&mut self, now: Instant) -> bool {
        let passed = now.duration_since(self.began);
        if passed >= Duration::from_secs(1) {
            self.is_quiet = self.bytes < QUIET_BYTES_PER_SECOND * passed.as_secs();
            self.began = now;
            self.bytes = 0;
        }
        self.is_quiet && self.bytes < QUIET_BYTES_PER_SECOND
    }
}

/// What the log thread does next.
enum Turn {
    Commit(Vec<Request>),
    Tick,
    Stop,
}

fn run(mut core: BookieCore, queue: &Queue) {
    let reader = core.reader();
    let config = reader.shared.config.clone();
    let mut chore = Chore::Later;
    #[expect(clippy::disallowed_methods, reason = "the shell reads the clock")]
    let mut ticked = Instant::now();
    let mut pace = Pace { began: ticked, bytes: 0, is_quiet: true };
    loop {
        #[expect(clippy::disallowed_methods, reason = "the shell reads the clock")]
        let now = Instant::now();
        if chore == Chore::Soon && !pace.is_quiet(now) {
            chore = Chore::Later;
        }
        // Clients that keep trying must not keep a full disk from being looked at again.
        if core.is_read_only() && now.duration_since(ticked) >= RETRY_INTERVAL {
            chore = core.tick();
            ticked = now;
        }
        match next_turn(queue, chore, config.commit_bytes) {
            Turn::Commit(requests) => {
                pace.bytes += requests.iter().map(|request| request.queue_bytes() as u64).sum::<u64>();
                core.commit(requests);
                chore = if core.wants_write_ahead() { Chore::Soon } else { Chore::Later };
            }
            Turn::Tick => chore = core.tick(),
            Turn::Stop => break,
        }
        let waiting = queue.waiting.lock();
        Counters::set(&reader.shared.counters.queue_bytes, waiting.bytes as u64);
        Counters::set(&reader.shared.counters.queue_requests, waiting.requests.len() as u64);
    }
}

/// Waits for requests; takes at most a commit full of them. Whatever came while the last commit was on its way makes the next one, so
/// commits grow with the load, and nobody waits when there is none.
fn next_turn(queue: &Queue, chore: Chore, commit_bytes: usize) -> Turn {
    let mut waiting = queue.waiting.lock();
    loop {
        if !waiting.requests.is_empty() {
            let mut taken = Vec::new();
            let mut bytes = 0;
            while let Some(request) = waiting.requests.pop_front() {
                bytes += request.queue_bytes();
                taken.push(request);
                if bytes >= commit_bytes {
                    break;
                }
            }
            waiting.bytes -= bytes;
            return Turn::Commit(taken);
        }
        if waiting.is_closed {
            return Turn::Stop;
        }
        waiting.is_idle = true;
        match chore {
            Chore::None => queue.arrived.wait(&mut waiting),
            Chore::Soon => {
                waiting.is_idle = false;
                return Turn::Tick;
            }
            Chore::Later => {
                if queue.arrived.wait_for(&mut waiting, RETRY_INTERVAL).timed_out() {
                    waiting.is_idle = false;
                    if waiting.requests.is_empty() && !waiting.is_closed {
                        return Turn::Tick;
                    }
                }
            }
        }
    }
}
