//! Where shards put what a connection must send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{BrokerErrorKind, Position};
use crate::mailbox::{Command, Mailbox};

/// One thing a connection must send. Everything a door needs to build the frame is inside.
#[derive(Debug)]
pub enum Outgoing {
    /// The publish is durable.
    Receipt {
        producer_id: u64,
        sequence_id: u64,
        highest_sequence_id: u64,
        position: Position,
    },
    SendError {
        producer_id: u64,
        sequence_id: u64,
        kind: BrokerErrorKind,
        message: Arc<str>,
    },
    Message(OutgoingMessage),
    /// The answer to an acknowledgement with a request id; the acknowledgement is durable when there is no error.
    AckResponse {
        consumer_id: u64,
        request_id: u64,
        error: Option<(BrokerErrorKind, Arc<str>)>,
    },
    /// The broker closes the producer by itself.
    CloseProducer {
        producer_id: u64,
    },
    /// The broker closes the consumer by itself.
    CloseConsumer {
        consumer_id: u64,
    },
    ActiveConsumerChange {
        consumer_id: u64,
        is_active: bool,
    },
    ReachedEnd {
        consumer_id: u64,
    },
}

#[derive(Debug)]
pub struct OutgoingMessage {
    pub consumer_id: u64,
    pub position: Position,
    /// Index parsed from the topic's name, or -1.
    pub partition: i32,
    pub redelivery_count: u32,
    /// Words of the messages not yet acknowledged (bit = 1); `None`: all of them.
    pub ack_set: Option<Box<[i64]>>,
    /// Echo of the epoch the consumer asked with.
    pub consumer_epoch: Option<u64>,
    /// `0e01 crc size metadata payload`, without broker entry metadata.
    pub entry: Bytes,
}

impl Outgoing {
    /// What this counts for in the outbox, in bytes.
    pub fn weight(&self) -> usize {
        const FRAME: usize = 64;
        match self {
            Outgoing::Message(message) => FRAME + message.entry.len(),
            _ => FRAME,
        }
    }
}

/// The queue between the shards and one connection.
///
/// Shards append once per turn; the connection takes everything at once, writes it, and says how many bytes it has
/// written. Bytes count until they are written, so that a slow socket stops the dispatch towards it.
pub struct Outbox {
    id: u64,
    queue: Mutex<Vec<Outgoing>>,
    /// Queued or taken and not yet written.
    bytes: AtomicUsize,
    notify: Notify,
    closed: AtomicBool,
    /// Bit n: shard n saw this outbox congested and waits for a word when it is not.
    waiting: AtomicU64,
    shards: Arc<[Arc<Mailbox>]>,
}

impl Outbox {
    /// Above this many bytes nothing more is dispatched to the connection.
    pub const HIGH_MARK: usize = 4 << 20;
    /// Below this many bytes dispatch begins again.
    pub const LOW_MARK: usize = 1 << 20;

    pub(crate) fn new(id: u64, shards: Arc<[Arc<Mailbox>]>) -> Self {
        assert!(shards.len() <= 64, "the waiting set has a bit for each shard");
        Self {
            id,
            queue: Mutex::default(),
            bytes: AtomicUsize::new(0),
            notify: Notify::new(),
            closed: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
            shards,
        }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// Resolves when there is something to take (or at once after a [`Self::wake`]). Cancel-safe.
    pub async fn ready(&self) {
        self.notify.notified().await;
    }

    /// Wakes the connection's task without anything to send.
    pub fn wake(&self) {
        self.notify.notify_one();
    }

    /// Moves everything queued to the end of `into`. Call [`Self::written`] with the sum of the weights once the bytes
    /// have left.
    pub fn take(&self, into: &mut Vec<Outgoing>) {
        let mut queue = self.queue.lock();
        if into.is_empty() {
            std::mem::swap(&mut *queue, into);
        } else {
            into.append(&mut queue);
        }
    }

    /// `weight` bytes of what was taken have been written to the socket (or dropped).
    pub fn written(&self, weight: usize) {
        let before = self.bytes.fetch_sub(weight, Ordering::SeqCst);
        if before - weight < Self::LOW_MARK && self.waiting.load(Ordering::SeqCst) != 0 {
            let shards = self.waiting.swap(0, Ordering::SeqCst);
            for (index, mailbox) in self.shards.iter().enumerate() {
                if shards & (1 << index) != 0 {
                    mailbox.post(Command::Resume { outbox: self.id });
                }
            }
        }
    }

    /// Bytes queued, or taken and not yet written.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn is_congested(&self) -> bool {
        self.bytes() > Self::HIGH_MARK
    }

    /// The connection is gone: what is queued and what comes later is dropped.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.queue.lock().clear();
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Appends a turn's worth of items and wakes the connection once.
    pub fn push_all(&self, items: &mut Vec<Outgoing>) {
        if items.is_empty() {
            return;
        }
        if self.is_closed() {
            items.clear();
            return;
        }
        let weight: usize = items.iter().map(Outgoing::weight).sum();
        self.bytes.fetch_add(weight, Ordering::SeqCst);
        {
            let mut queue = self.queue.lock();
            if queue.is_empty() {
                std::mem::swap(&mut *queue, items);
            } else {
                queue.append(items);
            }
        }
        self.notify.notify_one();
    }

    /// Asks for a [`Command::Resume`] to `shard` once the outbox has drained. Answers false when it has drained already.
    pub(crate) fn await_drained(&self, shard: usize) -> bool {
        self.waiting.fetch_or(1 << shard, Ordering::SeqCst);
        // The connection may have drained between the look and the mark: then nobody would come back for the mark.
        self.bytes.load(Ordering::SeqCst) >= Self::LOW_MARK
    }
}
