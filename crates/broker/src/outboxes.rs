//! A shard's side of the outboxes: what a turn has for each connection, handed over once at the turn's end.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::door::{Admission, OutboundBudget, Outbox, Outgoing};

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
    /// Slots that were found congested in this turn, and down to which they must drain.
    congested: Vec<(usize, usize)>,
    budget: Arc<OutboundBudget>,
    /// In all slots, not handed over yet.
    bytes: usize,
    /// Topics that wait for memory that other connections hold.
    starved: FxHashSet<u64>,
    /// Some of them came in this turn.
    asks_for_room: bool,
}

impl Outboxes {
    pub(crate) fn new(shard: usize, budget: Arc<OutboundBudget>) -> Self {
        Self {
            shard,
            slots: Vec::new(),
            free: Vec::new(),
            by_id: FxHashMap::default(),
            dirty: Vec::new(),
            congested: Vec::new(),
            budget,
            bytes: 0,
            starved: FxHashSet::default(),
            asks_for_room: false,
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
        let weight = item.weight();
        self.bytes += weight;
        let data = self.slot(slot);
        data.bytes += weight;
        data.items.push(item);
        if data.items.len() == 1 {
            self.dirty.push(slot.0);
        }
    }

    /// Whether the connection may be given a message of this weight. If not, `topic` hears of it again when it is worth
    /// trying.
    pub(crate) fn admits(&mut self, slot: OutSlot, weight: usize, topic: u64) -> bool {
        let elsewhere = self.bytes;
        let data = self.slot(slot);
        match data.outbox.admits(weight, data.bytes, elsewhere) {
            Admission::Yes => true,
            Admission::Drained(left) => {
                if !data.stalled.contains(&topic) {
                    data.stalled.push(topic);
                    self.congested.push((slot.0, left));
                }
                false
            }
            Admission::Room => {
                self.starved.insert(topic);
                self.asks_for_room = true;
                false
            }
        }
    }

    /// The topics that wait for this outbox.
    pub(crate) fn resumed(&mut self, outbox: u64) -> Vec<u64> {
        match self.by_id.get(&outbox) {
            Some(index) => std::mem::take(&mut self.slot(OutSlot(*index)).stalled),
            None => Vec::new(),
        }
    }

    /// The topics that wait for memory that other connections hold.
    pub(crate) fn starved(&mut self) -> Vec<u64> {
        if self.starved.is_empty() {
            return Vec::new();
        }
        // Whoever is refused again says so.
        self.budget.give_up(self.shard);
        self.starved.drain().collect()
    }

    /// Hands everything over. Returns topics that can go on because their outbox has drained meanwhile.
    pub(crate) fn flush(&mut self) -> Vec<u64> {
        for index in std::mem::take(&mut self.dirty) {
            self.hand_over(index);
        }
        if std::mem::take(&mut self.asks_for_room) {
            self.budget.await_room(self.shard);
        }
        let mut go_on = Vec::new();
        for (index, left) in std::mem::take(&mut self.congested) {
            let shard = self.shard;
            if let Some(slot) = &mut self.slots[index]
                && !slot.outbox.await_drained(shard, left)
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
            self.bytes -= std::mem::take(&mut slot.bytes);
        }
    }
}
