//! The ledger client's way to a bookie in the same process: no encoding, no copy, no socket.

use std::sync::Arc;

use async_trait::async_trait;
use bookie::{Bookie, Request};
use bookkeeper_proto::{AddOp, AddSink, BookieError, EntryId, Fenced, LedgerId, MasterKey};
use bytes::Bytes;
use ledger::BookieAccess;
use tokio::sync::oneshot;

/// A bookie in this process.
pub(crate) struct InProcess(pub(crate) Arc<Bookie>);

impl InProcess {
    /// Posts a request that is answered by a closure and waits without holding the thread.
    async fn ask(&self, ledger: LedgerId, request: impl FnOnce(bookie::Done) -> Request) -> Result<(), BookieError> {
        let (reply, answer) = oneshot::channel();
        self.0.post(request(Box::new(move |result| {
            // A caller that no longer listens is none.
            let _ = reply.send(result);
        })));
        answer.await.unwrap_or(Err(BookieError::Gone { ledger }))
    }

    /// Runs a read that may wait for the disk beside the shard's thread.
    async fn read_aside<T: Send + 'static>(
        &self,
        ledger: LedgerId,
        read: impl FnOnce(&Bookie) -> Result<T, BookieError> + Send + 'static,
    ) -> Result<T, BookieError> {
        let bookie = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || read(&bookie)).await.unwrap_or(Err(BookieError::Gone { ledger }))
    }
}

#[async_trait]
impl BookieAccess for InProcess {
    fn add(&self, op: AddOp, sink: &Arc<dyn AddSink>) {
        self.0.add(op, sink);
    }

    async fn read(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: usize,
    ) -> Result<Vec<Bytes>, BookieError> {
        self.read_aside(ledger, move |bookie| bookie.read_many(ledger, first, last, max_bytes)).await
    }

    async fn fence(&self, ledger: LedgerId, key: MasterKey) -> Result<Fenced, BookieError> {
        self.ask(ledger, |done| Request::Fence { ledger, key, done }).await?;
        self.read_aside(ledger, move |bookie| bookie.reader().fenced(ledger)).await
    }

    async fn read_lac(&self, ledger: LedgerId) -> Result<EntryId, BookieError> {
        self.read_aside(ledger, move |bookie| bookie.read_lac(ledger).map(|lac| lac.last_add_confirmed)).await
    }

    async fn forget(&self, ledger: LedgerId) -> Result<(), BookieError> {
        self.ask(ledger, |done| Request::Delete { ledger, done }).await
    }
}
