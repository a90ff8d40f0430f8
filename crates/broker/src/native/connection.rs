//! One connection: its socket, its loop, and what it writes.
//!
//! A turn of the loop takes what shards left in the outbox, serves the frames that are there, and waits. Waiting polls
//! everything at once, so that one wake-up costs at most one read and as many writes as the socket takes.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{self, IoSlice},
    net::SocketAddr,
    pin::{Pin, pin},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{
    future::LocalBoxFuture,
    stream::{FuturesUnordered, StreamExt as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, Interval, MissedTickBehavior, Sleep, interval_at, sleep, timeout},
};
use tracing::{debug, warn};

use pulsar_proto::{
    Command, FrameDecoder, PayloadBlock,
    frame::{MessageHeader, SendReceipt, encode_command, encode_message_header, encode_send_receipt},
    proto::{self, ServerError},
};

use super::{
    Shared,
    admission::{Refused, Seat},
    close_reason::CloseReason,
    input::{Input, SMALL_FRAME},
    output::{MAX_SLICES, Output},
    replies,
    resources::{Consumers, Done, Producers},
    session::{Reading, Session, Tick},
    slowness::{DOUBTFUL_MS, Look, STOPPED_MS, Slowness},
    throttle::Throttle,
};
use crate::door::{Outbox, Outgoing, Peer};

/// Requests of one connection that the broker works on at the same time; beyond, the connection is not read.
const MAX_REQUESTS: usize = 1024;

/// Nothing more is encoded while this many bytes wait for the socket.
const OUTPUT_MARK: usize = 512 * 1024;

/// A peer that has this much more of its answers unread is not read either.
const MAX_UNREAD_ANSWERS: usize = 1024 * 1024;

/// Room for this many items is kept between two looks into the outbox.
const KEPT_BATCH: usize = 1024;

/// How long a peer may take to hear why it is sent away.
const FAREWELL: Duration = Duration::from_secs(1);

/// The oldest protocol version that knows each of these.
const CLOSES_PARTS: i32 = 5;
const END_OF_TOPIC: i32 = 9;
const CHECKSUMS_IN_MESSAGES: i32 = 11;
const ACTIVE_CONSUMER: i32 = 12;

pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) session: Session,
    pub(super) producers: Producers,
    pub(super) consumers: Consumers,
    pub(super) outbox: Arc<Outbox>,
    /// `/ip:port`
    pub(super) address: Arc<str>,
    /// Who this is, for statistics; complete after the handshake.
    pub(super) peer: Peer,
    requests: FuturesUnordered<LocalBoxFuture<'static, Done>>,
    /// Taken from the outbox and not encoded yet, and answers that must not overtake what is there.
    taken: VecDeque<Said>,
    /// Reused for taking.
    batch: Vec<Outgoing>,
    output: Output,
    /// Ends of taken batches within everything ever encoded, with the weight each has in the outbox.
    unwritten: VecDeque<(u64, usize)>,
    encoded_bytes: u64,
    written_bytes: u64,
    /// Of what was taken, how many items were encoded.
    encoded_items: u64,
    slowness: Slowness,
    /// The next look at it, while something waits for the socket.
    next_look: Option<Pin<Box<Sleep>>>,

    /// Its place among the connections: before the socket, so that whoever sees this one closed finds its place free.
    _seat: Option<Seat>,
    stream: TcpStream,
    opened: Instant,
    input: Input,
    decoder: FrameDecoder,
    keepalive: Interval,
    throttle: Throttle,
    /// Bytes of unanswered publishes, charged to the budget.
    charged: usize,
    /// Those that came and went in this turn, of which the budget does not know yet.
    uncharged: usize,
    unreleased: usize,
    /// Charged for the large frame that is being read.
    reserved: usize,
    /// Serving has stopped with whole frames perhaps left in `input`.
    stalled: bool,
    paused: bool,
    paused_since_tick: bool,
}

/// In the order of being said.
pub(super) enum Said {
    ByShard(Outgoing),
    Answer(Command),
}

/// What may be written and read now.
enum Waited {
    Progress,
    Tick,
    Closed(CloseReason),
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>, stream: TcpStream, remote: SocketAddr, seat: Option<Seat>) -> Self {
        let config = shared.broker.config();
        let period = config.keep_alive_interval;
        let mut keepalive = interval_at(Instant::now() + period, period);
        keepalive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let address: Arc<str> = format!("/{remote}").into();
        Self {
            session: Session::new(),
            producers: Producers::default(),
            consumers: Consumers::default(),
            outbox: shared.broker.new_outbox(),
            peer: Peer { address: Arc::clone(&address), ..Peer::default() },
            address,
            requests: FuturesUnordered::new(),
            taken: VecDeque::new(),
            batch: Vec::new(),
            output: Output::default(),
            unwritten: VecDeque::new(),
            encoded_bytes: 0,
            written_bytes: 0,
            encoded_items: 0,
            slowness: Slowness::default(),
            next_look: None,
            stream,
            opened: Instant::now(),
            input: Input::new(),
            decoder: FrameDecoder::new(config.max_message_bytes),
            keepalive,
            throttle: Throttle::new(config.max_pending_publishes_per_connection),
            charged: 0,
            uncharged: 0,
            unreleased: 0,
            reserved: 0,
            stalled: false,
            paused: false,
            paused_since_tick: false,
            _seat: seat,
            shared,
        }
    }

    /// Serves the connection to its end.
    pub(super) async fn run(mut self) {
        let reason = self.serve().await;
        self.leave(reason).await;
    }

    /// Tells a peer that there is no place for it.
    pub(super) async fn refuse(mut self, refused: Refused) {
        self.answer(replies::error(pulsar_proto::NO_REQUEST, ServerError::NotAllowedError, refused.to_string()));
        self.leave(CloseReason::Refused(refused)).await;
    }

    async fn leave(&mut self, reason: CloseReason) {
        if reason.is_polite() {
            // Best effort: a peer that does not read is not waited for.
            let _ = timeout(FAREWELL, self.say_farewell()).await;
        } else {
            // What was answered before the offence still goes out, if the socket takes it at once.
            poll_fn(|cx| {
                let _ = self.poll_write(cx);
                Poll::Ready(())
            })
            .await;
        }
        match reason {
            CloseReason::NotReading => warn!(cnx = %self.address, reason = %reason, "connection closed"),
            reason => debug!(cnx = %self.address, reason = %Chain(&reason), "connection closed"),
        }
    }

    async fn serve(&mut self) -> CloseReason {
        loop {
            if self.shared.is_stopping() {
                return CloseReason::Stopping;
            }
            let served = self.encode_taken().and_then(|()| self.serve_frames()).and_then(|()| self.encode_taken());
            if let Err(reason) = served {
                return reason;
            }
            match self.wait().await {
                Waited::Progress => {}
                Waited::Tick => match self.tick() {
                    Ok(()) => {}
                    Err(reason) => return reason,
                },
                Waited::Closed(reason) => return reason,
            }
        }
    }

    /// Answers now, before whatever shards may have left in the outbox.
    pub(super) fn answer(&mut self, command: Command) {
        self.encode(|out| encode_command(command, out));
    }

    /// Answers after everything that shards have said until now.
    pub(super) fn answer_in_turn(&mut self, command: Command) {
        self.take_outbox();
        self.taken.push_back(Said::Answer(command));
    }

    /// Works on `request` beside everything else; its result is served by [`Self::on_done`].
    pub(super) fn start(&mut self, request: impl Future<Output = Done> + 'static) {
        self.requests.push(Box::pin(request));
    }

    /// Remembers a publish of `bytes` that a shard will answer.
    pub(super) fn published(&mut self, bytes: usize) {
        self.throttle.published();
        self.uncharged += bytes;
    }

    /// `count` publishes of `bytes` together need no memory any more.
    pub(super) fn settle(&mut self, count: usize, bytes: usize) {
        self.throttle.answered(count);
        self.unreleased += bytes;
    }

    /// Tells the budget once a turn what has come and gone.
    fn balance(&mut self) {
        let (come, gone) = (std::mem::take(&mut self.uncharged), std::mem::take(&mut self.unreleased));
        self.charged = self.charged + come - gone;
        if come > 0 {
            self.shared.budget.charge(come);
        }
        self.shared.budget.release(gone);
    }

    // ---- reading

    /// Serves whole frames for as long as nothing asks to stop.
    fn serve_frames(&mut self) -> Result<(), CloseReason> {
        while self.may_serve() {
            let Some(frame) = self.decoder.decode(&mut self.input.bytes)? else { break };
            self.serve_command(frame)?;
            if self.reserved > 0 {
                // It was for this frame. The message, if it was one, is charged by itself from now on.
                self.balance();
                self.shared.budget.release(std::mem::take(&mut self.reserved));
            }
        }
        self.stalled = !self.may_serve();
        self.balance();
        Ok(())
    }

    /// Whether what is in memory already may be served.
    fn may_serve(&self) -> bool {
        !self.throttle.is_stopped()
            && self.requests.len() < MAX_REQUESTS
            && self.output.len() < OUTPUT_MARK + MAX_UNREAD_ANSWERS + self.shared.broker.config().max_message_bytes
    }

    /// Ready when the socket may be read. A large frame first gets its memory.
    fn poll_may_read(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.may_serve() {
            return Poll::Pending; // What ends this wakes the task.
        }
        match self.input.front_frame_len() {
            Some(frame) if frame > SMALL_FRAME && self.reserved == 0 => {
                std::task::ready!(self.shared.budget.poll_acquire(frame, cx));
                self.reserved = frame;
                Poll::Ready(())
            }
            Some(_) if self.reserved > 0 => Poll::Ready(()),
            // Consumers and newcomers add nothing to it: their acknowledgements and requests go on.
            _ if self.producers.slots.is_empty() => Poll::Ready(()),
            _ => self.shared.budget.poll_open(cx),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        let may_read = self.poll_may_read(cx).is_ready();
        self.note_paused(!may_read);
        if !may_read {
            return Poll::Pending;
        }
        // First whether there is something, then the memory for it.
        if self.stream.poll_read_ready(cx).map_err(CloseReason::Lost)?.is_pending() {
            self.input.before_wait();
            return Poll::Pending;
        }
        self.input.prepare();
        let room = self.input.bytes.capacity() - self.input.bytes.len();
        let read = pin!(self.stream.read_buf(&mut self.input.bytes)).poll(cx);
        match std::task::ready!(read).map_err(CloseReason::Lost)? {
            0 => Poll::Ready(Err(CloseReason::ByPeer)),
            read => {
                self.shared.counters.received(read);
                self.input.on_read(read, room, self.shared.block_share());
                if !self.producers.slots.is_empty() {
                    self.input.compact();
                }
                Poll::Ready(Ok(()))
            }
        }
    }

    fn note_paused(&mut self, paused: bool) {
        if paused != self.paused {
            self.paused = paused;
            if paused {
                self.shared.counters.paused();
            } else {
                self.shared.counters.resumed();
            }
        }
        self.paused_since_tick |= paused;
    }

    // ---- waiting

    /// Returns when there is something to do.
    async fn wait(&mut self) -> Waited {
        let outbox = Arc::clone(&self.outbox);
        let mut ready = pin!(outbox.ready());
        poll_fn(|cx| {
            let mut progress = false;
            // Answers of the broker first, so that they leave with this turn's writes.
            while let Poll::Ready(Some(done)) = self.requests.poll_next_unpin(cx) {
                progress = true;
                self.on_done(done);
            }
            match self.poll_write(cx) {
                Ok(may_encode) => progress |= may_encode && !self.taken.is_empty(),
                Err(reason) => return Poll::Ready(Waited::Closed(reason)),
            }
            if let Poll::Ready(reason) = self.poll_slowness(cx) {
                return Poll::Ready(Waited::Closed(reason));
            }
            progress |= ready.as_mut().poll(cx).is_ready();
            // Frames that are in memory already are served without waiting for a read that may never come.
            progress |= self.stalled && self.may_serve();
            match self.poll_read(cx) {
                Poll::Ready(Ok(())) => progress = true,
                Poll::Ready(Err(reason)) => return Poll::Ready(Waited::Closed(reason)),
                Poll::Pending => {}
            }
            if self.keepalive.poll_tick(cx).is_ready() {
                return Poll::Ready(Waited::Tick);
            }
            if progress { Poll::Ready(Waited::Progress) } else { Poll::Pending }
        })
        .await
    }

    fn tick(&mut self) -> Result<(), CloseReason> {
        let suspended = std::mem::take(&mut self.paused_since_tick) || self.paused;
        let reading = if suspended { Reading::Suspended } else { Reading::Open };
        match self.session.tick(reading) {
            Tick::SendPing => self.answer(Command::Ping(proto::CommandPing {})),
            Tick::Nothing => {}
            Tick::Close(breach) => return Err(CloseReason::Session(breach)),
        }
        self.producers.forget_old_closings();
        self.input.tick();
        self.output.release_memory();
        self.taken.shrink_to(KEPT_BATCH);
        Ok(())
    }

    // ---- writing

    fn take_outbox(&mut self) {
        self.outbox.take(&mut self.batch);
        self.taken.extend(self.batch.drain(..).map(Said::ByShard));
        if self.batch.capacity() > KEPT_BATCH {
            self.batch = Vec::new();
        }
    }

    /// Encodes what shards have said, as far as the socket may soon take it.
    fn encode_taken(&mut self) -> Result<(), CloseReason> {
        self.take_outbox();
        let mut weight = 0;
        while self.output.len() < OUTPUT_MARK {
            let Some(said) = self.taken.pop_front() else { break };
            self.encoded_items += 1;
            match said {
                Said::ByShard(outgoing) => {
                    weight += outgoing.weight();
                    self.encode_outgoing(outgoing)?;
                }
                Said::Answer(command) => self.answer(command),
            }
        }
        if weight > 0 {
            self.unwritten.push_back((self.encoded_bytes, weight));
        }
        self.balance();
        Ok(())
    }

    fn encode_outgoing(&mut self, outgoing: Outgoing) -> Result<(), CloseReason> {
        let version = self.session.peer().map_or(0, |peer| peer.protocol_version);
        match outgoing {
            Outgoing::Receipt { producer_id, sequence_id, highest_sequence_id, position } => {
                let (ledger_id, entry_id) = replies::wire_ids(position);
                let highest_sequence_id = Some(highest_sequence_id);
                let receipt = SendReceipt { producer_id, sequence_id, highest_sequence_id, ledger_id, entry_id };
                self.encode(|out| encode_send_receipt(&receipt, out));
                self.on_publish_answered(producer_id);
            }
            Outgoing::SendError { producer_id, sequence_id, kind, message } => {
                let error = replies::server_error(kind);
                self.answer(replies::send_error(producer_id, sequence_id, error, &*message));
                self.on_publish_answered(producer_id);
            }
            Outgoing::Message(message) => {
                let (ledger_id, entry_id) = replies::wire_ids(message.position);
                let header = MessageHeader {
                    consumer_id: message.consumer_id,
                    ledger_id,
                    entry_id,
                    partition: message.partition,
                    redelivery_count: message.redelivery_count,
                    ack_set: message.ack_set.as_deref().unwrap_or_default(),
                    consumer_epoch: message.consumer_epoch,
                };
                let mut entry = message.entry;
                if version < CHECKSUMS_IN_MESSAGES
                    && let Ok(block) = PayloadBlock::parse(entry.clone())
                {
                    entry = block.without_checksum();
                }
                self.encode(|out| encode_message_header(&header, entry.len(), out));
                self.encoded_bytes += entry.len() as u64;
                self.output.payload(entry);
            }
            Outgoing::AckResponse { consumer_id, request_id, error } => {
                let error = error.map(|(kind, message)| (replies::server_error(kind), message.to_string()));
                self.answer(replies::ack_response(consumer_id, request_id, error));
            }
            Outgoing::CloseProducer { producer_id } => {
                let (count, bytes) = self.producers.closed_by_broker(producer_id);
                self.settle(count, bytes);
                if version < CLOSES_PARTS {
                    return Err(CloseReason::TooOldToClosePart(version));
                }
                self.answer(replies::close_producer(producer_id));
                self.finish_closing(producer_id);
            }
            Outgoing::CloseConsumer { consumer_id } => {
                self.consumers.closed_by_broker(consumer_id);
                if version < CLOSES_PARTS {
                    return Err(CloseReason::TooOldToClosePart(version));
                }
                self.answer(replies::close_consumer(consumer_id));
            }
            Outgoing::ActiveConsumerChange { consumer_id, is_active } => {
                if version >= ACTIVE_CONSUMER {
                    let is_active = Some(is_active);
                    let change = proto::CommandActiveConsumerChange { consumer_id, is_active };
                    self.answer(Command::ActiveConsumerChange(change));
                }
            }
            Outgoing::ReachedEnd { consumer_id } => {
                if version >= END_OF_TOPIC {
                    self.answer(Command::ReachedEndOfTopic(proto::CommandReachedEndOfTopic { consumer_id }));
                }
            }
        }
        Ok(())
    }

    fn encode(&mut self, encode: impl FnOnce(&mut bytes::BytesMut)) {
        let before = self.output.len();
        self.output.encode(encode);
        self.encoded_bytes += (self.output.len() - before) as u64;
    }

    /// Writes what the socket takes. Answers whether there is room to encode more.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<bool, CloseReason> {
        while !self.output.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let used = self.output.slices(&mut slices);
            match Pin::new(&mut self.stream).poll_write_vectored(cx, &slices[..used]) {
                Poll::Ready(Ok(0)) => return Err(CloseReason::Lost(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => self.on_written(written),
                Poll::Ready(Err(error)) => return Err(CloseReason::Lost(error)),
                Poll::Pending => break,
            }
        }
        Ok(self.output.len() < OUTPUT_MARK / 2)
    }

    /// Looks now and then whether what waits for the socket waits long. Ready when the connection has to go.
    fn poll_slowness(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if self.output.is_empty() {
            if self.slowness.is_slow() {
                self.slowness = Slowness::default();
                self.outbox.set_slow(false);
            }
            self.next_look = None;
            return Poll::Pending;
        }
        loop {
            let next = self.next_look.get_or_insert_with(|| Box::pin(sleep(self.slowness.pause())));
            std::task::ready!(next.as_mut().poll(cx));
            self.next_look = None;
            let was_slow = self.slowness.is_slow();
            let look = Look {
                now_ms: self.opened.elapsed().as_millis() as u64,
                written_bytes: self.written_bytes,
                encoded_bytes: self.encoded_bytes,
                encoded_items: self.encoded_items,
                taken_items: self.encoded_items + self.taken.len() as u64,
            };
            let nothing_ms = self.slowness.look(look);
            if nothing_ms >= DOUBTFUL_MS {
                self.outbox.doubt();
            }
            if nothing_ms >= STOPPED_MS && self.outbox.is_in_the_way() {
                return Poll::Ready(CloseReason::NotReading);
            }
            let is_slow = self.slowness.is_slow();
            if is_slow != was_slow {
                self.outbox.set_slow(is_slow);
            }
            if is_slow && !was_slow {
                // Shards copy what comes from now on; this is what came before.
                self.take_outbox();
                self.output.unpin();
                for said in &mut self.taken {
                    if let Said::ByShard(outgoing) = said {
                        outgoing.unpin();
                    }
                }
            }
        }
    }

    fn on_written(&mut self, written: usize) {
        self.output.advance(written);
        self.shared.counters.sent(written);
        self.written_bytes += written as u64;
        let mut weight = 0;
        while let Some((end, batch)) = self.unwritten.front()
            && *end <= self.written_bytes
        {
            weight += batch;
            self.unwritten.pop_front();
        }
        if weight > 0 {
            self.outbox.written(weight);
        }
    }

    /// Writes what was answered, and waits for the peer to hang up: closing with unread bytes would make the system throw
    /// away what we have just written.
    async fn say_farewell(&mut self) -> io::Result<()> {
        let _ = self.encode_taken();
        poll_fn(|cx| match self.poll_write(cx) {
            Ok(_) if self.output.is_empty() => Poll::Ready(()),
            Ok(_) => Poll::Pending,
            Err(_) => Poll::Ready(()),
        })
        .await;
        self.stream.shutdown().await?;
        let mut unread = [0; 1024];
        while self.stream.read(&mut unread).await? > 0 {}
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Producers and consumers close with their handles, after nobody listens any more.
        self.outbox.close();
        self.shared.budget.release(self.charged + self.reserved);
        self.note_paused(false);
        self.shared.on_connection_closed(self.outbox.id(), self.session.peer().is_some());
    }
}

/// An error with everything that led to it, in one line.
struct Chain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

/// Requests keep the consumer they are about alive; the connection's thread is the only one that does.
pub(super) type SharedConsumer = Rc<crate::door::ConsumerHandle>;
