//! What the metadata store knows about a ledger.
//!
//! The bytes start with the line `BookieMetadataFormatVersion\t<n>\n`. Version 3 is written (a length as varint, then a
//! protobuf message), 1 (lines of text) and 2 (the same message as protobuf text) are read as well.

use bytes::Bytes;
use prost::Message;

use crate::{BookieId, DigestType, EntryId, text_format};

const VERSION_KEY: &str = "BookieMetadataFormatVersion";

/// The last entry that a version 1 ledger in recovery claims to have.
const V1_IN_RECOVERY: i64 = -102;

/// A ledger's shape, its bookies, and how far it got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LedgerMetadata {
    /// Bookies that share the ledger's entries; `ensemble_size >= write_quorum >= ack_quorum >= 1`.
    pub ensemble_size: u32,
    /// Bookies that each entry is sent to.
    pub write_quorum: u32,
    /// Bookies that must hold an entry before it is confirmed.
    pub ack_quorum: u32,
    pub state: LedgerState,
    /// Never empty, in the order of their first entries; the first one starts at entry 0.
    pub segments: Vec<Segment>,
    /// `None` in version 1, which does not tell.
    pub digest: Option<DigestType>,
    /// `None` in version 1, which does not tell.
    pub password: Option<Bytes>,
    /// When the ledger was created, if its creator cared to store it; else the node's own time counts.
    pub created_ms: Option<i64>,
    /// What the owner says about the ledger, in the order it was written.
    pub custom: Vec<(String, Bytes)>,
    /// Drawn at random by the creator: if "create" failed because the node exists, equal tokens mean "it was me".
    pub creator_token: Option<i64>,
}

/// Open → InRecovery → Closed, or Open → Closed by the writer; each step by compare-and-set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LedgerState {
    /// A writer may add entries.
    Open,
    /// Somebody finds out where the ledger ends; the writer can no longer close it or change its ensemble.
    InRecovery,
    /// The end: no entry after `last_entry` (-1 for an empty ledger), `length` payload bytes in all. It never changes.
    Closed { last_entry: EntryId, length: u64 },
}

/// The bookies that hold the entries from `first_entry` up to the next segment's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    pub first_entry: EntryId,
    pub bookies: Vec<BookieId>,
}

impl LedgerMetadata {
    /// The segment an entry lies in.
    pub fn segment_of(&self, entry: EntryId) -> &Segment {
        let after = self.segments.partition_point(|segment| segment.first_entry <= entry);
        &self.segments[after.saturating_sub(1)]
    }

    /// The segment that a writer adds to.
    pub fn last_segment(&self) -> &Segment {
        self.segments.last().expect("a ledger has at least one segment")
    }

    /// Version 3, byte for byte as the original writes it.
    pub fn encode(&self) -> Bytes {
        let mut bytes = format!("{VERSION_KEY}\t3\n").into_bytes();
        LedgerMetadataFormat::from(self).encode_length_delimited(&mut bytes).expect("a vector grows as needed");
        bytes.into()
    }

    /// Reads versions 1, 2 and 3. What it accepts keeps the invariants of the fields.
    pub fn decode(bytes: &[u8]) -> Result<LedgerMetadata, LedgerMetadataError> {
        let wrong_start = || LedgerMetadataError::WrongStart { found: bytes.iter().take(40).copied().collect() };
        let line_end = bytes.iter().take(40).position(|&byte| byte == b'\n').ok_or_else(wrong_start)?;
        let (line, body) = (&bytes[..line_end], &bytes[line_end + 1..]);
        let version =
            std::str::from_utf8(line).ok().and_then(|line| line.strip_prefix(VERSION_KEY)?.strip_prefix('\t'));
        let metadata = match version.ok_or_else(wrong_start)? {
            "1" => decode_v1(text(body)?)?,
            "2" => text_format::parse(text(body)?)?.try_into()?,
            "3" => LedgerMetadataFormat::decode_length_delimited(body).map_err(malformed)?.try_into()?,
            other => return Err(LedgerMetadataError::UnknownVersion { found: other.to_owned() }),
        };
        check(metadata)
    }
}

/// Why some bytes are not a ledger's metadata.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LedgerMetadataError {
    #[error("ledger metadata starts with `{}`: expected `BookieMetadataFormatVersion`", found.escape_ascii())]
    WrongStart { found: Vec<u8> },
    #[error("ledger metadata has version {found}: expected 1, 2 or 3")]
    UnknownVersion { found: String },
    #[error("ledger metadata cannot be read: {reason}")]
    Malformed { reason: String },
}

pub(crate) fn malformed(reason: impl ToString) -> LedgerMetadataError {
    LedgerMetadataError::Malformed { reason: reason.to_string() }
}

fn text(bytes: &[u8]) -> Result<&str, LedgerMetadataError> {
    std::str::from_utf8(bytes).map_err(malformed)
}

/// What readers rely on without looking again.
fn check(metadata: LedgerMetadata) -> Result<LedgerMetadata, LedgerMetadataError> {
    let LedgerMetadata { ensemble_size, write_quorum, ack_quorum, ref segments, .. } = metadata;
    if !(ensemble_size >= write_quorum && write_quorum >= ack_quorum && ack_quorum >= 1) {
        let quorums = format!("ensemble {ensemble_size}, write quorum {write_quorum}, ack quorum {ack_quorum}");
        return Err(malformed(format!("{quorums}: expected ensemble >= write quorum >= ack quorum >= 1")));
    }
    if segments.first().is_none_or(|segment| segment.first_entry != EntryId(0)) {
        return Err(malformed("its first segment does not start at entry 0"));
    }
    if !segments.is_sorted_by(|a, b| a.first_entry < b.first_entry) {
        return Err(malformed("its segments are not in order"));
    }
    if let Some(segment) = segments.iter().find(|segment| segment.bookies.len() != ensemble_size as usize) {
        let found = segment.bookies.len();
        return Err(malformed(format!("segment {} has {found} bookies, not {ensemble_size}", segment.first_entry)));
    }
    Ok(metadata)
}

/// Lines: write quorum, ensemble size, length, `first entry \t bookie \t bookie …` per segment; then, unless the ledger is
/// open, `last entry \t CLOSED`. The ack quorum is the write quorum.
fn decode_v1(text: &str) -> Result<LedgerMetadata, LedgerMetadataError> {
    let mut lines = text.lines();
    let mut number = |name: &str| {
        let line = lines.next().unwrap_or_default();
        line.parse::<u64>().map_err(|_| malformed(format!("{name} is `{line}`: expected a number")))
    };
    let write_quorum = to_u32(number("write quorum")?)?;
    let ensemble_size = to_u32(number("ensemble size")?)?;
    let length = number("length")?;

    let mut state = LedgerState::Open;
    let mut segments = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let mut fields = line.split('\t');
        let first = fields.next().unwrap_or_default();
        let entry: i64 = first.parse().map_err(|_| malformed(format!("`{first}`: expected an entry id")))?;
        if let Some("CLOSED") = fields.clone().next() {
            state = match entry {
                V1_IN_RECOVERY => LedgerState::InRecovery,
                last => LedgerState::Closed { last_entry: checked_last(last)?, length },
            };
            break;
        }
        let bookies = fields.map(BookieId::from).collect();
        segments.push(Segment { first_entry: EntryId(entry), bookies });
    }
    Ok(LedgerMetadata {
        ensemble_size,
        write_quorum,
        ack_quorum: write_quorum,
        state,
        segments,
        digest: None,
        password: None,
        created_ms: None,
        custom: Vec::new(),
        creator_token: None,
    })
}

fn to_u32(number: u64) -> Result<u32, LedgerMetadataError> {
    u32::try_from(number).map_err(malformed)
}

fn checked_last(last_entry: i64) -> Result<EntryId, LedgerMetadataError> {
    if last_entry < -1 {
        return Err(malformed(format!("it is closed at entry {last_entry}")));
    }
    Ok(EntryId(last_entry))
}

/// The message of versions 2 and 3.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LedgerMetadataFormat {
    #[prost(int32, required, tag = "1")]
    pub(crate) quorum_size: i32,
    #[prost(int32, required, tag = "2")]
    pub(crate) ensemble_size: i32,
    #[prost(int64, required, tag = "3")]
    pub(crate) length: i64,
    #[prost(int64, optional, tag = "4")]
    pub(crate) last_entry_id: Option<i64>,
    #[prost(int32, required, tag = "5")]
    pub(crate) state: i32,
    #[prost(message, repeated, tag = "6")]
    pub(crate) segment: Vec<SegmentFormat>,
    #[prost(int32, optional, tag = "7")]
    pub(crate) digest_type: Option<i32>,
    #[prost(bytes = "bytes", optional, tag = "8")]
    pub(crate) password: Option<Bytes>,
    #[prost(int32, optional, tag = "9")]
    pub(crate) ack_quorum_size: Option<i32>,
    #[prost(int64, optional, tag = "10")]
    pub(crate) ctime: Option<i64>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) custom_metadata: Vec<CustomFormat>,
    #[prost(int64, optional, tag = "12")]
    pub(crate) c_token: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SegmentFormat {
    #[prost(string, repeated, tag = "1")]
    pub(crate) ensemble_member: Vec<String>,
    #[prost(int64, required, tag = "2")]
    pub(crate) first_entry_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CustomFormat {
    #[prost(string, optional, tag = "1")]
    pub(crate) key: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(crate) value: Option<Bytes>,
}

pub(crate) const STATE_OPEN: i32 = 1;
pub(crate) const STATE_IN_RECOVERY: i32 = 2;
pub(crate) const STATE_CLOSED: i32 = 3;

impl From<&LedgerMetadata> for LedgerMetadataFormat {
    fn from(metadata: &LedgerMetadata) -> Self {
        let (state, last_entry, length) = match metadata.state {
            LedgerState::Open => (STATE_OPEN, EntryId::NONE, 0),
            LedgerState::InRecovery => (STATE_IN_RECOVERY, EntryId::NONE, 0),
            LedgerState::Closed { last_entry, length } => (STATE_CLOSED, last_entry, length),
        };
        let segment = |segment: &Segment| SegmentFormat {
            ensemble_member: segment.bookies.iter().map(|bookie| bookie.0.clone()).collect(),
            first_entry_id: segment.first_entry.0,
        };
        let custom =
            |(key, value): &(String, Bytes)| CustomFormat { key: Some(key.clone()), value: Some(value.clone()) };
        LedgerMetadataFormat {
            quorum_size: metadata.write_quorum as i32,
            ensemble_size: metadata.ensemble_size as i32,
            length: length as i64,
            last_entry_id: Some(last_entry.0),
            state,
            segment: metadata.segments.iter().map(segment).collect(),
            digest_type: metadata.digest.map(|digest| digest as i32),
            password: metadata.password.clone(),
            ack_quorum_size: Some(metadata.ack_quorum as i32),
            ctime: metadata.created_ms,
            custom_metadata: metadata.custom.iter().map(custom).collect(),
            c_token: metadata.creator_token,
        }
    }
}

impl TryFrom<LedgerMetadataFormat> for LedgerMetadata {
    type Error = LedgerMetadataError;

    fn try_from(format: LedgerMetadataFormat) -> Result<Self, LedgerMetadataError> {
        let size = |name: &str, size: i32| u32::try_from(size).map_err(|_| malformed(format!("{name} is {size}")));
        let length = || u64::try_from(format.length).map_err(|_| malformed(format!("its length is {}", format.length)));
        let state = match format.state {
            STATE_OPEN => LedgerState::Open,
            STATE_IN_RECOVERY => LedgerState::InRecovery,
            STATE_CLOSED => LedgerState::Closed {
                last_entry: checked_last(
                    format.last_entry_id.ok_or_else(|| malformed("it is closed without a last entry"))?,
                )?,
                length: length()?,
            },
            other => return Err(malformed(format!("state {other} is not known"))),
        };
        let digest = |number| {
            DigestType::from_number(number).ok_or_else(|| malformed(format!("digest type {number} is not known")))
        };
        let segment = |segment: SegmentFormat| Segment {
            first_entry: EntryId(segment.first_entry_id),
            bookies: segment.ensemble_member.into_iter().map(BookieId).collect(),
        };
        Ok(LedgerMetadata {
            ensemble_size: size("ensemble size", format.ensemble_size)?,
            write_quorum: size("write quorum", format.quorum_size)?,
            ack_quorum: size("ack quorum", format.ack_quorum_size.unwrap_or(format.quorum_size))?,
            state,
            segments: format.segment.into_iter().map(segment).collect(),
            digest: format.digest_type.map(digest).transpose()?,
            password: format.password,
            created_ms: format.ctime,
            custom: format
                .custom_metadata
                .into_iter()
                .map(|custom| (custom.key.unwrap_or_default(), custom.value.unwrap_or_default()))
                .collect(),
            creator_token: format.c_token,
        })
    }
}
