//! The bytes a connection has read and not yet understood, in blocks that grow with its traffic.

use bytes::BytesMut;

/// A quiet connection reads into a block this large, and holds none while nothing arrives.
const SMALL_BLOCK: usize = 16 * 1024;

/// A busy one's block, while there is memory for it. Larger ones no longer save anything: at 256 KiB a GB is 4096 reads.
const LARGE_BLOCK: usize = 256 * 1024;

/// A frame up to this size is read without asking for memory first.
pub(super) const SMALL_FRAME: usize = 64 * 1024;

/// Length of the size field before a frame.
pub(super) const SIZE_FIELD: usize = 4;

/// The messages of a block are slices of it: it is free again when the last of them is durable and forgotten.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) bytes: BytesMut,
    block: usize,
    read_since_tick: bool,
}

impl Input {
    pub(super) fn new() -> Self {
        Self { bytes: BytesMut::new(), block: SMALL_BLOCK, read_since_tick: false }
    }

    /// Length of the frame at the front, its size field included, once that field is there.
    pub(super) fn front_frame_len(&self) -> Option<usize> {
        let size = self.bytes.first_chunk::<SIZE_FIELD>()?;
        Some(SIZE_FIELD + u32::from_be_bytes(*size) as usize)
    }

    /// Makes room for the next read.
    pub(super) fn prepare(&mut self) {
        let held = self.bytes.len();
        // What is still missing of a large frame is asked for in steps that double: memory follows what really came.
        let missing = self.front_frame_len().map_or(0, |frame| frame.saturating_sub(held).min(2 * held));
        let spare = self.bytes.capacity() - held;
        if spare < missing.max(self.block / 4) {
            self.bytes.reserve(missing.max(self.block));
        }
    }

    /// To be told how much a read brought, and how much it could have brought. `share`: what one connection may use of the
    /// process's memory for blocks, in bytes.
    pub(super) fn on_read(&mut self, read: usize, room: usize, share: usize) {
        self.read_since_tick = true;
        let largest = share.clamp(SMALL_BLOCK, LARGE_BLOCK);
        if read == room && room >= SMALL_BLOCK / 4 {
            self.block = (2 * self.block).min(largest);
        } else if read < self.block / 8 {
            self.block = (self.block / 2).max(SMALL_BLOCK);
        }
        self.block = self.block.min(largest);
    }

    /// What came is little, and a published message would keep the whole block until it is durable: a thousand connections
    /// that publish now and then would keep a thousand blocks.
    pub(super) fn compact(&mut self) {
        if self.block == SMALL_BLOCK && self.bytes.len() <= SMALL_BLOCK / 4 {
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
    }

    /// Before waiting: a quiet connection holds no block while nothing arrives. 10 000 of them cost nothing.
    pub(super) fn before_wait(&mut self) {
        if self.bytes.is_empty() && self.block == SMALL_BLOCK {
            self.bytes = BytesMut::new();
        }
    }

    /// To be called once per keepalive interval.
    pub(super) fn tick(&mut self) {
        if !std::mem::take(&mut self.read_since_tick) {
            self.block = SMALL_BLOCK;
            self.before_wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_sharing(input: &mut Input, n: usize, share: usize) -> usize {
        input.prepare();
        let room = input.bytes.capacity() - input.bytes.len();
        let n = n.min(room);
        input.bytes.resize(input.bytes.len() + n, 0);
        input.on_read(n, room, share);
        n
    }

    fn read(input: &mut Input, n: usize) -> usize {
        read_sharing(input, n, usize::MAX)
    }

    #[test]
    fn many_connections_share_what_one_could_use() {
        let mut input = Input::new();
        for (share, block) in [(usize::MAX, LARGE_BLOCK), (100_000, 100_000), (1, SMALL_BLOCK)] {
            for _ in 0..10 {
                read_sharing(&mut input, usize::MAX, share);
                let _ = input.bytes.split();
            }
            assert_eq!(input.block, block);
        }
    }

    #[test]
    fn blocks_grow_with_traffic_and_go_when_it_ends() {
        let mut input = Input::new();
        for _ in 0..10 {
            read(&mut input, usize::MAX);
            let _ = input.bytes.split();
        }
        assert_eq!(input.block, LARGE_BLOCK);
        for _ in 0..10 {
            read(&mut input, 100);
            let _ = input.bytes.split();
            input.before_wait();
        }
        assert_eq!(input.block, SMALL_BLOCK);
        assert_eq!(input.bytes.capacity(), 0);
    }

    #[test]
    fn a_half_frame_is_kept_and_an_announced_one_costs_nothing_yet() {
        let mut input = Input::new();
        input.prepare();
        input.bytes.extend_from_slice(&(5 * 1024 * 1024u32).to_be_bytes());
        assert_eq!(input.front_frame_len(), Some(5 * 1024 * 1024 + 4));
        input.before_wait();
        input.prepare();
        assert_eq!(input.bytes.len(), 4);
        assert!(input.bytes.capacity() <= 2 * SMALL_BLOCK);
    }

    #[test]
    fn a_busy_connection_that_falls_silent_gives_its_block_back() {
        let mut input = Input::new();
        for _ in 0..10 {
            read(&mut input, usize::MAX);
            let _ = input.bytes.split();
        }
        input.tick();
        assert!(input.block > SMALL_BLOCK);
        input.tick();
        assert_eq!(input.bytes.capacity(), 0);
    }
}
