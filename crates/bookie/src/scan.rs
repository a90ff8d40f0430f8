//! Reads the commits of one segment from its bytes: at start for the log's tail, and for any segment whose index is missing.

use std::io;
use std::sync::Arc;

use bookkeeper_proto::{ENTRY_HEADER_LEN, EntryHeader, LedgerId};
use disk::{AlignedBuf, BLOCK, DiskFile};
use rustc_hash::FxHashMap;

use crate::format::{
    COMMIT_HEADER_LEN, CommitHeader, Kind, RECORD_HEAD_LEN, RecordHead, SegmentId, Stamp, StateRecord, decode_freed,
    round_up,
};
use crate::index::{DamagedRange, Location, OpenRun};

/// What the commits of a segment say.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub(crate) runs: FxHashMap<LedgerId, OpenRun>,
    /// The last state of each ledger that has one here.
    pub(crate) states: FxHashMap<LedgerId, StateRecord>,
    pub(crate) freed: Vec<SegmentId>,
    /// Behind the last whole commit.
    pub(crate) end: u64,
    /// Where the last whole commit lies and how long it is with its padding.
    pub(crate) last_commit: Option<(u64, usize)>,
    /// Of the last whole commit; one less than the first one's if there is none.
    pub(crate) last_sequence: u64,
    /// Stretches before the last whole commit that are not what was written.
    pub(crate) damaged: Vec<DamagedRange>,
    pub(crate) entries: u64,
    pub(crate) state_bytes: u64,
}

const WINDOW_BYTES: usize = 1 << 20;

/// A sliding window over a file, read in large aligned pieces.
struct Window<'a> {
    file: &'a Arc<dyn DiskFile>,
    buf: AlignedBuf,
    start: u64,
    len: usize,
}

impl Window<'_> {
    /// Fewer than `len` bytes only at the end of the file.
    fn bytes(&mut self, offset: u64, len: usize) -> io::Result<&[u8]> {
        let is_inside = offset >= self.start && offset + len as u64 <= self.start + self.len as u64;
        if !is_inside {
            let start = offset - offset % BLOCK as u64;
            let needed = round_up(offset + len as u64 - start) as usize;
            if self.buf.len() < needed.max(WINDOW_BYTES) {
                self.buf = AlignedBuf::zeroed(needed.max(WINDOW_BYTES));
            }
            self.len = self.file.read_at(&mut self.buf, start)?;
            self.start = start;
        }
        let at = (offset - self.start) as usize;
        Ok(&self.buf[at.min(self.len)..(at + len).min(self.len)])
    }
}

/// A record whose head is whole.
#[derive(Clone, Copy)]
struct Record {
    head: RecordHead,
    offset: u64,
    /// Whether the body is what was written.
    is_whole: bool,
}

struct Commit {
    header: CommitHeader,
    records: Vec<Record>,
    /// Where its records cannot be followed any more.
    broken_at: Option<u64>,
}

impl Commit {
    fn is_whole(&self) -> bool {
        self.broken_at.is_none() && self.records.iter().all(|record| record.is_whole)
    }
}

/// Reads the commits of a segment whose file is `file_bytes` long.
pub(crate) fn scan(
    file: &Arc<dyn DiskFile>,
    stamp: &Stamp,
    first_sequence: u64,
    file_bytes: u64,
) -> io::Result<Scanned> {
    let mut window = Window { file, buf: AlignedBuf::zeroed(WINDOW_BYTES), start: 0, len: 0 };
    let limit = file_bytes - BLOCK as u64;
    let mut scanned = Scanned {
        runs: FxHashMap::default(),
        states: FxHashMap::default(),
        freed: Vec::new(),
        end: BLOCK as u64,
        last_commit: None,
        last_sequence: first_sequence.wrapping_sub(1),
        damaged: Vec::new(),
        entries: 0,
        state_bytes: 0,
    };
    while scanned.end < limit {
        let at = scanned.end;
        let next = scanned.last_sequence.wrapping_add(1);
        let here = read_commit(&mut window, stamp, at, limit)?.filter(|commit| commit.header.sequence == next);
        match here {
            Some(commit) if commit.is_whole() => take(&mut window, at, &commit, &mut scanned)?,
            // A torn tail, or damage? Commits are written one after the other, each after the one before was synced. So if there is
            // a whole one behind, everything before it had been written whole.
            broken => match find_commit(&mut window, stamp, at + BLOCK as u64, limit, next)? {
                Some((found_at, found)) => {
                    salvage(&mut window, at, found_at, broken.as_ref(), &mut scanned)?;
                    take(&mut window, found_at, &found, &mut scanned)?;
                }
                None => break,
            },
        }
    }
    Ok(scanned)
}

/// The first whole commit at or behind `from` with at least this sequence number.
fn find_commit(
    window: &mut Window<'_>,
    stamp: &Stamp,
    from: u64,
    limit: u64,
    sequence: u64,
) -> io::Result<Option<(u64, Commit)>> {
    let mut at = from;
    while at < limit {
        if let Some(commit) = read_commit(window, stamp, at, limit)?
            && commit.header.sequence >= sequence
            && commit.is_whole()
        {
            return Ok(Some((at, commit)));
        }
        at += BLOCK as u64;
    }
    Ok(None)
}

/// `None`: there is no commit header of this segment.
fn read_commit(window: &mut Window<'_>, stamp: &Stamp, at: u64, limit: u64) -> io::Result<Option<Commit>> {
    let Some(header) = CommitHeader::decode(window.bytes(at, COMMIT_HEADER_LEN)?, stamp) else { return Ok(None) };
    let len = header.len as usize;
    if len < COMMIT_HEADER_LEN || at + u64::from(header.len) > limit {
        return Ok(None);
    }
    let bytes = window.bytes(at, len)?;
    let mut commit =
        Commit { header, records: Vec::with_capacity(header.records.min(1 << 16) as usize), broken_at: None };
    let mut heads = Vec::with_capacity(commit.records.capacity() * RECORD_HEAD_LEN);
    let mut pos = COMMIT_HEADER_LEN;
    for _ in 0..header.records {
        let head = bytes.get(pos..pos + RECORD_HEAD_LEN).and_then(|head| RecordHead::decode(head, stamp));
        let body_at = pos + RECORD_HEAD_LEN;
        let body = head.and_then(|head| bytes.get(body_at..body_at + head.len as usize));
        let (Some(head), Some(body)) = (head, body) else {
            commit.broken_at = Some(at + pos as u64);
            return Ok(Some(commit));
        };
        let is_whole = crc32c::crc32c(body) == head.body_crc && is_well_formed(head.kind, body);
        heads.extend_from_slice(&bytes[pos..body_at]);
        commit.records.push(Record { head, offset: at + pos as u64, is_whole });
        pos = body_at + body.len();
    }
    if pos != bytes.len() || stamp.checksum(&heads) != header.heads {
        // The records of two commits that were both cut short, one over the other.
        commit.records.clear();
        commit.broken_at = Some(at + COMMIT_HEADER_LEN as u64);
    }
    Ok(Some(commit))
}

fn is_well_formed(kind: Kind, body: &[u8]) -> bool {
    match kind {
        Kind::Entry => body.len() >= ENTRY_HEADER_LEN,
        Kind::State => StateRecord::decode(body).is_some_and(|(_, len)| len == body.len()),
        Kind::Freed => decode_freed(body).is_some(),
    }
}

fn take(window: &mut Window<'_>, at: u64, commit: &Commit, scanned: &mut Scanned) -> io::Result<()> {
    for record in commit.records.iter().filter(|record| record.is_whole) {
        let body = window.bytes(record.offset + RECORD_HEAD_LEN as u64, record.head.len as usize)?;
        match record.head.kind {
            Kind::Entry => {
                let Ok(header) = EntryHeader::decode(body) else { continue };
                let location = Location { offset: record.offset as u32, len: record.head.len };
                let record_bytes = RECORD_HEAD_LEN as u64 + u64::from(record.head.len);
                let run = scanned.runs.entry(header.ledger).or_insert_with(OpenRun::new);
                run.insert(header.entry, header.last_add_confirmed, location, record_bytes);
                scanned.entries += 1;
            }
            Kind::State => {
                scanned.state_bytes += body.len() as u64;
                if let Some((state, _)) = StateRecord::decode(body) {
                    scanned.states.insert(state.ledger, state);
                }
            }
            Kind::Freed => scanned.freed.extend(decode_freed(body)),
        }
    }
    scanned.end = round_up(at + u64::from(commit.header.len));
    scanned.last_commit = Some((at, (scanned.end - at) as usize));
    scanned.last_sequence = commit.header.sequence;
    Ok(())
}

/// Takes what is still whole between `at` and `until`, and notes the rest as damaged.
fn salvage(
    window: &mut Window<'_>,
    at: u64,
    until: u64,
    broken: Option<&Commit>,
    scanned: &mut Scanned,
) -> io::Result<()> {
    let Some(commit) = broken.filter(|commit| round_up(at + u64::from(commit.header.len)) <= until) else {
        scanned.damaged.push(DamagedRange { offset: at, len: until - at });
        return Ok(());
    };
    take(window, at, commit, scanned)?;
    let bodies = commit.records.iter().filter(|record| !record.is_whole);
    let bodies = bodies.map(|record| DamagedRange { offset: record.offset, len: u64::from(record.head.len) });
    scanned.damaged.extend(bodies);
    let end = round_up(at + u64::from(commit.header.len));
    if let Some(offset) = commit.broken_at {
        scanned.damaged.push(DamagedRange { offset, len: end - offset });
    }
    if end < until {
        scanned.damaged.push(DamagedRange { offset: end, len: until - end });
    }
    Ok(())
}
