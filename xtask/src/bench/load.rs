//! One run of a case against one server: a producer that writes, a thread that takes its receipts, a consumer.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use pulsar_proto::frame::encode_command;
use pulsar_proto::message_metadata::MetadataPeek;
use pulsar_proto::proto::command_ack::AckType;
use pulsar_proto::proto::{CommandAck, CommandFlow, CommandPong, CommandUnsubscribe, MessageIdData};
use pulsar_proto::{Command, Frame};

use super::case::Case;
use super::connection::{Connection, ID, unexpected, write_both};
use super::figures::Figures;
use super::histogram::Histogram;
use super::now;
use super::payload::Batch;
use super::process::{self, Usage};
use super::target::Target;
use crate::run::Failed;

/// How the consumer acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Acks {
    #[default]
    Individual,
    Cumulative,
}

pub(crate) struct Plan {
    pub(crate) case: Case,
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
    pub(crate) size: u32,
    pub(crate) batch_messages: u32,
    pub(crate) window: u64,
    pub(crate) receiver_queue: u32,
    pub(crate) acks: Acks,
}

/// At full load the producer is never further ahead: what is measured is in and out at the same speed.
const AHEAD_MESSAGES: u64 = 50_000;
/// Official clients batch for a millisecond, and at most 128 KiB.
const LINGER: Duration = Duration::from_millis(1);
const BATCH_BYTES: u32 = 128 << 10;
/// Official clients collect acknowledgements for as long, or up to as many.
const ACK_EVERY: Duration = Duration::from_millis(100);
const ACK_GROUP: usize = 1000;
/// How long everything under way may take to come back after the load has ended.
const DRAIN: Duration = Duration::from_secs(30);

/// Every run has a topic of its own; its subscription is removed at the end.
pub(crate) fn run(plan: &Plan, target: &Target) -> Result<Figures, Failed> {
    let topic = format!("persistent://public/default/bench-{}-{}", plan.case, super::wall_clock_ms());
    let mut consumer = Connection::to_owner(&target.address, &topic)?;
    consumer.subscribe(&topic)?;
    let mut producer = Connection::to_owner(&target.address, &topic)?;
    producer.create_producer(&topic)?;
    let shared = Shared::new();
    thread::scope(|scope| {
        let socket = producer.writer()?;
        let writer = scope.spawn(|| shared.guard(|| write(plan, &shared, socket)));
        let receipts = scope.spawn(|| shared.guard(|| take_receipts(&shared, producer)));
        let consumer = scope.spawn(|| shared.guard(|| consume(plan, &shared, consumer)));
        let measured = measure(plan, &shared, target);
        shared.enter(Phase::Over);
        let written = writer.join().unwrap_or_else(|_| Err(panicked()));
        let publish = receipts.join().unwrap_or_else(|_| Err(panicked()));
        let end_to_end = consumer.join().unwrap_or_else(|_| Err(panicked()));
        // The thread that failed first knows the reason; the others and the clock only noticed.
        let (publish, end_to_end) = match (written, publish, end_to_end) {
            (Ok(()), Ok(publish), Ok(end_to_end)) => (publish, end_to_end),
            (written, publish, end_to_end) => {
                let why = [written.err(), publish.err(), end_to_end.err()];
                let why: Vec<String> = why.into_iter().flatten().map(|Failed(why)| why).collect();
                return Err(Failed(why.join("; ")));
            }
        };
        let Measured { window, usage, published, consumed, rss_bytes } = measured?;
        Ok(Figures { window, usage, published, consumed, rss_bytes, size: plan.size, publish, end_to_end })
    })
}

struct Measured {
    window: Duration,
    usage: Usage,
    published: u64,
    consumed: u64,
    rss_bytes: u64,
}

fn measure(plan: &Plan, shared: &Shared, target: &Target) -> Result<Measured, Failed> {
    shared.sleep(plan.warmup)?;
    let (usage, counts, started) = (Usage::of(&target.pids)?, shared.counts(), now());
    shared.enter(Phase::Measured);
    shared.sleep(plan.measured)?;
    let (usage_after, counts_after, ended) = (Usage::of(&target.pids)?, shared.counts(), now());
    shared.enter(Phase::Over);
    Ok(Measured {
        window: ended - started,
        usage: usage_after - usage,
        published: counts_after.0 - counts.0,
        consumed: counts_after.1 - counts.1,
        rss_bytes: process::rss_bytes(&target.pids)?,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Warmup = 0,
    Measured = 1,
    Over = 2,
    Failed = 3,
}

/// What the threads of a run tell each other.
struct Shared {
    phase: AtomicU8,
    progress: Mutex<Progress>,
    /// Something came back: there may be room for more.
    room: Condvar,
    started: Instant,
}

#[derive(Default)]
struct Progress {
    sent: u64,
    published: u64,
    consumed: u64,
    /// Batches without a receipt: first sequence id, messages, when it was due.
    pending: VecDeque<(u64, u64, Instant)>,
    pong: bool,
}

impl Shared {
    fn new() -> Self {
        Shared {
            phase: AtomicU8::new(Phase::Warmup as u8),
            progress: Mutex::default(),
            room: Condvar::new(),
            started: now(),
        }
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Warmup,
            1 => Phase::Measured,
            2 => Phase::Over,
            _ => Phase::Failed,
        }
    }

    /// Phases only ever go forward.
    fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        self.room.notify_all();
    }

    /// A thread that fails ends the run of all.
    fn guard<T>(&self, work: impl FnOnce() -> Result<T, Failed>) -> Result<T, Failed> {
        work().inspect_err(|_| self.enter(Phase::Failed))
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Published and consumed.
    fn counts(&self) -> (u64, u64) {
        let progress = self.progress();
        (progress.published, progress.consumed)
    }

    fn sleep(&self, duration: Duration) -> Result<(), Failed> {
        let end = now() + duration;
        while self.phase() != Phase::Failed {
            let left = end.saturating_duration_since(now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(100)));
        }
        Err(Failed("the load stopped early".to_owned()))
    }
}

/// Sends batches until the run is over.
fn write(plan: &Plan, shared: &Shared, mut socket: TcpStream) -> Result<(), Failed> {
    let mut sequence_id = 0;
    match plan.case {
        Case::Full => {
            let batch = Batch::new(plan.batch_messages, plan.size);
            while let Some(pong) = reserve(plan, shared, &batch, sequence_id, None) {
                send(shared, &mut socket, &batch, sequence_id, now(), pong)?;
                sequence_id += batch.messages;
            }
        }
        Case::Rate { messages_per_second } => {
            let largest = (BATCH_BYTES / plan.size).clamp(1, 1000);
            let batches: Vec<Batch> = (1..=largest).map(|count| Batch::new(count, plan.size)).collect();
            let started = now();
            for tick in 1.. {
                let due = started + LINGER * tick;
                thread::sleep(due.saturating_duration_since(now()));
                let due_messages = (LINGER * tick).as_micros() as u64 * messages_per_second / 1_000_000;
                while sequence_id < due_messages {
                    let count = (due_messages - sequence_id).min(u64::from(largest));
                    let batch = &batches[count as usize - 1];
                    let Some(pong) = reserve(plan, shared, batch, sequence_id, Some(due)) else { return Ok(()) };
                    send(shared, &mut socket, batch, sequence_id, due, pong)?;
                    sequence_id += count;
                }
                if shared.phase() >= Phase::Over {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Waits for room and notes the batch as under way. Returns whether a PONG is owed, or `None` when the run is over.
fn reserve(plan: &Plan, shared: &Shared, batch: &Batch, sequence_id: u64, due: Option<Instant>) -> Option<bool> {
    let mut progress = shared.progress();
    loop {
        if shared.phase() >= Phase::Over {
            return None;
        }
        let after = progress.sent + batch.messages;
        let ahead = plan.case != Case::Full || after - progress.consumed <= AHEAD_MESSAGES;
        if ahead && after - progress.published <= plan.window.max(batch.messages) {
            progress.sent = after;
            progress.pending.push_back((sequence_id, batch.messages, due.unwrap_or_else(now)));
            return Some(std::mem::take(&mut progress.pong));
        }
        let waited = shared.room.wait_timeout(progress, ACK_EVERY);
        progress = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn send(
    shared: &Shared,
    socket: &mut TcpStream,
    batch: &Batch,
    sequence_id: u64,
    due: Instant,
    pong: bool,
) -> Result<(), Failed> {
    let mut head = BytesMut::new();
    if pong {
        encode_command(CommandPong {}, &mut head);
    }
    batch.head(sequence_id, (due - shared.started).as_micros() as u64, &mut head);
    write_both(socket, &head, &batch.payload)
}

/// Returns how long publishing took, by message.
fn take_receipts(shared: &Shared, mut connection: Connection) -> Result<Histogram, Failed> {
    let mut took = Histogram::default();
    connection.set_read_timeout(ACK_EVERY)?;
    let mut drained_by = None;
    loop {
        match connection.read()?.map(|frame| frame.command) {
            Some(Command::SendReceipt(receipt)) => {
                let arrived = now();
                let mut progress = shared.progress();
                let Some((sequence_id, messages, due)) = progress.pending.pop_front() else {
                    return Err(Failed("a receipt for nothing".to_owned()));
                };
                if receipt.sequence_id != sequence_id {
                    return Err(Failed(format!("receipt {} came instead of {sequence_id}", receipt.sequence_id)));
                }
                progress.published += messages;
                drop(progress);
                shared.room.notify_one();
                if shared.phase() == Phase::Measured {
                    took.record(arrived - due, messages);
                }
            }
            Some(Command::Ping(_)) => shared.progress().pong = true,
            Some(other) => return Err(unexpected(&other)),
            None => {}
        }
        match shared.phase() {
            Phase::Failed => return Err(stopped()),
            Phase::Over if shared.progress().pending.is_empty() => return Ok(took),
            Phase::Over if *drained_by.get_or_insert_with(|| now() + DRAIN) < now() => {
                return Err(Failed(format!("no receipt for what was sent {DRAIN:?} ago")));
            }
            _ => {}
        }
    }
}

/// Returns how long messages took from being due to being here, by message.
fn consume(plan: &Plan, shared: &Shared, mut connection: Connection) -> Result<Histogram, Failed> {
    let mut took = Histogram::default();
    let mut expected = 0;
    let mut taken = 0;
    let mut acks = AckGroup { kind: plan.acks, waiting: Vec::new(), sent_at: now() };
    connection.set_read_timeout(ACK_EVERY)?;
    connection.send(CommandFlow { consumer_id: ID, message_permits: plan.receiver_queue })?;
    while shared.phase() < Phase::Over {
        if let Some(Frame { command, payload }) = connection.read()? {
            match (command, payload) {
                (Command::Message(message), Some(block)) => {
                    block.verify().map_err(|error| Failed(error.to_string()))?;
                    let metadata = block.metadata().map_err(|error| Failed(error.to_string()))?;
                    let metadata = MetadataPeek::parse(metadata).map_err(|error| Failed(error.to_string()))?;
                    if metadata.sequence_id != expected {
                        return Err(Failed(format!("message {} came instead of {expected}", metadata.sequence_id)));
                    }
                    let messages = metadata.messages();
                    expected += u64::from(messages);
                    shared.progress().consumed += u64::from(messages);
                    shared.room.notify_one();
                    if shared.phase() == Phase::Measured {
                        let due = shared.started + Duration::from_micros(metadata.event_time_ms.unwrap_or_default());
                        took.record(now().saturating_duration_since(due), u64::from(messages));
                    }
                    acks.waiting.push(message.message_id);
                    taken += messages;
                    // Half of the queue at a time, as official clients do.
                    if taken >= plan.receiver_queue.div_ceil(2) {
                        connection.send(CommandFlow { consumer_id: ID, message_permits: taken })?;
                        taken = 0;
                    }
                }
                (Command::Ping(_), _) => connection.send(CommandPong {})?,
                (Command::ActiveConsumerChange(_), _) => {}
                (other, _) => return Err(unexpected(&other)),
            }
        }
        acks.send_if_due(&mut connection)?;
    }
    if shared.phase() == Phase::Failed {
        return Err(stopped());
    }
    unsubscribe(&mut connection)?;
    Ok(took)
}

/// So that the server may throw the messages away.
fn unsubscribe(connection: &mut Connection) -> Result<(), Failed> {
    let request_id = connection.request_id();
    connection.send(CommandUnsubscribe { consumer_id: ID, request_id, force: None })?;
    let deadline = now() + DRAIN;
    while now() < deadline {
        match connection.read()?.map(|frame| frame.command) {
            Some(Command::Success(_)) => return Ok(()),
            Some(Command::Error(error)) => return Err(unexpected(&Command::Error(error))),
            Some(_) | None => {}
        }
    }
    Err(Failed(format!("unsubscribing took more than {DRAIN:?}")))
}

struct AckGroup {
    kind: Acks,
    waiting: Vec<MessageIdData>,
    sent_at: Instant,
}

impl AckGroup {
    fn send_if_due(&mut self, connection: &mut Connection) -> Result<(), Failed> {
        let now = now();
        if self.waiting.is_empty() || (self.waiting.len() < ACK_GROUP && now - self.sent_at < ACK_EVERY) {
            return Ok(());
        }
        self.sent_at = now;
        let mut message_id = std::mem::take(&mut self.waiting);
        let ack_type = match self.kind {
            Acks::Individual => AckType::Individual,
            Acks::Cumulative => {
                message_id.drain(..message_id.len() - 1);
                AckType::Cumulative
            }
        };
        connection.send(CommandAck { consumer_id: ID, ack_type: ack_type as i32, message_id, ..Default::default() })
    }
}

fn stopped() -> Failed {
    Failed("stopped because another part failed".to_owned())
}

fn panicked() -> Failed {
    Failed("a thread of the generator panicked".to_owned())
}
