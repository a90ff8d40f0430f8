//! What one topic has promised so far, and whether what it shows keeps the promises.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use managed_ledger::Position;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use crate::broken::{Broken, promise};

/// Everything that was asked of one topic and what it answered.
///
/// Adds are named by their number (the token they are sent with), which is also in their payload; so what is found after a crash tells which
/// add it is.
#[derive(Debug)]
pub struct Promises {
    topic: u32,
    adds: Vec<Add>,
    last_added: Option<(u64, Position, u64)>,
    cursors: BTreeMap<String, Cursor>,
    exists: bool,
    deleting: bool,
}

/// An acknowledgement: bits of the messages of one add, and, if cumulative, everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckedBits {
    pub token: u64,
    pub bits: u64,
    pub cumulative: bool,
}

impl AckedBits {
    fn through(token: u64, bits: u64) -> AckedBits {
        AckedBits { token, bits, cumulative: true }
    }
}

/// One add.
#[derive(Clone, Debug)]
struct Add {
    len: usize,
    messages: u32,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// May be there or not: not answered, or answered with "outcome unknown".
    Unknown,
    /// Confirmed, or seen by a reader after a crash: there for ever, at this position, until every cursor acknowledged it.
    Present(Position),
    /// Refused, not seen after a crash, or consumed and trimmed: must never appear.
    Absent,
}

/// What was asked of one cursor. Acknowledged messages are bits by their index in the entry.
#[derive(Clone, Debug)]
struct Cursor {
    state: Existence,
    /// Adds up to and including this one were before the cursor's start: nothing is promised about them.
    skips_to: Option<u64>,
    asked: BTreeMap<u64, u64>,
    durable: BTreeMap<u64, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existence {
    Unknown,
    Exists,
    Gone,
}

/// An entry as a reader saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub position: Position,
    pub payload: Bytes,
    /// Of the entry's last message.
    pub index: Option<u64>,
}

/// A recovered cursor: which messages of which entries it would deliver. Positions not named are acknowledged.
#[derive(Clone, Debug, Default)]
pub struct SeenCursor {
    /// By position, bits of the messages that would be delivered.
    pub unacked: BTreeMap<Position, u64>,
}

impl Promises {
    /// Nothing promised yet.
    pub fn new(topic: u32) -> Promises {
        Promises { topic, adds: Vec::new(), last_added: None, cursors: BTreeMap::new(), exists: false, deleting: false }
    }

    /// Adds so far.
    pub fn add_count(&self) -> u64 {
        self.adds.len() as u64
    }

    /// A new add of `messages` messages; returns its token and payload.
    pub fn new_add(&mut self, len: usize, messages: u32) -> (u64, Bytes) {
        let token = self.adds.len() as u64;
        self.adds.push(Add { len, messages, outcome: Outcome::Unknown });
        (token, self.payload(token))
    }

    /// Topic, token, then bytes that follow from them, so that any damage shows.
    fn payload(&self, token: u64) -> Bytes {
        let len = self.adds[token as usize].len.max(12);
        let mut bytes = vec![0; len];
        bytes[..4].copy_from_slice(&self.topic.to_be_bytes());
        bytes[4..12].copy_from_slice(&token.to_be_bytes());
        SmallRng::seed_from_u64(token << 8 | u64::from(self.topic)).fill_bytes(&mut bytes[12..]);
        bytes.into()
    }

    /// The add was confirmed.
    pub fn added(&mut self, token: u64, position: Position, index: u64) -> Result<(), Broken> {
        let add = &mut self.adds[token as usize];
        promise!(add.outcome == Outcome::Unknown, "add {token} confirmed at {position} after {:?}", add.outcome);
        if let Some((last, last_position, last_index)) = self.last_added {
            promise!(
                token > last && position > last_position && index >= last_index + u64::from(add.messages),
                "add {token} confirmed at {position}, index {index}, after add {last} at {last_position}, index {last_index}"
            );
        }
        add.outcome = Outcome::Present(position);
        self.last_added = Some((token, position, index));
        Ok(())
    }

    /// The add failed, and the answer says that it will never be found.
    pub fn refused(&mut self, token: u64) -> Result<(), Broken> {
        let add = &mut self.adds[token as usize];
        promise!(add.outcome == Outcome::Unknown, "add {token} refused after {:?}", add.outcome);
        add.outcome = Outcome::Absent;
        Ok(())
    }

    /// Creation of a cursor was asked for. `start`: the position before its first entry, as far as is known.
    pub fn creating_cursor(&mut self, name: &str, start: Position) {
        let skips_to = self.last_token_at(start);
        let cursor = Cursor { state: Existence::Unknown, skips_to, asked: BTreeMap::new(), durable: BTreeMap::new() };
        self.cursors.insert(name.to_owned(), cursor);
    }

    /// The creation was confirmed; the cursor starts behind this position.
    pub fn created_cursor(&mut self, name: &str, start: Position) {
        let before = self.last_token_at(start);
        if let Some(cursor) = self.cursors.get_mut(name) {
            cursor.state = Existence::Exists;
            cursor.skips_to = cursor.skips_to.max(before);
        }
    }

    /// The last add known to lie at or before this position.
    pub fn last_token_at(&self, position: Position) -> Option<u64> {
        let before = |add: &Add| matches!(add.outcome, Outcome::Present(at) if at <= position);
        self.adds.iter().rposition(before).map(|token| token as u64)
    }

    /// Deletion was asked for.
    pub fn deleting_cursor(&mut self, name: &str) {
        self.set_existence(name, Existence::Unknown);
    }

    /// The deletion was confirmed.
    pub fn deleted_cursor(&mut self, name: &str) {
        self.set_existence(name, Existence::Gone);
    }

    fn set_existence(&mut self, name: &str, state: Existence) {
        if let Some(cursor) = self.cursors.get_mut(name) {
            cursor.state = state;
        }
    }

    /// The token of a present entry.
    pub fn token_at(&self, position: Position) -> Option<u64> {
        self.adds.iter().position(|add| add.outcome == Outcome::Present(position)).map(|token| token as u64)
    }

    /// Positions and numbers of messages of everything present.
    pub fn present(&self) -> impl DoubleEndedIterator<Item = (Position, u32)> {
        self.adds.iter().filter_map(|add| match add.outcome {
            Outcome::Present(position) => Some((position, add.messages)),
            Outcome::Unknown | Outcome::Absent => None,
        })
    }

    /// Was asked to acknowledge.
    pub fn acking(&mut self, cursor: &str, ack: &AckedBits) {
        self.merge(cursor, ack, |cursor| &mut cursor.asked);
    }

    /// The receipt for an acknowledgement came.
    pub fn acked(&mut self, cursor: &str, ack: &AckedBits) {
        self.merge(cursor, ack, |cursor| &mut cursor.durable);
    }

    fn merge(&mut self, cursor: &str, ack: &AckedBits, of: impl FnOnce(&mut Cursor) -> &mut BTreeMap<u64, u64>) {
        let before = if ack.cumulative { 0..ack.token } else { 0..0 };
        let all: Vec<(u64, u64)> = before.map(|token| (token, self.all_bits(token))).collect();
        let Some(cursor) = self.cursors.get_mut(cursor) else { return };
        let acked = of(cursor);
        for (token, bits) in all.into_iter().chain([(ack.token, ack.bits)]) {
            *acked.entry(token).or_default() |= bits;
        }
    }

    /// Was asked to take all acknowledgements back but those up to an entry: until the answer, both states are right.
    pub fn seeking(&mut self, cursor: &str, to: u64) {
        if let Some(cursor) = self.cursors.get_mut(cursor) {
            cursor.durable.clear();
        }
        self.acking(cursor, &AckedBits::through(to, self.all_bits(to)));
    }

    /// The answer: exactly the entries up to this one are acknowledged.
    pub fn sought(&mut self, cursor: &str, to: u64) {
        if let Some(cursor) = self.cursors.get_mut(cursor) {
            cursor.asked.clear();
        }
        let through = AckedBits::through(to, self.all_bits(to));
        self.acking(cursor, &through);
        self.acked(cursor, &through);
    }

    /// All bits of an add's messages.
    pub fn all_bits(&self, token: u64) -> u64 {
        (1 << self.adds[token as usize].messages) - 1
    }

    /// Deletion of the whole topic was asked for: cursors go first, one by one.
    pub fn deleting(&mut self) {
        self.cursors.values_mut().for_each(|cursor| cursor.state = Existence::Unknown);
        self.deleting = true;
    }

    /// The topic is deleted: nothing of it may come back.
    pub fn deleted(&mut self) {
        self.cursors.values_mut().for_each(|cursor| cursor.state = Existence::Gone);
        self.adds.iter_mut().for_each(|add| add.outcome = Outcome::Absent);
        self.last_added = None;
        self.exists = false;
        self.deleting = false;
    }

    /// The topic was opened (or created).
    pub fn opened(&mut self) {
        self.exists = true;
        self.deleting = false;
    }

    /// The topic is not there.
    pub fn not_found(&mut self) -> Result<(), Broken> {
        promise!(!self.exists || self.deleting, "topic {} is lost", self.topic);
        self.deleted();
        Ok(())
    }

    /// Compares everything a reader finds in the recovered topic with what was promised. What was open until now is decided by what is seen.
    ///
    /// Returns how many confirmed entries have been trimmed since the last time.
    pub fn check_entries(&mut self, seen: &[Seen]) -> Result<u64, Broken> {
        let mut trimmed = 0;
        let mut found = BTreeMap::new();
        let mut last: Option<(u64, &Seen)> = None;
        for entry in seen {
            let token = self.recognise(entry)?;
            if let Some((last_token, last)) = last {
                let next_index = last.index.map(|index| index + u64::from(self.adds[token as usize].messages));
                promise!(
                    token > last_token && entry.position > last.position && entry.index >= next_index,
                    "add {token} at {}, index {:?}, comes after add {last_token} at {}, index {:?}",
                    entry.position,
                    entry.index,
                    last.position,
                    last.index
                );
            }
            last = Some((token, entry));
            found.insert(token, entry.position);
        }
        for token in 0..self.add_count() {
            let outcome = self.adds[token as usize].outcome;
            let decided = match (outcome, found.get(&token)) {
                (Outcome::Unknown, Some(position)) => Outcome::Present(*position),
                (Outcome::Unknown, None) | (Outcome::Absent, None) => Outcome::Absent,
                (Outcome::Absent, Some(position)) => {
                    return Err(Broken(format!("add {token} was refused or lost, and is now seen at {position}")));
                }
                (Outcome::Present(position), Some(at)) => {
                    promise!(position == *at, "add {token} moved from {position} to {at}");
                    outcome
                }
                (Outcome::Present(position), None) => {
                    self.may_be_trimmed(token, position, seen)?;
                    trimmed += 1;
                    Outcome::Absent
                }
            };
            self.adds[token as usize].outcome = decided;
        }
        Ok(trimmed)
    }

    fn recognise(&self, entry: &Seen) -> Result<u64, Broken> {
        let position = entry.position;
        promise!(entry.payload.len() >= 12, "{} bytes at {position}: no add of ours", entry.payload.len());
        let token = u64::from_be_bytes(entry.payload[4..12].try_into().expect("eight bytes"));
        promise!(token < self.add_count(), "add {token} at {position} was never sent");
        promise!(entry.payload == self.payload(token), "the bytes of add {token} at {position} are not what was sent");
        Ok(token)
    }

    /// A confirmed entry that is not seen must lie before all that is seen, and every cursor must be past it.
    fn may_be_trimmed(&self, token: u64, position: Position, seen: &[Seen]) -> Result<(), Broken> {
        if let Some(first) = seen.first() {
            promise!(position.ledger < first.position.ledger, "confirmed add {token} at {position} is lost");
        }
        let all = self.all_bits(token);
        for (name, cursor) in &self.cursors {
            if cursor.state == Existence::Exists && cursor.skips_to.is_none_or(|skipped| token > skipped) {
                let asked = cursor.asked.get(&token).copied().unwrap_or(0);
                promise!(
                    asked == all,
                    "confirmed add {token} at {position} is lost; cursor `{name}` never acknowledged it"
                );
            }
        }
        Ok(())
    }

    /// Compares the recovered cursors with what was promised. Call after [`Promises::check_entries`].
    pub fn check_cursors(&mut self, seen: &BTreeMap<String, SeenCursor>, entries: &[Seen]) -> Result<(), Broken> {
        for name in seen.keys() {
            promise!(self.cursors.contains_key(name), "cursor `{name}` was never created");
        }
        let tokens: Vec<(u64, Position)> =
            entries.iter().map(|entry| Ok((self.recognise(entry)?, entry.position))).collect::<Result<_, Broken>>()?;
        let added = self.add_count();
        let bits: BTreeMap<u64, u64> = tokens.iter().map(|(token, _)| (*token, self.all_bits(*token))).collect();
        for (name, cursor) in &mut self.cursors {
            let Some(shown) = seen.get(name) else {
                promise!(cursor.state != Existence::Exists, "cursor `{name}` is lost");
                cursor.state = Existence::Gone;
                continue;
            };
            promise!(cursor.state != Existence::Gone, "deleted cursor `{name}` is back");
            if cursor.state == Existence::Unknown {
                // Entries may have been trimmed between the request and the moment it took effect.
                let first = tokens.first().map_or(added, |(token, _)| *token);
                cursor.skips_to = cursor.skips_to.max(first.checked_sub(1));
            }
            cursor.state = Existence::Exists;
            for (token, position) in &tokens {
                if cursor.skips_to.is_some_and(|skipped| *token <= skipped) {
                    continue;
                }
                let all = bits[token];
                let acked = all & !shown.unacked.get(position).copied().unwrap_or(0);
                let durable = cursor.durable.get(token).copied().unwrap_or(0);
                let asked = cursor.asked.get(token).copied().unwrap_or(0);
                promise!(
                    durable & !acked == 0,
                    "cursor `{name}` would deliver add {token} at {position} again: {durable:b} acknowledged with a receipt, {acked:b} recovered"
                );
                promise!(
                    acked & !asked == 0,
                    "cursor `{name}` skips add {token} at {position}: {asked:b} acknowledged, {acked:b} recovered"
                );
                // What recovery showed is on the disk, and stays.
                if acked != 0 {
                    cursor.durable.insert(*token, acked);
                }
            }
        }
        Ok(())
    }

    /// Names of the cursors that exist.
    pub fn cursors(&self) -> BTreeSet<String> {
        let existing = self.cursors.iter().filter(|(_, cursor)| cursor.state == Existence::Exists);
        existing.map(|(name, _)| name.clone()).collect()
    }
}
