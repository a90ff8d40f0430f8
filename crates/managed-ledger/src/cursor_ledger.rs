//! The ledger of one cursor: snapshots and deltas, written and put together again.

use std::collections::VecDeque;

use bookkeeper_proto::{AddDone, EntryId, LedgerId};
use bytes::Bytes;
use prost::Message;

use crate::acks::{Acks, Changes, Stored, partial_info, range_info};
use crate::appender::Appender;
use crate::config::ManagedLedgerConfig;
use crate::effect::{Effects, Now};
use crate::formats::{CursorDelta, LongProperty, ManagedCursorInfo, PositionInfo};
use crate::line::Line;
use crate::position::Position;

/// A cursor ledger that we write.
pub(crate) struct CursorLedger {
    pub appender: Appender,
    opened_ms: u64,
    entries: u64,
    /// Of those, the entries of its first snapshot.
    opening: u64,
    /// Entry where the last complete snapshot begins.
    snapshot: i64,
    snapshot_bytes: usize,
    delta_bytes: usize,
    pub in_flight: Option<InFlight>,
}

/// The append in flight; there is one at a time.
pub(crate) struct InFlight {
    pub last: EntryId,
    pub tokens: Vec<u64>,
}

/// What a bookie's answer means for the append in flight.
pub(crate) enum Progress {
    Going,
    Durable(Vec<u64>),
    Failed(Vec<u64>),
}

impl CursorLedger {
    pub(crate) fn new(appender: Appender, now: Now) -> CursorLedger {
        CursorLedger {
            appender,
            opened_ms: now.monotonic_ms,
            entries: 0,
            opening: 0,
            snapshot: 0,
            snapshot_bytes: 0,
            delta_bytes: 0,
            in_flight: None,
        }
    }

    pub(crate) fn is_full(&self, now: Now, config: &ManagedLedgerConfig) -> bool {
        let age_ms = now.monotonic_ms.saturating_sub(self.opened_ms);
        // The snapshot it began with does not count: one that is larger than the limit would roll for ever.
        let since = self.entries - self.opening;
        since >= config.max_entries_per_cursor_ledger
            || age_ms >= config.cursor_rollover_time.as_millis() as u64 && since > 0
    }

    pub(crate) fn snapshot_is_due(&self, config: &ManagedLedgerConfig) -> bool {
        let since = self.entries.saturating_sub(self.snapshot as u64);
        self.entries == 0
            || since >= config.cursor_snapshot_entries && self.delta_bytes >= self.snapshot_bytes
            || since >= config.cursor_snapshot_entries.saturating_mul(10)
    }

    pub(crate) fn append_snapshot(
        &mut self,
        acks: &Acks,
        properties: &[LongProperty],
        config: &ManagedLedgerConfig,
        owner: u64,
        tokens: Vec<u64>,
        out: &mut Effects,
    ) {
        let first = self.entries as i64;
        let parts = snapshot_parts(acks, properties, self.snapshot, first, config.max_ranges_per_cursor_entry);
        self.snapshot_bytes = 0;
        for part in parts {
            self.snapshot_bytes += self.append(&part, owner, out);
        }
        if first == 0 {
            self.opening = self.entries;
        }
        self.snapshot = first;
        self.delta_bytes = 0;
        self.in_flight = Some(InFlight { last: EntryId(self.entries as i64 - 1), tokens });
    }

    pub(crate) fn append_delta(
        &mut self,
        acks: &Acks,
        changes: &Changes,
        properties: &[LongProperty],
        owner: u64,
        tokens: Vec<u64>,
        out: &mut Effects,
    ) {
        let mark_delete = acks.mark_delete();
        let ranges = changes
            .acked
            .iter()
            .flat_map(|(&ledger, set)| set.ranges().map(move |(first, last)| (ledger, first, last)));
        let acked = ranges.filter(|&(ledger, _, last)| Position::new(ledger.0, last) > mark_delete);
        let partial = changes.partial.iter().filter_map(|&at| Some(partial_info((at, acks.remaining(at)?))));
        let delta = CursorDelta {
            snapshot: self.snapshot,
            acked: acked.flat_map(|(ledger, first, last)| [ledger.0, first, last]).collect(),
            partial: partial.collect(),
        };
        let info = PositionInfo { delta: Some(delta), properties: properties.to_vec(), ..at(mark_delete) };
        self.delta_bytes += self.append(&info, owner, out);
        self.in_flight = Some(InFlight { last: EntryId(self.entries as i64 - 1), tokens });
    }

    fn append(&mut self, info: &PositionInfo, owner: u64, out: &mut Effects) -> usize {
        let bytes = Bytes::from(info.encode_to_vec());
        let (len, crc) = (bytes.len(), crc32c::crc32c(&bytes));
        self.appender.append(&[], bytes, crc, owner, out);
        self.entries += 1;
        len
    }

    pub(crate) fn on_done(&mut self, done: AddDone) -> Progress {
        let result = self.appender.on_done(done, |_, _| {});
        let last = self.in_flight.as_ref().map(|flight| flight.last);
        let mut tokens = || self.in_flight.take().map(|flight| flight.tokens).unwrap_or_default();
        match (result, last) {
            (Err(_), _) => Progress::Failed(tokens()),
            (Ok(()), Some(last)) if self.appender.last_confirmed() >= last => Progress::Durable(tokens()),
            (Ok(()), _) => Progress::Going,
        }
    }
}

fn at(mark_delete: Position) -> PositionInfo {
    PositionInfo { ledger_id: mark_delete.ledger.0, entry_id: mark_delete.entry.0, ..PositionInfo::default() }
}

/// A whole snapshot as entries from entry `first` on. One that fits into one entry is plain; of several, all but the last
/// refer to the snapshot before (`previous`).
fn snapshot_parts(
    acks: &Acks,
    properties: &[LongProperty],
    previous: i64,
    first: i64,
    max_ranges: usize,
) -> Vec<PositionInfo> {
    let mut parts = VecDeque::new();
    let mut part = PositionInfo { properties: properties.to_vec(), ..at(acks.mark_delete()) };
    let mut room = max_ranges.max(1);
    let mut next = |part: &mut PositionInfo, room: &mut usize| {
        if *room == 0 {
            let fresh = PositionInfo { properties: properties.to_vec(), ..at(acks.mark_delete()) };
            parts.push_back(std::mem::replace(part, fresh));
            *room = max_ranges.max(1);
        }
        *room -= 1;
    };
    for range in acks.ranges() {
        next(&mut part, &mut room);
        part.individual_deleted_messages.push(range_info(range));
    }
    for bits in acks.partial() {
        next(&mut part, &mut room);
        part.batched_entry_deletion_index_info.push(partial_info(bits));
    }
    parts.push_back(part);
    let count = parts.len();
    if count > 1 {
        for (index, part) in parts.iter_mut().enumerate() {
            let snapshot = if index + 1 == count { first } else { previous };
            part.delta = Some(CursorDelta { snapshot, ..CursorDelta::default() });
        }
    }
    parts.into()
}

/// Puts a cursor together from the entries of its ledger, last one first.
pub(crate) struct Replay {
    entries: Vec<(i64, PositionInfo)>,
}

impl Replay {
    /// The last entry of the ledger.
    pub(crate) fn new(entry: i64, last: PositionInfo) -> Replay {
        Replay { entries: vec![(entry, last)] }
    }

    /// The first entry needed.
    pub(crate) fn begins_at(&self) -> i64 {
        let (entry, last) = &self.entries[0];
        last.delta.as_ref().map_or(*entry, |delta| delta.snapshot.clamp(0, *entry))
    }

    /// An entry between [`Replay::begins_at`] and the last one.
    pub(crate) fn add(&mut self, entry: i64, info: PositionInfo) {
        self.entries.push((entry, info));
    }

    /// The state, and the properties of the last entry.
    pub(crate) fn finish(self, line: &Line) -> (Acks, Vec<LongProperty>) {
        let last = &self.entries[0].1;
        let mut acks = Acks::new(Position::new(last.ledger_id, last.entry_id));
        for (_, info) in &self.entries {
            acks.restore_all(
                &Stored {
                    ranges: &info.individual_deleted_messages,
                    bitmaps: &info.individual_deleted_message_ranges,
                    partial: &info.batched_entry_deletion_index_info,
                },
                line,
            );
            if let Some(delta) = &info.delta {
                delta.acked.chunks_exact(3).for_each(|range| acks.restore(LedgerId(range[0]), range[1], range[2]));
                acks.restore_all(&Stored { ranges: &[], bitmaps: &[], partial: &delta.partial }, line);
            }
        }
        acks.settle(line);
        (acks, last.properties.clone())
    }
}

/// The state as a node without a ledger says.
pub(crate) fn acks_of_info(info: &ManagedCursorInfo, line: &Line) -> Acks {
    let start = line.start();
    let mut acks = Acks::new(Position::new(
        info.mark_delete_ledger_id.unwrap_or(start.ledger.0),
        info.mark_delete_entry_id.unwrap_or(start.entry.0),
    ));
    let stored = Stored {
        ranges: &info.individual_deleted_messages,
        bitmaps: &[],
        partial: &info.batched_entry_deletion_index_info,
    };
    acks.restore_all(&stored, line);
    acks.settle(line);
    acks
}
