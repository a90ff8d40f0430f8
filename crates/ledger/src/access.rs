use std::sync::Arc;

use async_trait::async_trait;
use bookkeeper_proto::{AddOp, AddSink, BookieError, EntryId, Fenced, LedgerId, MasterKey};
use bytes::Bytes;

/// One bookie, wherever it is.
///
/// `NoLedger` and `NoEntry` are proofs: recovery closes ledgers on them. An implementation that is not certain (a folder was
/// lost, a connection broke, a checksum was wrong) answers with another error.
#[async_trait]
pub trait BookieAccess: Send + Sync {
    /// Posts an add and returns at once. Its end comes to `sink`, exactly once, when the entry is durable or has failed. Adds
    /// to one ledger keep their order.
    fn add(&self, op: AddOp, sink: &Arc<dyn AddSink>);

    /// Whether adds are refused at the moment, as on a full disk. A hint: an add may fail nevertheless, or get through.
    fn is_read_only(&self) -> bool {
        false
    }

    /// The whole entries `first..=last`, in order and without gaps, as many as `max_bytes` allow but at least one.
    ///
    /// # Errors
    /// Those of entry `first`; when a later entry cannot be read, the ones before it are returned.
    async fn read(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: usize,
    ) -> Result<Vec<Bytes>, BookieError>;

    /// Refuses all adds to the ledger but those of its recovery, from now on and for ever.
    ///
    /// The fence is durable on return, also for a ledger the bookie has not heard of, which is `Ok` with nothing in it. An
    /// entry that `read` returns afterwards is durable, and one that it denies will never be written.
    async fn fence(&self, ledger: LedgerId, key: MasterKey) -> Result<Fenced, BookieError>;

    /// The highest LAC that the bookie knows, without fencing.
    async fn read_lac(&self, ledger: LedgerId) -> Result<EntryId, BookieError>;

    /// The ledger's metadata is gone: its entries may be collected. Durable on return, and idempotent.
    async fn forget(&self, ledger: LedgerId) -> Result<(), BookieError>;
}
