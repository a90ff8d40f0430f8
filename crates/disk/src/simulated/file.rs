use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rand::Rng;
use rand::rngs::SmallRng;

use super::Fate;
use crate::BLOCK;

const SECTOR: usize = 512;

type Block = [u8; BLOCK];

/// The content of one file: what a reader sees, what is durable, and everything in between that a crash may leave.
#[derive(Clone, Default)]
pub(super) struct Content {
    blocks: BTreeMap<u64, Versions>,
    /// Blocks with unsynced versions.
    dirty: BTreeSet<u64>,
    len: u64,
    durable_len: u64,
    /// Lengths the file had since its last sync, oldest first.
    unsynced_lens: Vec<u64>,
}

/// One block's history since its last sync. A block that was never written is absent and reads as zero.
#[derive(Clone)]
struct Versions {
    current: Arc<Block>,
    durable: Option<Arc<Block>>,
    /// States the block went through since its last sync, oldest first. Each may have reached the medium, or not.
    unsynced: Vec<Arc<Block>>,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of blocks that were written at some time.
    pub(super) fn allocated_bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK) as u64
    }

    /// Bytes that writing `len` bytes at `offset` would newly allocate.
    pub(super) fn bytes_to_allocate(&self, offset: u64, len: usize) -> u64 {
        let missing = blocks_of(offset, len).filter(|index| !self.blocks.contains_key(index)).count();
        (missing * BLOCK) as u64
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let readable = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        for index in blocks_of(offset, readable) {
            let (inside, of_buf) = overlap(index, offset, readable);
            match self.blocks.get(&index) {
                Some(versions) => buf[of_buf].copy_from_slice(&versions.current[inside]),
                None => buf[of_buf].fill(0),
            }
        }
        readable
    }

    pub(super) fn write(&mut self, buf: &[u8], offset: u64) {
        for index in blocks_of(offset, buf.len()) {
            let (inside, of_buf) = overlap(index, offset, buf.len());
            self.change(index, |block| block[inside].copy_from_slice(&buf[of_buf]));
        }
        let end = offset + buf.len() as u64;
        if end > self.len {
            self.len = end;
            self.unsynced_lens.push(end);
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            let first = len / BLOCK as u64;
            let cut: Vec<u64> = self.blocks.range(first..).map(|(index, _)| *index).collect();
            for index in cut {
                let keep = len.saturating_sub(index * BLOCK as u64).min(BLOCK as u64) as usize;
                self.change(index, |block| block[keep..].fill(0));
            }
        }
        self.len = len;
        self.unsynced_lens.push(len);
    }

    pub(super) fn sync(&mut self) {
        for index in std::mem::take(&mut self.dirty) {
            if let Some(versions) = self.blocks.get_mut(&index) {
                versions.durable = Some(versions.current.clone());
                versions.unsynced.clear();
            }
        }
        self.durable_len = self.len;
        self.unsynced_lens.clear();
    }

    /// A sync that failed. As on Linux, what was dirty counts as clean from now on: part of it reached the medium, readers go on
    /// seeing all of it, and no later sync will write the rest.
    pub(super) fn fail_sync(&mut self, rng: &mut SmallRng) {
        let fate = Fate::draw(rng);
        for index in std::mem::take(&mut self.dirty) {
            if let Some(versions) = self.blocks.get_mut(&index) {
                versions.durable = versions.survivor(&fate, rng);
                versions.unsynced.clear();
            }
        }
        self.durable_len = self.surviving_len(&fate, rng);
        self.unsynced_lens.clear();
    }

    /// What a machine finds after a crash.
    pub(super) fn after_crash(&self, fate: &Fate, rng: &mut SmallRng) -> Content {
        let len = self.surviving_len(fate, rng);
        let mut found = Content { len, durable_len: len, ..Content::default() };
        for (index, versions) in &self.blocks {
            if let Some(block) = versions.survivor(fate, rng) {
                let versions = Versions { current: block.clone(), durable: Some(block), unsynced: Vec::new() };
                found.blocks.insert(*index, versions);
            }
        }
        // Bytes beyond the end do not come back when the file grows again.
        found.set_len(len);
        found.sync();
        found
    }

    pub(super) fn flip_bit(&mut self, offset: u64, bit: u8) {
        let index = offset / BLOCK as u64;
        let Some(versions) = self.blocks.get_mut(&index) else { return };
        let at = (offset % BLOCK as u64) as usize;
        let all = versions.unsynced.iter_mut().chain(&mut versions.durable).chain([&mut versions.current]);
        for block in all {
            Arc::make_mut(block)[at] ^= 1 << bit;
        }
    }

    fn change(&mut self, index: u64, edit: impl FnOnce(&mut Block)) {
        let zero = || Versions { current: Arc::new([0; BLOCK]), durable: None, unsynced: Vec::new() };
        let versions = self.blocks.entry(index).or_insert_with(zero);
        let mut block = *versions.current;
        edit(&mut block);
        versions.current = Arc::new(block);
        versions.unsynced.push(versions.current.clone());
        self.dirty.insert(index);
    }

    fn surviving_len(&self, fate: &Fate, rng: &mut SmallRng) -> u64 {
        match fate.pick(self.unsynced_lens.len(), rng) {
            0 => self.durable_len,
            n => self.unsynced_lens[n - 1],
        }
    }
}

impl Versions {
    /// One state the medium may be in: any of the block's versions, or a mixture of two by sectors.
    fn survivor(&self, fate: &Fate, rng: &mut SmallRng) -> Option<Arc<Block>> {
        let version = |n: usize| match n {
            0 => self.durable.clone(),
            n => Some(self.unsynced[n - 1].clone()),
        };
        let one = version(fate.pick(self.unsynced.len(), rng));
        if self.unsynced.is_empty() || !fate.tears(rng) {
            return one;
        }
        let other = version(fate.pick(self.unsynced.len(), rng));
        let mut mixed = one.map_or([0; BLOCK], |block| *block);
        let other = other.map_or([0; BLOCK], |block| *block);
        for sector in (0..BLOCK).step_by(SECTOR) {
            if rng.random_bool(0.5) {
                mixed[sector..sector + SECTOR].copy_from_slice(&other[sector..sector + SECTOR]);
            }
        }
        Some(Arc::new(mixed))
    }
}

fn blocks_of(offset: u64, len: usize) -> std::ops::Range<u64> {
    let block = BLOCK as u64;
    if len == 0 { 0..0 } else { offset / block..(offset + len as u64).div_ceil(block) }
}

/// Which bytes of block `index` the range `offset..offset + len` covers, and which bytes of the range those are.
fn overlap(index: u64, offset: u64, len: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let start = index * BLOCK as u64;
    let from = start.max(offset);
    let to = (start + BLOCK as u64).min(offset + len as u64);
    ((from - start) as usize..(to - start) as usize, (from - offset) as usize..(to - offset) as usize)
}
