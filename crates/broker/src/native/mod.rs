//! The door of the binary protocol: frames in, typed calls to the broker, frames out.
//!
//! Lives here: the listener, one task a connection, and the only place of the broker that knows commands and error codes.
//! Must never know: how topics work, shards beyond [`Broker::spawn_on`], ledgers.
//! Read first: [`NativeDoor`] (start and stop), `connection` (the loop of one connection), `serve` (what each command does).
//! Tests: the decisions beside their modules (`session`, `throttle`, `budget`, `output`, `input`, `admission`), hostile input
//! through a real socket in `tests`.

mod admission;
mod budget;
mod close_reason;
mod connection;
mod counters;
mod input;
mod listener;
mod output;
mod replies;
mod resources;
mod serve;
mod session;
mod slowness;
#[cfg(test)]
mod tests;
mod throttle;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, Semaphore};

pub use self::{
    admission::ConnectionLimits,
    budget::PublishBudget,
    counters::{NativeCounters, NativeStats},
    listener::NativeDoor,
};
use crate::door::{Broker, Outbox};

/// Settings of the door alone; the others it needs are in [`crate::BrokerConfig`].
#[derive(Debug, Clone)]
pub struct NativeConfig {
    /// What CONNECTED carries. Clients look into it for what the original can do, so it names its version.
    pub server_version: String,
    /// Clients are told to stay with the address they came to.
    pub standalone: bool,
    pub limits: ConnectionLimits,
}

impl Default for NativeConfig {
    fn default() -> Self {
        Self { server_version: "Pulsar Server4.0.1".to_owned(), standalone: true, limits: ConnectionLimits::default() }
    }
}

/// What all connections share.
struct Shared {
    broker: Broker,
    config: NativeConfig,
    budget: PublishBudget,
    counters: NativeCounters,
    /// `maxConcurrentLookupRequest`
    lookups: Arc<Semaphore>,
    stopping: AtomicBool,
    live: Mutex<Live>,
    /// Told when the last connection has gone.
    all_gone: Notify,
}

/// Connections that run: by the id of their outbox, through which their tasks are woken.
#[derive(Default)]
struct Live {
    connections: FxHashMap<u64, Arc<Outbox>>,
}

impl Shared {
    fn new(broker: Broker, config: NativeConfig) -> Arc<Self> {
        let settings = broker.config();
        let largest_frame = settings.max_message_bytes + pulsar_proto::frame::FRAME_OVERHEAD_BYTES;
        Arc::new(Self {
            budget: PublishBudget::new(Some(settings.max_publish_buffer_bytes), largest_frame),
            counters: NativeCounters::default(),
            lookups: Arc::new(Semaphore::new(settings.max_concurrent_lookups.min(Semaphore::MAX_PERMITS))),
            stopping: AtomicBool::new(false),
            live: Mutex::default(),
            all_gone: Notify::new(),
            config,
            broker,
        })
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }

    /// What one connection may use for reading, in bytes: a quarter of the publish buffer, shared by all of them.
    fn block_share(&self) -> usize {
        let connections = self.counters.read().active.max(1) as usize;
        self.broker.config().max_publish_buffer_bytes / 4 / connections
    }

    fn on_connection_opened(&self, outbox: &Arc<Outbox>) {
        self.counters.opened();
        self.live.lock().connections.insert(outbox.id(), Arc::clone(outbox));
    }

    fn on_connection_closed(&self, outbox: u64, had_handshake: bool) {
        if !had_handshake {
            self.counters.refused();
        }
        self.counters.closed();
        let mut live = self.live.lock();
        live.connections.remove(&outbox);
        if live.connections.is_empty() {
            self.all_gone.notify_one();
        }
    }
}
