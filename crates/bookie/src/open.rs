//! Finds out at start what the log holds.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bookkeeper_proto::LedgerId;
use disk::{AlignedBuf, BLOCK, Disk, DiskFile, OpenMode, SyncPoint};

use crate::core::{BookieCore, FreeFile, Writer};
use crate::format::{FORMAT_VERSION, Footer, Header, HeaderError, SegmentId, Stamp};
use crate::index::{DamagedRange, Summary, decode_summary};
use crate::reader::Shared;
use crate::scan::{Scanned, scan};
use crate::state::{Index, LogState, Segment, file_name};
use crate::stats::Counters;
use crate::{BookieConfig, Damage, OpenError, Recovered};

/// Makes the log's folder durable in its parent.
pub const SYNC_LOG_FOLDER: SyncPoint = SyncPoint("log-folder");
/// Makes durable which names were found: they may be there without having been synced, after a kill without a crash.
pub const SYNC_FOUND_NAMES: SyncPoint = SyncPoint("log-found-names");
/// Makes durable what was found in a segment before anybody is told of it, for the same reason.
pub const SYNC_FOUND_COMMITS: SyncPoint = SyncPoint("log-found-commits");

/// What is known of one segment's file before its content is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderFinding {
    Sound,
    /// Sound, but of another log or under another id than the file's name says.
    Stranger,
    Newer,
    /// Not a header, with or without the magic.
    Broken,
}

/// What to do with a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    LoadIndex,
    /// Read the commits, then write the missing index.
    ScanAndSeal,
    /// Read the commits and go on behind them.
    ScanAndContinue,
    /// Read the commits although the header is gone; report it.
    ScanWithoutHeader,
    RefuseNewer,
    RefuseForeign,
}

/// `is_ours`: a footer or a commit in it carries this log's stamp.
pub(crate) fn action_for(header: HeaderFinding, has_footer: bool, is_newest: bool, is_ours: bool) -> Action {
    match (header, has_footer, is_newest, is_ours) {
        (HeaderFinding::Sound, true, _, _) => Action::LoadIndex,
        (HeaderFinding::Sound, false, true, _) => Action::ScanAndContinue,
        (HeaderFinding::Sound, false, false, _) => Action::ScanAndSeal,
        (HeaderFinding::Newer, _, _, _) => Action::RefuseNewer,
        (HeaderFinding::Stranger, _, _, _) => Action::RefuseForeign,
        (HeaderFinding::Broken, true, _, _) => Action::LoadIndex,
        (HeaderFinding::Broken, false, _, true) => Action::ScanWithoutHeader,
        (HeaderFinding::Broken, false, _, false) => Action::RefuseForeign,
    }
}

struct Found {
    id: SegmentId,
    file: Arc<dyn DiskFile>,
    file_bytes: u64,
    header: Result<Header, HeaderError>,
}

pub(crate) fn open(config: BookieConfig, disk: Arc<dyn Disk>) -> Result<(BookieCore, Recovered), OpenError> {
    let folder = config.folder.clone();
    let failed = |tried: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| OpenError::Io { tried, path, source }
    };
    let parent = folder.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    disk.create_dir(&folder).map_err(failed("create", &folder))?;
    disk.sync_dir(&parent, SYNC_LOG_FOLDER).map_err(failed("sync", &parent))?;
    let names = disk.list(&folder).map_err(failed("list", &folder))?;
    disk.sync_dir(&folder, SYNC_FOUND_NAMES).map_err(failed("sync", &folder))?;

    let mut ids = BTreeSet::new();
    let mut free = Vec::new();
    let mut max_id = 0;
    for name in names {
        let (stem, kind) = name.rsplit_once('.').unwrap_or((&name, ""));
        match (stem.parse::<u64>(), kind) {
            (Ok(id), "seg") => {
                max_id = max_id.max(id);
                ids.insert(SegmentId(id));
            }
            (Ok(id), "free") => {
                max_id = max_id.max(id);
                free.push(FreeFile { name, is_written: false, was: None });
            }
            _ => tracing::warn!(folder = %folder.display(), name, "file does not belong to the log, ignored"),
        }
    }

    let mut found = Vec::new();
    for id in &ids {
        let path = folder.join(file_name(*id));
        let file = disk.open(&path, OpenMode::Direct).map_err(failed("open", &path))?;
        let file_bytes = file.len().map_err(failed("measure", &path))?;
        let header = read_header(&file).map_err(failed("read", &path))?;
        found.push(Found { id: *id, file, file_bytes, header });
    }

    // The log's number stands in every segment, so one sound header is enough to read the others' commits.
    let log = found.iter().find_map(|found| found.header.as_ref().ok()).map(|header| header.log);
    let log = log.or(config.log_number).unwrap_or_else(draw_log_number);
    let shared = Arc::new(Shared::new(config, disk, LogState::new()));
    let mut core = BookieCore::new(shared.clone(), log);
    core.next_id = max_id + 1;
    core.free = free.into();
    Counters::set(&shared.counters.free_segments, core.free.len() as u64);
    core.previous = ids.last().copied();
    let mut recovered = Recovered::default();
    for i in 0..found.len() {
        load(&mut core, &found, i, &mut recovered)?;
    }
    recovered.segments = found.len();
    recovered.ledgers = shared.state.read().ledgers.values().filter(|ledger| !ledger.deleted).count();
    Ok((core, recovered))
}

/// The first block of a segment, taken apart.
pub(crate) fn read_header(file: &Arc<dyn DiskFile>) -> io::Result<Result<Header, HeaderError>> {
    let mut block = AlignedBuf::zeroed(BLOCK);
    let read = file.read_at(&mut block, 0)?;
    Ok(Header::decode(&block[..read]))
}

fn load(core: &mut BookieCore, all: &[Found], at: usize, recovered: &mut Recovered) -> Result<(), OpenError> {
    let Found { id, file, file_bytes, header } = &all[at];
    let path = core.shared.config.folder.join(file_name(*id));
    let failed = |tried: &'static str| {
        let path = path.clone();
        move |source: io::Error| OpenError::Io { tried, path, source }
    };
    let stamp = Stamp::new(core.log, *id);
    let finding = match header {
        Ok(header) if (header.log, header.generation) == (core.log, *id) => HeaderFinding::Sound,
        Ok(_) => HeaderFinding::Stranger,
        Err(HeaderError::Newer { .. }) => HeaderFinding::Newer,
        Err(HeaderError::Damaged | HeaderError::NotALog) => HeaderFinding::Broken,
    };
    let file_bytes = header.as_ref().map_or(*file_bytes, |header| header.segment_bytes);
    let is_newest = at + 1 == all.len();
    let is_tail = finding == HeaderFinding::Sound && is_newest;

    let index = read_index(file, &stamp, file_bytes).map_err(failed("read"))?;
    // Without a header the first sequence number is unknown, and the first commit found counts as the first.
    let first_sequence = header.as_ref().map_or(0, |header| header.first_sequence);
    let mut scanned = None;
    if index.is_none()
        && matches!(finding, HeaderFinding::Sound | HeaderFinding::Broken)
        && file_bytes >= 2 * BLOCK as u64
    {
        let start = if finding == HeaderFinding::Broken { 1 } else { first_sequence };
        scanned = Some(scan(file, &stamp, start, file_bytes).map_err(failed("read"))?);
    }
    let is_ours = scanned.as_ref().is_some_and(|scanned| scanned.end > BLOCK as u64);
    let action = action_for(finding, index.is_some(), is_newest, is_ours);

    if action == Action::RefuseNewer {
        let Err(HeaderError::Newer { version }) = header else { unreachable!("the finding came from it") };
        return Err(OpenError::Newer { path, version: *version, known: FORMAT_VERSION });
    }
    if action == Action::RefuseForeign {
        return Err(OpenError::Foreign { path });
    }
    let header_is_broken = finding == HeaderFinding::Broken;
    let (end, last_sequence) = match (&index, &scanned) {
        (Some((footer, _)), _) => (footer.end, footer.last_sequence),
        (None, Some(scanned)) => (scanned.end, scanned.last_sequence),
        (None, None) => return Err(OpenError::Foreign { path }),
    };
    let mut damaged = match (&index, &scanned) {
        (Some((_, summary)), _) => summary.damaged.clone(),
        (None, Some(scanned)) => scanned.damaged.clone(),
        (None, None) => Vec::new(),
    };
    if header_is_broken {
        recovered.damage.push(Damage { path: path.clone(), offset: 0, len: BLOCK as u64 });
    }
    // The next segment began when this one was complete: what its header promises and is not here has been lost.
    let next = all.get(at + 1).and_then(|next| next.header.as_ref().ok());
    let promised = next.filter(|next| next.previous == Some(*id)).map(|next| next.first_sequence);
    if index.is_none() && promised.is_some_and(|promised| promised > last_sequence.wrapping_add(1)) {
        damaged.push(DamagedRange { offset: end, len: file_bytes - BLOCK as u64 - end });
    }
    for range in &damaged {
        recovered.damage.push(Damage { path: path.clone(), offset: range.offset, len: range.len });
    }
    if action != Action::LoadIndex {
        // After a kill without a crash the last commit can be read without being durable; nobody must be told of it before it is.
        // A sync that failed before the kill may have left it readable and clean, so that syncing alone would do nothing: the same bytes
        // are written over themselves. All commits before were synced before it began.
        if let Some((offset, len)) = scanned.as_ref().and_then(|scanned| scanned.last_commit) {
            let mut commit = AlignedBuf::zeroed(len);
            // A file cut within the padding reads short; the padding is zero anyway.
            file.read_at(&mut commit, offset).map_err(failed("read"))?;
            file.write_all_at(&commit, offset).map_err(failed("write to"))?;
        }
        file.sync(SYNC_FOUND_COMMITS).map_err(failed("sync"))?;
        recovered.scanned_segments += 1;
    }

    let (entries, state_bytes) = scanned.as_ref().map_or((0, 0), |scanned| (scanned.entries, scanned.state_bytes));
    let freed = scanned.as_ref().map(|scanned| scanned.freed.clone());
    let mut segment = Segment::new(stamp, file_bytes, end, last_sequence);
    let is_sound = damaged.is_empty() && !header_is_broken;
    segment.damaged = damaged;
    apply(core, segment, index.map(|(_, summary)| summary), scanned);

    // Within a segment sequence numbers have no gap, whatever became of a commit of unknown outcome in the one before.
    core.next_sequence = match action {
        Action::ScanAndContinue => last_sequence + 1,
        _ => core.next_sequence.max(last_sequence + 1).max(promised.unwrap_or(0)),
    };
    if let (true, Ok(header), Some(freed)) = (is_tail, header, &freed) {
        check_all_there(core, header, freed)?;
    }
    match action {
        // The blocks behind the index are free, but it is not worth a second kind of file.
        Action::ScanAndSeal if is_sound => core.seal_segment(*id, file),
        Action::ScanAndContinue => {
            core.writer = Some(Writer {
                stamp,
                file: file.clone(),
                file_bytes,
                end,
                entries,
                state_bytes,
                is_written: false,
                written_to: end,
                is_writing_ahead: true,
                unchecked_bytes: u64::MAX / 2,
            });
        }
        _ => {}
    }
    Ok(())
}

/// The newest segment knows which ones were alive when it began, and which were freed since.
fn check_all_there(core: &BookieCore, header: &Header, freed: &[SegmentId]) -> Result<(), OpenError> {
    let state = core.shared.state.read();
    let is_missing = |id: &&SegmentId| !freed.contains(id) && !state.segments.contains_key(id);
    match header.alive.iter().flatten().find(is_missing) {
        Some(id) => Err(OpenError::Missing { path: core.shared.config.folder.join(file_name(*id)) }),
        None => Ok(()),
    }
}

/// `None`: not sealed, or the index cannot be trusted.
fn read_index(file: &Arc<dyn DiskFile>, stamp: &Stamp, file_bytes: u64) -> io::Result<Option<(Footer, Summary)>> {
    let Some(footer_at) = file_bytes.checked_sub(BLOCK as u64) else { return Ok(None) };
    let mut block = AlignedBuf::zeroed(BLOCK);
    if !footer_at.is_multiple_of(BLOCK as u64) {
        return Ok(None);
    }
    let read = file.read_at(&mut block, footer_at)?;
    let Some(footer) = Footer::decode(&block[..read], stamp) else { return Ok(None) };
    if footer.end > footer_at || footer.summary_len > footer_at - footer.end || !footer.end.is_multiple_of(BLOCK as u64)
    {
        return Ok(None);
    }
    let mut bytes = AlignedBuf::zeroed(footer.summary_len.next_multiple_of(BLOCK as u64) as usize);
    let read = file.read_at(&mut bytes, footer.end)?;
    let summary = &bytes[..(footer.summary_len as usize).min(read)];
    Ok(decode_summary(summary, &footer, stamp).map(|summary| (footer, summary)))
}

/// Puts a segment's content into the state. Segments come oldest first.
fn apply(core: &mut BookieCore, mut segment: Segment, summary: Option<Summary>, scanned: Option<Scanned>) {
    let id = segment.stamp.generation;
    let (index, states) = match (summary, scanned) {
        (Some(summary), _) => (Index::Sealed(summary.runs), summary.states),
        (None, Some(scanned)) => (Index::Open(scanned.runs), scanned.states.into_values().collect()),
        (None, None) => (segment.index, Vec::new()),
    };
    let mut runs: Vec<(LedgerId, _, _, _)> = match &index {
        Index::Open(runs) => runs.iter().map(|(ledger, run)| (*ledger, run.last, run.lac, run.bytes)).collect(),
        Index::Sealed(runs) => runs.iter().map(|(ledger, run)| (*ledger, run.last, run.lac, run.bytes)).collect(),
    };
    runs.sort();
    segment.index = index;
    segment.states = states.iter().map(|state| state.ledger).collect();
    let mut state = core.shared.state.write();
    state.insert_segment(segment);
    // Entries of a ledger come before its deletion, so states are applied after them.
    for (ledger, last, lac, bytes) in runs {
        state.apply_run(id, ledger, last, lac, bytes);
    }
    for record in &states {
        state.apply_state(id, record);
    }
}

/// A number that other logs do not have, and that clients cannot guess.
fn draw_log_number() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_with_a_segment_at_start() {
        use Action::*;
        use HeaderFinding::*;
        // header, footer, newest, ours
        let cases = [
            ((Sound, true, false, true), LoadIndex),
            ((Sound, true, true, true), LoadIndex),
            ((Sound, false, true, true), ScanAndContinue),
            // New, without a commit so far.
            ((Sound, false, true, false), ScanAndContinue),
            ((Sound, false, false, true), ScanAndSeal),
            ((Sound, false, false, false), ScanAndSeal),
            ((Broken, true, false, false), LoadIndex),
            ((Broken, false, false, true), ScanWithoutHeader),
            ((Broken, false, true, true), ScanWithoutHeader),
            ((Broken, false, true, false), RefuseForeign),
            ((Broken, false, false, false), RefuseForeign),
            ((Stranger, true, true, true), RefuseForeign),
            ((Stranger, false, false, false), RefuseForeign),
            ((Newer, true, true, true), RefuseNewer),
            ((Newer, false, false, false), RefuseNewer),
        ];
        for ((header, has_footer, is_newest, is_ours), expected) in cases {
            assert_eq!(
                action_for(header, has_footer, is_newest, is_ours),
                expected,
                "{header:?} {has_footer} {is_newest}"
            );
        }
    }
}
