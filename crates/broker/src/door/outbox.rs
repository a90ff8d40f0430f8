//! Where shards put what a connection must send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{BrokerErrorKind, OutboundBudget, Position};
use crate::mailbox::Command;

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
        match self {
            Outgoing::Message(message) => Self::message_weight(message.entry.len()),
            _ => ITEM,
        }
    }

    /// The weight of a message whose entry has so many bytes.
    pub fn message_weight(entry_bytes: usize) -> usize {
        ITEM + entry_bytes
    }
}

/// What an item takes by itself: here, and encoded.
const ITEM: usize = 192;

/// A slice keeps the block it is a slice of. Blocks of several entries are at most this long; a longer entry has one of its
/// own, and nothing is won by copying it.
const LARGEST_SHARED_BLOCK: usize = 1 << 20;

/// The same bytes without the block around them. For what waits long: in time, one small message of each block would keep
/// every block.
pub(crate) fn unpinned(bytes: Bytes) -> Bytes {
    if bytes.len() < LARGEST_SHARED_BLOCK { Bytes::copy_from_slice(&bytes) } else { bytes }
}

/// The queue between the shards and one connection.
///
/// Shards append once per turn; the connection takes everything at once, writes it, and says how many bytes it has
/// written. Bytes count until they are written, here and in the process's budget, so that a slow socket stops the dispatch
/// towards it.
pub struct Outbox {
    id: u64,
    queue: Mutex<Vec<Outgoing>>,
    /// Queued or taken and not yet written.
    bytes: AtomicUsize,
    /// The peer has acknowledged something, so it reads.
    proven: AtomicBool,
    notify: Notify,
    closed: AtomicBool,
    /// What is queued will wait: it is copied out of its blocks.
    slow: AtomicBool,
    /// Bit n: shard n saw this outbox congested and waits for a word when it is not.
    waiting: AtomicU64,
    /// They are told when so many bytes or fewer are left.
    tell_at: AtomicUsize,
    budget: Arc<OutboundBudget>,
}

/// Whether a message may be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Yes,
    /// When the connection has written down to so many bytes.
    Drained(usize),
    /// When others have given back what they hold.
    Room,
}

impl Outbox {
    pub(crate) fn new(id: u64, budget: Arc<OutboundBudget>) -> Self {
        Self {
            id,
            queue: Mutex::default(),
            bytes: AtomicUsize::new(0),
            proven: AtomicBool::new(false),
            notify: Notify::new(),
            closed: AtomicBool::new(false),
            slow: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
            tell_at: AtomicUsize::new(usize::MAX),
            budget,
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
        let left = self.bytes.fetch_sub(weight, Ordering::SeqCst) - weight;
        self.budget.release(weight);
        if self.waiting.load(Ordering::SeqCst) != 0 && left <= self.tell_at.load(Ordering::SeqCst) {
            let shards = self.waiting.swap(0, Ordering::SeqCst);
            // Whoever asks between these two is told too early, which costs one look.
            self.tell_at.store(usize::MAX, Ordering::SeqCst);
            self.budget.post(shards, || Command::Resume { outbox: self.id });
        }
    }

    /// Bytes queued, or taken and not yet written.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a message of this weight may be queued, `pending` bytes being on their way to this connection and
    /// `elsewhere` bytes to any, this one included.
    pub(crate) fn admits(&self, weight: usize, pending: usize, elsewhere: usize) -> Admission {
        let free = self.budget.free(self.proven.load(Ordering::Relaxed), elsewhere);
        let mark = OutboundBudget::mark(free);
        let queued = self.bytes() + pending;
        if queued + weight <= mark {
            return Admission::Yes;
        }
        if queued > 0 {
            // What is larger than its share waits until nothing else is there.
            return Admission::Drained(if weight <= mark / 2 { mark / 4 } else { 0 });
        }
        // A message larger than the whole budget passes alone.
        let is_alone = self.budget.used_bytes() + elsewhere == 0;
        if weight <= free || is_alone { Admission::Yes } else { Admission::Room }
    }

    /// The peer has acknowledged a message, which it must have read.
    pub(crate) fn prove(&self) {
        if !self.proven.load(Ordering::Relaxed) {
            self.proven.store(true, Ordering::Relaxed);
        }
    }

    /// The peer takes nothing at the moment: whatever it has read before counts no longer.
    pub(crate) fn doubt(&self) {
        self.proven.store(false, Ordering::Relaxed);
    }

    /// The connection says whether what it is given will wait.
    pub(crate) fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Ordering::SeqCst);
    }

    /// Whether memory that this connection holds is waited for.
    pub(crate) fn is_in_the_way(&self) -> bool {
        self.bytes() > 0 && self.budget.is_contended()
    }

    /// The connection is gone: what is queued and what comes later is dropped.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Outside the lock: much may be freed.
        let queued = std::mem::take(&mut *self.queue.lock());
        drop(queued);
        self.budget.release(self.bytes.swap(0, Ordering::SeqCst));
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
        if self.slow.load(Ordering::SeqCst) {
            items.iter_mut().for_each(Outgoing::unpin);
        }
        let weight: usize = items.iter().map(Outgoing::weight).sum();
        self.bytes.fetch_add(weight, Ordering::SeqCst);
        self.budget.charge(weight);
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

    /// Asks for a [`Command::Resume`] to `shard` once no more than `left` bytes are left. Answers false when that is so
    /// already.
    pub(crate) fn await_drained(&self, shard: usize, left: usize) -> bool {
        self.tell_at.fetch_min(left, Ordering::SeqCst);
        self.waiting.fetch_or(1 << shard, Ordering::SeqCst);
        // The connection may have drained between the look and the mark: then nobody would come back for the mark.
        self.bytes.load(Ordering::SeqCst) > left
    }
}

impl Outgoing {
    /// Copies what it carries out of its block.
    pub(crate) fn unpin(&mut self) {
        if let Outgoing::Message(message) = self {
            message.entry = unpinned(std::mem::take(&mut message.entry));
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        // What was pushed while it was being closed.
        self.budget.release(*self.bytes.get_mut());
    }
}
