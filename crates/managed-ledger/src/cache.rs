//! The entry cache: the entries that readers at the end of the log will ask for next, as slices of the commit blocks they
//! were written in.
//!
//! A slice pins its whole block, which holds other topics' entries, too. So what is bounded is not the slices but the
//! *window*: [`CacheBudget`] counts all bytes ever written in this process, and an entry may stay cached only while at most
//! `budget` bytes were written after it. Blocks are written one after the other, therefore all pinned blocks together are
//! never larger than the budget and the blocks at its edge, whoever pins them. What is read from bookies has a window of its
//! own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::position::Position;

/// The windows of recently written and recently read bytes, shared by all managed ledgers of the process.
#[derive(Debug)]
pub struct CacheBudget {
    written: Window,
    read: Window,
}

#[derive(Debug)]
struct Window {
    budget_bytes: AtomicU64,
    /// All bytes that entered a cache so far: the position of the window's end.
    passed: AtomicU64,
}

/// What a cached entry takes beside its bytes.
const ENTRY_OVERHEAD: usize = 64;

/// What a block takes beside its entries: header, padding and alignment, each less than 4 KiB.
const BLOCK_OVERHEAD: u64 = 8 << 10;

/// Caches that are not used themselves shrink when so much of a window has passed.
const EDGES: u64 = 8;

impl Window {
    fn new(budget_bytes: u64) -> Window {
        Window { budget_bytes: AtomicU64::new(budget_bytes), passed: AtomicU64::new(0) }
    }

    /// Moves the window on; the entry's stamp.
    fn enter(&self, bytes: u64) -> u64 {
        self.passed.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// Entries stamped at or before this have to go.
    fn horizon(&self) -> u64 {
        self.passed.load(Ordering::Relaxed).saturating_sub(self.budget_bytes.load(Ordering::Relaxed))
    }

    fn edge(&self) -> u64 {
        let step = (self.budget_bytes.load(Ordering::Relaxed) / EDGES).max(1);
        self.passed.load(Ordering::Relaxed) / step
    }
}

impl CacheBudget {
    /// A budget of so many bytes for entries just written, and no limit over all managed ledgers for those read from
    /// bookies; 0 switches the caching of what is written off.
    #[must_use]
    pub fn new(budget_bytes: u64) -> CacheBudget {
        CacheBudget { written: Window::new(budget_bytes), read: Window::new(u64::MAX) }
    }

    /// Limits what is kept of entries read from bookies.
    #[must_use]
    pub fn with_read_budget(self, budget_bytes: u64) -> CacheBudget {
        CacheBudget { read: Window::new(budget_bytes), ..self }
    }

    /// Changes the budget of what is written. Caches shrink at their next turn or tick.
    pub fn set_budget(&self, budget_bytes: u64) {
        self.written.budget_bytes.store(budget_bytes, Ordering::Relaxed);
    }

    /// A block of entries was written: counts what it takes beside them, so that blocks of one small entry are not taken for
    /// nothing. To be told once for each.
    pub fn block_written(&self) {
        self.written.enter(BLOCK_OVERHEAD);
    }

    /// Changes whenever the windows have moved on by a good part: then [`ManagedLedger::expire_cache`](crate::ManagedLedger)
    /// is due for those that hold something and had no turn since.
    pub fn edge(&self) -> u64 {
        self.written.edge().wrapping_add(self.read.edge())
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
    /// Oldest read first, with its stamp.
    read_order: VecDeque<(Position, u64)>,
    read_bytes: usize,
}

impl EntryCache {
    /// Adds a just confirmed entry, the newest one.
    pub(crate) fn push(&mut self, position: Position, data: Bytes, budget: &CacheBudget) {
        let stamp = budget.written.enter((data.len() + ENTRY_OVERHEAD) as u64);
        self.tail_bytes += data.len();
        self.tail.push_back(Cached { position, data, stamp });
        self.expire(budget);
    }

    /// Adds an entry that a bookie sent, and drops the oldest ones beyond `max_bytes`.
    pub(crate) fn push_read(&mut self, position: Position, data: Bytes, max_bytes: usize, budget: &CacheBudget) {
        let stamp = budget.read.enter((data.len() + ENTRY_OVERHEAD) as u64);
        self.read_bytes += data.len();
        if let Some(old) = self.read.insert(position, data) {
            self.read_bytes -= old.len();
            self.read_order.retain(|(other, _)| *other != position);
        }
        self.read_order.push_back((position, stamp));
        while self.read_bytes > max_bytes && self.pop_read() {}
        self.expire(budget);
    }

    fn pop_read(&mut self) -> bool {
        let Some((oldest, _)) = self.read_order.pop_front() else { return false };
        self.read_bytes -= self.read.remove(&oldest).map_or(0, |data| data.len());
        true
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

    /// Drops what the windows have passed.
    pub(crate) fn expire(&mut self, budget: &CacheBudget) {
        let horizon = budget.written.horizon();
        while self.tail.front().is_some_and(|cached| cached.stamp <= horizon) {
            self.pop();
        }
        let horizon = budget.read.horizon();
        while self.read_order.front().is_some_and(|(_, stamp)| *stamp <= horizon) {
            self.pop_read();
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
        let budget = CacheBudget::new(250 + 2 * ENTRY_OVERHEAD as u64);
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
        let budget = CacheBudget::new(0).with_read_budget(3 * (100 + ENTRY_OVERHEAD as u64));
        for entry in 0..10 {
            cache.push_read(Position::new(1, entry), Bytes::from(vec![entry as u8; 100]), 500, &CacheBudget::new(0));
        }
        assert_eq!(cache.bytes(), 500);
        assert!(cache.get_read(Position::new(1, 4)).is_none());
        assert_eq!(cache.get_read(Position::new(1, 5)).unwrap()[0], 5);
        let mut other = EntryCache::default();
        for entry in 0..10 {
            cache.push_read(Position::new(1, entry), Bytes::from(vec![entry as u8; 100]), 500, &budget);
            other.push_read(Position::new(2, entry), Bytes::from(vec![entry as u8; 100]), 500, &budget);
        }
        cache.expire(&budget);
        assert_eq!((cache.bytes(), other.bytes()), (100, 200));
    }
}
