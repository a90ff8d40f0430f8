use std::fmt::Write as _;

use managed_ledger::CursorId;

use super::*;
use crate::door::{OutboundBudget, Outbox};

/// Plays a subscription of entries that hold one message each.
///
/// `+1`: consumer 1 joins (`+1p2` with priority 2); `-1`: it leaves; `f1*3`: it allows three messages; `e`: the next entry
/// is there; `a1:4`: it acknowledges entry 4; `r1`: it wants everything again, `r1:4` entry 4; `d`: dispatch until nobody
/// can take more.
/// Seen: `1=4` entry 4 went to consumer 1, `1=4+2` for the third time.
struct Play {
    subscription: Subscription,
    out: Outboxes,
    outboxes: Vec<Arc<Outbox>>,
    entries: i64,
    sub_type: SubscriptionType,
    acked: Vec<i64>,
}

fn limits() -> DispatchLimits {
    DispatchLimits {
        read_entries: 100,
        round_robin_entries: 2,
        unacked_per_consumer: 1000,
        unacked_per_subscription: 1000,
        max_consumers: 3,
    }
}

impl Play {
    fn new(sub_type: SubscriptionType, limits: DispatchLimits) -> Self {
        let budget = Arc::new(OutboundBudget::new(1 << 20, Arc::from([])));
        let outboxes = (0..4).map(|id| Arc::new(Outbox::new(id, budget.clone()))).collect();
        let subscription = Subscription::new(1, -1, "s".into(), CursorId(0), 0, true, limits);
        Self { subscription, out: Outboxes::new(0, budget), outboxes, entries: 0, sub_type, acked: Vec::new() }
    }

    fn word(&mut self, word: &str) {
        let (kind, rest) = word.split_at(1);
        let number = |text: &str| text.parse::<i64>().unwrap();
        match kind {
            "+" => {
                let (id, priority) = rest.split_once('p').unwrap_or((rest, "0"));
                let key = number(id) as u64;
                let slot = self.out.register(&self.outboxes[key as usize]);
                let consumer = Consumer::new(key, key, slot, "c".into(), number(priority) as i32);
                self.subscription.check_join(self.sub_type).unwrap();
                self.subscription.join(self.sub_type, consumer);
            }
            "-" => drop(self.subscription.leave(number(rest) as u64)),
            "f" => {
                let (id, permits) = rest.split_once('*').unwrap();
                self.subscription.flow(number(id) as u64, number(permits) as u32, 0);
            }
            "e" => self.entries += 1,
            "a" => {
                let (id, entry) = rest.split_once(':').unwrap();
                self.acked.push(number(entry));
                self.subscription.acked(number(id) as u64, Position::new(1, number(entry)), 0, 0);
            }
            "r" => {
                let (id, entry) = rest.split_once(':').map_or((rest, None), |(id, entry)| (id, Some(entry)));
                let positions = entry.map(|entry| [Position::new(1, number(entry))]);
                self.subscription.redeliver(number(id) as u64, positions.as_ref().map(|one| &one[..]), None);
            }
            "d" => self.dispatch(),
            other => panic!("no such word: {other}"),
        }
    }

    fn dispatch(&mut self) {
        while let Some(wish) = self.subscription.wish(&mut self.out) {
            let first = wish.from.entry.0.max(0);
            let mut read: Vec<i64> = (first..self.entries).filter(|entry| !self.acked.contains(entry)).collect();
            read.truncate(wish.entries);
            if read.is_empty() {
                return;
            }
            self.subscription.begin_batch();
            for entry in read {
                let position = Position::new(1, entry);
                if !self.subscription.wants(wish.kind, position) {
                    continue;
                }
                let entry = Deliverable { position, payload: Bytes::new(), messages: 1, ack_set: None };
                if !self.subscription.deliver(wish.kind, entry, 0, &mut self.out) {
                    return;
                }
            }
        }
    }

    fn seen(mut self) -> String {
        self.out.flush();
        let mut seen = String::new();
        for (id, outbox) in self.outboxes.iter().enumerate() {
            let mut items = Vec::new();
            outbox.take(&mut items);
            for item in items {
                let Outgoing::Message(message) = item else { panic!("only messages are sent here") };
                write!(seen, "{id}={}", message.position.entry).unwrap();
                match message.redelivery_count {
                    0 => seen.push(' '),
                    count => write!(seen, "+{count} ").unwrap(),
                }
            }
        }
        seen.trim_end().to_owned()
    }
}

fn check_with(sub_type: SubscriptionType, limits: DispatchLimits, input: &str, expected: &str) {
    let mut play = Play::new(sub_type, limits);
    input.split_whitespace().for_each(|word| play.word(word));
    assert_eq!(play.seen(), expected, "{input}");
}

fn shared(input: &str, expected: &str) {
    check_with(SubscriptionType::Shared, limits(), input, expected);
}

fn exclusive(input: &str, expected: &str) {
    check_with(SubscriptionType::Exclusive, limits(), input, expected);
}

#[test]
fn nothing_is_sent_without_permits() {
    exclusive("+1 e e d", "");
    exclusive("+1 f1*1 e e d", "1=0");
    exclusive("+1 f1*1 e e d f1*5 d", "1=0 1=1");
    shared("+1 +2 f2*1 e e e d", "2=0");
}

#[test]
fn consumers_take_turns() {
    // One by one.
    shared("+1 +2 f1*9 f2*9 e d e d e d e d", "1=1 1=3 2=0 2=2");
    // Two at a time when there is a backlog, and the one with permits gets the rest.
    shared("+1 +2 f1*9 f2*3 e e e e e e d", "1=2 1=3 1=5 2=0 2=1 2=4");
    shared("+1 +2 f1*9 f2*1 e e e e d", "1=1 1=2 1=3 2=0");
}

#[test]
fn lower_priorities_get_what_higher_ones_cannot_take() {
    shared("+1p1 +2 f1*9 f2*2 e e e d", "1=2 2=0 2=1");
    shared("+1p1 +2p1 +3 f1*9 f2*9 f3*1 e e e e e d", "1=1 1=2 2=3 2=4 3=0");
}

#[test]
fn what_is_asked_for_again_comes_first_and_is_counted() {
    shared("+1 f1*2 e e e d r1:0 f1*9 d", "1=0 1=1 1=0+1 1=2");
    shared("+1 f1*3 e e e d r1 f1*9 d r1:1 d", "1=0 1=1 1=2 1=0+1 1=1+1 1=2+1 1=1+2");
    shared("+1 f1*9 e e d a1:0 r1 d", "1=0 1=1 1=1+1");
    shared("+1 f1*9 e e d r1:0 a1:0 d", "1=0 1=1");
    exclusive("+1 f1*9 e e d a1:0 r1 d", "1=0 1=1 1=1");
}

#[test]
fn who_leaves_leaves_its_messages_to_the_others() {
    shared("+1 +2 f1*9 f2*2 e e e d -2 d", "1=2 1=0+1 1=1+1 2=0 2=1");
    // The last one: whoever comes begins anew.
    shared("+1 f1*9 e e d -1 +2 f2*9 d", "1=0 1=1 2=0 2=1");
    exclusive("+1 f1*9 e e d a1:0 -1 +2 f2*9 d", "1=0 1=1 2=1");
}

#[test]
fn too_much_unacknowledged_blocks_until_half_of_it_is() {
    let few = DispatchLimits { unacked_per_consumer: 4, ..limits() };
    let check = |input, expected| check_with(SubscriptionType::Shared, few, input, expected);
    check("+1 f1*99 e e e e e e d", "1=0 1=1 1=2 1=3");
    check("+1 f1*99 e e e e e e d a1:0 d", "1=0 1=1 1=2 1=3");
    check("+1 f1*99 e e e e e e d a1:0 a1:1 d", "1=0 1=1 1=2 1=3 1=4 1=5");
    // Asking again for everything makes room, too.
    check("+1 f1*5 e e e e e e d r1 d", "1=0 1=1 1=2 1=3 1=0+1");
    let few = DispatchLimits { unacked_per_subscription: 4, ..limits() };
    let check = |input, expected| check_with(SubscriptionType::Shared, few, input, expected);
    check("+1 +2 f1*99 f2*99 e e e e e e d", "1=2 1=3 2=0 2=1");
    check("+1 +2 f1*99 f2*99 e e e e e e d a1:2 a2:0 d", "1=2 1=3 2=0 2=1 2=4 2=5");
}

#[test]
fn a_second_type_or_a_second_exclusive_consumer_is_refused() {
    let cases = [
        (SubscriptionType::Exclusive, SubscriptionType::Exclusive, BrokerErrorKind::ConsumerBusy),
        (SubscriptionType::Exclusive, SubscriptionType::Shared, BrokerErrorKind::ConsumerBusy),
        (SubscriptionType::Shared, SubscriptionType::Exclusive, BrokerErrorKind::ConsumerBusy),
        (SubscriptionType::Shared, SubscriptionType::Failover, BrokerErrorKind::NotAllowed),
    ];
    for (present, new, kind) in cases {
        let mut play = Play::new(present, limits());
        play.word("+1");
        assert_eq!(play.subscription.check_join(new).unwrap_err().kind, kind, "{present:?} {new:?}");
        // Nobody there: any type.
        play.word("-1");
        if kind == BrokerErrorKind::ConsumerBusy {
            play.subscription.check_join(new).unwrap();
        }
    }
}
