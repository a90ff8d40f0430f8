//! A whole node: metadata store, bookie, ledgers, managed ledgers and cursors, worked on by producers and consumers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use disk::simulated::{Op, SimDisk};
use managed_ledger::{
    AddError, CursorId, Effect, Effects, Event, InitialPosition, ManagedLedger, ManagedLedgerConfig, Now, OpenError,
    OpenOptions, Position, Read, ReadLimit, TaskResult,
};
use rand::Rng;
use rand::rngs::SmallRng;

use crate::broken::Broken;
use crate::executor::Executor;
use crate::harness::{Record, Subject, Trouble};
use crate::machine::{Machine, PATIENCE};
use crate::promises::{AckedBits, Promises, Seen, SeenCursor};

mod work;

/// Adds, reads, acknowledgements, cursors and topics coming and going, clocks moving on; in a random order of commits and tasks.
pub struct NodeHistory;

/// What all topics promised, and the time.
#[derive(Default)]
pub struct NodePromises {
    topics: BTreeMap<u32, Promises>,
    clock_ms: u64,
}

const TOPICS: u32 = 2;
const CURSORS: u32 = 3;

/// One life of the node.
struct Node<'a> {
    machine: Machine,
    topics: BTreeMap<u32, ManagedLedger>,
    tasks: Executor<(u32, TaskResult)>,
    promises: &'a mut NodePromises,
    record: &'a mut Record,
    next_token: u64,
    /// Requests without an answer yet.
    open: BTreeMap<(u32, u64), Request>,
    /// Answers to reads.
    read: BTreeMap<u64, Vec<Seen>>,
    last_ledger: BTreeMap<u32, Position>,
}

/// What an answer will be about.
#[derive(Clone, Debug)]
enum Request {
    Ack { cursor: String, ack: AckedBits },
    Seek { cursor: String, to: u64 },
    CreateCursor { cursor: String, initial: InitialPosition, end: Position },
    DeleteCursor { cursor: String },
    Close,
}

impl Subject for NodeHistory {
    type Promises = NodePromises;

    fn live(
        disk: &SimDisk,
        promises: &mut NodePromises,
        rng: &mut SmallRng,
        steps: u32,
        record: &mut Record,
    ) -> Result<(), Broken> {
        let machine = match Machine::start(disk, &Arc::new(config()), rng, record) {
            Ok(Some(machine)) => machine,
            Err(broken) if record.trouble() == Trouble::None => return Err(broken),
            _ => return Ok(()),
        };
        let mut node = Node {
            machine,
            topics: BTreeMap::new(),
            tasks: Executor::default(),
            promises,
            record,
            next_token: 1 << 32,
            open: BTreeMap::new(),
            read: BTreeMap::new(),
            last_ledger: BTreeMap::new(),
        };
        let lived = node.live(rng, steps);
        let reused = |op: &Op| matches!(op, Op::Rename(from, to) if has_suffix(from, "free") && has_suffix(to, "seg"));
        if disk.ops().iter().any(reused) {
            node.count("segment reused");
        }
        // Dropping the metadata store would close it in order; a crash does not.
        disk.crash_now();
        match lived {
            // The product may fail in any way that its dying disk makes it, but what it has shown and promised counts.
            Err(Failed::Stopped) => Ok(()),
            Err(Failed::Broken(broken)) => Err(broken),
            Ok(()) => Ok(()),
        }
    }

    /// All segments but the newest: its last commit cannot be told from one that was never finished.
    fn damageable(disk: &SimDisk) -> Vec<(PathBuf, u64)> {
        let segments = disk.files().into_iter().filter(|(path, _)| has_suffix(path, "seg"));
        let number = |path: &PathBuf| path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        let mut segments: Vec<(PathBuf, u64)> = segments.collect();
        segments.sort_by_key(|(path, _)| number(path));
        segments.pop();
        segments
    }
}

/// Why a life ended before its last step.
enum Failed {
    /// The disk crashed, or failed in a way that work cannot go on.
    Stopped,
    Broken(Broken),
}

impl From<Broken> for Failed {
    fn from(broken: Broken) -> Failed {
        Failed::Broken(broken)
    }
}

/// Numbers so small that everything rolls over.
fn config() -> ManagedLedgerConfig {
    ManagedLedgerConfig {
        max_entries_per_ledger: 6,
        max_bytes_per_ledger: 30_000,
        min_rollover_time: Duration::ZERO,
        max_rollover_time: Duration::from_secs(60),
        lazy_cursor_interval: Duration::from_millis(100),
        max_entries_per_cursor_ledger: 5,
        max_ranges_in_metadata: 2,
        cursor_snapshot_entries: 3,
        max_ranges_per_cursor_entry: 2,
        read_bytes: 4000,
        ..ManagedLedgerConfig::default()
    }
}

impl Node<'_> {
    fn live(&mut self, rng: &mut SmallRng, steps: u32) -> Result<(), Failed> {
        for topic in 0..TOPICS {
            self.promises.topics.entry(topic).or_insert_with(|| Promises::new(topic));
            if self.open(topic, false)? {
                self.check(topic, rng)?;
            } else {
                self.promise(topic).not_found()?;
            }
        }
        if steps == 0 {
            return Ok(());
        }
        for topic in 0..TOPICS {
            if !self.topics.contains_key(&topic) {
                self.open(topic, true)?;
                self.create_cursor(topic, rng)?;
            }
        }
        for _ in 0..steps {
            self.step(rng)?;
            self.alive()?;
        }
        if self.record.trouble() == Trouble::Full {
            self.space_comes_back(rng)?;
        }
        if rng.random_bool(0.5) {
            self.settle(rng)?;
        }
        if rng.random_bool(0.3) {
            for topic in 0..TOPICS {
                self.close(topic, rng)?;
            }
        }
        Ok(())
    }

    /// After the disk was full: everybody works again, without a restart.
    fn space_comes_back(&mut self, rng: &mut SmallRng) -> Result<(), Failed> {
        self.machine.disk.set_capacity_bytes(None);
        for _ in 0..5 {
            self.tick_all(2000)?;
            self.turn_until(rng, Node::is_idle)?;
        }
        self.record.space_is_back();
        for topic in 0..TOPICS {
            self.add(topic, rng)?;
        }
        self.settle(rng)?;
        self.count("space came back");
        Ok(())
    }

    /// Time passes for everybody.
    fn tick_all(&mut self, ms: u64) -> Result<(), Failed> {
        self.promises.clock_ms += ms;
        for topic in self.topics.keys().copied().collect::<Vec<_>>() {
            let now = self.now();
            let mut out = Effects::new();
            self.managed_ledger(topic).tick(now, &mut out);
            self.perform(topic, out)?;
        }
        self.machine.bookie.tick();
        Ok(())
    }

    fn alive(&self) -> Result<(), Failed> {
        if self.machine.disk.has_crashed() { Err(Failed::Stopped) } else { Ok(()) }
    }

    /// A failure that needs an excuse: the disk crashed, and nothing can go on, or it fails, and other things may.
    fn excuse(&self, what: impl FnOnce() -> String) -> Result<(), Failed> {
        self.alive()?;
        if self.record.trouble() == Trouble::None { Err(Broken(what()).into()) } else { Ok(()) }
    }

    fn promise(&mut self, topic: u32) -> &mut Promises {
        self.promises.topics.get_mut(&topic).expect("every topic has promises")
    }

    fn count(&mut self, what: &'static str) {
        self.record.count(what);
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        let at = self.machine.disk.op_count();
        self.record.tell(|| format!("{at:>5} {}", line()));
    }

    fn now(&self) -> Now {
        Now { unix_ms: self.promises.clock_ms, monotonic_ms: self.promises.clock_ms }
    }

    fn token(&mut self, topic: u32, request: Request) -> u64 {
        self.next_token += 1;
        self.open.insert((topic, self.next_token), request);
        self.next_token
    }

    /// Opens a topic; false if it is not there and not to be created.
    fn open(&mut self, topic: u32, create_if_missing: bool) -> Result<bool, Failed> {
        let options = OpenOptions {
            owner: u64::from(topic),
            create_if_missing,
            config: None,
            properties: Vec::new(),
            now: self.now(),
        };
        let name = name(topic);
        let opened = self.machine.run(ManagedLedger::open(&self.machine.context, &name, options))?;
        match opened {
            Ok(managed_ledger) => {
                self.topics.insert(topic, managed_ledger);
                self.promise(topic).opened();
                Ok(true)
            }
            Err(OpenError::NotFound { .. }) => Ok(false),
            Err(error) => {
                self.excuse(|| format!("topic {topic} does not open: {error:?}"))?;
                Err(Failed::Stopped)
            }
        }
    }

    /// Compares a topic with its promises.
    fn check(&mut self, topic: u32, rng: &mut SmallRng) -> Result<(), Failed> {
        let entries = self.read_from(topic, Position::EARLIEST, usize::MAX, rng)?;
        let managed_ledger = &self.topics[&topic];
        let mut cursors = BTreeMap::new();
        let ids: Vec<(CursorId, String)> =
            managed_ledger.cursors().map(|(id, cursor)| (id, cursor.to_owned())).collect();
        for (id, cursor) in ids {
            let mut seen = SeenCursor::default();
            for entry in &entries {
                if !managed_ledger.is_acked(id, entry.position) {
                    let remaining = managed_ledger.ack_set(id, entry.position);
                    let bits = remaining.map_or(u64::MAX, |words| words.first().map_or(0, |word| word.cast_unsigned()));
                    seen.unacked.insert(entry.position, bits);
                }
            }
            cursors.insert(cursor, seen);
        }
        self.tell(|| {
            let shown: Vec<String> = entries.iter().map(|entry| format!("{}", entry.position)).collect();
            format!("topic {topic} shows {} and cursors {cursors:?}", shown.join(" "))
        });
        let promises = self.promise(topic);
        let trimmed = promises.check_entries(&entries)?;
        promises.check_cursors(&cursors, &entries)?;
        if trimmed > 0 {
            self.count("trimmed");
        }
        Ok(())
    }

    /// Reads confirmed entries to the end, or so many.
    fn read_from(
        &mut self,
        topic: u32,
        mut from: Position,
        max_entries: usize,
        rng: &mut SmallRng,
    ) -> Result<Vec<Seen>, Failed> {
        let mut all = Vec::new();
        self.next_token += 1;
        let reader = self.next_token;
        while all.len() < max_entries {
            let limit = ReadLimit { max_entries: rng.random_range(1..20), max_bytes: rng.random_range(1..20_000) };
            let mut out = Effects::new();
            let read = self.managed_ledger(topic).read(reader, from, limit, &mut out);
            self.perform(topic, out)?;
            let batch = match read {
                Read::Ready(entries) => entries.iter().map(seen).collect(),
                Read::AtEnd => break,
                Read::Pending => {
                    self.turn_until(rng, |node| node.read.contains_key(&reader))?;
                    self.read.remove(&reader).unwrap_or_default()
                }
            };
            let Some(last) = batch.last() else {
                // Trimmed while it was being read.
                let start = self.managed_ledger(topic).start();
                if start <= from {
                    return Err(Broken(format!("a read at {from} brought nothing")).into());
                }
                from = start;
                continue;
            };
            from = last.position.next_entry();
            all.extend(batch);
        }
        self.managed_ledger(topic).forget_reader(reader);
        Ok(all)
    }

    fn managed_ledger(&mut self, topic: u32) -> &mut ManagedLedger {
        self.topics.get_mut(&topic).expect("the topic is open")
    }

    /// Lets one of the things that can go on go on.
    fn turn(&mut self, rng: &mut SmallRng) -> Result<(), Failed> {
        let choices = self.tasks.len() + 2;
        let choice = rng.random_range(0..choices);
        if choice < self.tasks.len() {
            if let Some((topic, result)) = self.tasks.poll(choice)
                && let Some(managed_ledger) = self.topics.get_mut(&topic)
            {
                let mut out = Effects::new();
                let now = Now { unix_ms: self.promises.clock_ms, monotonic_ms: self.promises.clock_ms };
                managed_ledger.on_event(now, Event::Finished(result), &mut out);
                self.perform(topic, out)?;
            }
        } else if choice == self.tasks.len() {
            self.machine.bookie.commit();
        } else {
            let mut of_topics = BTreeMap::<u32, Vec<_>>::new();
            for done in self.machine.arrivals.take() {
                of_topics.entry(done.owner as u32).or_default().push(done);
            }
            for (topic, done) in of_topics {
                let now = self.now();
                let mut out = Effects::new();
                if let Some(managed_ledger) = self.topics.get_mut(&topic) {
                    managed_ledger.appended(now, done, &mut out);
                }
                self.perform(topic, out)?;
            }
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.machine.arrivals.is_empty() && !self.machine.bookie.has_waiting()
    }

    fn turn_until(&mut self, rng: &mut SmallRng, mut done: impl FnMut(&Self) -> bool) -> Result<(), Failed> {
        for _ in 0..PATIENCE {
            if done(self) {
                return Ok(());
            }
            self.turn(rng)?;
            self.alive()?;
            if self.is_idle() && !done(self) {
                // Only the clock can help.
                self.tick_all(1000)?;
            }
        }
        self.excuse(|| format!("an answer never comes; open: {:?}", self.open))?;
        Err(Failed::Stopped)
    }

    /// Everything that was asked is answered on a healthy disk.
    fn settle(&mut self, rng: &mut SmallRng) -> Result<(), Failed> {
        self.turn_until(rng, |node| node.open.is_empty() && node.is_idle())?;
        self.count("settled");
        let stats: Vec<usize> = self.topics.values().map(|topic| topic.stats().pending_adds).collect();
        if stats.iter().any(|&adds| adds > 0) {
            self.excuse(|| format!("adds are never answered: {stats:?}"))?;
        }
        Ok(())
    }

    /// Performs the effects in their order.
    fn perform(&mut self, topic: u32, effects: Effects) -> Result<(), Failed> {
        for effect in effects {
            self.tell(|| match &effect {
                Effect::Append(op) => format!("topic {topic}: append {}:{}", op.ledger, op.entry),
                other => format!("topic {topic}: {other:?}"),
            });
            match effect {
                Effect::Append(op) => {
                    self.machine.context.ledgers.bookie(0).add(op, &self.machine.sink);
                }
                Effect::Run(task) => {
                    let context = self.machine.context.clone();
                    self.tasks.spawn(async move { (topic, task.run(&context).await) });
                }
                Effect::Added { token, position, index } => {
                    self.promise(topic).added(token, position, index)?;
                    self.count("added");
                    let last = self.last_ledger.insert(topic, position);
                    if last.is_some_and(|last| last.ledger != position.ledger) {
                        self.count("rolled over");
                    }
                }
                Effect::AddFailed { error: AddError::OutcomeUnknown(_), .. } => self.count("add unknown"),
                Effect::AddFailed { token, error } => {
                    self.count("add refused");
                    self.promise(topic).refused(token)?;
                    self.excuse(|| format!("add {token} failed: {error}"))?;
                }
                Effect::EntriesRead { reader, from, result } => match result {
                    Err(_) if from < self.managed_ledger(topic).start() => {
                        self.read.insert(reader, Vec::new());
                    }
                    Ok(entries) => {
                        self.read.insert(reader, entries.iter().map(seen).collect());
                    }
                    Err(error) => {
                        self.excuse(|| format!("topic {topic} cannot be read: {error:?}"))?;
                        return Err(Failed::Stopped);
                    }
                },
                Effect::AckDone { token, result: Ok(()) }
                | Effect::CursorDeleted { token, result: Ok(()) }
                | Effect::Closed { token, result: Ok(()) } => self.answered(topic, token),
                Effect::CursorCreated { token, result: Ok(id) } => {
                    let Some(Request::CreateCursor { cursor, initial, end }) = self.open.remove(&(topic, token)) else {
                        return Err(Broken("a cursor is created that nobody asked for".to_owned()).into());
                    };
                    let start = self.managed_ledger(topic).mark_delete(id).unwrap_or(Position::LATEST);
                    if initial == InitialPosition::Earliest && start.entry.0 >= 0 && start != end {
                        return Err(
                            Broken(format!("cursor `{cursor}` starts at {start} instead of the first entry")).into()
                        );
                    }
                    self.promise(topic).created_cursor(&cursor, start);
                    self.count("cursor created");
                }
                Effect::AckDone { token, result: Err(error) }
                | Effect::CursorDeleted { token, result: Err(error) }
                | Effect::CursorCreated { token, result: Err(error) } => {
                    let request = self.open.remove(&(topic, token));
                    // Deleting a cursor takes its receipts along.
                    let expected = matches!(request, Some(Request::Ack { .. } | Request::Seek { .. }));
                    if !expected {
                        self.excuse(|| format!("{request:?} failed: {error:?}"))?;
                    }
                }
                Effect::Closed { token, result: Err(error) } => {
                    self.open.remove(&(topic, token));
                    self.excuse(|| format!("topic {topic} cannot be closed: {error}"))?;
                }
                Effect::Fenced { reason } => {
                    self.excuse(|| format!("topic {topic} is fenced by nobody: {reason}"))?;
                }
                Effect::NewEntries | Effect::WritesInterrupted { .. } | Effect::WritesResumed => {}
            }
        }
        Ok(())
    }

    fn answered(&mut self, topic: u32, token: u64) {
        match self.open.remove(&(topic, token)) {
            Some(Request::Ack { cursor, ack }) => {
                self.promise(topic).acked(&cursor, &ack);
                self.count("acked");
            }
            Some(Request::Seek { cursor, to }) => self.promise(topic).sought(&cursor, to),
            Some(Request::DeleteCursor { cursor }) => {
                self.promise(topic).deleted_cursor(&cursor);
                self.count("cursor deleted");
            }
            Some(Request::CreateCursor { .. } | Request::Close) | None => {}
        }
    }
}

impl Request {
    fn is_about(&self, name: &str) -> bool {
        match self {
            Request::Ack { cursor, .. }
            | Request::Seek { cursor, .. }
            | Request::CreateCursor { cursor, .. }
            | Request::DeleteCursor { cursor } => cursor == name,
            Request::Close => false,
        }
    }
}

fn seen(entry: &managed_ledger::Entry) -> Seen {
    Seen {
        position: entry.position,
        payload: entry.payload(),
        index: entry.broker_metadata().and_then(|metadata| metadata.index),
    }
}

fn has_suffix(path: &Path, suffix: &str) -> bool {
    path.extension().is_some_and(|extension| extension == suffix)
}

fn name(topic: u32) -> String {
    format!("public/default/persistent/t{topic}")
}
