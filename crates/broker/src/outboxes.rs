//! A shard's side of the outboxes: what a turn has for each connection, handed over once at the turn's end.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::door::{Outbox, Outgoing};

/// An outbox in use by this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutSlot(usize);

struct Slot {
    outbox: Arc<Outbox>,
    /// Producers and consumers of this shard that send through it.
    users: usize,
    items: Vec<Outgoing>,
    bytes: usize,
    /// Topics that have something for it and wait until it has drained.
    stalled: Vec<u64>,
}

pub(crate) struct Outboxes {
    shard: usize,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    by_id: FxHashMap<u64, usize>,
    /// Slots with items.
    dirty: Vec<usize>,
    /// Slots that were found congested in this turn.
    congested: Vec<usize>,
}

impl Outboxes {
    pub(crate) fn new(shard: usize) -> Self {
        Self {
            shard,
            slots: Vec::new(),
            free: Vec::new(),
            by_id: FxHashMap::default(),
            dirty: Vec::new(),
            congested: Vec::new(),
        }
    }

    /// Every call is undone by one of [`Self::release`].
    pub(crate) fn register(&mut self, outbox: &Arc<Outbox>) -> OutSlot {
        let index = *self.by_id.entry(outbox.id()).or_insert_with(|| {
            let slot = Slot { outbox: outbox.clone(), users: 0, items: Vec::new(), bytes: 0, stalled: Vec::new() };
            match self.free.pop() {
                Some(index) => {
                    self.slots[index] = Some(slot);
                    index
                }
                None => {
                    self.slots.push(Some(slot));
                    self.slots.len() - 1
                }
            }
        });
        self.slot(OutSlot(index)).users += 1;
        OutSlot(index)
    }

    pub(crate) fn release(&mut self, slot: OutSlot) {
        self.slot(slot).users -= 1;
        if self.slot(slot).users == 0 {
            // What the last user had to say must still go out.
            self.hand_over(slot.0);
            if let Some(slot_data) = self.slots[slot.0].take() {
                self.by_id.remove(&slot_data.outbox.id());
                self.free.push(slot.0);
            }
        }
    }

    fn slot(&mut self, slot: OutSlot) -> &mut Slot {
        self.slots[slot.0].as_mut().expect("a slot lives as long as its users, and only they name it")
    }

    pub(crate) fn outbox(&mut self, slot: OutSlot) -> &Arc<Outbox> {
        &self.slot(slot).outbox
    }

    pub(crate) fn push(&mut self, slot: OutSlot, item: Outgoing) {
        let data = self.slot(slot);
        data.bytes += item.weight();
        data.items.push(item);
        if data.items.len() == 1 {
            self.dirty.push(slot.0);
        }
    }

    /// Whether the connection has enough to write. If so, `topic` hears of it again when it has drained.
    pub(crate) fn congested(&mut self, slot: OutSlot, topic: u64) -> bool {
        let data = self.slot(slot);
        if data.outbox.bytes() + data.bytes <= Outbox::HIGH_MARK {
            return false;
        }
        if !data.stalled.contains(&topic) {
            data.stalled.push(topic);
            self.congested.push(slot.0);
        }
        true
    }

    /// The topics that wait for this outbox.
    pub(crate) fn resumed(&mut self, outbox: u64) -> Vec<u64> {
        match self.by_id.get(&outbox) {
            Some(index) => std::mem::take(&mut self.slot(OutSlot(*index)).stalled),
            None => Vec::new(),
        }
    }

    /// Hands everything over. Returns topics that can go on because their outbox has drained meanwhile.
    pub(crate) fn flush(&mut self) -> Vec<u64> {
        for index in std::mem::take(&mut self.dirty) {
            self.hand_over(index);
        }
        let mut go_on = Vec::new();
        for index in std::mem::take(&mut self.congested) {
            let shard = self.shard;
            if let Some(slot) = &mut self.slots[index]
                && !slot.outbox.await_drained(shard)
            {
                go_on.append(&mut slot.stalled);
            }
        }
        go_on
    }

    fn hand_over(&mut self, index: usize) {
        // A slot may have been released after it became dirty.
        if let Some(slot) = &mut self.slots[index] {
            slot.outbox.push_all(&mut slot.items);
            slot.bytes = 0;
        }
    }
}
