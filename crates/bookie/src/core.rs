//! The log's one writer: requests in, commits out. Synchronous, without threads or clocks, so that the simulator runs it as it is.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bookkeeper_proto::{AddOp, AddSink, BookieError, LedgerId, MasterKey};
use bytes::Bytes;
use disk::{BLOCK, Disk, DiskFile, SyncPoint};

use crate::commit::{CommitBuffer, SparePool};
use crate::format::{Kind, MAX_LAC_BLOB_LEN, RECORD_HEAD_LEN, STATE_LEN, SegmentId, Stamp};
use crate::index::Location;
use crate::reader::{BookieReader, Shared};
use crate::state::file_name;
use crate::stats::Counters;
use crate::{BookieConfig, OpenError, Recovered, open};

mod plan;
mod segments;

use self::plan::{Plan, Record, Step, answer};

/// The sync after which a commit's requests are answered.
pub const SYNC_COMMIT: SyncPoint = SyncPoint("log-commit");
/// Makes the header and the length of a new or recycled segment durable before the file gets a segment's name.
pub const SYNC_SEGMENT_HEADER: SyncPoint = SyncPoint("log-segment-header");
/// Makes the name of a new segment durable before it takes a commit.
pub const SYNC_SEGMENT_NAME: SyncPoint = SyncPoint("log-segment-name");
/// Makes it durable that a file is no longer a segment before it is overwritten.
pub const SYNC_FREED_NAME: SyncPoint = SyncPoint("log-freed-name");

/// Called once, on the log thread; must not block.
pub type Done = Box<dyn FnOnce(Result<(), BookieError>) + Send>;

/// What the log is asked for. Requests about one ledger take effect in the order in which they are posted.
pub enum Request {
    Add {
        op: AddOp,
        sink: Arc<dyn AddSink>,
    },
    /// Answered when the fence is durable; makes an unknown ledger known.
    Fence {
        ledger: LedgerId,
        key: MasterKey,
        done: Done,
    },
    /// `blob` as on the wire: ledger id, LAC, digest.
    WriteLac {
        ledger: LedgerId,
        key: MasterKey,
        blob: Bytes,
        done: Done,
    },
    /// Deleting an unknown ledger is no error.
    Delete {
        ledger: LedgerId,
        done: Done,
    },
}

impl Request {
    /// What it occupies in a queue, in bytes.
    pub(crate) fn queue_bytes(&self) -> usize {
        match self {
            Request::Add { op, .. } => 256 + op.bytes.len(),
            Request::WriteLac { blob, .. } => 256 + blob.len(),
            Request::Fence { .. } | Request::Delete { .. } => 256,
        }
    }

    /// An upper bound for the records it may cause.
    fn record_bytes(&self) -> usize {
        let state = RECORD_HEAD_LEN + STATE_LEN + MAX_LAC_BLOB_LEN;
        match self {
            Request::Add { op, .. } => state + RECORD_HEAD_LEN + op.bytes.len(),
            Request::Fence { .. } | Request::WriteLac { .. } | Request::Delete { .. } => state,
        }
    }
}

/// The segment that takes commits.
pub(crate) struct Writer {
    pub(crate) stamp: Stamp,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) file_bytes: u64,
    pub(crate) end: u64,
    pub(crate) entries: u64,
    pub(crate) state_bytes: u64,
    /// Whether its blocks are allocated: then a full disk cannot stop it.
    pub(crate) is_written: bool,
    /// Blocks from `end` up to here were written ahead, or need not be.
    pub(crate) written_to: u64,
    pub(crate) is_writing_ahead: bool,
    /// Bytes written since the free space was last looked at.
    pub(crate) unchecked_bytes: u64,
}

/// A file that is no segment any more, or not yet.
pub(crate) struct FreeFile {
    pub(crate) name: String,
    /// Whether all its blocks are allocated.
    pub(crate) is_written: bool,
    /// Ledgers mentioned in the segment it was, if that may still come back after a crash.
    pub(crate) was: Option<Vec<LedgerId>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Mode {
    Writable,
    /// No room for entries; fences and deletions as long as they fit.
    Full,
    /// No segment could be opened.
    Failed(Arc<str>),
}

/// The writer of one log.
pub struct BookieCore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) log: u64,
    pub(crate) writer: Option<Writer>,
    pub(crate) next_sequence: u64,
    pub(crate) next_id: u64,
    pub(crate) previous: Option<SegmentId>,
    pub(crate) free: VecDeque<FreeFile>,
    pub(crate) may_collect: bool,
    mode: Mode,
    spare: Arc<SparePool>,
}

/// What [`BookieCore::tick`] wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chore {
    /// Nothing until the next commit.
    None,
    /// There is more to do as soon as nothing else is.
    Soon,
    /// Something is worth trying again later.
    Later,
}

impl BookieCore {
    /// Opens or creates the log and replays its tail.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing was written that a second try, or an older or newer program, would stumble over.
    pub fn open(config: BookieConfig, disk: Arc<dyn Disk>) -> Result<(BookieCore, Recovered), OpenError> {
        config.check()?;
        open::open(config, disk)
    }

    pub(crate) fn new(shared: Arc<Shared>, log: u64) -> BookieCore {
        BookieCore {
            shared,
            log,
            writer: None,
            next_sequence: 1,
            next_id: 1,
            previous: None,
            free: VecDeque::new(),
            may_collect: true,
            mode: Mode::Writable,
            spare: Arc::default(),
        }
    }

    /// A handle for reads from any thread.
    pub fn reader(&self) -> BookieReader {
        BookieReader { shared: self.shared.clone() }
    }

    /// Carries out requests, in their order, in as few commits as [`BookieConfig::commit_bytes`] and the segments allow. On return all of
    /// them are answered; adds with one call per sink and commit.
    pub fn commit(&mut self, requests: impl IntoIterator<Item = Request>) {
        let mut requests: VecDeque<Request> = requests.into_iter().collect();
        while !requests.is_empty() {
            let plan = self.plan(&mut requests);
            self.carry_out(plan);
        }
        if self.may_collect {
            self.collect();
        }
    }

    /// Work that can wait: freeing segments, writing blocks ahead, trying again after a full or failing disk. Blocks for about a millisecond,
    /// or longer if the disk does.
    pub fn tick(&mut self) -> Chore {
        if self.mode != Mode::Writable {
            self.try_again();
        }
        if self.may_collect {
            self.collect();
        }
        if self.mode != Mode::Writable {
            return Chore::Later;
        }
        self.write_ahead();
        if self.wants_write_ahead() { Chore::Soon } else { Chore::None }
    }

    /// Whether adds are refused at the moment.
    pub fn is_read_only(&self) -> bool {
        self.mode != Mode::Writable
    }

    fn current_id(&self) -> SegmentId {
        self.writer.as_ref().map_or(SegmentId(self.next_id), |writer| writer.stamp.generation)
    }

    /// Writes the planned commit and answers its requests.
    fn carry_out(&mut self, mut plan: Plan) -> bool {
        let written = if plan.records.is_empty() { Ok(None) } else { self.write(&mut plan).map(Some) };
        match &written {
            Ok(None) => {}
            Ok(Some((segment, offset, commit))) => self.index(&plan, *segment, *offset, commit),
            Err(error) => self.unsave(&plan, error),
        }
        let is_durable = written.is_ok();
        let error = written.as_ref().err().cloned();
        let commit = written.ok().flatten().map(|(_, _, commit)| commit);
        answer(plan.steps, commit.as_ref(), error.as_ref());
        is_durable
    }

    /// The states of a failed commit are in memory only. What a commit of unknown outcome mentions may come back after a crash.
    fn unsave(&mut self, plan: &Plan, error: &WriteError) {
        let mut state = self.shared.state.write();
        for record in &plan.records {
            let id = match record {
                Record::Entry(step) => match plan.steps.get(*step) {
                    Some(Step::Added { op, .. }) => op.ledger,
                    _ => continue,
                },
                Record::State(record) => record.ledger,
                Record::Freed(_) => continue,
            };
            if let WriteError::Unknown { segment, .. } = error {
                state.mention(*segment, id);
                if let Some(segment) = state.segments.get_mut(segment) {
                    segment.states.insert(id);
                }
            }
            if let Some(ledger) = state.ledgers.get_mut(&id).filter(|_| matches!(record, Record::State(_))) {
                ledger.saved_in = None;
            }
        }
    }

    /// One write, one sync.
    fn write(&mut self, plan: &mut Plan) -> Result<(SegmentId, u64, Bytes), WriteError> {
        let sequence = self.next_sequence;
        let Some(writer) = &mut self.writer else {
            let Mode::Failed(reason) = &self.mode else {
                return Err(WriteError::NotWritten("the disk is full".into()));
            };
            return Err(WriteError::NotWritten(reason.clone()));
        };
        let mut buffer = CommitBuffer::new(writer.stamp, plan.bytes, &self.spare);
        for record in &plan.records {
            match record {
                Record::Entry(step) => {
                    let at = buffer.len();
                    if let Some(Step::Added { op, at: found, .. }) = plan.steps.get_mut(*step) {
                        *found = at;
                        buffer.push_entry(&op.bytes, op.recovery);
                    }
                }
                Record::State(state) => buffer.push(Kind::State, &state.encode()),
                Record::Freed(segment) => buffer.push(Kind::Freed, &segment.0.to_le_bytes()),
            }
        }
        let commit = buffer.finish(sequence);
        let (segment, offset) = (writer.stamp.generation, writer.end);
        assert!(
            offset + commit.len() as u64 + BLOCK as u64 <= writer.file_bytes,
            "a commit must not reach into the footer"
        );
        let written = writer.file.write_all_at(&commit, offset);
        let synced = written.and_then(|()| writer.file.sync(SYNC_COMMIT).map_err(SyncFailed::wrap));
        match synced {
            Ok(()) => {}
            // Not all of it was written, so it cannot pass for a commit, and the next one may take its place.
            Err(error) if is_full(&error) && !SyncFailed::is(&error) => {
                self.set_mode(Mode::Full);
                return Err(WriteError::NotWritten("the disk is full".into()));
            }
            Err(error) => return Err(self.fail_segment(&error)),
        }
        writer.end += commit.len() as u64;
        writer.entries += plan.entries;
        writer.state_bytes += plan.state_bytes;
        self.next_sequence += 1;
        let counters = &self.shared.counters;
        Counters::add(&counters.commits, 1);
        Counters::add(&counters.syncs, 1);
        Counters::add(&counters.written_bytes, commit.len() as u64);
        Counters::add(&counters.entries, plan.entries);
        Ok((segment, offset, commit))
    }

    /// After a failed write or sync nobody knows what is on the disk behind the last commit, and asking again proves nothing: the
    /// kernel reports a lost write once. So this segment takes no further commit; the next one begins in another file.
    fn fail_segment(&mut self, error: &io::Error) -> WriteError {
        Counters::add(&self.shared.counters.write_failures, 1);
        let segment = self.current_id();
        self.writer = None;
        self.may_collect = true;
        let file = self.path(&file_name(segment)).display().to_string();
        tracing::error!(%file, %error, "cannot write to the log: the outcome of the last commit is unknown");
        WriteError::Unknown { segment, file: file.into(), detail: error.to_string().into() }
    }

    /// What is durable becomes visible.
    fn index(&mut self, plan: &Plan, segment: SegmentId, offset: u64, commit: &Bytes) {
        let mut state = self.shared.state.write();
        let mut entry_bytes = 0;
        for record in &plan.records {
            match record {
                Record::Entry(step) => {
                    let Some(Step::Added { op, at, .. }) = plan.steps.get(*step) else { continue };
                    let location = Location { offset: offset as u32 + *at as u32, len: op.bytes.len() as u32 };
                    entry_bytes += op.bytes.len() as u64;
                    let lac = op.bytes.header().last_add_confirmed;
                    state.apply_entry(segment, op.ledger, op.entry, lac, location);
                }
                Record::State(record) => {
                    // The record in memory is as new or newer; what the log now holds of it is this.
                    state.mention(segment, record.ledger);
                    let is_newest = state.ledgers.get(&record.ledger).and_then(|ledger| ledger.record(record.ledger));
                    let is_newest = is_newest.as_ref() == Some(record);
                    if let Some(ledger) = state.ledgers.get_mut(&record.ledger).filter(|_| is_newest) {
                        ledger.saved_in = Some(segment);
                    }
                    if let Some(segment) = state.segments.get_mut(&segment) {
                        segment.states.insert(record.ledger);
                    }
                }
                Record::Freed(_) => {}
            }
        }
        if let Some(found) = state.segments.get_mut(&segment) {
            found.end = offset + commit.len() as u64;
            found.last_sequence = self.next_sequence - 1;
        }
        state.recent.push(segment, offset, commit.clone(), self.shared.config.recent_bytes);
        Counters::add(&self.shared.counters.entry_bytes, entry_bytes);
    }
}

impl std::fmt::Debug for BookieCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BookieCore")
            .field("next_sequence", &self.next_sequence)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
enum WriteError {
    NotWritten(Arc<str>),
    Unknown { segment: SegmentId, file: Arc<str>, detail: Arc<str> },
}

impl WriteError {
    fn about(&self, ledger: LedgerId) -> BookieError {
        match self {
            WriteError::NotWritten(reason) => BookieError::ReadOnly { ledger, reason: reason.clone() },
            WriteError::Unknown { file, detail, .. } => {
                BookieError::WriteFailed { ledger, file: file.clone(), detail: detail.clone() }
            }
        }
    }
}

/// Marks an error of a sync, whose outcome is unknown even if the disk is full.
#[derive(Debug, thiserror::Error)]
#[error("cannot sync")]
struct SyncFailed(#[source] io::Error);

impl SyncFailed {
    fn wrap(error: io::Error) -> io::Error {
        io::Error::new(error.kind(), SyncFailed(error))
    }

    fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<SyncFailed>())
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
