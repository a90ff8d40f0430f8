//! How writes become durable: what is queued is applied in one transaction, committed with one sync, then answered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use disk::Disk;
use parking_lot::{Condvar, Mutex, RwLock};
use redb::{Database, Durability, StorageError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::space::{self, TableSpace};
use super::{StoreStats, file};
use crate::session::SessionCell;
use crate::tree::{self, Fault, Now, Op, Reply};
use crate::watch::Watchers;
use crate::{Clock, Event, MetadataError, Session, SessionState};

/// Bytes of writes that may wait for the commit thread; whoever brings more waits for room.
pub(super) const QUEUE_BYTES: usize = 4 << 20;
/// Growing writes are refused when less is left on the disk (on top of what the batch may need).
const FULL_BELOW_BYTES: u64 = 8 << 20;
/// Deletions, which is how room is made, go on until this much is left.
const DELETIONS_BELOW_BYTES: u64 = 1 << 20;
/// A transaction rewrites the pages on the way to what it changes.
const PAGES_PER_WRITE_BYTES: u64 = 64 << 10;

type Answer = Result<Reply, MetadataError>;

/// What callers, readers and the commit thread share.
pub(super) struct Core {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) clock: Clock,
    /// Gone once the store is closed.
    pub(super) database: RwLock<Option<Database>>,
    pub(super) session: SessionCell,
    pub(super) watchers: Watchers,
    /// Set once, when a commit fails: what the disk holds is then unknown until it is opened anew.
    stopped: OnceLock<Arc<str>>,
    /// Held by whoever commits.
    committing: Mutex<()>,
    commits: AtomicU64,
    writes: AtomicU64,
}

impl Core {
    pub(super) fn new(disk: Arc<dyn Disk>, clock: Clock, database: Database) -> Core {
        Core {
            disk,
            clock,
            database: RwLock::new(Some(database)),
            session: SessionCell::new(1),
            watchers: Watchers::default(),
            stopped: OnceLock::new(),
            committing: Mutex::new(()),
            commits: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        }
    }

    pub(super) fn stats(&self) -> StoreStats {
        StoreStats { commits: self.commits.load(Ordering::Relaxed), writes: self.writes.load(Ordering::Relaxed) }
    }

    pub(super) fn check_running(&self) -> Result<(), MetadataError> {
        match self.stopped.get() {
            Some(reason) => Err(MetadataError::Stopped { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// From now on neither writes nor reads: a read could show a state that a restart takes back.
    pub(super) fn stop(&self, reason: &str) {
        if self.stopped.set(reason.into()).is_ok() {
            tracing::error!(reason, "metadata store stops: its disk failed");
            self.end();
        }
    }

    /// Tells everyone that nothing more will come.
    pub(super) fn end(&self) {
        let Session { generation, .. } = self.session.get();
        self.session.set(Session { state: SessionState::Lost, generation });
        self.watchers.close();
    }

    /// Removes the ephemeral nodes of processes before this one.
    pub(super) fn remove_orphans(&self) -> Result<(), StorageError> {
        let guard = self.database.read();
        let Some(database) = &*guard else { return Ok(()) };
        let transaction = database.begin_write().map_err(space::of_transaction)?;
        let mut tables = TableSpace::open(&transaction)?;
        let owners = space::owners(&tables)?;
        for session in &owners {
            let now = Now { ms: (self.clock)(), session: *session };
            match tree::apply(&mut tables, &Op::EndSession { session: *session }, now, &mut Vec::new()) {
                Ok(_) | Err(Fault::Refused(_)) => {}
                Err(Fault::Space(error)) => return Err(error),
            }
        }
        drop(tables);
        if owners.is_empty() { transaction.abort() } else { transaction.commit().map_err(space::of_commit) }
    }

    /// Performs operations in their order, together or (if the disk fails) not at all, and announces them. One answer
    /// each.
    pub(super) fn commit(&self, ops: &[Op]) -> Vec<Answer> {
        let _committing = self.committing.lock();
        if let Err(error) = self.check_running() {
            return refuse(ops, &error);
        }
        // The database asserts what it reads back; whatever it found, nobody may take it for a commit.
        catch_unwind(AssertUnwindSafe(|| self.try_commit(ops))).unwrap_or_else(|panic| {
            let reason = format!("the database panicked: {}", file::panic_text(&*panic));
            self.stop(&reason);
            refuse(ops, &MetadataError::OutcomeUnknown { reason: reason.into() })
        })
    }

    fn try_commit(&self, ops: &[Op]) -> Vec<Answer> {
        let guard = self.database.read();
        let Some(database) = &*guard else { return refuse(ops, &MetadataError::Closed) };
        let available = match self.disk.available_bytes() {
            Ok(available) => available,
            Err(error) => return refuse(ops, &MetadataError::Io(Arc::new(error))),
        };

        let mut batch = Batch::new(self.session.get().generation);
        let applied = database.begin_write().map_err(space::of_transaction).and_then(|mut transaction| {
            transaction.set_durability(Durability::Immediate);
            let mut tables = TableSpace::open(&transaction)?;
            for op in ops {
                batch.apply(&mut tables, op, available, (self.clock)())?;
            }
            drop(tables);
            Ok(transaction)
        });
        let transaction = match applied {
            Ok(transaction) => transaction,
            Err(error) => {
                // Never committed, so it has not happened; but the database does not go on after a failure.
                let error = space::into_io(error);
                self.stop(&error.to_string());
                return refuse(ops, &MetadataError::Io(Arc::new(error)));
            }
        };
        if batch.events.is_empty() && batch.session == self.session.get().generation {
            if let Err(error) = transaction.abort() {
                self.stop(&error.to_string());
            }
            return batch.answers;
        }
        if let Err(error) = transaction.commit() {
            let reason: Arc<str> = space::into_io(space::of_commit(error)).to_string().into();
            self.stop(&reason);
            return batch.answers.into_iter().map(|answer| Err(after_failed_commit(&answer, &reason))).collect();
        }
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.writes.fetch_add(batch.answers.iter().filter(|answer| answer.is_ok()).count() as u64, Ordering::Relaxed);
        if batch.session != self.session.get().generation {
            self.session.set(Session { state: SessionState::Alive, generation: batch.session });
            batch.events.push(Event::Resync);
        }
        self.watchers.publish(&batch.events);
        batch.answers
    }
}

/// What one transaction amounts to.
struct Batch {
    answers: Vec<Answer>,
    events: Vec<Event>,
    session: u64,
    bytes: u64,
}

impl Batch {
    fn new(session: u64) -> Batch {
        Batch { answers: Vec::new(), events: Vec::new(), session, bytes: 0 }
    }

    fn apply(&mut self, tables: &mut TableSpace<'_>, op: &Op, available: u64, now_ms: u64) -> Result<(), StorageError> {
        let needed = self.bytes + PAGES_PER_WRITE_BYTES + 2 * op.bytes() as u64;
        let reserve = if op.grows() { FULL_BELOW_BYTES } else { DELETIONS_BELOW_BYTES };
        if available < needed + reserve {
            self.answers.push(Err(MetadataError::Full { available_bytes: available }));
            return Ok(());
        }
        let answer = match tree::apply(tables, op, Now { ms: now_ms, session: self.session }, &mut self.events) {
            Ok(reply) => Ok(reply),
            Err(Fault::Refused(error)) => Err(error),
            Err(Fault::Space(error)) => return Err(error),
        };
        if answer.is_ok() {
            self.bytes = needed;
            // Told twice that it is over, a session ends once.
            if matches!(op, Op::EndSession { session } if *session == self.session) {
                self.session += 1;
            }
        }
        self.answers.push(answer);
        Ok(())
    }
}

fn refuse(ops: &[Op], error: &MetadataError) -> Vec<Answer> {
    ops.iter().map(|_| Err(error.clone())).collect()
}

/// A refusal may rest on a write of the same transaction, so it is no longer true; but nothing was written for it.
fn after_failed_commit(answer: &Answer, reason: &Arc<str>) -> MetadataError {
    match answer {
        Ok(_) => MetadataError::OutcomeUnknown { reason: reason.clone() },
        Err(_) => MetadataError::Stopped { reason: reason.clone() },
    }
}

/// Writes on their way to the commit thread.
pub(super) struct Queue {
    state: Mutex<QueueState>,
    filled: Condvar,
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct QueueState {
    waiting: Vec<Waiting>,
    closed: bool,
}

struct Waiting {
    op: Op,
    answer: oneshot::Sender<Answer>,
    _room: OwnedSemaphorePermit,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue { state: Mutex::default(), filled: Condvar::new(), room: Arc::new(Semaphore::new(QUEUE_BYTES)) }
    }

    /// Waits for room, then for the commit.
    pub(super) async fn submit(&self, op: Op) -> Answer {
        let bytes = op.bytes().min(QUEUE_BYTES) as u32;
        let room = self.room.clone().acquire_many_owned(bytes).await.map_err(|_| MetadataError::Closed)?;
        let (answer, answered) = oneshot::channel();
        {
            let mut state = self.state.lock();
            if state.closed {
                return Err(MetadataError::Closed);
            }
            state.waiting.push(Waiting { op, answer, _room: room });
        }
        self.filled.notify_one();
        answered
            .await
            .unwrap_or_else(|_| Err(MetadataError::OutcomeUnknown { reason: "the commit thread ended".into() }))
    }

    /// Takes no more; what waits is still committed.
    pub(super) fn close(&self) {
        self.room.close();
        self.state.lock().closed = true;
        self.filled.notify_one();
    }

    /// The commit thread: until the queue is closed and empty.
    pub(super) fn run(&self, core: &Core) {
        while let Some(batch) = self.take() {
            let (ops, answers): (Vec<Op>, Vec<_>) =
                batch.into_iter().map(|waiting| (waiting.op, (waiting.answer, waiting._room))).unzip();
            for ((sender, room), answer) in answers.into_iter().zip(core.commit(&ops)) {
                // Who dropped the future does not want to know.
                let _ = sender.send(answer);
                drop(room);
            }
        }
    }

    fn take(&self) -> Option<Vec<Waiting>> {
        let mut state = self.state.lock();
        while state.waiting.is_empty() {
            if state.closed {
                return None;
            }
            self.filled.wait(&mut state);
        }
        Some(std::mem::take(&mut state.waiting))
    }
}
