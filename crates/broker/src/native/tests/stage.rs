//! A broker in this process, on a metadata store and a bookie in memory. The bookie may hold back what it would confirm.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    future::Future,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bookkeeper_proto::{
    AddDone, AddOp, AddSink, BookieError, BookieId, DigestType, EntryHeader, EntryId, Fenced, LedgerId, MasterKey,
};
use bytes::Bytes;
use ledger::{BookieAccess, Ledgers, LedgersConfig};
use managed_ledger::{CacheBudget, Context, ManagedLedgerConfig};
use metadata::{MemoryStore, MetadataStore};
use parking_lot::Mutex;
use pulsar_proto::TopicName;
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::{runtime, time::sleep};

use super::super::{NativeConfig, NativeDoor};
use crate::{Broker, BrokerConfig, stats::TopicStats};

pub(super) struct Stage {
    pub(super) door: NativeDoor,
    pub(super) address: SocketAddr,
    pub(super) broker: Broker,
    pub(super) bookie: Arc<HoldingBookie>,
}

impl Stage {
    /// How many entries were written to a topic.
    pub(super) async fn entries(&self, topic: &str) -> u64 {
        self.broker.topic_internal_stats(&name(topic)).await.unwrap().entries_added_counter
    }

    pub(super) async fn stats(&self, topic: &str) -> TopicStats {
        self.broker.topic_stats(&name(topic)).await.unwrap()
    }

    /// The broker closes every producer and consumer of a topic by itself.
    pub(super) async fn unload(&self, topic: &str) {
        self.broker.unload_topic(&name(topic)).await.unwrap();
    }
}

fn name(topic: &str) -> TopicName {
    TopicName::parse(topic).unwrap()
}

/// Waits for a condition, at most ten seconds.
pub(super) async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    for _ in 0..1000 {
        if condition().await {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("never came true: {what}");
}

/// Runs `test` against a door.
pub(super) fn on_stage(config: BrokerConfig, native: NativeConfig, test: impl AsyncFnOnce(Stage)) {
    runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let bookie = Arc::new(HoldingBookie::default());
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryStore::new());
        ledger::initialize(&*store, "instance").await.unwrap();
        let access: Arc<dyn BookieAccess> = bookie.clone();
        let bookies = vec![(BookieId::from("bookie:3181"), access)];
        let ledgers = Ledgers::new(store.clone(), bookies, LedgersConfig::default(), StdRng::seed_from_u64(1));
        let context = Context {
            metadata: store,
            ledgers: Arc::new(ledgers),
            digest: DigestType::Crc32c,
            config: Arc::new(ManagedLedgerConfig::default()),
            cache: Arc::new(CacheBudget::new(64 << 20)),
        };
        let config = BrokerConfig { shards: Some(2), ..config };
        let broker = Broker::start(config, context).await.unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let door = NativeDoor::listen(broker.clone(), native, &[address]).await.unwrap();
        let address = door.local_addresses()[0];
        test(Stage { door, address, broker: broker.clone(), bookie: bookie.clone() }).await;
        bookie.hold(false);
        broker.shutdown().await;
    });
}

#[derive(Default)]
pub(super) struct HoldingBookie {
    state: Mutex<Stored>,
}

#[derive(Default)]
struct Stored {
    entries: BTreeMap<(LedgerId, EntryId), Bytes>,
    fenced: HashSet<LedgerId>,
    holding: bool,
    held: VecDeque<(AddOp, Arc<dyn AddSink>)>,
}

impl HoldingBookie {
    /// From now on adds are kept waiting; or those that wait, and all others, are done.
    pub(super) fn hold(&self, holding: bool) {
        if holding {
            self.state.lock().holding = true;
            return;
        }
        // Adds keep their order: new ones wait until those before them are done.
        loop {
            let next = {
                let mut stored = self.state.lock();
                let next = stored.held.pop_front();
                stored.holding = next.is_some();
                next
            };
            match next {
                Some((op, sink)) => self.do_add(&op, &sink),
                None => return,
            }
        }
    }

    pub(super) fn held(&self) -> usize {
        self.state.lock().held.len()
    }

    /// Does the oldest `count` adds that wait.
    pub(super) fn release(&self, count: usize) {
        let adds: Vec<_> = self.state.lock().held.drain(..count).collect();
        for (op, sink) in adds {
            self.do_add(&op, &sink);
        }
    }

    fn do_add(&self, op: &AddOp, sink: &Arc<dyn AddSink>) {
        let result = {
            let mut stored = self.state.lock();
            if stored.fenced.contains(&op.ledger) && !op.recovery {
                Err(BookieError::Fenced { ledger: op.ledger })
            } else {
                let bytes = op.bytes.to_bytes();
                stored.entries.insert((op.ledger, op.entry), bytes.clone());
                Ok(bytes)
            }
        };
        sink.added(vec![AddDone { ledger: op.ledger, entry: op.entry, owner: op.owner, result }]);
    }
}

#[async_trait]
impl BookieAccess for HoldingBookie {
    fn add(&self, op: AddOp, sink: &Arc<dyn AddSink>) {
        {
            let mut stored = self.state.lock();
            if stored.holding {
                stored.held.push_back((op, Arc::clone(sink)));
                return;
            }
        }
        self.do_add(&op, sink);
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
        for (_, entry) in stored.entries.range((ledger, first)..=(ledger, last)) {
            bytes += entry.len();
            if bytes > max_bytes && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        if entries.is_empty() { Err(BookieError::NoEntry { ledger, entry: first }) } else { Ok(entries) }
    }

    async fn fence(&self, ledger: LedgerId, _: MasterKey) -> Result<Fenced, BookieError> {
        let mut stored = self.state.lock();
        stored.fenced.insert(ledger);
        let range = (ledger, EntryId(0))..=(ledger, EntryId(i64::MAX));
        let last_entry = stored.entries.range(range).next_back().map(|(_, bytes)| bytes.clone());
        let lac = |bytes: &Bytes| EntryHeader::decode(bytes).unwrap().last_add_confirmed;
        let last_add_confirmed = last_entry.as_ref().map_or(EntryId::NONE, lac);
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
