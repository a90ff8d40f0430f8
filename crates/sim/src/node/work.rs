//! What producers, consumers, operators and the clock do.

use managed_ledger::{Ack, CursorId, Effects, InitialPosition, ManagedLedger, NewCursor, NewEntry, Position};
use rand::Rng;
use rand::rngs::SmallRng;

use super::{CURSORS, Failed, Node, Request, TOPICS, name};
use crate::broken::Broken;
use crate::promises::AckedBits;

impl Node<'_> {
    /// One thing that a producer, a consumer, an operator or the clock does.
    pub(super) fn step(&mut self, rng: &mut SmallRng) -> Result<(), Failed> {
        let topic = rng.random_range(0..TOPICS);
        match rng.random_range(0..100) {
            0..35 => self.add(topic, rng)?,
            35..60 => self.ack(topic, rng)?,
            60..66 => self.create_cursor(topic, rng)?,
            66..68 => self.delete_cursor(topic, rng)?,
            68..70 => self.seek(topic, rng)?,
            70..80 => {
                // Mostly a moment, sometimes past the rollover time.
                let ms = if rng.random_bool(0.1) { 70_000 } else { rng.random_range(1..300) };
                self.tick_all(ms)?;
            }
            80..84 => {
                let positions: Vec<Position> = self.promise(topic).present().map(|(position, _)| position).collect();
                if !positions.is_empty() {
                    let from = positions[rng.random_range(0..positions.len())];
                    self.read_from(topic, from, 5, rng)?;
                    self.count("read");
                }
            }
            84..87 => {
                self.close(topic, rng)?;
                if !self.open(topic, false)? {
                    return Err(Broken(format!("topic {topic} is lost after it was closed")).into());
                }
                self.check(topic, rng)?;
                self.count("reopened");
            }
            87 => self.delete(topic, rng)?,
            _ => {}
        }
        for _ in 0..rng.random_range(0..6) {
            self.turn(rng)?;
        }
        Ok(())
    }

    pub(super) fn add(&mut self, topic: u32, rng: &mut SmallRng) -> Result<(), Failed> {
        for _ in 0..rng.random_range(1..4) {
            let len = if rng.random_bool(0.25) { rng.random_range(3_000..12_000) } else { rng.random_range(12..900) };
            let messages = if rng.random_bool(0.5) { 1 } else { rng.random_range(2..6) };
            let (token, payload) = self.promise(topic).new_add(len, messages);
            let payload_crc = crc32c::crc32c(&payload);
            let now = self.now();
            let mut out = Effects::new();
            self.tell(|| format!("topic {topic}: add {token}, {messages} messages"));
            let entry = NewEntry { payload, payload_crc, messages, token };
            self.managed_ledger(topic).add(now, entry, &mut out);
            self.perform(topic, out)?;
        }
        Ok(())
    }

    /// A cursor of the topic that exists, drawn.
    fn some_cursor(&mut self, topic: u32, rng: &mut SmallRng) -> Option<(CursorId, String)> {
        let cursors: Vec<String> = self.promise(topic).cursors().into_iter().collect();
        if cursors.is_empty() {
            return None;
        }
        let cursor = cursors[rng.random_range(0..cursors.len())].clone();
        Some((self.topics[&topic].cursor_named(&cursor)?, cursor))
    }

    fn ack(&mut self, topic: u32, rng: &mut SmallRng) -> Result<(), Failed> {
        for _ in 0..rng.random_range(1..5) {
            let Some((id, cursor)) = self.some_cursor(topic, rng) else { return Ok(()) };
            // Consumers work at the front of the backlog.
            let mut at = self.topics[&topic].next_unacked(id, Position::EARLIEST);
            for _ in 0..rng.random_range(0..5) {
                at = self.topics[&topic].next_unacked(id, at.next_entry());
            }
            let Some(token) = self.promise(topic).token_at(at) else { continue };
            let all = self.promise(topic).all_bits(token);
            let bits = if rng.random_bool(0.6) { all } else { rng.random_range(1..=all) };
            let remaining = if bits == all { Vec::new() } else { vec![(all & !bits).cast_signed()] };
            let cumulative = rng.random_bool(0.3);
            let acked = AckedBits { token, bits, cumulative };
            let ack = match cumulative {
                true => Ack::Cumulative { position: at, remaining },
                false => Ack::Individual { position: at, remaining },
            };
            self.promise(topic).acking(&cursor, &acked);
            self.tell(|| format!("topic {topic}: ack {cursor} {ack:?} {acked:?}"));
            let receipt = rng.random_bool(0.6).then(|| self.token(topic, Request::Ack { cursor, ack: acked }));
            let now = self.now();
            let mut out = Effects::new();
            self.managed_ledger(topic).ack(now, id, &ack, receipt, &mut out);
            self.perform(topic, out)?;
        }
        Ok(())
    }

    pub(super) fn create_cursor(&mut self, topic: u32, rng: &mut SmallRng) -> Result<(), Failed> {
        let cursor = format!("c{}", rng.random_range(0..CURSORS));
        let taken = self.open.iter().any(|((of, _), request)| *of == topic && request.is_about(&cursor));
        if taken || self.topics[&topic].cursor_named(&cursor).is_some() {
            return Ok(());
        }
        let managed_ledger = &self.topics[&topic];
        let (initial, start) = match rng.random_bool(0.6) {
            true => (InitialPosition::Earliest, managed_ledger.start()),
            false => (InitialPosition::Latest, managed_ledger.last_confirmed()),
        };
        let end = managed_ledger.last_confirmed();
        self.promise(topic).creating_cursor(&cursor, start);
        self.tell(|| format!("topic {topic}: create {cursor} {initial:?} behind {start}"));
        let new = NewCursor {
            name: cursor.clone(),
            initial,
            durable: true,
            properties: Vec::new(),
            cursor_properties: Vec::new(),
        };
        let token = self.token(topic, Request::CreateCursor { cursor, initial, end });
        let now = self.now();
        let mut out = Effects::new();
        self.managed_ledger(topic).create_cursor(now, new, token, &mut out);
        self.perform(topic, out)
    }

    fn delete_cursor(&mut self, topic: u32, rng: &mut SmallRng) -> Result<(), Failed> {
        let Some((id, cursor)) = self.some_cursor(topic, rng) else { return Ok(()) };
        self.promise(topic).deleting_cursor(&cursor);
        self.tell(|| format!("topic {topic}: delete {cursor}"));
        let token = self.token(topic, Request::DeleteCursor { cursor });
        let mut out = Effects::new();
        self.managed_ledger(topic).delete_cursor(id, token, &mut out);
        self.perform(topic, out)
    }

    fn seek(&mut self, topic: u32, rng: &mut SmallRng) -> Result<(), Failed> {
        let Some((id, cursor)) = self.some_cursor(topic, rng) else { return Ok(()) };
        let start = self.topics[&topic].start();
        let positions: Vec<Position> = self.promise(topic).present().map(|(position, _)| position).collect();
        let kept: Vec<Position> = positions.into_iter().filter(|position| *position > start).collect();
        let Some(to) = kept.get(rng.random_range(0..8)).copied() else { return Ok(()) };
        // Receipts on their way would be about what is taken back.
        let is_of_cursor = |(of, _): &(u32, u64), request: &Request| *of == topic && request.is_about(&cursor);
        self.turn_until(rng, |node| !node.open.iter().any(|(key, request)| is_of_cursor(key, request)))?;
        self.tell(|| format!("topic {topic}: seek {cursor} to {to}"));
        self.next_token += 1;
        let token = self.next_token;
        let now = self.now();
        let mut out = Effects::new();
        self.managed_ledger(topic).reset_cursor(now, id, to, Some(token), &mut out);
        // Further on, if that ledger is being trimmed.
        let reached = self.managed_ledger(topic).mark_delete(id).unwrap_or(to);
        let Some(to_token) = self.promise(topic).last_token_at(reached.max(to)) else { return Ok(()) };
        self.promise(topic).seeking(&cursor, to_token);
        self.open.insert((topic, token), Request::Seek { cursor, to: to_token });
        self.perform(topic, out)?;
        self.turn_until(rng, |node| !node.open.contains_key(&(topic, token)))?;
        self.count("seek");
        Ok(())
    }

    pub(super) fn close(&mut self, topic: u32, rng: &mut SmallRng) -> Result<(), Failed> {
        let token = self.token(topic, Request::Close);
        let now = self.now();
        let mut out = Effects::new();
        self.managed_ledger(topic).close(now, token, &mut out);
        self.perform(topic, out)?;
        self.turn_until(rng, |node| !node.open.contains_key(&(topic, token)))?;
        self.topics.remove(&topic);
        self.count("closed");
        Ok(())
    }

    fn delete(&mut self, topic: u32, rng: &mut SmallRng) -> Result<(), Failed> {
        self.close(topic, rng)?;
        self.tell(|| format!("topic {topic}: delete"));
        self.promise(topic).deleting();
        let deleted = self.machine.run(ManagedLedger::delete(&self.machine.context, &name(topic)))?;
        match deleted {
            Ok(()) => self.promise(topic).deleted(),
            Err(error) => {
                self.excuse(|| format!("topic {topic} cannot be deleted: {error:?}"))?;
                return Err(Failed::Stopped);
            }
        }
        self.count("topic deleted");
        self.open(topic, true)?;
        self.check(topic, rng)
    }
}
