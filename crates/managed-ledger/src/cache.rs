//! The entry cache: the entries that readers at the end of the log will ask for next, as slices of the commit blocks they
//! were written in.
//!
//! A slice pins its whole block, which holds other topics' entries, too. So what is bounded is not the slices but the
//! *window*: [`CacheBudget`] counts all bytes ever written in this process, and an entry may stay cached only while at most
//! `budget` bytes were written after it. Blocks are written one after the other, therefore all pinned blocks together are
//! never larger than the budget and the blocks at its edge, whoever pins them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::position::Position;

/// The window of recently written bytes, shared by all managed ledgers of the process.
#[derive(Debug)]
pub struct CacheBudget {
    budget_bytes: AtomicU64,
    /// All bytes that entered a cache so far: the position of the window's end.
    written: AtomicU64,
}

impl CacheBudget {
    /// A budget of so many bytes; 0 switches caching off.
    #[must_use]
    pub fn new(budget_bytes: u64) -> CacheBudget {
        CacheBudget { budget_bytes: AtomicU64::new(budget_bytes), written: AtomicU64::new(0) }
    }

    /// Changes the budget. Caches shrink at their next turn or tick.
    pub fn set_budget(&self, budget_bytes: u64) {
        self.budget_bytes.store(budget_bytes, Ordering::Relaxed);
    }

    /// Moves the window on; the entry's stamp.
    fn enter(&self, bytes: usize) -> u64 {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64
    }

    /// Entries stamped at or before this have to go.
    fn horizon(&self) -> u64 {
        self.written.load(Ordering::Relaxed).saturating_sub(self.budget_bytes.load(Ordering::Relaxed))
    }
}

struct Cached {
    position: Position,
    data: Bytes,
    stamp: u64,
}

/// The cache of one managed ledger: its newest entries, without holes, and beside them what was last read from bookies.
#[derive(Default)]
pub(crate) struct EntryCache {
    tail: VecDeque<Cached>,
    tail_bytes: usize,
    read: BTreeMap<Position, Bytes>,
    /// Oldest read first.
    read_order: VecDeque<Position>,
    read_bytes: usize,
}

impl EntryCache {
    /// Adds a just confirmed entry, the newest one.
    pub(crate) fn push(&mut self, position: Position, data: Bytes, budget: &CacheBudget) {
        let stamp = budget.enter(data.len());
        self.tail_bytes += data.len();
        self.tail.push_back(Cached { position, data, stamp });
        self.expire(budget);
    }

    /// Adds entries that a bookie sent, and drops the oldest ones beyond `max_bytes`.
    pub(crate) fn push_read(&mut self, position: Position, data: Bytes, max_bytes: usize) {
        self.read_bytes += data.len();
        match self.read.insert(position, data) {
            Some(old) => self.read_bytes -= old.len(),
            None => self.read_order.push_back(position),
        }
        while self.read_bytes > max_bytes
            && let Some(oldest) = self.read_order.pop_front()
        {
            self.read_bytes -= self.read.remove(&oldest).map_or(0, |data| data.len());
        }
    }

    pub(crate) fn get(&self, position: Position) -> Option<Bytes> {
        let first = self.tail.front()?.position;
        let in_tail = if position >= first {
            // Mostly one ledger without holes: guess the index, else search.
            let guess = usize::try_from(position.entry.0 - first.entry.0).ok();
            let guessed = guess.and_then(|index| self.tail.get(index)).filter(|cached| cached.position == position);
            guessed.or_else(|| {
                let index = self.tail.binary_search_by_key(&position, |cached| cached.position).ok()?;
                self.tail.get(index)
            })
        } else {
            None
        };
        in_tail.map(|cached| cached.data.clone())
    }

    /// From what was read.
    pub(crate) fn get_read(&self, position: Position) -> Option<Bytes> {
        self.read.get(&position).cloned()
    }

    /// Drops what the window has passed.
    pub(crate) fn expire(&mut self, budget: &CacheBudget) {
        let horizon = budget.horizon();
        while self.tail.front().is_some_and(|cached| cached.stamp <= horizon) {
            self.pop();
        }
    }

    /// Drops newly written entries before `position`: all readers have them.
    pub(crate) fn drop_before(&mut self, position: Position) {
        while self.tail.front().is_some_and(|cached| cached.position < position) {
            self.pop();
        }
    }

    /// Drops what was read from bookies; for a topic without anybody behind.
    pub(crate) fn drop_read(&mut self) {
        self.read.clear();
        self.read_order = VecDeque::new();
        self.read_bytes = 0;
    }

    fn pop(&mut self) {
        if let Some(cached) = self.tail.pop_front() {
            self.tail_bytes -= cached.data.len();
        }
        if self.tail.is_empty() {
            // An idle topic keeps no buffer.
            self.tail = VecDeque::new();
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.tail_bytes + self.read_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_moves_with_what_all_topics_write() {
        let budget = CacheBudget::new(250);
        let (mut a, mut b) = (EntryCache::default(), EntryCache::default());
        let hundred = || Bytes::from(vec![0; 100]);
        a.push(Position::new(1, 0), hundred(), &budget);
        a.push(Position::new(1, 1), hundred(), &budget);
        assert_eq!(a.bytes(), 200);
        b.push(Position::new(2, 0), hundred(), &budget);
        b.push(Position::new(2, 1), hundred(), &budget);
        a.expire(&budget);
        assert!(a.get(Position::new(1, 0)).is_none());
        assert!(a.get(Position::new(1, 1)).is_some() && b.get(Position::new(2, 0)).is_some());
        budget.set_budget(0);
        a.expire(&budget);
        b.expire(&budget);
        assert_eq!((a.bytes(), b.bytes()), (0, 0));
    }

    #[test]
    fn reads_are_bounded_and_found() {
        let mut cache = EntryCache::default();
        for entry in 0..10 {
            cache.push_read(Position::new(1, entry), Bytes::from(vec![entry as u8; 100]), 500);
        }
        assert_eq!(cache.bytes(), 500);
        assert!(cache.get_read(Position::new(1, 4)).is_none());
        assert_eq!(cache.get_read(Position::new(1, 5)).unwrap()[0], 5);
    }
}
