//! The segments of the log: opened, sealed, freed and recycled; what happens when there is no room for another.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bookkeeper_proto::LedgerId;
use disk::{AlignedBuf, BLOCK, DiskFile, OpenMode, SyncPoint};

use super::{
    BookieCore, FreeFile, Mode, Plan, SYNC_FREED_NAME, SYNC_SEGMENT_HEADER, SYNC_SEGMENT_NAME, Writer, is_full,
};
use crate::BookieConfig;
use crate::format::{COMMIT_HEADER_LEN, Header, MAX_LAC_BLOB_LEN, SegmentId, Stamp, StateRecord, round_up};
use crate::index::{self, index_bound, state_bound};
use crate::state::{Index, LogState, Segment, file_name};
use crate::stats::Counters;

/// How far ahead of the commits blocks are written with zeros, and in which steps: small ones, because a commit that arrives
/// meanwhile waits.
const WRITE_AHEAD_BYTES: u64 = 4 << 20;
const WRITE_AHEAD_STEP_BYTES: u64 = 256 << 10;

impl BookieCore {
    /// Whether a further request fits into the segment behind what is planned.
    pub(super) fn fits(&self, state: &LogState, plan: &Plan, bytes: usize) -> bool {
        let Some(writer) = &self.writer else { return false };
        let ledgers = match state.segments.get(&writer.stamp.generation).map(|segment| &segment.index) {
            Some(Index::Open(runs)) => runs.len() as u64,
            _ => 0,
        };
        let commit = round_up((COMMIT_HEADER_LEN + plan.bytes + bytes) as u64);
        let states = writer.state_bytes + plan.state_bytes + state_bound(MAX_LAC_BLOB_LEN);
        let index = index_bound(writer.entries + plan.entries + 1, ledgers + plan.records.len() as u64 + 1, states);
        writer.end + commit + index + BLOCK as u64 <= writer.file_bytes
    }

    /// Sees to it that there is a segment with room for so many bytes of records, and space for the entries that are to come,
    /// or sets the mode that says why not.
    pub(super) fn make_room(&mut self, bytes: usize, for_entries: Option<usize>) {
        if matches!(self.mode, Mode::Failed(_)) {
            return;
        }
        if self.writer.is_some() {
            let fits = self.fits(&self.shared.state.read(), &Plan::default(), bytes);
            if !fits {
                self.seal();
            }
        }
        if self.writer.is_none() {
            match self.open_segment(for_entries.is_some()) {
                Ok(()) => {}
                Err(error) if is_full(&error) => {
                    // Deletions and fences are worth a segment out of the reserve.
                    self.set_mode(Mode::Full);
                    if let Err(error) = self.open_segment(false) {
                        self.set_mode(Mode::Failed(format!("cannot open a segment: {error}").into()));
                    }
                }
                Err(error) => self.set_mode(Mode::Failed(format!("cannot open a segment: {error}").into())),
            }
        }
        if let Some(bytes) = for_entries
            && self.mode == Mode::Writable
            && !self.has_space(bytes as u64)
        {
            self.set_mode(Mode::Full);
        }
    }

    /// Whether the disk has room for so many bytes in the segment that takes commits.
    pub(super) fn has_space(&mut self, bytes: u64) -> bool {
        let reserve = self.shared.config.reserve_bytes;
        let Some(writer) = &mut self.writer else { return false };
        if writer.is_written {
            return true;
        }
        writer.unchecked_bytes += bytes;
        if writer.unchecked_bytes < reserve / 8 && self.mode == Mode::Writable {
            return true;
        }
        writer.unchecked_bytes = 0;
        self.shared.disk.available_bytes().map_or(true, |available| available >= reserve + bytes)
    }

    pub(super) fn set_mode(&mut self, mode: Mode) {
        if self.mode == mode {
            return;
        }
        match &mode {
            Mode::Writable => tracing::info!("bookie takes entries again"),
            Mode::Full => tracing::warn!("disk is full: bookie refuses entries until there is space again"),
            Mode::Failed(reason) => tracing::error!(%reason, "bookie is read-only"),
        }
        Counters::set(&self.shared.counters.read_only, u64::from(mode != Mode::Writable));
        self.mode = mode;
    }

    pub(super) fn try_again(&mut self) {
        if self.writer.is_none() {
            match self.open_segment(true) {
                Ok(()) => {}
                Err(error) if is_full(&error) => return self.set_mode(Mode::Full),
                Err(error) => return self.set_mode(Mode::Failed(format!("cannot open a segment: {error}").into())),
            }
        }
        let wanted = self.shared.config.commit_bytes as u64;
        let mut has_space = self.has_space(wanted);
        if !has_space && self.free.iter().any(|free| free.is_written) {
            // A recycled segment needs no space.
            self.seal();
            has_space = self.open_segment(true).is_ok() && self.has_space(wanted);
        }
        if has_space {
            self.set_mode(Mode::Writable);
        }
    }

    /// Ends the segment that takes commits: its index goes into the file. That needs no sync, because the commits say the same.
    pub(crate) fn seal(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        self.may_collect = true;
        self.seal_segment(writer.stamp.generation, &writer.file);
    }

    pub(crate) fn seal_segment(&mut self, id: SegmentId, file: &Arc<dyn DiskFile>) {
        let shared = self.shared.clone();
        let (summary, written) = {
            let state = shared.state.read();
            let Some(segment) = state.segments.get(&id) else { return };
            let Index::Open(runs) = &segment.index else { return };
            let mut states: Vec<StateRecord> = Vec::with_capacity(segment.states.len());
            let newest = |ledger: &LedgerId| Some((*ledger, state.ledgers.get(ledger)?));
            for (ledger, found) in segment.states.iter().filter_map(newest) {
                // A state that a newer segment holds is left out there, not here: this one is replayed before.
                states.extend(found.record(ledger));
            }
            let damaged = segment.damaged.clone();
            let (bytes, footer, summary) =
                index::encode(&segment.stamp, segment.end, segment.last_sequence, runs, states, damaged);
            if segment.end + round_up(bytes.len() as u64) + BLOCK as u64 > segment.file_bytes {
                return;
            }
            let mut buf = AlignedBuf::zeroed(round_up(bytes.len() as u64) as usize);
            buf[..bytes.len()].copy_from_slice(&bytes);
            let mut block = AlignedBuf::zeroed(BLOCK);
            footer.encode(&segment.stamp, &mut block);
            let written = file
                .write_all_at(&buf, segment.end)
                .and_then(|()| file.write_all_at(&block, segment.file_bytes - BLOCK as u64));
            (summary, written.map(|()| buf.len() + BLOCK))
        };
        match written {
            Ok(written) => {
                Counters::add(&shared.counters.written_bytes, written as u64);
                if let Some(segment) = shared.state.write().segments.get_mut(&id) {
                    segment.index = Index::Sealed(summary.runs);
                }
            }
            // It stays in memory, and the next start scans the segment.
            Err(error) => tracing::warn!(segment = %id, %error, "cannot write a segment's index"),
        }
    }

    /// Makes a file the segment that takes commits.
    pub(super) fn open_segment(&mut self, for_entries: bool) -> io::Result<()> {
        let BookieConfig { segment_bytes, reserve_bytes, .. } = self.shared.config;
        let id = SegmentId(self.next_id);
        self.next_id += 1;
        // A recycled file costs no space, so the check is only for a new one.
        let (free, file) = match self.take_free() {
            Some(mut free) => {
                if let Some(mentioned) = free.was.take() {
                    // Were the file to come back as the segment it was, its ledgers' last words must not have been overwritten.
                    self.sync_folder(SYNC_FREED_NAME)?;
                    self.names_are_durable();
                    self.shared.state.write().segment_is_gone(&mentioned);
                }
                let file = self.shared.disk.open(&self.path(&free.name), OpenMode::Direct);
                (free, file)
            }
            None => {
                let needed = if for_entries { segment_bytes + reserve_bytes } else { 4 * BLOCK as u64 };
                let available = self.shared.disk.available_bytes()?;
                if available < needed {
                    let message = format!("{available} bytes left on the disk, {needed} needed for a segment");
                    return Err(io::Error::new(io::ErrorKind::StorageFull, message));
                }
                let name = format!("{id}.free");
                let file = self.shared.disk.create(&self.path(&name), OpenMode::Direct);
                (FreeFile { name, is_written: false, was: None }, file)
            }
        };
        let file = file?;
        let is_written = free.is_written && file.len()? == segment_bytes;
        if file.len()? != segment_bytes {
            file.set_len(segment_bytes)?;
        }
        let alive = self.shared.state.read().segments.keys().copied().collect();
        let header = Header {
            log: self.log,
            generation: id,
            first_sequence: self.next_sequence,
            previous: self.previous,
            segment_bytes,
            alive: Some(alive),
        };
        let mut block = AlignedBuf::zeroed(BLOCK);
        header.encode(&mut block);
        file.write_all_at(&block, 0)?;
        file.sync(SYNC_SEGMENT_HEADER)?;
        self.shared.disk.rename(&self.path(&free.name), &self.path(&file_name(id)))?;
        self.sync_folder(SYNC_SEGMENT_NAME)?;
        self.names_are_durable();
        Counters::add(&self.shared.counters.syncs, 1);
        Counters::add(&self.shared.counters.written_bytes, BLOCK as u64);

        let stamp = Stamp::new(self.log, id);
        let end = BLOCK as u64;
        let segment = Segment::new(stamp, segment_bytes, end, self.next_sequence - 1);
        self.shared.state.write().segments.insert(id, segment);
        self.previous = Some(id);
        self.writer = Some(Writer {
            stamp,
            file,
            file_bytes: segment_bytes,
            end,
            entries: 0,
            state_bytes: 0,
            is_written,
            written_to: if is_written { segment_bytes } else { end },
            is_writing_ahead: true,
            unchecked_bytes: u64::MAX / 2,
        });
        Ok(())
    }

    fn take_free(&mut self) -> Option<FreeFile> {
        let best = self.free.iter().position(|free| free.was.is_none() && free.is_written);
        let best = best.or_else(|| self.free.iter().position(|free| free.is_written));
        let taken = self.free.remove(best.unwrap_or(0));
        Counters::set(&self.shared.counters.free_segments, self.free.len() as u64);
        taken
    }

    pub(super) fn sync_folder(&self, point: SyncPoint) -> io::Result<()> {
        self.shared.disk.sync_dir(&self.shared.config.folder, point)?;
        Counters::add(&self.shared.counters.syncs, 1);
        Ok(())
    }

    /// The folder was synced: what was freed before will not come back.
    fn names_are_durable(&mut self) {
        let mut state = self.shared.state.write();
        for mentioned in self.free.iter_mut().filter_map(|free| free.was.take()) {
            state.segment_is_gone(&mentioned);
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        let folder: &Path = &self.shared.config.folder;
        folder.join(name)
    }

    /// Frees the segments in which nothing lives any more, after what they alone know was written again.
    pub(super) fn collect(&mut self) {
        self.may_collect = false;
        let current = self.writer.as_ref().map(|writer| writer.stamp.generation);
        let mut plan = Plan::default();
        let mut dead = Vec::new();
        {
            let state = self.shared.state.read();
            let is_dead = |segment: &&Segment| {
                // What a damaged stretch held is unknown, so nobody can say that it is dead.
                let id = segment.stamp.generation;
                segment.live_bytes == 0 && segment.damaged.is_empty() && Some(id) != current
            };
            for segment in state.segments.values().filter(is_dead) {
                let id = segment.stamp.generation;
                for ledger_id in &segment.states {
                    let Some(ledger) = state.ledgers.get(ledger_id) else { continue };
                    let newest_is_here = ledger.saved_in.is_none_or(|saved_in| saved_in == id);
                    let fate = fate_of_state(newest_is_here, ledger.deleted, ledger.holders > 1);
                    if fate == Fate::WriteAgain && !plan.saving.contains(ledger_id) {
                        plan.states(ledger.record(*ledger_id));
                    }
                }
                plan.push_freed(id);
                dead.push(id);
                // The rest comes with the next round.
                if plan.bytes > self.shared.config.segment_bytes as usize / 8 {
                    self.may_collect = true;
                    break;
                }
            }
        }
        if dead.is_empty() {
            return;
        }
        self.make_room(plan.bytes, None);
        if !self.fits(&self.shared.state.read(), &plan, 0) || !self.carry_out(plan) {
            // Nothing is lost: the next deletion, seal or tick tries again.
            return;
        }
        for id in dead {
            self.free_segment(id);
        }
    }

    fn free_segment(&mut self, id: SegmentId) {
        let name = format!("{id}.free");
        let to_pool = self.free.len() < self.shared.config.pool_segments;
        let from = self.path(&file_name(id));
        let moved =
            if to_pool { self.shared.disk.rename(&from, &self.path(&name)) } else { self.shared.disk.remove(&from) };
        if let Err(error) = moved {
            tracing::warn!(segment = %id, %error, "cannot free a dead segment");
            return;
        }
        let gone = self.shared.state.write().segments.remove(&id);
        self.shared.forget_segment(id);
        let Some(gone) = gone else { return };
        // A removed file still counts until the folder is synced: until then it may come back as the segment it was.
        let is_written = matches!(gone.index, Index::Sealed(_));
        let was = Some(gone.mentioned());
        if to_pool {
            self.free.push_back(FreeFile { name, is_written, was });
        } else if self.sync_folder(SYNC_FREED_NAME).is_ok() {
            self.names_are_durable();
            self.shared.state.write().segment_is_gone(&gone.mentioned());
        }
        Counters::set(&self.shared.counters.free_segments, self.free.len() as u64);
        tracing::debug!(segment = %id, pooled = to_pool, "segment freed");
    }

    /// Writes some blocks behind the last commit with zeros, so that the commits to come meet written ones: syncing those costs half,
    /// and does not wait for what other files have in the file system's journal.
    pub(super) fn write_ahead(&mut self) {
        if !self.wants_write_ahead() {
            return;
        }
        let needed = self.shared.config.reserve_bytes + WRITE_AHEAD_BYTES;
        let has_space = self.shared.disk.available_bytes().is_ok_and(|available| available >= needed);
        let Some(writer) = &mut self.writer else { return };
        let from = writer.written_to.max(writer.end);
        let step = WRITE_AHEAD_STEP_BYTES.min(writer.file_bytes - from);
        let written = has_space.then(|| writer.file.write_all_at(&AlignedBuf::zeroed(step as usize), from));
        match written {
            Some(Ok(())) => {
                writer.written_to = from + step;
                writer.is_writing_ahead = writer.written_to - writer.end < WRITE_AHEAD_BYTES;
                Counters::add(&self.shared.counters.written_bytes, step);
            }
            // It only serves speed, so this segment goes on without.
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot write blocks ahead of the log");
                writer.written_to = writer.file_bytes;
            }
            None => writer.written_to = writer.file_bytes,
        }
    }

    /// Whether [`BookieCore::tick`] would write ahead: worth its writes only while the log has time.
    pub fn wants_write_ahead(&self) -> bool {
        let wanted = |writer: &Writer| {
            let ahead = writer.written_to.saturating_sub(writer.end);
            let left = writer.file_bytes - writer.written_to.max(writer.end);
            left > 0 && ahead < if writer.is_writing_ahead { WRITE_AHEAD_BYTES } else { WRITE_AHEAD_BYTES / 2 }
        };
        !self.is_read_only() && self.writer.as_ref().is_some_and(wanted)
    }
}

/// What becomes of a ledger's state record when the segment that holds it is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// A newer one is durable in another segment.
    Superseded,
    WriteAgain,
    /// It marks the deletion of a ledger of which nothing is left.
    Forgotten,
}

fn fate_of_state(newest_is_here: bool, is_deleted: bool, is_held_elsewhere: bool) -> Fate {
    match (newest_is_here, is_deleted, is_held_elsewhere) {
        (false, _, _) => Fate::Superseded,
        (true, false, _) => Fate::WriteAgain,
        (true, true, true) => Fate::WriteAgain,
        (true, true, false) => Fate::Forgotten,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_a_state_when_its_segment_is_freed() {
        let cases = [
            // newest here, deleted, held elsewhere
            ((true, false, false), Fate::WriteAgain),
            ((true, false, true), Fate::WriteAgain),
            // Without the mark, what the other segment holds would come back to life.
            ((true, true, true), Fate::WriteAgain),
            ((true, true, false), Fate::Forgotten),
            ((false, false, false), Fate::Superseded),
            ((false, false, true), Fate::Superseded),
            ((false, true, false), Fate::Superseded),
            ((false, true, true), Fate::Superseded),
        ];
        for ((newest_is_here, is_deleted, is_held_elsewhere), expected) in cases {
            assert_eq!(fate_of_state(newest_is_here, is_deleted, is_held_elsewhere), expected);
        }
    }
}
