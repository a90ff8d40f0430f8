//! A writer and two recoveries of its ledger, interleaved in every way a seed can think of.

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bookkeeper_proto::{EntryId, LedgerState};
use common::{MemoryBookie, ScriptedStore, Writing, client, poll_once, run};
use ledger::{LedgerHandle, LedgersConfig, Quorums, WriterEvent, initialize};
use proptest::collection::vec;
use proptest::prelude::*;

/// One step of one party.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add,
    /// A bookie makes its oldest add durable, or refuses it.
    Commit(usize),
    /// The writer hears the oldest answer of a bookie.
    Deliver(usize),
    /// A recovery gets as far as its next request.
    Recover(usize),
    /// The writer wants to close, and does what follows from that.
    Close,
    CloseMetadata,
}

fn step(bookies: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Add),
        6 => (0..bookies).prop_map(Step::Commit),
        5 => (0..bookies).prop_map(Step::Deliver),
        10 => (0..2usize).prop_map(Step::Recover),
        1 => Just(Step::Close),
        2 => Just(Step::CloseMetadata),
    ]
}

/// What a history exercised: a run of all seeds that never raced proves nothing.
#[derive(Default, Debug)]
struct Seen {
    fenced_writers: u32,
    confirmed_before_fence: u32,
    both_recovered: u32,
    writer_closed: u32,
    /// The recovery found entries whose writer had not heard of their fate.
    beyond_lac: u32,
}

fn play(quorums: Quorums, steps: &[Step], seen: &mut Seen) -> Result<(), TestCaseError> {
    let store = ScriptedStore::pausing();
    let bookies: Vec<Arc<MemoryBookie>> = (0..quorums.ensemble()).map(|_| MemoryBookie::pausing()).collect();
    run(initialize(&*store, "id")).expect("a new store");
    let config = LedgersConfig { quorums, ..LedgersConfig::default() };
    let clients = [1, 2, 3].map(|seed| client(&store, &bookies, config.clone(), seed));
    let [owner, ..] = &clients;
    let mut writing = Writing::new(run(owner.create(vec![])).expect("a new ledger"), bookies.len());
    let ledger = writing.writer.ledger();

    type Task<'a, T> = Option<Pin<Box<dyn Future<Output = T> + 'a>>>;
    let mut recoveries: [Task<'_, Result<LedgerHandle, ledger::LedgerError>>; 2] =
        [1, 2].map(|i| Some(Box::pin(clients[i].open_recover(ledger)) as Pin<Box<dyn Future<Output = _> + '_>>));
    let mut closing: Task<'_, Result<(), ledger::LedgerError>> = None;
    let mut close_began = false;
    let mut ends: Vec<LedgerHandle> = Vec::new();

    // Afterwards everybody gets as many turns as they need.
    let turns = [Step::Commit(0), Step::Deliver(0), Step::Recover(0), Step::Recover(1), Step::CloseMetadata];
    let others = (1..bookies.len()).flat_map(|bookie| [Step::Commit(bookie), Step::Deliver(bookie)]);
    let round: Vec<Step> = turns.into_iter().chain(others).collect();
    let rest = std::iter::repeat_n(round, 300).flatten();
    for step in steps.iter().copied().chain(rest) {
        match step {
            Step::Add => drop(writing.add(owner, b"payload")),
            Step::Commit(bookie) => drop(bookies[bookie].commit_one()),
            Step::Deliver(bookie) => drop(writing.deliver(owner, bookie)),
            Step::Recover(i) => {
                if let Some(result) = poll_once(&mut recoveries[i]) {
                    let handle: LedgerHandle = result.map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
                    let confirmed = writing.confirmed.last().copied().unwrap_or(EntryId::NONE);
                    prop_assert!(confirmed <= handle.last_confirmed, "{confirmed} was confirmed, closed at {handle:?}");
                    seen.beyond_lac += u32::from(confirmed < handle.last_confirmed);
                    ends.push(handle);
                }
            }
            Step::Close => writing.tell(owner, WriterEvent::Close),
            Step::CloseMetadata => {
                if let (Some((last, length)), false) = (writing.sealed, close_began) {
                    close_began = true;
                    closing = Some(Box::pin(owner.close(ledger, last, length)));
                }
                if let Some(Ok(())) = poll_once(&mut closing) {
                    seen.writer_closed += 1;
                }
            }
        }
    }
    prop_assert!(recoveries.iter().all(Option::is_none) && closing.is_none(), "everybody gets to an end");

    // Everyone sees the same end, nothing confirmed lies behind it, and all before it can be read.
    let end = ends[0].metadata.state;
    let LedgerState::Closed { last_entry, length } = end else {
        return Err(TestCaseError::fail(format!("recovered ledger is {end:?}")));
    };
    prop_assert!(ends.iter().all(|handle| handle.metadata.state == end), "{ends:?}");
    prop_assert_eq!(length, (last_entry.0 + 1) as u64 * 7);
    let confirmed = writing.confirmed.len() as i64;
    prop_assert!(confirmed <= last_entry.0 + 1, "{confirmed} confirmed, closed at {last_entry}");
    prop_assert!(writing.confirmed.iter().map(|entry| entry.0).eq(0..confirmed), "confirmed in order");
    if !last_entry.is_none() {
        let mut next = EntryId(0);
        while next <= last_entry {
            let views = run(clients[1].read(ledger, next, last_entry, 1000))
                .map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
            next = EntryId(next.0 + views.len() as i64);
        }
    }
    seen.fenced_writers += u32::from(writing.writer.is_fenced());
    seen.confirmed_before_fence += u32::from(writing.writer.is_fenced() && confirmed > 0);
    seen.both_recovered += u32::from(bookies[0].fences() >= 2);
    Ok(())
}

/// Plays `cases` histories from a fixed seed.
fn check(quorums: (u32, u32, u32), cases: u32) {
    let quorums = Quorums::new(quorums.0, quorums.1, quorums.2).expect("quorums of a test");
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let rng = proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(config, rng);
    let seen = std::cell::RefCell::new(Seen::default());
    let histories = vec(step(quorums.ensemble()), 0..120);
    let result = runner.run(&histories, |steps| play(quorums, &steps, &mut seen.borrow_mut()));
    result.unwrap_or_else(|error| panic!("{error}"));
    let seen = seen.into_inner();
    let all =
        [seen.fenced_writers, seen.confirmed_before_fence, seen.both_recovered, seen.writer_closed, seen.beyond_lac];
    assert!(all.iter().all(|count| *count > 0), "these histories prove too little: {seen:?}");
}

#[test]
fn one_bookie() {
    check((1, 1, 1), 400);
}

#[test]
fn both_of_two_bookies() {
    check((2, 2, 2), 300);
}

#[test]
fn two_of_three_bookies() {
    check((3, 3, 2), 300);
}

#[test]
fn striped_over_three_bookies() {
    check((3, 2, 2), 300);
}
