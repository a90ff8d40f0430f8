//! Reads, from any thread, beside the log thread.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bookkeeper_proto::{BookieError, EntryHeader, EntryId, Fenced, LedgerId};
use bytes::Bytes;
use disk::{AlignedBuf, BLOCK, Disk, DiskFile, OpenMode};
use parking_lot::{Mutex, RwLock};

use crate::BookieConfig;
use crate::format::{Kind, RECORD_HEAD_LEN, RecordHead, SegmentId, Stamp};
use crate::index::{Location, SealedRun, Table};
use crate::scan::scan;
use crate::state::{Candidate, Index, LogState, SharedTable, file_name};
use crate::stats::{Counters, Stats};

/// What the log thread and readers share.
pub(crate) struct Shared {
    pub(crate) config: BookieConfig,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) state: RwLock<LogState>,
    pub(crate) counters: Counters,
    files: Mutex<VecDeque<(SegmentId, Arc<dyn DiskFile>)>>,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    /// The most recently used last.
    loaded: VecDeque<(SegmentId, LedgerId, SharedTable)>,
    bytes: usize,
}

const MAX_OPEN_FILES: usize = 64;
/// Entries with a gap of up to this many bytes between them are read together.
const MAX_GAP_BYTES: u64 = 8 << 10;
const MAX_READ_BYTES: u64 = 1 << 20;
/// How often a read is repeated because the segment was recycled under it.
const MAX_ATTEMPTS: usize = 4;

/// Where an entry was found.
enum Place {
    InMemory(Bytes),
    OnDisk(Stamp, Location),
}

/// What a ledger's bookie knows about its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LastAddConfirmed {
    /// As the writer sent it, if it ever did.
    pub explicit: Option<Bytes>,
    /// The highest known, explicit or from the headers of entries.
    pub last_add_confirmed: EntryId,
    /// The highest entry the bookie holds.
    pub last_entry: EntryId,
}

/// The end of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogEnd {
    /// The number that tells logs apart.
    pub log: u64,
    /// The newest segment's number.
    pub segment: u64,
    /// Sequence number of the last durable commit.
    pub sequence: u64,
}

/// Reads entries. Cheap to clone; calls block while they read from the disk.
#[derive(Clone)]
pub struct BookieReader {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for BookieReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BookieReader").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl BookieReader {
    /// The whole entry, verified if it came from the disk.
    ///
    /// # Errors
    /// [`BookieError::NoLedger`] (unknown or deleted), [`BookieError::NoEntry`], [`BookieError::Damaged`],
    /// [`BookieError::UnknownLedgerState`], [`BookieError::ReadFailed`].
    pub fn read(&self, ledger: LedgerId, entry: EntryId) -> Result<Bytes, BookieError> {
        let mut found = self.read_many(ledger, entry, entry, usize::MAX)?;
        Ok(found.swap_remove(0))
    }

    /// Entries from `first` on up to `last`, at least one, no more than `max_bytes` beyond the first. Stops before the first entry that
    /// cannot be read. Entries that lie side by side are slices of one buffer.
    ///
    /// # Errors
    /// As [`BookieReader::read`], about `first`.
    pub fn read_many(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: usize,
    ) -> Result<Vec<Bytes>, BookieError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut places = vec![self.locate(ledger, first)?];
            let mut bytes = places[0].len();
            let mut next = first.next();
            while next <= last && bytes < max_bytes {
                let Ok(place) = self.locate(ledger, next) else { break };
                bytes = bytes.saturating_add(place.len());
                if bytes > max_bytes {
                    break;
                }
                places.push(place);
                next = next.next();
            }
            match self.fetch(ledger, first, &places) {
                // The segment was recycled between the look-up and the read.
                Err(Miss::Moved) if attempt < MAX_ATTEMPTS => {}
                Err(Miss::Moved) => {
                    let detail = "the entry moves faster than it can be read".into();
                    return Err(BookieError::ReadFailed { ledger, file: "log".into(), detail });
                }
                Err(Miss::Failed(error)) => return Err(error),
                Ok(entries) => {
                    Counters::add(&self.shared.counters.reads, entries.len() as u64);
                    return Ok(entries);
                }
            }
        }
    }

    /// The highest entry the bookie holds, [`EntryId::NONE`] if the ledger is empty.
    ///
    /// # Errors
    /// [`BookieError::NoLedger`], [`BookieError::UnknownLedgerState`].
    pub fn last_entry(&self, ledger: LedgerId) -> Result<EntryId, BookieError> {
        self.read_lac(ledger).map(|lac| lac.last_entry)
    }

    /// # Errors
    /// [`BookieError::NoLedger`], [`BookieError::UnknownLedgerState`].
    pub fn read_lac(&self, id: LedgerId) -> Result<LastAddConfirmed, BookieError> {
        let state = self.shared.state.read();
        let Some(ledger) = state.ledgers.get(&id).filter(|ledger| !ledger.deleted) else {
            return Err(state.absence(id, EntryId::NONE));
        };
        Ok(LastAddConfirmed {
            explicit: ledger.explicit_lac.clone(),
            last_add_confirmed: ledger.lac(),
            last_entry: ledger.last,
        })
    }

    /// What a fence request is answered with, once the fence is durable.
    ///
    /// # Errors
    /// As [`BookieReader::read`], about the last entry.
    pub fn fenced(&self, ledger: LedgerId) -> Result<Fenced, BookieError> {
        let lac = self.read_lac(ledger)?;
        let last_entry = if lac.last_entry.is_none() { None } else { Some(self.read(ledger, lac.last_entry)?) };
        Ok(Fenced { last_add_confirmed: lac.last_add_confirmed, last_entry })
    }

    /// All ledgers that are not deleted, sorted.
    pub fn ledgers(&self) -> Vec<LedgerId> {
        let state = self.shared.state.read();
        let alive = state.ledgers.iter().filter(|(_, ledger)| !ledger.deleted);
        let mut ids: Vec<LedgerId> = alive.map(|(id, _)| *id).collect();
        ids.sort();
        ids
    }

    /// How far the log is; `None` while it has no segment. Never goes back.
    pub fn end(&self) -> Option<LogEnd> {
        let state = self.shared.state.read();
        let (_, newest) = state.segments.last_key_value()?;
        let Stamp { log, generation, .. } = newest.stamp;
        Some(LogEnd { log, segment: generation.0, sequence: newest.last_sequence })
    }

    /// Counts since the bookie was opened.
    pub fn stats(&self) -> Stats {
        use std::sync::atomic::Ordering::Relaxed;
        let counters = &self.shared.counters;
        let state = self.shared.state.read();
        Stats {
            commits: counters.commits.load(Relaxed),
            syncs: counters.syncs.load(Relaxed),
            entries: counters.entries.load(Relaxed),
            entry_bytes: counters.entry_bytes.load(Relaxed),
            written_bytes: counters.written_bytes.load(Relaxed),
            reads: counters.reads.load(Relaxed),
            reads_from_disk: counters.reads_from_disk.load(Relaxed),
            damaged_reads: counters.damaged_reads.load(Relaxed),
            write_failures: counters.write_failures.load(Relaxed),
            queue_bytes: counters.queue_bytes.load(Relaxed),
            queue_requests: counters.queue_requests.load(Relaxed),
            ledgers: state.ledgers.values().filter(|ledger| !ledger.deleted).count() as u64,
            segments: state.segments.len() as u64,
            free_segments: counters.free_segments.load(Relaxed),
            segment_bytes: state.segments.values().map(|segment| segment.file_bytes).sum(),
            live_bytes: state.segments.values().map(|segment| segment.live_bytes).sum(),
            read_only: counters.read_only.load(Relaxed) != 0,
        }
    }

    fn locate(&self, ledger: LedgerId, entry: EntryId) -> Result<Place, BookieError> {
        let candidates = self.shared.state.read().candidates(ledger, entry)?;
        for candidate in candidates {
            match candidate {
                Candidate::InMemory(bytes) => return Ok(Place::InMemory(bytes)),
                Candidate::At(stamp, location) => return Ok(Place::OnDisk(stamp, location)),
                Candidate::Ask(stamp, run) => {
                    let table = self.table(ledger, &stamp, &run)?;
                    if let Some(location) = table.get(entry) {
                        return Ok(Place::OnDisk(stamp, location));
                    }
                }
            }
        }
        Err(self.shared.state.read().absence(ledger, entry))
    }

    /// Reads the entries from `first` on at these places.
    fn fetch(&self, ledger: LedgerId, first: EntryId, places: &[Place]) -> Result<Vec<Bytes>, Miss> {
        let mut entries = Vec::with_capacity(places.len());
        while entries.len() < places.len() {
            let next = EntryId(first.0 + entries.len() as i64);
            let rest = &places[entries.len()..];
            let got = match &rest[0] {
                Place::InMemory(bytes) => {
                    entries.push(bytes.clone());
                    continue;
                }
                Place::OnDisk(stamp, location) => {
                    let together = side_by_side(stamp, rest);
                    self.read_from_disk(ledger, next, stamp, *location, &together)
                }
            };
            match got {
                Ok(got) => entries.extend(got),
                // The caller gets what there is, and asks for the rest later.
                Err(_) if !entries.is_empty() => break,
                Err(miss) => return Err(miss),
            }
        }
        Ok(entries)
    }

    /// At least the first of the entries, which lie one behind the other in one segment.
    fn read_from_disk(
        &self,
        ledger: LedgerId,
        first: EntryId,
        stamp: &Stamp,
        start: Location,
        locations: &[Location],
    ) -> Result<Vec<Bytes>, Miss> {
        let end = locations.iter().map(|location| location.end()).max().unwrap_or(start.end());
        let offset = u64::from(start.offset);
        let failed = |error: io::Error| self.failed(ledger, stamp.generation, &error);
        let mut buf = vec![0; (end - offset) as usize];
        let read = self.file(stamp.generation).and_then(|file| file.read_at(&mut buf, offset));
        Counters::add(&self.shared.counters.reads_from_disk, 1);
        match read {
            Ok(read) => buf.truncate(read),
            Err(_) if !self.is_still_there(ledger, first, stamp, start) => return Err(Miss::Moved),
            Err(error) => return Err(Miss::Failed(failed(error))),
        }
        let block = Bytes::from(buf);
        let useful: usize = locations.iter().map(|location| RECORD_HEAD_LEN + location.len as usize).sum();
        let is_sparse = useful < block.len() / 2;
        let mut entries = Vec::with_capacity(locations.len());
        for (i, location) in locations.iter().enumerate() {
            let entry = EntryId(first.0 + i as i64);
            let at = (u64::from(location.offset) - offset) as usize;
            if verify(block.get(at..).unwrap_or_default(), stamp, *location, ledger, entry) {
                let bytes = at + RECORD_HEAD_LEN..at + RECORD_HEAD_LEN + location.len as usize;
                // Mostly gaps: whoever keeps the entries must not keep those, too.
                let entry = if is_sparse { Bytes::copy_from_slice(&block[bytes]) } else { block.slice(bytes) };
                entries.push(entry);
                continue;
            }
            if !entries.is_empty() {
                break;
            }
            if !self.is_still_there(ledger, entry, stamp, *location) {
                return Err(Miss::Moved);
            }
            // What the page cache holds may be older than a direct write; only the disk itself is a witness.
            match self.read_directly(stamp, *location) {
                Ok(bytes) if verify(&bytes, stamp, *location, ledger, entry) => {
                    entries.push(bytes.slice(RECORD_HEAD_LEN..));
                    break;
                }
                Err(error) => return Err(Miss::Failed(failed(error))),
                Ok(_) if !self.is_still_there(ledger, entry, stamp, *location) => return Err(Miss::Moved),
                Ok(_) => return Err(Miss::Failed(self.damaged(ledger, entry, stamp, *location))),
            }
        }
        Ok(entries)
    }

    fn damaged(&self, ledger: LedgerId, entry: EntryId, stamp: &Stamp, location: Location) -> BookieError {
        Counters::add(&self.shared.counters.damaged_reads, 1);
        let path = self.path(stamp.generation);
        tracing::error!(%ledger, %entry, file = %path.display(), offset = location.offset, "entry is damaged");
        BookieError::Damaged {
            ledger,
            entry,
            file: path.display().to_string().into(),
            offset: u64::from(location.offset),
            detail: "the bytes do not match their checksum".into(),
        }
    }

    fn failed(&self, ledger: LedgerId, segment: SegmentId, error: &io::Error) -> BookieError {
        let file = self.path(segment).display().to_string().into();
        BookieError::ReadFailed { ledger, file, detail: error.to_string().into() }
    }

    /// The record, read around the page cache.
    fn read_directly(&self, stamp: &Stamp, location: Location) -> io::Result<Bytes> {
        let file = self.shared.disk.open(&self.path(stamp.generation), OpenMode::Direct)?;
        let start = u64::from(location.offset) / BLOCK as u64 * BLOCK as u64;
        let mut buf = AlignedBuf::zeroed((location.end() - start).next_multiple_of(BLOCK as u64) as usize);
        let read = file.read_at(&mut buf, start)?;
        let from = (u64::from(location.offset) - start) as usize;
        Ok(Bytes::copy_from_slice(&buf[from.min(read)..((location.end() - start) as usize).min(read)]))
    }

    fn is_still_there(&self, ledger: LedgerId, entry: EntryId, stamp: &Stamp, location: Location) -> bool {
        matches!(self.locate(ledger, entry), Ok(Place::OnDisk(now, at)) if now == *stamp && at == location)
    }

    fn path(&self, segment: SegmentId) -> PathBuf {
        self.shared.config.folder.join(file_name(segment))
    }

    fn file(&self, segment: SegmentId) -> io::Result<Arc<dyn DiskFile>> {
        {
            let mut files = self.shared.files.lock();
            if let Some(at) = files.iter().position(|(id, _)| *id == segment) {
                let found = files.remove(at).expect("the position was just found");
                let file = found.1.clone();
                files.push_back(found);
                return Ok(file);
            }
        }
        let file = self.shared.disk.open(&self.path(segment), OpenMode::Read)?;
        let mut files = self.shared.files.lock();
        if files.len() >= MAX_OPEN_FILES {
            files.pop_front();
        }
        files.push_back((segment, file.clone()));
        Ok(file)
    }

    fn table(&self, ledger: LedgerId, stamp: &Stamp, run: &SealedRun) -> Result<SharedTable, BookieError> {
        let segment = stamp.generation;
        {
            let mut tables = self.shared.tables.lock();
            if let Some(at) = tables.loaded.iter().rposition(|(s, l, _)| (*s, *l) == (segment, ledger)) {
                let found = tables.loaded.remove(at).expect("the position was just found");
                let table = found.2.clone();
                tables.loaded.push_back(found);
                return Ok(table);
            }
        }
        let table = self.load_table(ledger, stamp, run).map_err(|error| self.failed(ledger, segment, &error))?;
        let table = Arc::new(table);
        let mut tables = self.shared.tables.lock();
        tables.bytes += table.memory_bytes();
        tables.loaded.push_back((segment, ledger, table.clone()));
        while tables.bytes > self.shared.config.index_cache_bytes && tables.loaded.len() > 1 {
            let Some((_, _, oldest)) = tables.loaded.pop_front() else { break };
            tables.bytes -= oldest.memory_bytes();
        }
        Ok(table)
    }

    fn load_table(&self, ledger: LedgerId, stamp: &Stamp, run: &SealedRun) -> io::Result<Table> {
        let file = self.file(stamp.generation)?;
        let mut bytes = vec![0; run.table_len()];
        let read = file.read_at(&mut bytes, run.table_at)?;
        if let Some(table) = Table::decode(&bytes[..read], run, stamp) {
            return Ok(table);
        }
        // The index is only a short cut: the commits say the same.
        let path = self.path(stamp.generation);
        tracing::warn!(%ledger, file = %path.display(), offset = run.table_at, "index is damaged, scanning the segment");
        let file_bytes = file.len()?;
        let file = self.shared.disk.open(&path, OpenMode::Direct)?;
        let header = crate::open::read_header(&file)?;
        let first_sequence = header.map_or(0, |header| header.first_sequence);
        let mut scanned = scan(&file, stamp, first_sequence, file_bytes)?;
        if let Some(segment) = self.shared.state.write().segments.get_mut(&stamp.generation)
            && segment.damaged.is_empty()
            && matches!(segment.index, Index::Sealed(_))
        {
            segment.damaged.clone_from(&scanned.damaged);
        }
        Ok(scanned.runs.remove(&ledger).map(|run| run.table).unwrap_or_default())
    }
}

impl Shared {
    pub(crate) fn new(config: BookieConfig, disk: Arc<dyn Disk>, state: LogState) -> Shared {
        Shared {
            config,
            disk,
            state: RwLock::new(state),
            counters: Counters::default(),
            files: Mutex::new(VecDeque::new()),
            tables: Mutex::new(Tables::default()),
        }
    }

    /// The segment's file is about to become another one's.
    pub(crate) fn forget_segment(&self, segment: SegmentId) {
        self.files.lock().retain(|(id, _)| *id != segment);
        let mut tables = self.tables.lock();
        tables.loaded.retain(|(id, _, _)| *id != segment);
        tables.bytes = tables.loaded.iter().map(|(_, _, table)| table.memory_bytes()).sum();
    }
}

/// Why a read that looked possible was not.
enum Miss {
    /// The segment is not what it was when the entry was looked up.
    Moved,
    Failed(BookieError),
}

impl Place {
    fn len(&self) -> usize {
        match self {
            Place::InMemory(bytes) => bytes.len(),
            Place::OnDisk(_, location) => location.len as usize,
        }
    }
}

impl Location {
    fn end(&self) -> u64 {
        u64::from(self.offset) + (RECORD_HEAD_LEN as u64) + u64::from(self.len)
    }
}

/// How many of the places, from the first on, one read may cover.
fn side_by_side(stamp: &Stamp, places: &[Place]) -> Vec<Location> {
    let mut locations: Vec<Location> = Vec::new();
    for place in places {
        let Place::OnDisk(other, location) = place else { break };
        if let (Some(first), Some(last)) = (locations.first(), locations.last()) {
            let gap = u64::from(location.offset).checked_sub(last.end());
            let is_near = gap.is_some_and(|gap| gap <= MAX_GAP_BYTES);
            if other != stamp || !is_near || location.end() - u64::from(first.offset) > MAX_READ_BYTES {
                break;
            }
        }
        locations.push(*location);
    }
    locations
}

/// Is this the record of that entry, as it was written?
fn verify(bytes: &[u8], stamp: &Stamp, location: Location, ledger: LedgerId, entry: EntryId) -> bool {
    let Some(head) = RecordHead::decode(bytes, stamp) else { return false };
    let Some(body) = bytes.get(RECORD_HEAD_LEN..RECORD_HEAD_LEN + location.len as usize) else { return false };
    head.kind == Kind::Entry
        && head.len == location.len
        && crc32c::crc32c(body) == head.body_crc
        && EntryHeader::decode(body).is_ok_and(|header| (header.ledger, header.entry) == (ledger, entry))
}
