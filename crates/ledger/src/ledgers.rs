use std::sync::Arc;

use bookkeeper_proto::{
    BookieId, DigestType, Digester, EntryId, EntryView, LedgerId, LedgerMetadata, LedgerState, MasterKey,
};
use bytes::Bytes;
use metadata::MetadataStore;
use parking_lot::Mutex;
use rand::rngs::StdRng;

use crate::{BookieAccess, LedgerError, LedgerWriter, Quorums};

/// How new ledgers are made and old ones are read.
#[derive(Clone, Debug)]
pub struct LedgersConfig {
    pub quorums: Quorums,
    pub digest: DigestType,
    pub password: Bytes,
    pub verify: Verify,
}

/// What is checked about an entry before a reader gets it; that it is the right entry always is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verify {
    /// Its digest: for bytes that come over a network or from a bookie that does not check its disk.
    Digest,
    /// Nothing more: for a bookie in this process, which verified the checksum of its record on the same bytes.
    Identity,
}

/// All ledgers of a cluster.
pub struct Ledgers {
    store: Arc<dyn MetadataStore>,
    bookies: Vec<(BookieId, Arc<dyn BookieAccess>)>,
    config: LedgersConfig,
    rng: Mutex<StdRng>,
}

/// What was known about a ledger when it was opened.
#[derive(Clone, Debug)]
pub struct LedgerHandle {
    pub ledger: LedgerId,
    pub metadata: LedgerMetadata,
    /// Of the metadata node.
    pub version: i64,
    /// The last entry that a reader may ask for: the end of a closed ledger, else LAC.
    pub last_confirmed: EntryId,
}

impl Ledgers {
    /// `rng` makes the tokens by which a creator recognises its own ledger.
    pub fn new(
        store: Arc<dyn MetadataStore>,
        bookies: Vec<(BookieId, Arc<dyn BookieAccess>)>,
        config: LedgersConfig,
        rng: StdRng,
    ) -> Ledgers {
        todo!()
    }

    /// Creates a ledger and returns its only writer, whose [`WriterEffect::Send`](crate::WriterEffect) go to
    /// [`Ledgers::bookie`]. No bookie is contacted.
    pub async fn create(&self, custom: Vec<(String, Bytes)>) -> Result<LedgerWriter, LedgerError> {
        todo!()
    }

    /// Opens a ledger for reading and closes it, if it is not closed, at the highest entry that may have been acknowledged,
    /// after fencing its bookies.
    ///
    /// On return no earlier writer can get another add confirmed (fenced on enough bookies that no ack quorum is left).
    /// Idempotent; two recoveries may race, and the metadata version decides. Source: BookKeeper protocol, "Ledger recovery".
    /// # Errors
    /// [`LedgerError::Recovery`]: too few answered to know the end; the ledger is fenced but stays open. Retry later.
    pub async fn open_recover(&self, ledger: LedgerId) -> Result<LedgerHandle, LedgerError> {
        todo!()
    }

    /// Opens a ledger for reading without disturbing its writer. Writes nothing.
    pub async fn open_read_only(&self, ledger: LedgerId) -> Result<LedgerHandle, LedgerError> {
        todo!()
    }

    /// Ends a ledger with the values of its writer's [`WriterEffect::Seal`](crate::WriterEffect). Idempotent.
    ///
    /// On return the end is durable, and entries behind it will never be seen.
    /// # Errors
    /// [`LedgerError::ClosedElsewhere`]: a recovery was first and found another end. If it lies behind `last_entry`, some adds
    /// of unknown outcome are in the ledger.
    pub async fn close(&self, ledger: LedgerId, last_entry: EntryId, length: u64) -> Result<(), LedgerError> {
        todo!()
    }

    /// Deletes a ledger, whether open or closed. Idempotent: no error if there is none.
    ///
    /// On return its metadata is gone for good; bookies give its space back when they collect.
    pub async fn delete(&self, ledger: LedgerId) -> Result<(), LedgerError> {
        todo!()
    }

    /// Reads entries `first..=last`, in order and without gaps, as many as fit into `max_bytes` but at least one. Payloads are
    /// slices of what the bookie read. The caller keeps `last` at or below LAC.
    pub async fn read(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: usize,
    ) -> Result<Vec<EntryView>, LedgerError> {
        todo!()
    }

    /// All ledgers of the cluster, ascending.
    ///
    /// # Errors
    /// Whatever keeps the list from being complete: absence from it is a proof for garbage collection. (Ledgers created
    /// after the call began may be missing.)
    pub async fn list(&self) -> Result<Vec<LedgerId>, LedgerError> {
        todo!()
    }

    /// The bookie with that index in the ensemble of a ledger this process writes.
    pub fn bookie(&self, index: usize) -> &Arc<dyn BookieAccess> {
        &self.bookies[index].1
    }
}
