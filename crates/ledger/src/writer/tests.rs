//! Tables over the writer. Three adds of 10, 20 and 30 bytes are pending on bookies a, b, c (ensemble 3, write and ack quorum as
//! stated).
//!
//! Input: `1a`: bookie a acks entry 1; `1aF`: it answers that the ledger is fenced; `1aX`: it failed; `C`: close.
//! Output: `+1`: confirmed; `!1`: fenced, outcome unknown; `?1`: a bookie failed, outcome unknown; `S1:30`: seal at entry 1 with
//! 30 bytes.

use bookkeeper_proto::{BookieError, DigestType, Digester, EntryId, EntryView, LedgerId, MasterKey};
use bytes::Bytes;

use super::{AddError, LedgerWriter, NewAdd, NotOpen, Quorums, WriterEffect, WriterEvent};

const LEDGER: LedgerId = LedgerId(7);

#[test]
fn one_bookie() {
    let check = |input, expected| check((1, 1, 1), input, expected);
    check("0a 1a 2a", "+0 +1 +2");
    check("2a 1a 0a", "+0 +1 +2");
    check("1a", "");
    check("0a 0a 0a 1a", "+0 +1");
    check("0a 1aF", "+0 !1 !2");
    check("0aF 0a 1a 2a", "!0 !1 !2");
    check("1a 0aF", "!0 !1 !2");
    check("0aX", "?0 ?1 ?2 S-1:0");
    check("0a 1aX 1a 2a", "+0 ?1 ?2 S0:10");
    check("1a 2a 0aX", "?0 ?1 ?2 S-1:0");
    check("0aX 1aX 2aX C", "?0 ?1 ?2 S-1:0");
    check("0a 1aX 2aF", "+0 ?1 ?2 S0:10");
    check("0a 1aF 2aX C", "+0 !1 !2");
    check("0b 0c", "");
    check("3a 0a", "+0");
}

#[test]
fn closing_waits_for_what_is_pending() {
    let check = |input, expected| check((1, 1, 1), input, expected);
    check("C 0a 1a 2a", "+0 +1 +2 S2:60");
    check("0a 1a 2a C", "+0 +1 +2 S2:60");
    check("0a C C 1a 2a C 2a", "+0 +1 +2 S2:60");
    check("C 0a 1aX", "+0 ?1 ?2 S0:10");
    check("C 0a 1aF 2a C", "+0 !1 !2");
}

#[test]
fn two_of_two_in_an_ensemble_of_three() {
    // Write sets: 0 on a b, 1 on b c, 2 on c a.
    let check = |input, expected| check((3, 2, 2), input, expected);
    check("0a 0b 1b 1c 2c 2a", "+0 +1 +2");
    check("0a 0a", "");
    check("0a 0c", "");
    check("1b 1c 2c 2a 0b 0a", "+0 +1 +2");
    check("1b 1c 0a", "");
    check("1b 1c 0a 0bF", "!0 !1 !2");
    check("0a 0b 1b 1cF 1c", "+0 !1 !2");
    check("0a 0b 2aX", "+0 ?1 ?2 S0:10");
}

#[test]
fn two_of_three() {
    let check = |input, expected| check((3, 3, 2), input, expected);
    check("0a 0c 1a 1b", "+0 +1");
    check("0a 0b 0c 0cF", "+0 !1 !2");
    check("0a 0b 0cX", "+0 ?1 ?2 S0:10");
    check("0a 1a 2a 0b 2b 1c C", "+0 +1 +2 S2:60");
}

#[track_caller]
fn check((ensemble, write, ack): (u32, u32, u32), input: &str, expected: &str) {
    let mut writer = writer(Quorums::new(ensemble, write, ack).expect("quorums of a test"));
    let mut out = Vec::new();
    for len in [10, 20, 30] {
        add(&mut writer, len, &mut out).expect("a new writer is open");
    }
    out.retain(|effect| !matches!(effect, WriterEffect::Send { .. }));
    assert!(out.is_empty(), "{out:?}");
    input.split_whitespace().for_each(|word| writer.on_event(event(word), &mut out));
    let found: Vec<String> = out.iter().map(show).collect();
    assert_eq!(found.join(" "), expected, "after `{input}`");
}

fn event(word: &str) -> WriterEvent {
    let bytes = word.as_bytes();
    if word == "C" {
        return WriterEvent::Close;
    }
    let entry = EntryId(i64::from(bytes[0] - b'0'));
    let result = match bytes.get(2) {
        None => Ok(Bytes::from(vec![bytes[0]; 40])),
        Some(b'F') => Err(BookieError::Fenced { ledger: LEDGER }),
        Some(_) => Err(BookieError::Gone { ledger: LEDGER }),
    };
    WriterEvent::Added { bookie: usize::from(bytes[1] - b'a'), entry, result }
}

fn show(effect: &WriterEffect) -> String {
    match effect {
        WriterEffect::Send { bookie, op } => format!("{}{}", op.entry, char::from(b'a' + *bookie as u8)),
        WriterEffect::Confirmed { entry, owner, bytes } => {
            assert_eq!(
                (*owner, bytes[0]),
                (entry.0 as u64 + 100, b'0' + entry.0 as u8),
                "the entry's own owner and bytes"
            );
            format!("+{entry}")
        }
        WriterEffect::Failed { entry, error: AddError::Fenced { .. }, .. } => format!("!{entry}"),
        WriterEffect::Failed { entry, error: AddError::OutcomeUnknown { .. }, .. } => format!("?{entry}"),
        WriterEffect::Seal { last_entry, length } => format!("S{last_entry}:{length}"),
    }
}

fn writer(quorums: Quorums) -> LedgerWriter {
    LedgerWriter::new(LEDGER, quorums, Digester::new(DigestType::Crc32c, b""), MasterKey::from_password(b""))
}

fn add(writer: &mut LedgerWriter, len: usize, out: &mut Vec<WriterEffect>) -> Result<EntryId, NotOpen> {
    let payload = Bytes::from(vec![b'.'; len]);
    let payload_crc = crc32c::crc32c(&payload);
    let owner = writer.next_entry().0 as u64 + 100;
    writer.add(NewAdd { prefix: b"", payload, payload_crc, owner }, out)
}

#[test]
fn adds_go_to_their_write_set() {
    let mut writer = writer(Quorums::new(3, 2, 2).expect("valid"));
    let mut out = Vec::new();
    for _ in 0..3 {
        add(&mut writer, 1, &mut out).expect("open");
    }
    let mut sent: Vec<String> = out.iter().map(show).collect();
    sent.sort();
    assert_eq!(sent, ["0a", "0b", "1b", "1c", "2a", "2c"]);
}

#[test]
fn headers_carry_lac_and_length() {
    let mut writer = writer(Quorums::new(1, 1, 1).expect("valid"));
    let mut out = Vec::new();
    let digester = Digester::new(DigestType::Crc32c, b"");
    for (prefix, acked, expected) in
        [("", "0a", (-1, 5)), ("ab", "", (0, 12)), ("", "1a", (0, 17)), ("abc", "2a", (1, 25))]
    {
        let payload = Bytes::from_static(b"hello");
        let payload_crc = crc32c::crc32c(&payload);
        let new = NewAdd { prefix: prefix.as_bytes(), payload, payload_crc, owner: 0 };
        writer.add(new, &mut out).expect("open");
        let Some(WriterEffect::Send { op, .. }) = out.pop() else { panic!("sends first: {out:?}") };
        let view = EntryView::parse(op.bytes.to_bytes(), DigestType::Crc32c).expect("an entry");
        view.check_digest(&digester).expect("digest");
        assert_eq!((view.header.last_add_confirmed.0, view.header.length), expected);
        assert_eq!(view.payload(), format!("{prefix}hello"));
        if !acked.is_empty() {
            let WriterEvent::Added { bookie, entry, result } = event(acked) else { unreachable!("acks only") };
            writer.on_event(WriterEvent::Added { bookie, entry, result }, &mut out);
        }
        out.clear();
    }
}

#[test]
fn an_ended_writer_refuses_adds() {
    for (input, is_fenced) in [("C", false), ("0a C", false), ("0aX", false), ("0aF", true)] {
        let mut writer = writer(Quorums::new(1, 1, 1).expect("valid"));
        let mut out = Vec::new();
        add(&mut writer, 1, &mut out).expect("open");
        input.split_whitespace().for_each(|word| writer.on_event(event(word), &mut out));
        let len = out.len();
        assert_eq!(add(&mut writer, 1, &mut out), Err(NotOpen { ledger: LEDGER }), "after `{input}`");
        assert_eq!((out.len(), writer.is_fenced(), writer.is_open()), (len, is_fenced, false), "after `{input}`");
    }
}

#[test]
fn quorums_that_make_no_sense() {
    for (ensemble, write, ack) in [(0, 0, 0), (1, 1, 0), (1, 2, 1), (2, 1, 2), (65, 1, 1)] {
        assert_eq!(Quorums::new(ensemble, write, ack), None, "{ensemble}/{write}/{ack}");
    }
}
