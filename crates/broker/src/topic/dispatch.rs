//! From the managed ledger to the consumers.

use bytes::Bytes;
use managed_ledger::{Ack, Entry, ManagedLedger, Read, ReadError, ReadLimit};
use pulsar_proto::entry_metadata;
use pulsar_proto::frame::PayloadBlock;
use pulsar_proto::message_metadata::MetadataPeek;

use super::{Topic, Turn};
use crate::door::Position;
use crate::subscription::{Deliverable, ReadKind, Subscription};

impl Topic {
    /// Sends what can be sent. Called once at the end of a turn in which something changed.
    pub(crate) fn dispatch(&mut self, turn: &mut Turn<'_>) {
        self.dirty = false;
        for subscription in self.subscriptions.values_mut() {
            dispatch(subscription, &mut self.ledger, turn);
        }
    }

    /// The answer to a read that had to wait.
    pub(super) fn entries_read(
        &mut self,
        reader: u64,
        from: Position,
        result: Result<Vec<Entry>, ReadError>,
        turn: &mut Turn<'_>,
    ) {
        if self.last_message_read(reader, &result) {
            return;
        }
        let Some(subscription) = self.subscriptions.values_mut().find(|subscription| subscription.reader == reader)
        else {
            return;
        };
        // Anything else was asked for before a rewind.
        let Some((expected, kind)) = subscription.reading.filter(|(expected, _)| *expected == from) else { return };
        subscription.reading = None;
        match result {
            Ok(entries) => {
                deliver(subscription, &mut self.ledger, kind, expected, entries, turn);
                self.dirty = true;
            }
            Err(error) => {
                tracing::warn!(topic = %self.name, subscription = %subscription.name, position = %from, %error, "cannot read, trying again");
                subscription.read_failed = true;
            }
        }
    }

    /// Reads that failed are tried again.
    pub(super) fn retry_reads(&mut self) {
        for subscription in self.subscriptions.values_mut() {
            self.dirty |= std::mem::take(&mut subscription.read_failed);
        }
    }
}

fn dispatch(subscription: &mut Subscription, ledger: &mut ManagedLedger, turn: &mut Turn<'_>) {
    let max_bytes = turn.env.config.dispatcher_max_read_bytes;
    while let Some(wish) = subscription.wish(turn.out) {
        let from = match wish.kind {
            ReadKind::Next => ledger.next_unacked(subscription.cursor, wish.from),
            ReadKind::Replay => wish.from,
        };
        let limit = ReadLimit { max_entries: wish.entries, max_bytes };
        match ledger.read(subscription.reader, from, limit, turn.effects) {
            Read::Ready(entries) => {
                if !deliver(subscription, ledger, wish.kind, from, entries, turn) {
                    return;
                }
            }
            Read::Pending => {
                subscription.reading = Some((ledger.at_or_after(from), wish.kind));
                return;
            }
            Read::AtEnd => match wish.kind {
                ReadKind::Next => return,
                // Everything from there on is gone.
                ReadKind::Replay => subscription.forget_replay(from, Position::LATEST),
            },
        }
    }
}

/// Sends entries that were read. False: somebody has to make room first, the rest will be read again.
fn deliver(
    subscription: &mut Subscription,
    ledger: &mut ManagedLedger,
    kind: ReadKind,
    from: Position,
    entries: Vec<Entry>,
    turn: &mut Turn<'_>,
) -> bool {
    subscription.begin_batch();
    if let (ReadKind::Replay, Some(first)) = (kind, entries.first()) {
        // What was to be sent again and is no longer there has been trimmed, so it was acknowledged.
        subscription.forget_replay(from, first.position);
    }
    for entry in entries {
        let position = entry.position;
        if !subscription.wants(kind, position) {
            continue;
        }
        if ledger.is_acked(subscription.cursor, position) {
            subscription.skip(kind, position);
            continue;
        }
        let content = Content::of(entry.data);
        if content.marker {
            // Servers speak to each other with these; no consumer sees them.
            let ack = Ack::Individual { position, remaining: Vec::new() };
            ledger.ack(turn.now, subscription.cursor, &ack, None, turn.effects);
            subscription.skip(kind, position);
            continue;
        }
        let ack_set = ledger.ack_set(subscription.cursor, position);
        let messages = ack_set.map_or(content.messages, count_unacked).max(1);
        let ack_set = ack_set.map(Box::from);
        let entry = Deliverable { position, payload: content.payload, messages, ack_set };
        if !subscription.deliver(kind, entry, turn.now.unix_ms, turn.out) {
            return false;
        }
    }
    true
}

/// How many bits are set: the messages of a batch that are not acknowledged.
pub(super) fn count_unacked(words: &[i64]) -> u32 {
    words.iter().map(|word| word.count_ones()).sum()
}

/// What the broker looks at in an entry.
pub(super) struct Content {
    /// Without broker entry metadata.
    pub payload: Bytes,
    pub messages: u32,
    pub is_batch: bool,
    pub marker: bool,
}

impl Content {
    /// An entry that cannot be understood is sent as it is: its consumer must learn that it exists.
    pub(super) fn of(data: Bytes) -> Self {
        let payload = entry_metadata::strip(data.clone()).unwrap_or(data);
        let (mut messages, mut is_batch, mut marker) = (1, false, false);
        if let Ok(block) = PayloadBlock::parse(payload.clone())
            && let Ok(metadata) = block.metadata()
            && let Ok(peek) = MetadataPeek::parse(metadata)
        {
            (messages, is_batch, marker) = (peek.messages(), peek.is_batch(), peek.marker_type.is_some());
        }
        Self { payload, messages, is_batch, marker }
    }
}
