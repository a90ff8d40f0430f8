//! Random histories with failed writes, forgotten answers and crashes, compared with a simple model.
//!
//! What must hold: every confirmed entry is there, at its position, in order, with its index; nothing is there that was
//! never added; no acknowledgement with a receipt comes back; nothing that nobody acknowledged is ever skipped or trimmed.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use managed_ledger::{
    Ack, CursorId, Effect, Effects, InitialPosition, ManagedLedger, ManagedLedgerConfig, NewCursor, Position, Read,
    ReadLimit,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use world::{Shell, World};

/// What a client knows about one subscription.
#[derive(Default, Clone)]
struct Subscription {
    /// Acknowledged with a receipt received.
    sure: BTreeSet<Position>,
    /// Everything that was ever acknowledged in whole, receipt or not.
    tried: BTreeSet<Position>,
    /// Of batches: the bits that remain, at least and at most.
    partial_sure: BTreeMap<Position, i64>,
    partial_tried: BTreeMap<Position, i64>,
    /// Token → what it covers.
    receipts: BTreeMap<u64, Vec<(Position, Option<i64>)>>,
}

struct Model {
    /// Confirmed: position → token, messages, index.
    added: BTreeMap<Position, (u64, u64)>,
    messages: BTreeMap<u64, u32>,
    next_token: u64,
    last_added_token: Option<u64>,
    subscriptions: BTreeMap<String, Subscription>,
    interrupted: u32,
    confirmed_receipts: u32,
    ledgers_seen: BTreeSet<i64>,
}

const SUBSCRIPTIONS: [&str; 2] = ["first sub", "second/sub"];

fn config() -> ManagedLedgerConfig {
    ManagedLedgerConfig {
        max_entries_per_ledger: 7,
        min_rollover_time: Duration::ZERO,
        max_entries_per_cursor_ledger: 12,
        max_ranges_in_metadata: 3,
        cursor_snapshot_entries: 4,
        max_ranges_per_cursor_entry: 2,
        read_bytes: 200,
        ..ManagedLedgerConfig::default()
    }
}

impl Model {
    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn observe(&mut self, shell: &mut Shell) -> bool {
        let mut fenced = false;
        for effect in shell.seen.drain(..) {
            match effect {
                Effect::Added { token, position, index } => {
                    if let Some((last, _)) = self.added.iter().next_back() {
                        assert!(*last < position, "{position} confirmed after {last}");
                    }
                    assert!(self.last_added_token < Some(token), "add {token} confirmed out of order");
                    self.last_added_token = Some(token);
                    self.ledgers_seen.insert(position.ledger.0);
                    self.added.insert(position, (token, index));
                }
                Effect::AckDone { token, result: Ok(()) } => {
                    self.confirmed_receipts += 1;
                    for subscription in self.subscriptions.values_mut() {
                        for (position, bits) in subscription.receipts.remove(&token).unwrap_or_default() {
                            match bits {
                                None => drop(subscription.sure.insert(position)),
                                Some(bits) => *subscription.partial_sure.entry(position).or_insert(-1) &= bits,
                            }
                        }
                    }
                }
                Effect::WritesInterrupted { .. } => self.interrupted += 1,
                Effect::Fenced { .. } => fenced = true,
                _ => {}
            }
        }
        fenced
    }

    /// Compares an open, settled managed ledger with what must be.
    fn check(&mut self, world: &mut World, shell: &mut Shell, ml: &mut ManagedLedger) {
        let mut found = BTreeMap::new();
        let mut at = Position::EARLIEST;
        let limit = ReadLimit { max_entries: 3, max_bytes: 150 };
        loop {
            let mut out = Effects::new();
            let entries = match ml.read(99, at, limit, &mut out) {
                Read::Ready(entries) => entries,
                Read::AtEnd => break,
                Read::Pending => {
                    shell.take(&mut out);
                    shell.settle(world, ml);
                    let answer = shell.seen.iter().position(|effect| matches!(effect, Effect::EntriesRead { .. }));
                    let Effect::EntriesRead { result, .. } = shell.seen.remove(answer.expect("an answer")) else {
                        unreachable!()
                    };
                    result.unwrap()
                }
            };
            assert!(entries.len() <= 3);
            for entry in entries {
                assert!(at <= entry.position);
                at = entry.position.next_entry();
                found.insert(entry.position, entry);
            }
        }
        ml.forget_reader(99);

        let mut last_index = None;
        for (position, entry) in &found {
            let text = String::from_utf8(entry.payload().to_vec()).unwrap();
            let token: u64 = text.strip_prefix("payload ").unwrap().parse().unwrap();
            let index = entry.broker_metadata().unwrap().index.unwrap();
            let messages = u64::from(self.messages[&token]);
            assert!(
                last_index.is_none_or(|last| last + messages == index),
                "{position}: index {index} after {last_index:?}"
            );
            last_index = Some(index);
            if let Some(expected) = self.added.get(position) {
                assert_eq!(*expected, (token, index), "{position}");
            }
        }
        if let Some(last) = last_index {
            assert_eq!(ml.next_index(), last + 1);
        }
        if let Some((_, (_, index))) = self.added.iter().next_back() {
            assert!(ml.next_index() > *index, "the index went back");
        }
        let ids: Vec<(CursorId, String)> = ml.cursors().map(|(id, name)| (id, name.to_owned())).collect();
        for position in self.added.keys().filter(|position| !found.contains_key(position)) {
            // Trimmed: only if every subscription tried to acknowledge it.
            for (name, subscription) in &self.subscriptions {
                assert!(subscription.tried.contains(position), "{position} is lost, `{name}` never had it");
            }
        }
        for (name, subscription) in &self.subscriptions {
            let id = ids.iter().find(|(_, found)| found == name).unwrap_or_else(|| panic!("cursor `{name}` is lost")).0;
            let mut unacked = 0;
            for position in found.keys().copied() {
                let acked = ml.is_acked(id, position);
                unacked += u64::from(!acked);
                if subscription.sure.contains(&position) {
                    assert!(acked, "`{name}`: acknowledgement of {position} came back");
                }
                if acked {
                    assert!(subscription.tried.contains(&position), "`{name}`: {position} skipped, never acknowledged");
                } else {
                    let bits = ml.ack_set(id, position).map_or(-1, |words| words[0]);
                    let sure = subscription.partial_sure.get(&position).copied().unwrap_or(-1);
                    let tried = subscription.partial_tried.get(&position).copied().unwrap_or(-1);
                    assert_eq!(bits & !sure, 0, "`{name}`: part of {position} came back: {bits:x}, sure {sure:x}");
                    assert_eq!(tried & !bits, 0, "`{name}`: part of {position} skipped: {bits:x}, tried {tried:x}");
                }
            }
            let backlog = ml.backlog(id);
            assert_eq!(backlog.entries, unacked, "`{name}`: backlog");
            assert!(backlog.messages >= backlog.entries);
            let next = ml.next_unacked(id, Position::EARLIEST);
            let expected = found.keys().find(|position| !ml.is_acked(id, **position));
            assert!(expected.is_none_or(|expected| *expected == next), "`{name}`: {next} instead of {expected:?}");
        }
        // What is there now was confirmed by being read.
        for (position, entry) in found {
            let text = String::from_utf8(entry.payload().to_vec()).unwrap();
            let token = text.strip_prefix("payload ").unwrap().parse().unwrap();
            let index = entry.broker_metadata().unwrap().index.unwrap();
            self.added.insert(position, (token, index));
        }
    }
}

fn ack(model: &mut Model, rng: &mut StdRng, world: &World, shell: &mut Shell, ml: &mut ManagedLedger) {
    let name = SUBSCRIPTIONS[rng.random_range(0..SUBSCRIPTIONS.len())];
    let Some(id) = ml.cursor_named(name) else { return };
    let end = ml.last_confirmed();
    let candidates: Vec<Position> = model.added.keys().copied().filter(|position| *position <= end).collect();
    let recent = candidates.len().min(25);
    if recent == 0 {
        return;
    }
    let position = candidates[candidates.len() - 1 - rng.random_range(0..recent)];
    let token = rng.random_bool(0.6).then(|| model.token());
    let bits = rng.random_bool(0.2).then(|| rng.random_range(1..16i64) & 0xf).filter(|bits| *bits != 0);
    let remaining: Vec<i64> = bits.into_iter().collect();
    let cumulative = rng.random_bool(0.05);
    let subscription = model.subscriptions.get_mut(name).unwrap();
    let mut covers: Vec<(Position, Option<i64>)> = vec![(position, bits)];
    let ack = if cumulative {
        covers.extend(candidates.iter().filter(|before| **before < position).map(|before| (*before, None)));
        Ack::Cumulative { position, remaining }
    } else {
        Ack::Individual { position, remaining }
    };
    for (position, bits) in &covers {
        match bits {
            None => drop(subscription.tried.insert(*position)),
            Some(bits) => {
                let tried = subscription.partial_tried.entry(*position).or_insert(-1);
                *tried &= bits;
                if *tried == 0 {
                    subscription.tried.insert(*position);
                }
            }
        }
    }
    if let Some(token) = token {
        subscription.receipts.insert(token, covers);
    }
    let mut out = Effects::new();
    ml.ack(world.now, id, &ack, token, &mut out);
    shell.take(&mut out);
}

fn reopen(model: &mut Model, world: &mut World) -> (ManagedLedger, Shell) {
    let forgets = std::mem::take(&mut *world.store.forgets.lock());
    for subscription in model.subscriptions.values_mut() {
        subscription.receipts.clear();
    }
    let (mut ml, mut shell) = (world.open(), Shell::default());
    model.check(world, &mut shell, &mut ml);
    *world.store.forgets.lock() = forgets;
    (ml, shell)
}

fn play(seed: u64) -> Model {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut world = World::new(seed, config());
    let mut model = Model {
        added: BTreeMap::new(),
        messages: BTreeMap::new(),
        next_token: 0,
        last_added_token: None,
        subscriptions: BTreeMap::new(),
        interrupted: 0,
        confirmed_receipts: 0,
        ledgers_seen: BTreeSet::new(),
    };
    let (mut ml, mut shell) = (world.open(), Shell::default());
    for name in SUBSCRIPTIONS {
        let new = NewCursor {
            name: name.to_owned(),
            initial: InitialPosition::Earliest,
            durable: true,
            properties: vec![],
            cursor_properties: vec![],
        };
        let mut out = Effects::new();
        ml.create_cursor(world.now, new, 0, &mut out);
        shell.take(&mut out);
        model.subscriptions.insert(name.to_owned(), Subscription::default());
    }
    shell.settle(&mut world, &mut ml);
    *world.store.forgets.lock() = rng.random_range(0..60);

    // An owner that was replaced and does not know it yet.
    let mut old: Option<(ManagedLedger, Shell)> = None;
    for _ in 0..300 {
        if let Some((ml, shell)) = &mut old {
            match rng.random_range(0..10) {
                0 => shell.deliver(&world, ml, 3),
                1 if !shell.tasks.is_empty() => shell.run_task(&world, ml, 0),
                2 => shell.tick(&world, ml),
                3 => shell.add(&world, ml, u64::MAX, 1),
                4 => {
                    let mut out = Effects::new();
                    let ids: Vec<CursorId> = ml.cursors().map(|(id, _)| id).collect();
                    // What was durable before may be confirmed again.
                    let news = |id: &CursorId| ml.backlog(*id).entries > 0;
                    let ids: Vec<CursorId> = ids.into_iter().filter(news).collect();
                    let ack = Ack::Cumulative { position: ml.last_confirmed(), remaining: vec![] };
                    ids.into_iter().for_each(|id| ml.ack(world.now, id, &ack, Some(u64::MAX), &mut out));
                    shell.take(&mut out);
                }
                _ => {}
            }
            for effect in shell.seen.drain(..) {
                let promise =
                    matches!(effect, Effect::Added { .. } | Effect::AckDone { result: Ok(()), token: u64::MAX });
                assert!(!promise, "the old owner promised {effect:?}");
            }
        }
        match rng.random_range(0..100) {
            0..30 => {
                let (token, messages) = (model.token(), rng.random_range(1..4));
                model.messages.insert(token, messages);
                shell.add(&world, &mut ml, token, messages);
            }
            30..50 => shell.deliver(&world, &mut ml, rng.random_range(1..6)),
            50..65 if !shell.tasks.is_empty() => {
                let index = rng.random_range(0..shell.tasks.len());
                shell.run_task(&world, &mut ml, index);
            }
            65..88 => ack(&mut model, &mut rng, &world, &mut shell, &mut ml),
            88..93 => {
                world.pass(rng.random_range(1..2000));
                shell.tick(&world, &mut ml);
            }
            93 => shell.fail_one(&world, &mut ml, rng.random()),
            94..96 => {
                if rng.random() {
                    // Another owner takes over; this one goes on for a while.
                    let _ = model.observe(&mut shell);
                    let replaced = (ml, shell);
                    (ml, shell) = reopen(&mut model, &mut world);
                    old = Some(replaced);
                    continue;
                }
                // Crash: of the appends on their way, some were written.
                let written = rng.random_range(0..=shell.appends.len());
                shell.appends.drain(..written).for_each(|op| drop(world.bookie.store(&op)));
                let _ = model.observe(&mut shell);
                (ml, shell) = reopen(&mut model, &mut world);
            }
            96 => {
                let mut out = Effects::new();
                ml.close(world.now, 1, &mut out);
                shell.take(&mut out);
                shell.settle(&mut world, &mut ml);
                let _ = model.observe(&mut shell);
                (ml, shell) = reopen(&mut model, &mut world);
            }
            _ => {}
        }
        assert!(!model.observe(&mut shell), "fenced without another owner");
    }
    *world.store.forgets.lock() = 0;
    for _ in 0..8 {
        shell.settle(&mut world, &mut ml);
        world.pass(1500);
        shell.tick(&world, &mut ml);
    }
    shell.settle(&mut world, &mut ml);
    assert!(!model.observe(&mut shell));
    let owed: usize = model.subscriptions.values().map(|subscription| subscription.receipts.len()).sum();
    assert_eq!(owed, 0, "receipts that never came");
    assert!(ml.is_writable());
    model.check(&mut world, &mut shell, &mut ml);
    model
}

#[test]
fn random_histories() {
    let (mut interrupted, mut receipts, mut ledgers) = (0, 0, 0);
    for seed in 0..150 {
        let played = std::panic::catch_unwind(|| play(seed));
        let model = played.unwrap_or_else(|_| panic!("seed {seed}"));
        interrupted += model.interrupted;
        receipts += model.confirmed_receipts;
        ledgers += model.ledgers_seen.len();
    }
    // A run that proves nothing fails.
    assert!(interrupted > 50 && receipts > 1000 && ledgers > 500, "{interrupted} {receipts} {ledgers}");
}
