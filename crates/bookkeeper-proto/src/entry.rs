//! An entry's bytes, the same on the wire and on disk.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | ledger id |
//! | 8 | 8 | entry id |
//! | 16 | 8 | LAC of the writer when it sent the entry, -1 for the first |
//! | 24 | 8 | sum of all payload bytes of the ledger up to and including this entry |
//! | 32 | d | digest over bytes 0..32 and the payload; d depends on its type |
//! | 32+d | n | payload |

use bytes::{BufMut, Bytes, BytesMut};
use checksum::Shift;

use crate::{DigestType, Digester, EntryId, LedgerId};

pub const ENTRY_HEADER_LEN: usize = 32;

/// The longest prefix an [`EntryBuf`] takes beside its header and digest.
pub const MAX_PREFIX_LEN: usize = HEAD_LEN - ENTRY_HEADER_LEN - 20;

const HEAD_LEN: usize = 128;

/// The first 32 bytes of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryHeader {
    pub ledger: LedgerId,
    pub entry: EntryId,
    /// What the writer had confirmed when it sent this entry; it lies before `entry`.
    pub last_add_confirmed: EntryId,
    /// The payload bytes of the ledger up to and including this entry.
    pub length: u64,
}

impl EntryHeader {
    pub fn encode(&self) -> [u8; ENTRY_HEADER_LEN] {
        let mut bytes = [0; ENTRY_HEADER_LEN];
        bytes[0..8].copy_from_slice(&self.ledger.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.entry.0.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.last_add_confirmed.0.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// # Errors
    /// [`EntryError::TooShort`]: fewer than 32 bytes. Nothing else is checked.
    pub fn decode(bytes: &[u8]) -> Result<EntryHeader, EntryError> {
        let too_short = EntryError::TooShort { len: bytes.len(), needed: ENTRY_HEADER_LEN };
        let header: &[u8; ENTRY_HEADER_LEN] = bytes.first_chunk().ok_or(too_short)?;
        let word = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| header[at + i]));
        Ok(EntryHeader {
            ledger: LedgerId(word(0) as i64),
            entry: EntryId(word(8) as i64),
            last_add_confirmed: EntryId(word(16) as i64),
            length: word(24),
        })
    }
}

/// An entry ready to be written: a small head beside the payload, which stays where it is.
///
/// The entry's bytes are `head() ++ payload()`; `crc32c()` is the checksum over all of them.
#[derive(Clone)]
pub struct EntryBuf {
    head: [u8; HEAD_LEN],
    head_len: u8,
    crc32c: u32,
    payload: Bytes,
}

impl EntryBuf {
    /// Builds an entry whose payload, in BookKeeper's sense, is `prefix ++ payload`.
    ///
    /// `payload_crc` is the CRC-32C of `payload`; whoever passes a wrong one writes an entry that nobody can read. With CRC-32C
    /// digests the payload is not read. `prefix` is at most [`MAX_PREFIX_LEN`] bytes (asserted: it never comes from outside).
    pub fn new(header: &EntryHeader, digester: &Digester, prefix: &[u8], payload: Bytes, payload_crc: u32) -> EntryBuf {
        assert!(prefix.len() <= MAX_PREFIX_LEN, "prefix of {} bytes, at most {MAX_PREFIX_LEN}", prefix.len());
        let past_payload = Shift::past(payload.len());
        let header = header.encode();
        let digest = digester.digest_of_entry(&header, prefix, &payload, payload_crc, past_payload);

        let mut head = [0; HEAD_LEN];
        let mut head_len = 0;
        for part in [&header[..], digest.as_bytes(), prefix] {
            head[head_len..head_len + part.len()].copy_from_slice(part);
            head_len += part.len();
        }
        let crc32c = past_payload.join(crc32c::crc32c(&head[..head_len]), payload_crc);
        EntryBuf { head, head_len: head_len as u8, crc32c, payload }
    }

    /// Takes a whole entry as it came from somewhere else; its digest is not verified.
    ///
    /// # Errors
    /// [`EntryError::TooShort`]: it does not hold a header.
    pub fn verbatim(entry: Bytes) -> Result<EntryBuf, EntryError> {
        EntryHeader::decode(&entry)?;
        let crc32c = crc32c::crc32c(&entry);
        Ok(EntryBuf { head: [0; HEAD_LEN], head_len: 0, crc32c, payload: entry })
    }

    /// The bytes before the payload: header, digest and prefix; nothing when the entry was taken verbatim.
    pub fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_len)]
    }

    /// The bytes after the head, not copied so far.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The CRC-32C over all bytes of the entry.
    pub fn crc32c(&self) -> u32 {
        self.crc32c
    }

    /// The length of the whole entry in bytes, at least [`ENTRY_HEADER_LEN`].
    #[expect(clippy::len_without_is_empty, reason = "an entry is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.head_len) + self.payload.len()
    }

    pub fn header(&self) -> EntryHeader {
        let bytes = if self.head_len == 0 { &self.payload[..] } else { self.head() };
        EntryHeader::decode(bytes).expect("both constructors saw a header")
    }

    /// Appends the whole entry: the one copy of a payload on its way to the disk.
    pub fn write_to(&self, out: &mut impl BufMut) {
        out.put_slice(self.head());
        out.put_slice(&self.payload);
    }

    /// The whole entry in one piece. Copies; not for the hot path.
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.len());
        self.write_to(&mut bytes);
        bytes.freeze()
    }
}

impl std::fmt::Debug for EntryBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EntryBuf").field("header", &self.header()).field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A stored entry, taken apart; its payload is a slice of the bytes it was read into.
#[derive(Clone, Debug)]
pub struct EntryView {
    pub header: EntryHeader,
    bytes: Bytes,
    digest: DigestType,
}

impl EntryView {
    /// Takes an entry apart without verifying anything: for bytes whose checksum somebody verified already.
    ///
    /// # Errors
    /// [`EntryError::TooShort`]: no room for a header and a digest.
    pub fn parse(bytes: Bytes, digest: DigestType) -> Result<EntryView, EntryError> {
        let header = EntryHeader::decode(&bytes)?;
        let needed = ENTRY_HEADER_LEN + digest.len_bytes();
        if bytes.len() < needed {
            return Err(EntryError::TooShort { len: bytes.len(), needed });
        }
        Ok(EntryView { header, bytes, digest })
    }

    /// Is this the entry that was asked for?
    ///
    /// # Errors
    /// [`EntryError::WrongEntry`]
    pub fn check_identity(&self, ledger: LedgerId, entry: EntryId) -> Result<(), EntryError> {
        let found = (self.header.ledger, self.header.entry);
        if found == (ledger, entry) {
            return Ok(());
        }
        Err(EntryError::WrongEntry { ledger, entry, found_ledger: found.0, found_entry: found.1 })
    }

    /// Is this what the writer wrote? Passes over the whole entry.
    ///
    /// # Errors
    /// [`EntryError::WrongDigest`]
    pub fn check_digest(&self, digester: &Digester) -> Result<(), EntryError> {
        let payload = &self.bytes[self.payload_at()..];
        let expected = digester.digest(&[&self.bytes[..ENTRY_HEADER_LEN], payload]);
        let stored = &self.bytes[ENTRY_HEADER_LEN..self.payload_at()];
        if expected.as_bytes() == stored {
            return Ok(());
        }
        let EntryHeader { ledger, entry, .. } = self.header;
        Err(EntryError::WrongDigest { ledger, entry, digest: digester.digest_type() })
    }

    /// All that follows the digest, not copied.
    pub fn payload(&self) -> Bytes {
        self.bytes.slice(self.payload_at()..)
    }

    /// The whole entry, header and digest included.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    fn payload_at(&self) -> usize {
        ENTRY_HEADER_LEN + self.digest.len_bytes()
    }
}

/// Why some bytes are not the entry they should be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EntryError {
    #[error("entry of {len} bytes is too short: its header and digest alone need {needed}")]
    TooShort { len: usize, needed: usize },
    #[error("got entry {found_entry} of ledger {found_ledger} when asking for entry {entry} of ledger {ledger}")]
    WrongEntry { ledger: LedgerId, entry: EntryId, found_ledger: LedgerId, found_entry: EntryId },
    #[error("entry {entry} of ledger {ledger} does not match its {digest:?} digest")]
    WrongDigest { ledger: LedgerId, entry: EntryId, digest: DigestType },
}
