//! Single histories, each about one promise.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod world;

use std::time::Duration;

use bookkeeper_proto::LedgerId;
use managed_ledger::formats::{ManagedCursorInfo, ManagedLedgerInfo, PositionInfo, decode_node};
use managed_ledger::{
    Ack, AddError, CursorError, CursorId, Effect, Effects, InitialPosition, ManagedLedger, ManagedLedgerConfig,
    NewCursor, OpenOptions, Position, Read, ReadLimit,
};
use metadata::MetadataStore;
use prost::Message;
use world::{NAME, Shell, World, block_on};

fn small() -> ManagedLedgerConfig {
    ManagedLedgerConfig { max_entries_per_ledger: 5, min_rollover_time: Duration::ZERO, ..Default::default() }
}

fn settle(world: &mut World, ml: &mut ManagedLedger, shell: &mut Shell) -> Vec<String> {
    shell.settle(world, ml);
    seen(shell)
}

/// Effects in short: `+1@0:0#0` added, `!2` failed, `ack 3`.
fn seen(shell: &mut Shell) -> Vec<String> {
    let brief = |effect: Effect| match effect {
        Effect::Added { token, position, index } => format!("+{token}@{position}#{index}"),
        Effect::AddFailed { token, error: AddError::OutcomeUnknown(_) } => format!("?{token}"),
        Effect::AddFailed { token, .. } => format!("!{token}"),
        Effect::AckDone { token, result: Ok(()) } => format!("ack {token}"),
        Effect::AckDone { token, .. } => format!("no ack {token}"),
        Effect::CursorCreated { result: Ok(id), .. } => format!("cursor {}", id.0),
        Effect::CursorDeleted { result: Ok(()), .. } => "cursor deleted".to_owned(),
        Effect::EntriesRead { reader, result: Ok(entries), .. } => format!("read {reader}: {}", entries.len()),
        Effect::NewEntries => "new".to_owned(),
        Effect::WritesInterrupted { .. } => "interrupted".to_owned(),
        Effect::WritesResumed => "resumed".to_owned(),
        Effect::Fenced { .. } => "fenced".to_owned(),
        Effect::Closed { result: Ok(()), .. } => "closed".to_owned(),
        other => format!("{other:?}"),
    };
    shell.seen.drain(..).map(brief).collect()
}

fn cursor(world: &mut World, ml: &mut ManagedLedger, shell: &mut Shell, name: &str, durable: bool) -> CursorId {
    let new = NewCursor {
        name: name.to_owned(),
        initial: InitialPosition::Earliest,
        durable,
        properties: vec![("pulsar.replicated.subscription".to_owned(), 1)],
        cursor_properties: vec![],
    };
    let mut out = Effects::new();
    ml.create_cursor(world.now, new, 1, &mut out);
    shell.take(&mut out);
    shell.settle(world, ml);
    shell.seen.clear();
    ml.cursor_named(name).unwrap()
}

fn ack(world: &World, ml: &mut ManagedLedger, shell: &mut Shell, id: CursorId, at: Position, token: Option<u64>) {
    let mut out = Effects::new();
    ml.ack(world.now, id, &Ack::Individual { position: at, remaining: vec![] }, token, &mut out);
    shell.take(&mut out);
}

fn add(world: &World, ml: &mut ManagedLedger, shell: &mut Shell, tokens: std::ops::Range<u64>) {
    tokens.for_each(|token| shell.add(world, ml, token, 1));
}

fn info(world: &World) -> ManagedLedgerInfo {
    let node = block_on(world.store.get(&format!("/managed-ledgers/{NAME}"))).unwrap().unwrap();
    decode_node(&node.value).unwrap()
}

fn cursor_info(world: &World, name: &str) -> ManagedCursorInfo {
    let node = block_on(world.store.get(&format!("/managed-ledgers/{NAME}/{name}"))).unwrap().unwrap();
    decode_node(&node.value).unwrap()
}

fn ledger_ids(world: &World) -> Vec<i64> {
    info(world).ledger_info.iter().map(|ledger| ledger.ledger_id).collect()
}

#[test]
fn the_old_owner_is_fenced_and_confirms_nothing_more() {
    let mut world = World::new(1, small());
    let (mut old, mut shell) = (world.open(), Shell::default());
    add(&world, &mut old, &mut shell, 0..2);
    assert_eq!(settle(&mut world, &mut old, &mut shell), ["+0@0:0#0", "+1@0:1#1", "new"]);
    add(&world, &mut old, &mut shell, 2..4);

    let new = world.open();
    assert_eq!((new.last_confirmed(), new.next_index()), (Position::new(0, 1), 2));
    assert_eq!(settle(&mut world, &mut old, &mut shell), ["?2", "?3", "interrupted", "fenced"]);
    add(&world, &mut old, &mut shell, 4..5);
    assert_eq!(seen(&mut shell), ["!4"]);
    assert_eq!(ledger_ids(&world), [0, 1], "the old owner left the node alone");
}

#[test]
fn an_old_owner_cannot_store_acknowledgements() {
    let mut world = World::new(1, small());
    let (mut old, mut shell) = (world.open(), Shell::default());
    let id = cursor(&mut world, &mut old, &mut shell, "s", true);
    add(&world, &mut old, &mut shell, 0..3);
    settle(&mut world, &mut old, &mut shell);
    ack(&world, &mut old, &mut shell, id, Position::new(0, 0), Some(10));
    assert_eq!(settle(&mut world, &mut old, &mut shell), ["ack 10"]);

    let mut new = world.open();
    let mut other = Shell::default();
    ack(&world, &mut old, &mut shell, id, Position::new(0, 2), Some(11));
    // The new owner stores something first, so the old one loses the race for the cursor's node.
    let new_id = new.cursor_named("s").unwrap();
    ack(&world, &mut new, &mut other, new_id, Position::new(0, 1), Some(20));
    assert_eq!(settle(&mut world, &mut new, &mut other), ["ack 20"]);
    shell.settle(&mut world, &mut old);
    world.pass(5000);
    shell.tick(&world, &mut old);
    assert_eq!(settle(&mut world, &mut old, &mut shell), ["no ack 11", "fenced"]);
}

#[test]
fn an_old_owner_cannot_take_the_cursor_from_an_idle_new_one() {
    let mut world = World::new(1, small());
    let (mut old, mut shell) = (world.open(), Shell::default());
    let id = cursor(&mut world, &mut old, &mut shell, "s", true);
    let fresh = cursor(&mut world, &mut old, &mut shell, "fresh", true);
    add(&world, &mut old, &mut shell, 0..3);
    settle(&mut world, &mut old, &mut shell);
    ack(&world, &mut old, &mut shell, id, Position::new(0, 0), Some(10));
    assert_eq!(settle(&mut world, &mut old, &mut shell), ["ack 10"]);
    let (mut new, mut other) = (world.open(), Shell::default());
    // One has a fenced ledger, the other has none yet.
    ack(&world, &mut old, &mut shell, id, Position::new(0, 1), Some(11));
    ack(&world, &mut old, &mut shell, fresh, Position::new(0, 1), Some(12));
    let ends = settle(&mut world, &mut old, &mut shell);
    assert!(ends.contains(&"fenced".to_owned()) && !ends.iter().any(|end| end.starts_with("ack")), "{ends:?}");
    for (token, name) in [(20, "s"), (21, "fresh")] {
        let id = new.cursor_named(name).unwrap();
        ack(&world, &mut new, &mut other, id, Position::new(0, 2), Some(token));
    }
    let ends = settle(&mut world, &mut new, &mut other);
    assert!(ends.contains(&"ack 20".to_owned()) && ends.contains(&"ack 21".to_owned()), "{ends:?}");
}

#[test]
fn rollover_goes_on_adding_while_the_next_ledger_is_created() {
    let mut world = World::new(1, small());
    let (mut ml, mut shell) = (world.open(), Shell::default());
    let _hold = cursor(&mut world, &mut ml, &mut shell, "s", true);
    add(&world, &mut ml, &mut shell, 0..5);
    shell.deliver(&world, &mut ml, 5);
    assert_eq!(shell.tasks.len(), 1, "the next ledger is being created");
    seen(&mut shell);
    // Meanwhile adds go to the full ledger.
    add(&world, &mut ml, &mut shell, 5..7);
    shell.run_task(&world, &mut ml, 0);
    // Created: what comes now waits until the two are confirmed and the new ledger is in the node.
    add(&world, &mut ml, &mut shell, 7..8);
    assert_eq!(shell.appends.len(), 2);
    shell.deliver(&world, &mut ml, 2);
    assert_eq!(ledger_ids(&world), [0]);
    assert_eq!(shell.appends.len(), 0);
    shell.run_task(&world, &mut ml, 0);
    assert_eq!(ledger_ids(&world), [0, 1]);
    assert_eq!(info(&world).ledger_info[0].entries, Some(7));
    assert_eq!(settle(&mut world, &mut ml, &mut shell), ["+5@0:5#5", "+6@0:6#6", "new", "+7@1:0#7", "new"]);
}

#[test]
fn a_failed_write_seals_the_ledger_and_goes_on_in_the_next() {
    let mut world = World::new(1, small());
    let (mut ml, mut shell) = (world.open(), Shell::default());
    add(&world, &mut ml, &mut shell, 0..3);
    shell.deliver(&world, &mut ml, 1);
    shell.fail_one(&world, &mut ml, true);
    assert_eq!(seen(&mut shell), ["+0@0:0#0", "new", "?1", "?2", "interrupted"]);
    add(&world, &mut ml, &mut shell, 3..4);
    assert_eq!(settle(&mut world, &mut ml, &mut shell), ["!3", "resumed"]);
    // Sent again in order; nothing is there twice.
    add(&world, &mut ml, &mut shell, 1..3);
    assert_eq!(settle(&mut world, &mut ml, &mut shell), ["+1@1:0#1", "+2@1:1#2", "new"]);
}

#[test]
fn the_index_survives_trimming_everything() {
    let mut world = World::new(1, small());
    let (mut ml, mut shell) = (world.open(), Shell::default());
    add(&world, &mut ml, &mut shell, 0..5);
    settle(&mut world, &mut ml, &mut shell);
    assert_eq!(ledger_ids(&world), [1], "no durable cursor holds anything back");
    drop(ml);
    let mut ml = world.open();
    assert_eq!((ml.next_index(), ledger_ids(&world).len()), (5, 1));
    add(&world, &mut ml, &mut shell, 5..6);
    assert_eq!(settle(&mut world, &mut ml, &mut shell).remove(0), "+5@2:0#5");
}

#[test]
fn the_cursor_is_stored_where_the_original_looks_for_it() {
    let mut world = World::new(1, ManagedLedgerConfig { cursor_snapshot_entries: 100, ..small() });
    let (mut ml, mut shell) = (world.open(), Shell::default());
    let id = cursor(&mut world, &mut ml, &mut shell, "a/b c", true);
    assert_eq!(cursor_info(&world, "a%2Fb+c").cursors_ledger_id, -1);
    add(&world, &mut ml, &mut shell, 0..4);
    settle(&mut world, &mut ml, &mut shell);
    for (token, entry) in [(1, 0), (2, 2), (3, 3)] {
        ack(&world, &mut ml, &mut shell, id, Position::new(0, entry), Some(token));
        assert_eq!(settle(&mut world, &mut ml, &mut shell), [format!("ack {token}")]);
    }
    let stored = cursor_info(&world, "a%2Fb+c");
    assert_eq!((stored.mark_delete_ledger_id, stored.mark_delete_entry_id), (Some(0), Some(0)));
    let ledger = LedgerId(stored.cursors_ledger_id);
    let entries = block_on(world.context.ledgers.read(ledger, 0.into_id(), 2.into_id(), 9999)).unwrap();
    let entries: Vec<_> = entries.iter().map(|view| PositionInfo::decode(view.payload()).unwrap()).collect();
    assert_eq!(entries.iter().map(|entry| (entry.ledger_id, entry.entry_id)).collect::<Vec<_>>(), [(0, 0); 3]);
    assert!(entries[0].delta.is_none() && entries.iter().all(|entry| entry.properties.len() == 1));
    assert_eq!(entries[1].delta.as_ref().unwrap().acked, [0, 2, 2]);
    assert_eq!(entries[2].delta.as_ref().unwrap().acked, [0, 3, 3]);

    // A clean close puts it all into the node, as the original would read it.
    let mut out = Effects::new();
    ml.close(world.now, 9, &mut out);
    shell.take(&mut out);
    assert_eq!(settle(&mut world, &mut ml, &mut shell), ["closed"]);
    let stored = cursor_info(&world, "a%2Fb+c");
    assert_eq!((stored.cursors_ledger_id, stored.mark_delete_entry_id), (-1, Some(0)));
    let ranges = &stored.individual_deleted_messages;
    assert_eq!((ranges[0].lower_endpoint.entry_id, ranges[0].upper_endpoint.entry_id, ranges.len()), (1, 3, 1));
    assert!(block_on(world.context.ledgers.open_read_only(ledger)).is_err(), "the cursor ledger is deleted");
    let ml = world.open();
    let id = ml.cursor_named("a/b c").unwrap();
    assert_eq!([0, 1, 2, 3].map(|entry| ml.is_acked(id, Position::new(0, entry))), [true, false, true, true]);
}

trait IntoId {
    fn into_id(self) -> bookkeeper_proto::EntryId;
}

impl IntoId for i64 {
    fn into_id(self) -> bookkeeper_proto::EntryId {
        bookkeeper_proto::EntryId(self)
    }
}

#[test]
fn acknowledgements_with_receipts_share_appends_and_lazy_ones_wait_for_the_tick() {
    let mut world = World::new(1, ManagedLedgerConfig { max_entries_per_ledger: 1000, ..small() });
    let (mut ml, mut shell) = (world.open(), Shell::default());
    let id = cursor(&mut world, &mut ml, &mut shell, "s", true);
    add(&world, &mut ml, &mut shell, 0..20);
    settle(&mut world, &mut ml, &mut shell);
    ack(&world, &mut ml, &mut shell, id, Position::new(0, 0), Some(0));
    assert_eq!(settle(&mut world, &mut ml, &mut shell), ["ack 0"]);
    for entry in 1..10 {
        ack(&world, &mut ml, &mut shell, id, Position::new(0, entry), Some(entry as u64));
    }
    assert_eq!(shell.appends.len(), 1, "one append in flight");
    shell.deliver(&world, &mut ml, 1);
    assert_eq!((seen(&mut shell), shell.appends.len()), (vec!["ack 1".to_owned()], 1));
    shell.deliver(&world, &mut ml, 1);
    assert_eq!((seen(&mut shell).len(), shell.appends.len()), (8, 0));
    // Without a receipt: nothing before the interval is over.
    ack(&world, &mut ml, &mut shell, id, Position::new(0, 15), None);
    shell.tick(&world, &mut ml);
    assert_eq!(shell.appends.len(), 0);
    world.pass(1000);
    shell.tick(&world, &mut ml);
    assert_eq!(shell.appends.len(), 1);
    // A repeated acknowledgement waits for the write that makes the first one durable.
    ack(&world, &mut ml, &mut shell, id, Position::new(0, 15), Some(50));
    assert_eq!(seen(&mut shell), [""; 0]);
    assert_eq!(settle(&mut world, &mut ml, &mut shell), ["ack 50"]);
}

#[test]
fn cursors_come_and_go() {
    let mut world = World::new(1, small());
    let (mut ml, mut shell) = (world.open(), Shell::default());
    add(&world, &mut ml, &mut shell, 0..3);
    settle(&mut world, &mut ml, &mut shell);
    let durable = cursor(&mut world, &mut ml, &mut shell, "durable", true);
    let volatile = cursor(&mut world, &mut ml, &mut shell, "volatile", false);
    ack(&world, &mut ml, &mut shell, volatile, Position::new(0, 1), Some(1));
    assert_eq!(seen(&mut shell), ["ack 1"], "at once: it promises nothing beyond this process");
    assert_eq!((ml.backlog(volatile).entries, ml.backlog(durable).messages), (2, 3));
    ack(&world, &mut ml, &mut shell, durable, Position::new(0, 3), Some(2));
    assert!(matches!(shell.seen.pop(), Some(Effect::AckDone { result: Err(CursorError::BeyondEnd { .. }), .. })));
    ack(&world, &mut ml, &mut shell, durable, Position::new(0, 1), Some(3));
    assert_eq!(settle(&mut world, &mut ml, &mut shell), ["ack 3"]);

    let mut out = Effects::new();
    ml.delete_cursor(durable, 4, &mut out);
    shell.take(&mut out);
    assert_eq!(settle(&mut world, &mut ml, &mut shell), ["cursor deleted"]);
    assert_eq!(ml.cursors().count(), 1);
    let ml = world.open();
    assert_eq!(ml.cursors().count(), 0);
    drop(ml);
    block_on(ManagedLedger::delete(&world.context, NAME)).unwrap();
    assert_eq!(block_on(world.context.ledgers.list()).unwrap(), [], "no ledger is left");
    let options = OpenOptions { owner: 1, create_if_missing: false, config: None, properties: vec![], now: world.now };
    assert!(block_on(ManagedLedger::open(&world.context, NAME, options)).is_err());
}

#[test]
fn seeking_back_is_durable_with_its_receipt() {
    let mut world = World::new(1, small());
    let (mut ml, mut shell) = (world.open(), Shell::default());
    let id = cursor(&mut world, &mut ml, &mut shell, "s", true);
    add(&world, &mut ml, &mut shell, 0..4);
    settle(&mut world, &mut ml, &mut shell);
    let mut out = Effects::new();
    ml.ack(world.now, id, &Ack::Cumulative { position: Position::new(0, 2), remaining: vec![] }, Some(1), &mut out);
    ml.reset_cursor(world.now, id, Position::new(0, 0), Some(2), &mut out);
    shell.take(&mut out);
    assert_eq!(settle(&mut world, &mut ml, &mut shell), ["ack 1", "ack 2"]);
    drop(ml);
    let ml = world.open();
    assert_eq!(ml.mark_delete(ml.cursor_named("s").unwrap()), Some(Position::new(0, 0)));
}

#[test]
fn a_terminated_topic_takes_no_adds_and_stays_readable() {
    let mut world = World::new(1, small());
    let (mut ml, mut shell) = (world.open(), Shell::default());
    let _hold = cursor(&mut world, &mut ml, &mut shell, "s", true);
    add(&world, &mut ml, &mut shell, 0..2);
    let mut out = Effects::new();
    ml.terminate(world.now, 9, &mut out);
    shell.take(&mut out);
    assert_eq!(settle(&mut world, &mut ml, &mut shell), ["+0@0:0#0", "+1@0:1#1", "new", "closed"]);
    for mut ml in [ml, world.open()] {
        assert_eq!(ml.terminated(), Some(Position::new(0, 1)));
        assert_eq!(ml.last_confirmed(), Position::new(0, 1));
        add(&world, &mut ml, &mut shell, 2..3);
        assert_eq!(seen(&mut shell), ["!2"]);
    }
}

#[test]
fn readers_of_one_backlog_share_reads() {
    let mut world = World::new(1, ManagedLedgerConfig { max_entries_per_ledger: 1000, ..small() });
    let (mut ml, mut shell) = (world.open(), Shell::default());
    let _hold = cursor(&mut world, &mut ml, &mut shell, "s", true);
    add(&world, &mut ml, &mut shell, 0..10);
    settle(&mut world, &mut ml, &mut shell);
    world.context.cache.set_budget(0);
    shell.tick(&world, &mut ml);
    let limit = ReadLimit { max_entries: 4, max_bytes: 10_000 };
    let mut out = Effects::new();
    assert!(matches!(ml.read(1, Position::EARLIEST, limit, &mut out), Read::Pending));
    assert!(matches!(ml.read(2, Position::new(0, 2), limit, &mut out), Read::Pending));
    shell.take(&mut out);
    assert_eq!(shell.tasks.len(), 1);
    assert_eq!(settle(&mut world, &mut ml, &mut shell), ["read 1: 4", "read 2: 4"]);
    // And the read went ahead of both.
    let Read::Ready(entries) = ml.read(1, Position::new(0, 4), limit, &mut out) else { panic!("not kept") };
    assert_eq!(entries.iter().map(|entry| entry.position.entry.0).collect::<Vec<_>>(), [4, 5, 6, 7]);
    assert!(matches!(ml.read(1, Position::new(0, 10), limit, &mut out), Read::AtEnd));
}
