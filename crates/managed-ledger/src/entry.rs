//! An entry as readers see it.

use bytes::Bytes;
use pulsar_proto::entry_metadata;
use pulsar_proto::proto::BrokerEntryMetadata;

use crate::position::Position;

/// A confirmed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub position: Position,
    /// As stored: broker entry metadata (if any), then the client's block.
    pub data: Bytes,
}

impl Entry {
    /// The client's block (`0e01 crc metadata payload`), without broker entry metadata.
    #[must_use]
    pub fn payload(&self) -> Bytes {
        entry_metadata::strip(self.data.clone()).unwrap_or_else(|_| self.data.clone())
    }

    /// The broker entry metadata, if the entry has any (that can be read).
    #[must_use]
    pub fn broker_metadata(&self) -> Option<BrokerEntryMetadata> {
        entry_metadata::peek(&self.data).ok().flatten()
    }
}
