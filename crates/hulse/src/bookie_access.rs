//! The ledger client's way to a bookie in the same process: no encoding, no copy, no socket.

use std::sync::Arc;

use async_trait::async_trait;
use bookie::{Bookie, Request};
use bookkeeper_proto::{AddOp, AddSink, BookieError, EntryId, Fenced, LedgerId, MasterKey};
use bytes::Bytes;
use ledger::BookieAccess;
use tokio::sync::{Semaphore, oneshot};

/// A bookie in this process.
pub(crate) struct InProcess {
    bookie: Arc<Bookie>,
    /// KiB that reads under way may bring together.
    reads: Arc<Semaphore>,
    reads_kib: u32,
    max_message_bytes: usize,
}

impl InProcess {
    /// `read_bytes`: what reads from the disk may bring together before they are handed over. A read brings at least one
    /// entry, so each counts for the largest message at least.
    pub(crate) fn new(bookie: Arc<Bookie>, read_bytes: usize, max_message_bytes: usize) -> Self {
        let reads_kib = kib(read_bytes);
        Self { bookie, reads: Arc::new(Semaphore::new(reads_kib as usize)), reads_kib, max_message_bytes }
    }

    /// Posts a request that is answered by a closure and waits without holding the thread.
    async fn ask(&self, ledger: LedgerId, request: impl FnOnce(bookie::Done) -> Request) -> Result<(), BookieError> {
        let (reply, answer) = oneshot::channel();
        self.bookie.post(request(Box::new(move |result| {
            // A caller that no longer listens is none.
            let _ = reply.send(result);
        })));
        answer.await.unwrap_or(Err(BookieError::Gone { ledger }))
    }

    /// Runs a read that may wait for the disk beside the shard's thread.
    async fn read_aside<T: Send + 'static>(
        &self,
        ledger: LedgerId,
        max_bytes: usize,
        read: impl FnOnce(&Bookie) -> Result<T, BookieError> + Send + 'static,
    ) -> Result<T, BookieError> {
        let bookie = Arc::clone(&self.bookie);
        let share = kib(max_bytes.max(self.max_message_bytes)).min(self.reads_kib);
        let _share = self.reads.acquire_many(share).await;
        tokio::task::spawn_blocking(move || read(&bookie)).await.unwrap_or(Err(BookieError::Gone { ledger }))
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(1, 1 << 28)
}

#[async_trait]
impl BookieAccess for InProcess {
    fn add(&self, op: AddOp, sink: &Arc<dyn AddSink>) {
        self.bookie.add(op, sink);
    }

    fn is_read_only(&self) -> bool {
        self.bookie.is_read_only()
    }

    async fn read(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: usize,
    ) -> Result<Vec<Bytes>, BookieError> {
        self.read_aside(ledger, max_bytes, move |bookie| bookie.read_many(ledger, first, last, max_bytes)).await
    }

    async fn fence(&self, ledger: LedgerId, key: MasterKey) -> Result<Fenced, BookieError> {
        self.ask(ledger, |done| Request::Fence { ledger, key, done }).await?;
        self.read_aside(ledger, 0, move |bookie| bookie.reader().fenced(ledger)).await
    }

    async fn read_lac(&self, ledger: LedgerId) -> Result<EntryId, BookieError> {
        self.read_aside(ledger, 0, move |bookie| bookie.read_lac(ledger).map(|lac| lac.last_add_confirmed)).await
    }

    async fn forget(&self, ledger: LedgerId) -> Result<(), BookieError> {
        self.ask(ledger, |done| Request::Delete { ledger, done }).await
    }
}
