//! Where a subscription stands: acknowledging, seeking, skipping, and the last message there is.

use std::sync::Arc;

use managed_ledger::{Ack as CursorAck, CursorError, Entry, Read, ReadError, ReadLimit};

use super::dispatch::{Content, count_unacked};
use super::subscriptions::{Waiting, cursor_error, refused};
use super::{Topic, Turn, shown};
use crate::door::{
    Ack, AckId, AckRequest, BrokerErrorKind, LastMessageId, Outgoing, Position, SeekTo, SubscriptionType,
};
use crate::mailbox::Reply;

impl Topic {
    pub(super) fn ack(&mut self, key: u64, name: &Arc<str>, request: AckRequest, turn: &mut Turn<'_>) {
        let Some(subscription) = self.subscriptions.get_mut(name) else { return };
        let end = self.ledger.last_confirmed();
        let by_index = turn.env.config.ack_at_batch_index_level;
        // What was never sent cannot be acknowledged, and part of a batch only where that is switched on.
        let counts = |id: &&AckId| {
            let partial = id.ack_set.as_ref().is_some_and(|words| words.iter().any(|word| *word != 0));
            id.position <= end && id.position.entry.0 >= 0 && (by_index || !partial)
        };
        let token = request.request_id.map(|request_id| {
            self.last_token += 1;
            self.waiting.insert(self.last_token, Waiting::Ack { consumer: key, request_id });
            self.last_token
        });
        let now_ms = turn.now.unix_ms;
        let mut handed_over = false;
        match &request.ack {
            Ack::Individual(ids) => {
                let mut ids = ids.as_slice().iter().filter(counts).peekable();
                while let Some(id) = ids.next() {
                    let remaining = id.ack_set.as_deref().unwrap_or_default().to_vec();
                    let ack = CursorAck::Individual { position: id.position, remaining };
                    // Each covers those before it, so the last one's word is enough.
                    let token = token.filter(|_| ids.peek().is_none());
                    handed_over |= token.is_some();
                    self.ledger.ack(turn.now, subscription.cursor, &ack, token, turn.effects);
                    let left = match self.ledger.ack_set(subscription.cursor, id.position) {
                        Some(words) => count_unacked(words),
                        None => 0,
                    };
                    self.dirty |= subscription.acked(key, id.position, left, now_ms);
                }
            }
            Ack::Cumulative(id) if counts(&id) && subscription.sub_type() == Some(SubscriptionType::Exclusive) => {
                let remaining = id.ack_set.as_deref().unwrap_or_default().to_vec();
                let ack = CursorAck::Cumulative { position: id.position, remaining };
                handed_over = token.is_some();
                self.ledger.ack(turn.now, subscription.cursor, &ack, token, turn.effects);
                subscription.acked_up_to(id.position, now_ms);
            }
            Ack::Cumulative(_) => {
                tracing::debug!(topic = %self.name, subscription = %name, "cumulative acknowledgement ignored");
            }
        }
        if let Some(token) = token.filter(|_| !handed_over) {
            self.ack_done(token, Ok(()), turn);
        }
    }

    pub(super) fn ack_done(&mut self, token: u64, result: Result<(), CursorError>, turn: &mut Turn<'_>) {
        match self.waiting.remove(&token) {
            Some(Waiting::Ack { consumer: key, request_id }) => {
                let subscription = self.consumers.get(&key).and_then(|name| self.subscriptions.get(name));
                let Some(consumer) = subscription.and_then(|subscription| subscription.consumer(key)) else { return };
                let error = result.err().map(|error| {
                    let error = cursor_error(&error);
                    (error.kind, error.message.into())
                });
                let response = Outgoing::AckResponse { consumer_id: consumer.consumer_id, request_id, error };
                turn.out.push(consumer.slot, response);
            }
            Some(Waiting::Reset { reply }) => drop(reply.send(result.map_err(|error| cursor_error(&error)))),
            Some(_) | None => {}
        }
    }

    pub(super) fn seek(&mut self, name: &Arc<str>, to: SeekTo, reply: Reply<()>, turn: &mut Turn<'_>) {
        let (position, ack_set) = match to {
            SeekTo::Position { position, ack_set } => (position, ack_set),
            SeekTo::PublishTime(_) => {
                let message = "seeking by publish time is not supported yet";
                return drop(reply.send(refused(BrokerErrorKind::NotAllowed, message)));
            }
        };
        let mark_delete = match position {
            Position::EARLIEST => self.ledger.start(),
            Position::LATEST => self.ledger.last_confirmed(),
            position => self.ledger.preceding(self.ledger.at_or_after(position)),
        };
        let Some(subscription) = self.subscriptions.get(name) else { return };
        let (cursor, reader, durable) = (subscription.cursor, subscription.reader, subscription.durable);
        if durable {
            self.disconnect_consumers(name, turn);
        } else {
            // The subscription would go with its consumers; a reader keeps it and begins anew.
            self.close_consumers(name, turn);
            self.ledger.forget_reader(reader);
        }
        let token = self.token(Waiting::Reset { reply });
        let next = self.ledger.at_or_after(position);
        let partial = ack_set.filter(|_| {
            turn.env.config.ack_at_batch_index_level && next == position && position <= self.ledger.last_confirmed()
        });
        let reset_token = if partial.is_none() { Some(token) } else { None };
        self.ledger.reset_cursor(turn.now, cursor, mark_delete, reset_token, turn.effects);
        if let Some(remaining) = partial {
            // Its receipt covers the reset, which comes before it.
            let ack = CursorAck::Individual { position, remaining: remaining.into_vec() };
            self.ledger.ack(turn.now, cursor, &ack, Some(token), turn.effects);
        }
    }

    pub(super) fn skip_all(&mut self, name: &str, reply: Reply<()>, turn: &mut Turn<'_>) {
        let Some(subscription) = self.subscriptions.get_mut(name) else {
            return drop(reply.send(refused(BrokerErrorKind::SubscriptionNotFound, "Subscription not found")));
        };
        let position = self.ledger.last_confirmed();
        if position.entry.0 < 0 {
            return drop(reply.send(Ok(())));
        }
        subscription.acked_up_to(position, turn.now.unix_ms);
        let cursor = subscription.cursor;
        let token = self.token(Waiting::Reset { reply });
        let ack = CursorAck::Cumulative { position, remaining: Vec::new() };
        self.ledger.ack(turn.now, cursor, &ack, Some(token), turn.effects);
    }

    pub(super) fn last_message_id(
        &mut self,
        key: u64,
        name: &Arc<str>,
        reply: Reply<LastMessageId>,
        turn: &mut Turn<'_>,
    ) {
        let position = self.ledger.last_confirmed();
        if position.entry.0 < 0 {
            let answer = self.last_message(name, position, -1);
            return drop(reply.send(Ok(answer)));
        }
        // Only the entry itself knows how many messages it has.
        let reader = turn.key();
        let limit = ReadLimit { max_entries: 1, max_bytes: 1 };
        match self.ledger.read(reader, position, limit, turn.effects) {
            Read::Ready(entries) => {
                self.ledger.forget_reader(reader);
                let batch_index = entries.first().map_or(-1, batch_index);
                drop(reply.send(Ok(self.last_message(name, position, batch_index))));
            }
            Read::Pending => {
                self.token(Waiting::LastMessage { consumer: key, reader, reply });
            }
            Read::AtEnd => {
                self.ledger.forget_reader(reader);
                drop(reply.send(Ok(self.last_message(name, position, -1))));
            }
        }
    }

    fn last_message(&self, name: &Arc<str>, position: Position, batch_index: i32) -> LastMessageId {
        let cursor = self.subscriptions.get(name).map(|subscription| subscription.cursor);
        LastMessageId {
            position: shown(position),
            batch_index,
            partition: self.partition,
            mark_delete: cursor.and_then(|cursor| self.ledger.mark_delete(cursor)).unwrap_or(Position::EARLIEST),
        }
    }

    /// Whether the read was one of [`Self::last_message_id`].
    pub(super) fn last_message_read(&mut self, reader: u64, result: &Result<Vec<Entry>, ReadError>) -> bool {
        let asked =
            |waiting: &Waiting| matches!(waiting, Waiting::LastMessage { reader: asked, .. } if *asked == reader);
        let Some(token) = self.waiting.iter().find(|(_, waiting)| asked(waiting)).map(|(token, _)| *token) else {
            return false;
        };
        let Some(Waiting::LastMessage { consumer, reply, .. }) = self.waiting.remove(&token) else { return false };
        self.ledger.forget_reader(reader);
        let Some(name) = self.consumers.get(&consumer) else { return true };
        let answer = match result {
            Ok(entries) => match entries.first() {
                Some(entry) => Ok(self.last_message(name, entry.position, batch_index(entry))),
                None => Ok(self.last_message(name, Position::EARLIEST, -1)),
            },
            Err(error) => refused(BrokerErrorKind::Metadata, error.to_string()),
        };
        drop(reply.send(answer));
        true
    }
}

fn batch_index(entry: &Entry) -> i32 {
    let content = Content::of(entry.data.clone());
    if content.is_batch { i32::try_from(content.messages).map_or(-1, |messages| messages - 1) } else { -1 }
}
