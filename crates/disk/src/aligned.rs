use std::ops::{Deref, DerefMut};

use crate::BLOCK;

/// Bytes on the heap whose address is a multiple of [`BLOCK`], as direct I/O demands.
///
/// Invariant: `start` is where the first aligned address of `bytes` lies, and `start + len <= bytes.len()`. The vector is
/// never resized, so that its address never changes.
#[derive(Debug)]
pub struct AlignedBuf {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let bytes = vec![0; len + BLOCK - 1];
        let start = bytes.as_ptr().align_offset(BLOCK);
        assert!(start < BLOCK, "a byte pointer can always be aligned");
        AlignedBuf { bytes, start, len }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// So that `Bytes::from_owner` can share slices of it.
impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_whatever_their_length() {
        for len in [0, 1, 511, 4095, 4096, 4097, 1 << 20] {
            let buf = AlignedBuf::zeroed(len);
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_ptr() as usize % BLOCK, 0);
        }
    }
}
