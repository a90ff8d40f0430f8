//! A bookie in memory that fails when it is told to.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use bookkeeper_proto::{AddDone, AddOp, AddSink, BookieError, EntryHeader, EntryId, Fenced, LedgerId, MasterKey};
use bytes::Bytes;
use ledger::BookieAccess;
use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct MemoryBookie {
    state: Mutex<Stored>,
    /// So many adds from now on fail.
    pub(crate) failing: AtomicU32,
}

#[derive(Default)]
struct Stored {
    entries: BTreeMap<(LedgerId, EntryId), Bytes>,
    fenced: HashSet<LedgerId>,
}

#[async_trait]
impl BookieAccess for MemoryBookie {
    fn add(&self, op: AddOp, sink: &Arc<dyn AddSink>) {
        let mut stored = self.state.lock();
        let fails = self.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        let result = if fails {
            Err(BookieError::Gone { ledger: op.ledger })
        } else if stored.fenced.contains(&op.ledger) && !op.recovery {
            Err(BookieError::Fenced { ledger: op.ledger })
        } else {
            let bytes = op.bytes.to_bytes();
            stored.entries.insert((op.ledger, op.entry), bytes.clone());
            Ok(bytes)
        };
        sink.added(vec![AddDone { ledger: op.ledger, entry: op.entry, owner: op.owner, result }]);
    }

    async fn read(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: usize,
    ) -> Result<Vec<Bytes>, BookieError> {
        let stored = self.state.lock();
        let mut entries: Vec<Bytes> = Vec::new();
        let mut bytes = 0;
        for entry in first.0..=last.0 {
            let Some(found) = stored.entries.get(&(ledger, EntryId(entry))) else { break };
            bytes += found.len();
            if bytes > max_bytes && !entries.is_empty() {
                break;
            }
            entries.push(found.clone());
        }
        if entries.is_empty() { Err(BookieError::NoEntry { ledger, entry: first }) } else { Ok(entries) }
    }

    async fn fence(&self, ledger: LedgerId, _: MasterKey) -> Result<Fenced, BookieError> {
        let mut stored = self.state.lock();
        stored.fenced.insert(ledger);
        let range = (ledger, EntryId(0))..=(ledger, EntryId(i64::MAX));
        let last_entry = stored.entries.range(range.clone()).next_back().map(|(_, bytes)| bytes.clone());
        let lac = |(_, bytes): (_, &Bytes)| EntryHeader::decode(bytes).unwrap().last_add_confirmed;
        let last_add_confirmed = stored.entries.range(range).map(lac).max().unwrap_or(EntryId::NONE);
        Ok(Fenced { last_add_confirmed, last_entry })
    }

    async fn read_lac(&self, _: LedgerId) -> Result<EntryId, BookieError> {
        Ok(EntryId::NONE)
    }

    async fn forget(&self, ledger: LedgerId) -> Result<(), BookieError> {
        self.state.lock().entries.retain(|(of, _), _| *of != ledger);
        Ok(())
    }
}
