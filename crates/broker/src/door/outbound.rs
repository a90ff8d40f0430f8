//! The memory that messages may hold between the topics and the sockets, for the whole process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use crate::mailbox::{Command, Mailbox};

/// Shares a limit among connections that nobody counts beforehand.
///
/// A connection may queue a fraction of what is *still free*: each one that stalls leaves less to the next, none can take
/// all, and a single one gets much. What is left over belongs to connections whose peers have acknowledged something: many
/// that never read cannot take it, so those who do go on.
pub struct OutboundBudget {
    limit: usize,
    used: AtomicUsize,
    /// Bit n: shard n was refused and waits for a word when there is room.
    waiting: AtomicU64,
    /// They are told when so much or less is used. A word for every freed byte would wake them for nothing.
    tell_at: AtomicUsize,
    shards: Arc<[Arc<Mailbox>]>,
}

/// The most one connection may queue, in bytes; more does not make a socket faster.
const MOST: usize = 4 << 20;
/// One connection may queue this part of what is free: twenty that stall one after the other leave a third of it.
const SHARE: usize = 16;
/// This part is left to connections that read.
const RESERVE: usize = 4;
/// Whoever waits is told when this part of the limit has become free.
const WORTH_TELLING: usize = 16;

impl OutboundBudget {
    pub(crate) fn new(limit_bytes: usize, shards: Arc<[Arc<Mailbox>]>) -> Self {
        assert!(shards.len() <= 64, "the waiting set has a bit for each shard");
        Self {
            limit: limit_bytes,
            used: AtomicUsize::new(0),
            waiting: AtomicU64::new(0),
            tell_at: AtomicUsize::new(0),
            shards,
        }
    }

    pub fn used_bytes(&self) -> usize {
        self.used.load(SeqCst)
    }

    /// Whether a topic waits for memory that connections hold.
    pub(crate) fn is_contended(&self) -> bool {
        self.waiting.load(SeqCst) != 0
    }

    /// What a connection may still be given altogether, `elsewhere` bytes being on their way to others.
    pub(crate) fn free(&self, is_proven: bool, elsewhere: usize) -> usize {
        let limit = if is_proven { self.limit } else { self.limit - self.limit / RESERVE };
        limit.saturating_sub(self.used_bytes() + elsewhere)
    }

    /// What one connection may queue while so much is free.
    pub(crate) fn mark(free: usize) -> usize {
        (free / SHARE).min(MOST)
    }

    pub(super) fn charge(&self, bytes: usize) {
        self.used.fetch_add(bytes, SeqCst);
    }

    pub(super) fn release(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let used = self.used.fetch_sub(bytes, SeqCst) - bytes;
        if self.waiting.load(SeqCst) != 0 && used <= self.tell_at.load(SeqCst) {
            let told = self.waiting.swap(0, SeqCst);
            self.tell_at.store(0, SeqCst);
            self.post(told, || Command::Room);
        }
    }

    pub(super) fn post(&self, shards: u64, command: impl Fn() -> Command) {
        for (index, mailbox) in self.shards.iter().enumerate() {
            if shards & (1 << index) != 0 {
                mailbox.post(command());
            }
        }
    }

    /// Gives every shard a turn.
    pub(crate) fn wake_shards(&self) {
        self.shards.iter().for_each(|mailbox| mailbox.wake());
    }

    /// Asks for a [`Command::Room`] to `shard` once it is worth trying again. The shard looks for itself now and then, too:
    /// when only those who do not read are left, nothing is given back and nobody is told.
    pub(crate) fn await_room(&self, shard: usize) {
        self.tell_at.fetch_max(self.used_bytes().saturating_sub(self.limit / WORTH_TELLING), SeqCst);
        self.waiting.fetch_or(1 << shard, SeqCst);
    }

    /// Nobody of `shard` waits any more.
    pub(crate) fn give_up(&self, shard: usize) {
        self.waiting.fetch_and(!(1 << shard), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::{Admission, Outbox, Outgoing};

    const LIMIT: usize = 32 << 20;

    struct Door {
        budget: Arc<OutboundBudget>,
        mailbox: Arc<Mailbox>,
        next: u64,
    }

    impl Door {
        fn new() -> Self {
            let mailbox = Arc::new(Mailbox::default());
            Self { budget: Arc::new(OutboundBudget::new(LIMIT, Arc::from([mailbox.clone()]))), mailbox, next: 0 }
        }

        fn connection(&mut self) -> Outbox {
            self.next += 1;
            Outbox::new(self.next, self.budget.clone())
        }

        fn told(&self) -> String {
            let mut commands = Vec::new();
            self.mailbox.take(&mut commands);
            let name = |command: &Command| match command {
                Command::Room => "room".to_owned(),
                Command::Resume { outbox } => format!("resume {outbox}"),
                _ => "something else".to_owned(),
            };
            commands.iter().map(name).collect::<Vec<_>>().join(" ")
        }
    }

    /// Queues messages of this weight until no more is admitted; how many bytes.
    fn fill(outbox: &Outbox, weight: usize) -> usize {
        let before = outbox.bytes();
        while outbox.admits(weight, 0, 0) == Admission::Yes {
            push(outbox, weight);
        }
        outbox.bytes() - before
    }

    fn push(outbox: &Outbox, weight: usize) {
        let entry = bytes::Bytes::from(vec![0; weight - Outgoing::message_weight(0)]);
        let message = crate::door::OutgoingMessage {
            consumer_id: 1,
            position: crate::door::Position::new(1, 1),
            partition: -1,
            redelivery_count: 0,
            ack_set: None,
            consumer_epoch: None,
            entry,
        };
        outbox.push_all(&mut vec![Outgoing::Message(message)]);
    }

    #[test]
    fn many_who_do_not_read_leave_room_for_one_who_does() {
        let mut door = Door::new();
        let stalled: Vec<Outbox> = (0..100).map(|_| door.connection()).collect();
        let taken: Vec<usize> = stalled.iter().map(|outbox| fill(outbox, 1024)).collect();
        assert!(taken[0] <= MOST && taken[0] > 1 << 20, "a single one gets much: {}", taken[0]);
        assert!(taken.is_sorted_by(|a, b| a >= b) && taken[99] > 0, "{taken:?}");
        assert!(door.budget.used_bytes() <= LIMIT - LIMIT / RESERVE);
        let reader = door.connection();
        reader.prove();
        assert!(fill(&reader, 1024) > 256 << 10);
        reader.doubt();
        assert_eq!(fill(&reader, 1024), 0);
        drop(stalled);
        drop(reader);
        assert_eq!(door.budget.used_bytes(), 0);
    }

    #[test]
    fn large_messages_stay_below_the_limit_and_readers_get_theirs() {
        let mut door = Door::new();
        let large = 5 << 20;
        let stalled: Vec<Outbox> = (0..20).map(|_| door.connection()).collect();
        let taken: usize = stalled.iter().map(|outbox| fill(outbox, large)).sum();
        assert_eq!(taken, 4 * large);
        assert_eq!(stalled[19].admits(large, 0, 0), Admission::Room);
        let reader = door.connection();
        reader.prove();
        assert_eq!(fill(&reader, large), large);
        assert_eq!(reader.admits(large, 0, 0), Admission::Drained(0));
        // One that is larger than everything passes alone.
        assert_eq!(reader.admits(2 * LIMIT, 0, 0), Admission::Drained(0));
        drop(stalled);
        reader.written(large);
        assert_eq!(reader.admits(2 * LIMIT, 0, 0), Admission::Yes);
    }

    #[test]
    fn who_waits_is_told_once_it_is_worth_it() {
        let mut door = Door::new();
        let (a, b) = (door.connection(), door.connection());
        push(&a, 8 << 20);
        push(&b, 8 << 20);
        door.budget.await_room(0);
        assert!(door.budget.is_contended() && a.is_in_the_way());
        a.written(1 << 20);
        assert_eq!(door.told(), "");
        a.written(1 << 20);
        assert_eq!(door.told(), "room");
        assert!(!door.budget.is_contended());

        assert!(a.await_drained(0, 100));
        a.written((6 << 20) - 101);
        assert_eq!(door.told(), "");
        a.written(1);
        assert_eq!(door.told(), "resume 1");
        assert!(!a.await_drained(0, 100));

        door.budget.await_room(0);
        b.close();
        assert_eq!(door.told(), "room");
        assert_eq!(door.budget.used_bytes(), 100);
    }

    #[test]
    fn what_waits_long_lets_its_block_go() {
        let mut door = Door::new();
        let outbox = door.connection();
        let block = bytes::Bytes::from(vec![7; 1 << 20]);
        let mut items = vec![Outgoing::Message(crate::door::OutgoingMessage {
            consumer_id: 1,
            position: crate::door::Position::new(1, 1),
            partition: -1,
            redelivery_count: 0,
            ack_set: None,
            consumer_epoch: None,
            entry: block.slice(10..20),
        })];
        outbox.set_slow(true);
        outbox.push_all(&mut items);
        assert!(block.is_unique());
        outbox.take(&mut items);
        assert!(matches!(&items[0], Outgoing::Message(message) if message.entry[..] == [7; 10]));
    }
}
