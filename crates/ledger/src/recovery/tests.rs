//! Tables over recovery: what the bookies of the last ensemble hold, and where the ledger therefore ends.
//!
//! A bookie's words: `3`: holds entry 3; `3X`: held it once, and cannot read it now; `3B`: returns it with a wrong byte; `L3`:
//! knows 3 as explicit LAC; `?`: does not answer; `u`: lost its state; `w`: cannot write.
//! Entry n has the LAC n-2 in its header, and the ledger has 10 bytes more up to each entry.
//! Outcome: `b<3`: entry 3 is given to bookie b; `end 3 40`: the ledger ends at entry 3 with 40 bytes; `fence b`, `read b 3`, `bad b`,
//! `write b 3`: recovery fails for what that bookie answered.

use std::collections::VecDeque;

use bookkeeper_proto::{
    BookieError, DigestType, Digester, EntryBuf, EntryHeader, EntryId, Fenced, LedgerId, MasterKey,
};
use bytes::Bytes;

use super::{Recovery, RecoveryEffect, RecoveryError, RecoveryEvent};
use crate::Quorums;

const LEDGER: LedgerId = LedgerId(7);

#[test]
fn one_bookie() {
    let check = |bookie, expected| check((1, 1, 1), 0, [bookie], expected);
    check("", "end -1 0");
    check("0", "end 0 10");
    check("0 1 2 3", "end 3 40");
    // What lies behind a hole was never acknowledged: confirmation is in order.
    check("0 1 3", "end 1 20");
    check("0 1 2 3 L3", "end 3 40");
    // Confirmed by an explicit LAC, so its absence is no end but a loss.
    check("0 1 2 L3", "read a 3");
    check("?", "fence a");
}

#[test]
fn only_proof_of_absence_is_an_end() {
    let check = |bookie, expected| check((1, 1, 1), 0, [bookie], expected);
    check("0 1 2X", "read a 2");
    check("0 1 2X 3", "read a 2");
    check("0 1 2B 3", "bad a");
    check("0X", "read a 0");
    check("0X 1 2 3 L2", "end 3 40");
    check("u", "read a 0");
    check("0 1 u", "read a 0");
}

#[test]
fn one_entry_needs_both_of_two() {
    let check = |bookies: [&str; 2], expected| check((2, 2, 2), 0, bookies, expected);
    check(["0 1 2", "0 1 2"], "end 2 30");
    check(["0 1 2", "0 1"], "b<2 end 2 30");
    check(["0 1", "0 1 2"], "a<2 end 2 30");
    // With entries 1 and 2 only in one place each, neither was acknowledged, but it does no harm to keep them.
    check(["0 1", "0 2"], "b<1 a<2 end 2 30");
    check(["0 1 2", "0 1X 2"], "b<1 end 2 30");
    check(["0 1 2", "0 1B 2"], "b<1 end 2 30");
    check(["0 1 2", "0 w"], "b<1 write b 1");
    // One fenced bookie is enough: no add can get two acks. One proof of absence is, too: entry 2 had not both.
    check(["0 1", "?"], "b<0 write b 0");
    check(["", "?"], "end -1 0");
    check(["", "0X"], "end -1 0");
    check(["?", "?"], "fence a");
}

#[test]
fn one_ack_of_two_may_be_anywhere() {
    let check = |bookies: [&str; 2], expected| check((2, 2, 1), 0, bookies, expected);
    check(["0 1 2", "0 1"], "b<2 end 2 30");
    check(["0 1", "?"], "fence b");
    check(["0 1", "0 1 2X"], "read b 2");
    check(["0 1 2", "0 1 w"], "b<2 end 2 30");
    check(["0 1 2", "0 1 2X"], "b<2 end 2 30");
}

#[test]
fn striped_over_three() {
    // Write sets: 0 on a b, 1 on b c, 2 on c a, 3 on a b.
    let check = |bookies: [&str; 3], expected| check((3, 2, 2), 0, bookies, expected);
    check(["0 2 3", "0 1 3", "1 2"], "end 3 40");
    check(["0 2 3", "0 1", "1 2"], "b<3 end 3 40");
    check(["0 3", "0 1 3", "1"], "end 1 20");
    check(["0 2 3", "0 1 3", "?"], "c<2 write c 2");
    check(["0 2", "?", "?"], "fence b");
}

#[test]
fn two_of_three() {
    let check = |bookies: [&str; 3], expected| check((3, 3, 2), 0, bookies, expected);
    check(["0 1", "0 1", "?"], "c<0 c<1 end 1 20");
    check(["0 1", "0", ""], "c<0 b<1 c<1 end 1 20");
    check(["0 1X", "0", "0"], "end 0 10");
    check(["0 1X", "0", "?"], "c<0 read a 1");
}

#[test]
fn later_segments_start_behind_what_is_confirmed() {
    let check = |bookie, expected| check((1, 1, 1), 5, [bookie], expected);
    check("5 6", "end 6 70");
    // Nothing in this segment: the end lies in the one before (served by the same bookie here).
    check("4", "end 4 50");
    check("", "read a 4");
}

#[track_caller]
fn check<const N: usize>(
    (ensemble, write, ack): (u32, u32, u32),
    last_segment_at: i64,
    bookies: [&str; N],
    expected: &str,
) {
    let quorums = Quorums::new(ensemble, write, ack).expect("quorums of a test");
    let mut bookies: Vec<FakeBookie> = bookies.iter().map(|words| FakeBookie::parse(words)).collect();
    let mut first_effects = Vec::new();
    let key = MasterKey::from_password(b"");
    let mut recovery = Recovery::new(LEDGER, quorums, EntryId(last_segment_at), digester(), key, &mut first_effects);
    let mut todo = VecDeque::from(first_effects);
    let mut log = Vec::new();
    while let Some(effect) = todo.pop_front() {
        let event = match effect {
            RecoveryEffect::Fence { bookie, .. } => RecoveryEvent::Fenced { bookie, result: bookies[bookie].fence() },
            RecoveryEffect::Read { bookie, entry } => {
                RecoveryEvent::Read { bookie, entry, result: bookies[bookie].read(entry) }
            }
            RecoveryEffect::Add { bookie, op } => {
                assert!(op.recovery, "a fenced bookie takes recovery adds only");
                assert_eq!(op.bytes.to_bytes(), entry_bytes(op.entry.0), "given on byte for byte");
                log.push(format!("{}<{}", name(bookie), op.entry));
                RecoveryEvent::Added { bookie, entry: op.entry, result: bookies[bookie].add(op.entry) }
            }
            RecoveryEffect::Close { last_entry, length } => {
                log.push(format!("end {last_entry} {length}"));
                continue;
            }
            RecoveryEffect::Fail(error) => {
                log.push(show(&error));
                continue;
            }
        };
        let mut out = Vec::new();
        recovery.on_event(event, &mut out);
        todo.extend(out);
    }
    assert_eq!(log.join(" "), expected);
}

#[derive(Default)]
struct FakeBookie {
    entries: Vec<i64>,
    unreadable: Vec<i64>,
    wrong: Vec<i64>,
    explicit_lac: Option<i64>,
    silent: bool,
    lost_state: bool,
    read_only: bool,
}

impl FakeBookie {
    fn parse(words: &str) -> FakeBookie {
        let mut bookie = FakeBookie::default();
        let number = |digits: &str| digits.parse().expect("an entry id");
        for word in words.split_whitespace() {
            match (word, word.chars().last()) {
                ("?", _) => bookie.silent = true,
                ("u", _) => bookie.lost_state = true,
                ("w", _) => bookie.read_only = true,
                (_, Some('X')) => bookie.unreadable.push(number(&word[..1])),
                (_, Some('B')) => bookie.wrong.push(number(&word[..1])),
                (_, _) if word.starts_with('L') => bookie.explicit_lac = Some(number(&word[1..])),
                _ => bookie.entries.push(number(word)),
            }
        }
        bookie
    }

    fn fence(&self) -> Result<Fenced, BookieError> {
        if self.silent {
            return Err(BookieError::Gone { ledger: LEDGER });
        }
        let last = self.entries.iter().max();
        let from_headers = last.map_or(-1, |last| lac_in(*last));
        Ok(Fenced {
            last_add_confirmed: EntryId(from_headers.max(self.explicit_lac.unwrap_or(-1))),
            last_entry: last.map(|last| entry_bytes(*last)),
        })
    }

    fn read(&self, entry: EntryId) -> Result<Bytes, BookieError> {
        if self.silent {
            return Err(BookieError::Gone { ledger: LEDGER });
        }
        if self.lost_state {
            return Err(BookieError::UnknownLedgerState { ledger: LEDGER, detail: "folder lost".into() });
        }
        if self.unreadable.contains(&entry.0) {
            let (file, detail) = ("segment".into(), "checksum".into());
            return Err(BookieError::Damaged { ledger: LEDGER, entry, file, offset: 0, detail });
        }
        if self.wrong.contains(&entry.0) {
            let mut bytes = entry_bytes(entry.0).to_vec();
            bytes[40] ^= 1;
            return Ok(bytes.into());
        }
        if self.entries.contains(&entry.0) {
            return Ok(entry_bytes(entry.0));
        }
        Err(BookieError::NoEntry { ledger: LEDGER, entry })
    }

    fn add(&mut self, entry: EntryId) -> Result<(), BookieError> {
        if self.silent || self.read_only {
            return Err(BookieError::ReadOnly { ledger: LEDGER, reason: "test".into() });
        }
        self.entries.push(entry.0);
        Ok(())
    }
}

fn show(error: &RecoveryError) -> String {
    match error {
        RecoveryError::Fence { bookie, .. } => format!("fence {}", name(*bookie)),
        RecoveryError::Read { bookie, entry, .. } => format!("read {} {entry}", name(*bookie)),
        RecoveryError::BadEntry { bookie, .. } => format!("bad {}", name(*bookie)),
        RecoveryError::Rewrite { bookie, entry, .. } => format!("write {} {entry}", name(*bookie)),
    }
}

fn name(bookie: usize) -> char {
    char::from(b'a' + bookie as u8)
}

fn digester() -> Digester {
    Digester::new(DigestType::Crc32c, b"")
}

fn lac_in(entry: i64) -> i64 {
    (entry - 2).max(-1)
}

fn entry_bytes(entry: i64) -> Bytes {
    let header = EntryHeader {
        ledger: LEDGER,
        entry: EntryId(entry),
        last_add_confirmed: EntryId(lac_in(entry)),
        length: (entry as u64 + 1) * 10,
    };
    let payload = Bytes::from(vec![b'0' + entry as u8; 10]);
    let payload_crc = crc32c::crc32c(&payload);
    EntryBuf::new(&header, &digester(), b"", payload, payload_crc).to_bytes()
}

#[test]
fn an_answer_counts_once_and_in_time() {
    let quorums = Quorums::new(3, 3, 2).expect("valid");
    let mut out = Vec::new();
    let mut recovery = Recovery::new(LEDGER, quorums, EntryId(0), digester(), MasterKey::from_password(b""), &mut out);
    out.clear();
    let fenced = |bookie| RecoveryEvent::Fenced {
        bookie,
        result: Ok(Fenced { last_add_confirmed: EntryId::NONE, last_entry: None }),
    };
    recovery.on_event(fenced(0), &mut out);
    recovery.on_event(fenced(0), &mut out);
    assert!(out.is_empty(), "one bookie that answers twice is one bookie: {out:?}");
    recovery.on_event(fenced(1), &mut out);
    assert_eq!(out.len(), 3, "covered: reads entry 0 from all: {out:?}");
    out.clear();
    let read = |entry| RecoveryEvent::Read { bookie: 0, entry: EntryId(entry), result: Ok(entry_bytes(entry)) };
    recovery.on_event(fenced(2), &mut out);
    recovery.on_event(read(5), &mut out);
    let added = RecoveryEvent::Added { bookie: 0, entry: EntryId(0), result: Ok(()) };
    recovery.on_event(added, &mut out);
    assert!(out.is_empty(), "{out:?}");
}
