//! What the log holds, in memory: ledgers, segments and who mentions whom. Plain data; no I/O, no locks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bookkeeper_proto::{BookieError, EntryId, LedgerId, MasterKey};
use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::format::{RECORD_HEAD_LEN, SegmentId, Stamp, StateRecord};
use crate::index::{DamagedRange, Location, OpenRun, SealedRun, Table};

/// One ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// `None`: the log has entries of this ledger but has lost the record with its key.
    pub(crate) key: Option<MasterKey>,
    pub(crate) fenced: bool,
    pub(crate) deleted: bool,
    pub(crate) explicit_lac: Option<Bytes>,
    /// The highest LAC in the headers of its entries.
    pub(crate) header_lac: EntryId,
    pub(crate) last: EntryId,
    /// Segments with entries of it, oldest first; empty once deleted.
    pub(crate) segments: Vec<SegmentId>,
    /// How many segments that may come back after a crash hold any record of it.
    pub(crate) holders: u32,
    /// The oldest segment in which it was seen.
    pub(crate) born: SegmentId,
    /// The segment with the durable record of the state above; `None` while there is no such record.
    pub(crate) saved_in: Option<SegmentId>,
}

impl Ledger {
    pub(crate) fn new(key: Option<MasterKey>, born: SegmentId) -> Ledger {
        Ledger {
            key,
            fenced: false,
            deleted: false,
            explicit_lac: None,
            header_lac: EntryId::NONE,
            last: EntryId::NONE,
            segments: Vec::new(),
            holders: 0,
            born,
            saved_in: None,
        }
    }

    /// The highest LAC known: explicit, or from the headers of the entries.
    pub(crate) fn lac(&self) -> EntryId {
        let explicit = self.explicit_lac.as_deref().and_then(lac_of_blob);
        explicit.map_or(self.header_lac, |lac| lac.max(self.header_lac))
    }

    /// `None`: nothing is known that a record could hold.
    pub(crate) fn record(&self, ledger: LedgerId) -> Option<StateRecord> {
        // Nobody asks for the key of a deleted ledger, so a mark can be written without it.
        let key = self.key.or(self.deleted.then_some(MasterKey([0; 20])))?;
        let explicit_lac = self.explicit_lac.clone().filter(|_| !self.deleted);
        Some(StateRecord { ledger, key, fenced: self.fenced, deleted: self.deleted, explicit_lac })
    }
}

/// The LAC in an explicit LAC blob: ledger id i64, LAC i64, digest; big-endian, as on the wire.
pub(crate) fn lac_of_blob(blob: &[u8]) -> Option<EntryId> {
    Some(EntryId(i64::from_be_bytes(blob.get(8..16)?.try_into().ok()?)))
}

/// Where the entries of one segment are looked up.
#[derive(Debug)]
pub(crate) enum Index {
    /// In memory.
    Open(FxHashMap<LedgerId, OpenRun>),
    /// In the file; here only where.
    Sealed(FxHashMap<LedgerId, SealedRun>),
}

/// One segment that holds, or takes, commits.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) stamp: Stamp,
    pub(crate) file_bytes: u64,
    /// Where its commits end.
    pub(crate) end: u64,
    pub(crate) last_sequence: u64,
    pub(crate) index: Index,
    /// Length of the records of entries whose ledgers are not deleted.
    pub(crate) live_bytes: u64,
    /// Ledgers with a state record in it, current or not.
    pub(crate) states: BTreeSet<LedgerId>,
    pub(crate) damaged: Vec<DamagedRange>,
}

impl Segment {
    pub(crate) fn new(stamp: Stamp, file_bytes: u64, end: u64, last_sequence: u64) -> Segment {
        Segment {
            stamp,
            file_bytes,
            end,
            last_sequence,
            index: Index::Open(FxHashMap::default()),
            live_bytes: 0,
            states: BTreeSet::new(),
            damaged: Vec::new(),
        }
    }

    fn has_run(&self, ledger: LedgerId) -> bool {
        match &self.index {
            Index::Open(runs) => runs.contains_key(&ledger),
            Index::Sealed(runs) => runs.contains_key(&ledger),
        }
    }

    fn run_bytes(&self, ledger: LedgerId) -> u64 {
        match &self.index {
            Index::Open(runs) => runs.get(&ledger).map_or(0, |run| run.bytes),
            Index::Sealed(runs) => runs.get(&ledger).map_or(0, |run| run.bytes),
        }
    }

    pub(crate) fn mentions(&self, ledger: LedgerId) -> bool {
        self.states.contains(&ledger) || self.has_run(ledger)
    }

    /// All ledgers with a record in it.
    pub(crate) fn mentioned(&self) -> Vec<LedgerId> {
        let mut all = self.states.clone();
        match &self.index {
            Index::Open(runs) => all.extend(runs.keys()),
            Index::Sealed(runs) => all.extend(runs.keys()),
        }
        all.into_iter().collect()
    }
}

/// The last commit blocks, whole: reads of fresh entries are slices of them.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// Segment, offset in it, bytes; oldest first.
    commits: VecDeque<(SegmentId, u64, Bytes)>,
    bytes: usize,
}

impl Recent {
    pub(crate) fn push(&mut self, segment: SegmentId, offset: u64, commit: Bytes, limit_bytes: usize) {
        self.bytes += commit.len();
        self.commits.push_back((segment, offset, commit));
        while self.bytes > limit_bytes {
            let Some((_, _, oldest)) = self.commits.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }

    pub(crate) fn get(&self, segment: SegmentId, location: Location) -> Option<Bytes> {
        let record = u64::from(location.offset);
        let behind = self.commits.partition_point(|(id, offset, _)| (*id, *offset) <= (segment, record));
        let (id, offset, commit) = self.commits.get(behind.checked_sub(1)?)?;
        let start = usize::try_from(record - offset).ok().filter(|_| *id == segment)? + RECORD_HEAD_LEN;
        let end = start + location.len as usize;
        (end <= commit.len()).then(|| commit.slice(start..end))
    }
}

/// A place where an entry is, or may be.
#[derive(Clone, Debug)]
pub(crate) enum Candidate {
    InMemory(Bytes),
    At(Stamp, Location),
    /// Only the table in the file can tell.
    Ask(Stamp, SealedRun),
}

/// The whole log.
#[derive(Debug)]
pub(crate) struct LogState {
    pub(crate) ledgers: FxHashMap<LedgerId, Ledger>,
    pub(crate) segments: BTreeMap<SegmentId, Segment>,
    pub(crate) recent: Recent,
}

impl LogState {
    pub(crate) fn new() -> LogState {
        LogState { ledgers: FxHashMap::default(), segments: BTreeMap::new(), recent: Recent::default() }
    }

    /// A state record of `segment` is durable. Records arrive in the order of the log.
    pub(crate) fn apply_state(&mut self, segment: SegmentId, record: &StateRecord) {
        self.mention(segment, record.ledger);
        let Some(ledger) = self.ledgers.get_mut(&record.ledger) else { return };
        if ledger.deleted && !record.deleted {
            // Somebody made a ledger of this name after the mark of the former one had become needless.
            *ledger = Ledger { holders: ledger.holders, ..Ledger::new(None, segment) };
        }
        ledger.key = Some(record.key);
        ledger.fenced = record.fenced;
        ledger.explicit_lac.clone_from(&record.explicit_lac);
        ledger.saved_in = Some(segment);
        if record.deleted {
            self.mark_deleted(record.ledger);
        }
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.states.insert(record.ledger);
        }
    }

    /// From now on the entries of the ledger are dead. Saving that is the caller's business.
    pub(crate) fn mark_deleted(&mut self, id: LedgerId) {
        let Some(ledger) = self.ledgers.get_mut(&id) else { return };
        ledger.deleted = true;
        for segment in std::mem::take(&mut ledger.segments) {
            if let Some(segment) = self.segments.get_mut(&segment) {
                segment.live_bytes = segment.live_bytes.saturating_sub(segment.run_bytes(id));
            }
        }
    }

    /// An entry's record in a segment whose index is open is durable.
    pub(crate) fn apply_entry(
        &mut self,
        segment: SegmentId,
        id: LedgerId,
        entry: EntryId,
        lac: EntryId,
        location: Location,
    ) {
        let record_bytes = RECORD_HEAD_LEN as u64 + u64::from(location.len);
        self.mention(segment, id);
        let Some(ledger) = self.ledgers.get_mut(&id) else { return };
        let Some(found) = self.segments.get_mut(&segment) else { return };
        let Index::Open(runs) = &mut found.index else { return };
        runs.entry(id).or_insert_with(OpenRun::new).insert(entry, lac, location, record_bytes);
        // An add and the deletion of its ledger may share a commit: then it is dead on arrival.
        if !ledger.deleted {
            found.live_bytes += record_bytes;
            ledger.last = ledger.last.max(entry);
            ledger.header_lac = ledger.header_lac.max(lac);
            if ledger.segments.last() != Some(&segment) {
                ledger.segments.push(segment);
            }
        }
    }

    /// A whole run, found in a segment at start. The segment is in `segments` already, and newer than all before.
    pub(crate) fn apply_run(&mut self, segment: SegmentId, id: LedgerId, last: EntryId, lac: EntryId, bytes: u64) {
        let ledger = self.ledgers.entry(id).or_insert_with(|| Ledger::new(None, segment));
        if ledger.deleted {
            return;
        }
        ledger.last = ledger.last.max(last);
        ledger.header_lac = ledger.header_lac.max(lac);
        ledger.segments.push(segment);
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.live_bytes += bytes;
        }
    }

    /// Adds a segment found at start; its runs and states are still to be applied.
    pub(crate) fn insert_segment(&mut self, segment: Segment) {
        let id = segment.stamp.generation;
        for ledger in segment.mentioned() {
            self.ledgers.entry(ledger).or_insert_with(|| Ledger::new(None, id)).holders += 1;
        }
        self.segments.insert(id, segment);
    }

    /// Counts the segment among those that hold records of the ledger; to be called before the record is put into its index.
    pub(crate) fn mention(&mut self, segment: SegmentId, id: LedgerId) {
        let ledger = self.ledgers.entry(id).or_insert_with(|| Ledger::new(None, segment));
        if self.segments.get(&segment).is_some_and(|segment| !segment.mentions(id)) {
            ledger.holders += 1;
        }
    }

    /// A segment that mentioned these ledgers will not come back, whatever happens.
    pub(crate) fn segment_is_gone(&mut self, mentioned: &[LedgerId]) {
        for id in mentioned {
            let Some(ledger) = self.ledgers.get_mut(id) else { continue };
            ledger.holders = ledger.holders.saturating_sub(1);
            if ledger.deleted && ledger.holders == 0 {
                self.ledgers.remove(id);
            }
        }
    }

    /// Where to look for an entry, best place first.
    ///
    /// # Errors
    /// [`BookieError::NoLedger`] and what [`LogState::absence`] says.
    pub(crate) fn candidates(&self, id: LedgerId, entry: EntryId) -> Result<Vec<Candidate>, BookieError> {
        let Some(ledger) = self.ledgers.get(&id).filter(|ledger| !ledger.deleted) else {
            return Err(self.absence(id, entry));
        };
        let mut found = Vec::new();
        for segment in ledger.segments.iter().rev().filter_map(|segment| self.segments.get(segment)) {
            match &segment.index {
                Index::Open(runs) => {
                    let Some(location) = runs.get(&id).and_then(|run| run.table.get(entry)) else { continue };
                    found.push(match self.recent.get(segment.stamp.generation, location) {
                        Some(bytes) => Candidate::InMemory(bytes),
                        None => Candidate::At(segment.stamp, location),
                    });
                    break;
                }
                Index::Sealed(runs) => {
                    let Some(run) = runs.get(&id).filter(|run| (run.first..=run.last).contains(&entry)) else {
                        continue;
                    };
                    found.push(Candidate::Ask(segment.stamp, *run));
                }
            }
        }
        if found.is_empty() { Err(self.absence(id, entry)) } else { Ok(found) }
    }

    /// What to answer when an entry is not in any index. "No such entry" is a proof that ledger recovery acts on, so it is not given
    /// where a damaged stretch of the log may have held the entry.
    pub(crate) fn absence(&self, id: LedgerId, entry: EntryId) -> BookieError {
        let damaged = |segment: &&Segment| !segment.damaged.is_empty();
        let Some(ledger) = self.ledgers.get(&id) else {
            return match self.segments.values().find(damaged) {
                Some(segment) => unknown(id, segment),
                None => BookieError::NoLedger { ledger: id },
            };
        };
        if ledger.deleted {
            return BookieError::NoLedger { ledger: id };
        }
        // A ledger's entries are written in order: what lies behind its last one cannot have been in an older segment.
        let is_behind_last = |segment: &Segment| {
            entry > ledger.last && ledger.segments.last().is_some_and(|last| *last > segment.stamp.generation)
        };
        let may_hold = |segment: &&Segment| segment.stamp.generation >= ledger.born && !is_behind_last(segment);
        match self.segments.values().filter(damaged).find(may_hold) {
            Some(segment) => BookieError::Damaged {
                ledger: id,
                entry,
                file: file_name(segment.stamp.generation).into(),
                offset: segment.damaged[0].offset,
                detail: "this stretch of the log may have held the entry".into(),
            },
            None => BookieError::NoEntry { ledger: id, entry },
        }
    }
}

fn unknown(ledger: LedgerId, segment: &Segment) -> BookieError {
    let file = file_name(segment.stamp.generation);
    let detail: Arc<str> = format!("{file} is damaged at offset {}", segment.damaged[0].offset).into();
    BookieError::UnknownLedgerState { ledger, detail }
}

/// The name of a segment that holds commits.
pub(crate) fn file_name(id: SegmentId) -> String {
    format!("{id}.seg")
}

/// A table that was read from a sealed segment.
pub(crate) type SharedTable = Arc<Table>;
