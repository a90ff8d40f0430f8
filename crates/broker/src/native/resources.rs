//! The producers and consumers of one connection, by the ids the client chose.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use pulsar_proto::{Command, proto::ServerError};

use super::{
    connection::{Connection, SharedConsumer},
    replies,
};
use crate::door::{BrokerError, ConsumerHandle, ProducerCreated, ProducerHandle};

/// Tells apart two requests for the same id, the first of which the client has given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attempt(u64);

pub(super) enum ProducerSlot {
    Opening(Attempt),
    Open(OpenProducer),
    /// The client has closed it; its publishes are still being answered.
    Closing(Closing),
}

pub(super) struct OpenProducer {
    pub(super) handle: ProducerHandle,
    pub(super) created: ProducerCreated,
    pub(super) in_flight: InFlight,
}

#[derive(Default)]
pub(super) struct Closing {
    pub(super) in_flight: InFlight,
    /// The CLOSE_PRODUCER to be answered once nothing is in flight: the broker is done with the producer.
    pub(super) closed: Option<u64>,
}

/// Sizes of the publishes that are not answered yet. They are answered in order.
#[derive(Default)]
pub(super) struct InFlight {
    sizes: VecDeque<u32>,
    bytes: usize,
}

pub(super) enum ConsumerSlot {
    Opening(Attempt),
    Open(SharedConsumer),
}

#[derive(Default)]
pub(super) struct Producers {
    pub(super) slots: FxHashMap<u64, ProducerSlot>,
    /// Closed by the broker in this keepalive interval or the one before: SENDs may still be on their way.
    closed_recently: [Vec<u64>; 2],
    attempts: u64,
}

#[derive(Default)]
pub(super) struct Consumers {
    pub(super) slots: FxHashMap<u64, ConsumerSlot>,
    attempts: u64,
}

/// What a request of this connection came to.
pub(super) enum Done {
    Answer(Command),
    ProducerOpened {
        producer_id: u64,
        request_id: u64,
        attempt: Attempt,
        result: Result<(ProducerHandle, ProducerCreated), BrokerError>,
    },
    ProducerClosed {
        producer_id: u64,
        request_id: u64,
    },
    ConsumerOpened {
        consumer_id: u64,
        request_id: u64,
        attempt: Attempt,
        result: Result<ConsumerHandle, BrokerError>,
    },
    /// To be answered after everything the consumer was sent before.
    ConsumerAnswer(Command),
    Unsubscribed {
        consumer_id: u64,
        request_id: u64,
        result: Result<(), BrokerError>,
    },
}

impl InFlight {
    pub(super) fn push(&mut self, bytes: u32) {
        self.sizes.push_back(bytes);
        self.bytes += bytes as usize;
    }

    fn pop(&mut self) -> Option<usize> {
        let bytes = self.sizes.pop_front()? as usize;
        self.bytes -= bytes;
        if self.sizes.is_empty() && self.sizes.capacity() > KEPT_SIZES {
            self.sizes = VecDeque::new();
        }
        Some(bytes)
    }

    fn total(&self) -> (usize, usize) {
        (self.sizes.len(), self.bytes)
    }
}

const KEPT_SIZES: usize = 128;

impl Producers {
    pub(super) fn begin(&mut self, producer_id: u64) -> Attempt {
        self.attempts += 1;
        let attempt = Attempt(self.attempts);
        self.slots.insert(producer_id, ProducerSlot::Opening(attempt));
        attempt
    }

    pub(super) fn was_closed_recently(&self, producer_id: u64) -> bool {
        self.closed_recently.iter().flatten().any(|id| *id == producer_id)
    }

    /// To be called once per keepalive interval.
    pub(super) fn forget_old_closings(&mut self) {
        self.closed_recently.swap(0, 1);
        self.closed_recently[0] = Vec::new();
    }

    /// The broker has closed a producer; returns count and bytes of publishes that will not be answered.
    pub(super) fn closed_by_broker(&mut self, producer_id: u64) -> (usize, usize) {
        self.closed_recently[0].push(producer_id);
        match self.slots.remove(&producer_id) {
            Some(ProducerSlot::Open(open)) => open.in_flight.total(),
            Some(ProducerSlot::Closing(closing)) => {
                // Nobody waits for more of it, but its CLOSE_PRODUCER is still to be answered.
                let settled = Closing { in_flight: InFlight::default(), closed: closing.closed };
                self.slots.insert(producer_id, ProducerSlot::Closing(settled));
                closing.in_flight.total()
            }
            // Closed before the client heard that it was open: the answer to the request is on its way.
            Some(opening @ ProducerSlot::Opening(_)) => {
                self.slots.insert(producer_id, opening);
                (0, 0)
            }
            None => (0, 0),
        }
    }
}

impl Consumers {
    pub(super) fn begin(&mut self, consumer_id: u64) -> Attempt {
        self.attempts += 1;
        let attempt = Attempt(self.attempts);
        self.slots.insert(consumer_id, ConsumerSlot::Opening(attempt));
        attempt
    }

    pub(super) fn open(&self, consumer_id: u64) -> Option<&SharedConsumer> {
        match self.slots.get(&consumer_id) {
            Some(ConsumerSlot::Open(consumer)) => Some(consumer),
            Some(ConsumerSlot::Opening(_)) | None => None,
        }
    }

    pub(super) fn closed_by_broker(&mut self, consumer_id: u64) {
        if let Some(ConsumerSlot::Open(_)) = self.slots.get(&consumer_id) {
            self.slots.remove(&consumer_id);
        }
    }
}

impl Connection {
    /// A shard has answered the oldest publish of the producer. To be called after that answer was encoded.
    pub(super) fn on_publish_answered(&mut self, producer_id: u64) {
        let (in_flight, closing) = match self.producers.slots.get_mut(&producer_id) {
            Some(ProducerSlot::Open(open)) => (&mut open.in_flight, false),
            Some(ProducerSlot::Closing(closing)) => (&mut closing.in_flight, true),
            // Settled when the producer went.
            Some(ProducerSlot::Opening(_)) | None => return,
        };
        if let Some(bytes) = in_flight.pop() {
            self.settle(1, bytes);
        }
        if closing {
            self.finish_closing(producer_id);
        }
    }

    /// Answers the CLOSE_PRODUCER when nothing stands before it: a client must not hear that its producer is closed before
    /// it hears what became of its messages.
    pub(super) fn finish_closing(&mut self, producer_id: u64) {
        if let Some(ProducerSlot::Closing(closing)) = self.producers.slots.get(&producer_id)
            && closing.in_flight.sizes.is_empty()
            && let Some(request_id) = closing.closed
        {
            self.producers.slots.remove(&producer_id);
            self.answer_in_turn(replies::success(request_id));
        }
    }

    pub(super) fn on_done(&mut self, done: Done) {
        match done {
            Done::Answer(command) => self.answer(command),
            Done::ConsumerAnswer(command) => self.answer_in_turn(command),
            Done::ProducerOpened { producer_id, request_id, attempt, result } => {
                let wanted = matches!(
                    self.producers.slots.get(&producer_id),
                    Some(ProducerSlot::Opening(current)) if *current == attempt
                );
                match (wanted, result) {
                    (true, Ok((handle, created))) => {
                        self.answer(replies::producer_success(request_id, &created));
                        let open = OpenProducer { handle, created, in_flight: InFlight::default() };
                        self.producers.slots.insert(producer_id, ProducerSlot::Open(open));
                    }
                    (true, Err(reason)) => {
                        self.producers.slots.remove(&producer_id);
                        self.answer(replies::refused(request_id, reason));
                    }
                    // The client has closed it meanwhile; the handle closes the producer.
                    (false, _) => {}
                }
            }
            Done::ProducerClosed { producer_id, request_id } => {
                if let Some(ProducerSlot::Closing(closing)) = self.producers.slots.get_mut(&producer_id) {
                    closing.closed = Some(request_id);
                }
                self.finish_closing(producer_id);
            }
            Done::ConsumerOpened { consumer_id, request_id, attempt, result } => {
                let wanted = matches!(
                    self.consumers.slots.get(&consumer_id),
                    Some(ConsumerSlot::Opening(current)) if *current == attempt
                );
                match (wanted, result) {
                    (true, Ok(handle)) => {
                        self.consumers.slots.insert(consumer_id, ConsumerSlot::Open(handle.into()));
                        self.answer(replies::success(request_id));
                    }
                    (true, Err(reason)) => {
                        self.consumers.slots.remove(&consumer_id);
                        self.answer(replies::refused(request_id, reason));
                    }
                    (false, _) => {}
                }
            }
            Done::Unsubscribed { consumer_id, request_id, result } => {
                if result.is_ok() {
                    self.consumers.slots.remove(&consumer_id);
                }
                self.answer_in_turn(replies::outcome(request_id, result));
            }
        }
    }
}

/// What the original answers while a request for the same id is under way.
pub(super) fn still_opening(request_id: u64, what: &str) -> Command {
    replies::error(request_id, ServerError::ServiceNotReady, format!("{what} is already present on the connection"))
}
