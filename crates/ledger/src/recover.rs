//! Feeds a [`Recovery`] with what bookies answer, one after the other.

use std::collections::VecDeque;
use std::sync::Arc;

use bookkeeper_proto::{AddDone, AddOp, AddSink, BookieError, BookieId, EntryId, LedgerId, MasterKey};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::ledgers::Layout;
use crate::{BookieAccess, LedgerError, Ledgers, Recovery, RecoveryEffect, RecoveryEvent};

/// Where the ledger ends, and its length. Its bookies are fenced, and every entry up to there is on an ack quorum.
pub(crate) async fn find_end(
    ledgers: &Ledgers,
    ledger: LedgerId,
    layout: &Layout,
    key: MasterKey,
) -> Result<(EntryId, u64), LedgerError> {
    let last_segment = layout.segments.last().expect("decoded metadata has a segment");
    let mut out = Vec::new();
    let digester = layout.digester.clone();
    let mut recovery = Recovery::new(ledger, layout.quorums, last_segment.first_entry, digester, key, &mut out);
    let mut todo = VecDeque::from(out);
    while let Some(effect) = todo.pop_front() {
        let event = match effect {
            RecoveryEffect::Fence { bookie, key } => {
                let result = match find(ledgers, ledger, &last_segment.bookies[bookie]) {
                    Ok(access) => access.fence(ledger, key).await,
                    Err(error) => Err(error),
                };
                RecoveryEvent::Fenced { bookie, result }
            }
            RecoveryEffect::Read { bookie, entry } => {
                let result = match find(ledgers, ledger, &layout.segment_of(entry).0.bookies[bookie]) {
                    Ok(access) => read_one(access, ledger, entry).await,
                    Err(error) => Err(error),
                };
                RecoveryEvent::Read { bookie, entry, result }
            }
            RecoveryEffect::Add { bookie, op } => {
                let entry = op.entry;
                let result = match find(ledgers, ledger, &layout.segment_of(entry).0.bookies[bookie]) {
                    Ok(access) => add_one(access, op).await,
                    Err(error) => Err(error),
                };
                RecoveryEvent::Added { bookie, entry, result }
            }
            RecoveryEffect::Close { last_entry, length } => return Ok((last_entry, length)),
            RecoveryEffect::Fail(source) => return Err(LedgerError::Recovery { ledger, source }),
        };
        let mut out = Vec::new();
        recovery.on_event(event, &mut out);
        todo.extend(out);
    }
    unreachable!("recovery of ledger {ledger} ends with Close or Fail")
}

fn find<'a>(ledgers: &'a Ledgers, ledger: LedgerId, id: &BookieId) -> Result<&'a Arc<dyn BookieAccess>, BookieError> {
    ledgers.bookie_by_id(id).ok_or(BookieError::Gone { ledger })
}

async fn read_one(access: &Arc<dyn BookieAccess>, ledger: LedgerId, entry: EntryId) -> Result<Bytes, BookieError> {
    let entries = access.read(ledger, entry, entry, usize::MAX).await?;
    // Nothing at all is against the contract, hence no proof of absence.
    entries.into_iter().next().ok_or_else(|| BookieError::UnknownLedgerState { ledger, detail: "empty answer".into() })
}

async fn add_one(access: &Arc<dyn BookieAccess>, op: AddOp) -> Result<(), BookieError> {
    let ledger = op.ledger;
    let (sender, receiver) = oneshot::channel();
    let sink: Arc<dyn AddSink> = Arc::new(OneAdd(Mutex::new(Some(sender))));
    access.add(op, &sink);
    // The bookie may drop its side without a word, but not if it is we who keep the sender alive.
    drop(sink);
    receiver.await.unwrap_or(Err(BookieError::Gone { ledger }))
}

/// Waits for the end of a single add.
struct OneAdd(Mutex<Option<oneshot::Sender<Result<(), BookieError>>>>);

impl AddSink for OneAdd {
    fn added(&self, done: Vec<AddDone>) {
        let sender = self.0.lock().take();
        if let (Some(sender), Some(done)) = (sender, done.into_iter().next()) {
            // A recovery that was dropped does not care any more.
            let _ = sender.send(done.result.map(drop));
        }
    }
}
