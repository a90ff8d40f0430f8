//! What a connection has still to write: encoded commands in one buffer, large payloads as slices between them.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf, Bytes, BytesMut};

use crate::door::unpinned;

/// Payloads up to this size are copied behind their command: below it, a copy costs less than two more slices in a
/// vectored write (building and importing them is some 50 ns, about what 512 bytes cost to copy).
const COPY_LIMIT: usize = 512;

/// Memory for commands that is kept while there is nothing to write.
const KEPT_WHEN_EMPTY: usize = 16 * 1024;

/// How many slices one vectored write carries.
pub(super) const MAX_SLICES: usize = 64;

/// Invariant: `head` holds exactly the bytes counted by `parts[..].head` and `tail`, in this order.
#[derive(Debug, Default)]
pub(super) struct Output {
    head: BytesMut,
    parts: VecDeque<Part>,
    /// Bytes of `head` behind the last part.
    tail: usize,
    len: usize,
}

/// Encoded commands followed by one payload that stays where it is.
#[derive(Debug)]
struct Part {
    head: usize,
    payload: Bytes,
}

impl Output {
    /// Bytes to be written.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends what `encode` appends to the buffer it is given.
    pub(super) fn encode(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let before = self.head.len();
        encode(&mut self.head);
        let added = self.head.len() - before;
        self.tail += added;
        self.len += added;
    }

    pub(super) fn payload(&mut self, payload: Bytes) {
        if payload.len() <= COPY_LIMIT {
            return self.encode(|head| head.extend_from_slice(&payload));
        }
        self.len += payload.len();
        self.parts.push_back(Part { head: std::mem::take(&mut self.tail), payload });
    }

    /// Fills `slices` with the next bytes to write and returns how many slices are used.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut used = 0;
        let mut head = &self.head[..];
        let mut add = |bytes: &'a [u8]| {
            if !bytes.is_empty() {
                slices[used] = IoSlice::new(bytes);
                used += 1;
            }
        };
        for part in self.parts.iter().take(MAX_SLICES / 2) {
            let (command, rest) = head.split_at(part.head);
            head = rest;
            add(command);
            add(&part.payload);
        }
        if self.parts.len() < MAX_SLICES / 2 {
            add(head);
        }
        used
    }

    /// Copies payloads out of the blocks they are slices of; see [`unpinned`].
    pub(super) fn unpin(&mut self) {
        for part in &mut self.parts {
            part.payload = unpinned(std::mem::take(&mut part.payload));
        }
    }

    /// Forgets `written` bytes.
    pub(super) fn advance(&mut self, mut written: usize) {
        self.len -= written;
        while let Some(part) = self.parts.front_mut() {
            let command = part.head.min(written);
            self.head.advance(command);
            part.head -= command;
            written -= command;
            let payload = if part.head == 0 { part.payload.len().min(written) } else { 0 };
            part.payload.advance(payload);
            written -= payload;
            if part.head > 0 || !part.payload.is_empty() {
                return;
            }
            self.parts.pop_front();
        }
        self.head.advance(written);
        self.tail -= written;
        if self.len == 0 && self.head.capacity() > KEPT_WHEN_EMPTY {
            self.head = BytesMut::new();
        }
    }

    /// Gives back the memory kept for the next commands; only useful for a connection that has fallen silent.
    pub(super) fn release_memory(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is put in comes out, in any portions the socket takes.
        #[test]
        fn comes_out_as_it_went_in(
            pieces in prop::collection::vec((any::<bool>(), 0usize..1500), 0..200),
            portions in prop::collection::vec(1usize..4000, 1..20),
        ) {
            let mut output = Output::default();
            let mut expected = Vec::new();
            for (n, (is_payload, len)) in pieces.iter().enumerate() {
                let bytes = vec![n as u8; *len];
                expected.extend_from_slice(&bytes);
                if *is_payload {
                    output.payload(Bytes::from(bytes));
                } else {
                    output.encode(|head| head.extend_from_slice(&bytes));
                }
            }
            prop_assert_eq!(output.len(), expected.len());
            let mut got = Vec::new();
            for portion in portions.iter().cycle() {
                if output.is_empty() {
                    break;
                }
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let used = output.slices(&mut slices);
                prop_assert!(used > 0);
                let offered: Vec<u8> = slices[..used].iter().flat_map(|s| s.iter().copied()).collect();
                let written = offered.len().min(*portion);
                got.extend_from_slice(&offered[..written]);
                output.advance(written);
                if written % 3 == 0 {
                    output.unpin();
                }
            }
            prop_assert_eq!(got, expected);
        }
    }
}
