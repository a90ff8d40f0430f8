//! What holds for all values.

use bookkeeper_proto::ledger_path::{ledger_path, parse_ledger_path};
use bookkeeper_proto::{
    BookieId, DigestType, Digester, ENTRY_HEADER_LEN, EntryBuf, EntryHeader, EntryId, EntryView, LedgerId,
    LedgerMetadata, LedgerState, MAX_PREFIX_LEN, Segment,
};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

fn digest_type() -> impl Strategy<Value = DigestType> {
    prop_oneof![Just(DigestType::Crc32), Just(DigestType::Hmac), Just(DigestType::Crc32c), Just(DigestType::Dummy)]
}

fn bytes(max_len: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..=max_len).prop_map(Bytes::from)
}

fn state() -> impl Strategy<Value = LedgerState> {
    prop_oneof![
        Just(LedgerState::Open),
        Just(LedgerState::InRecovery),
        (-1..=i64::MAX, 0..=i64::MAX as u64)
            .prop_map(|(last, length)| LedgerState::Closed { last_entry: EntryId(last), length }),
    ]
}

prop_compose! {
    fn metadata()(
        ack_quorum in 1..4u32, more_written in 0..3u32, more_bookies in 0..3u32,
        state in state(), digest in proptest::option::of(digest_type()), password in proptest::option::of(bytes(8)),
        created_ms in any::<Option<i64>>(), creator_token in any::<Option<i64>>(),
        custom in vec((".{0,8}", bytes(8)), 0..4), gaps in vec(1..1000i64, 0..3),
    ) -> LedgerMetadata {
        let ensemble_size = ack_quorum + more_written + more_bookies;
        let starts = gaps.into_iter().scan(0, |start, gap| { *start += gap; Some(*start) });
        let segment = |start| Segment {
            first_entry: EntryId(start),
            bookies: (0..ensemble_size).map(|i| BookieId(format!("bookie-{start}-{i}:3181"))).collect(),
        };
        LedgerMetadata {
            ensemble_size, write_quorum: ack_quorum + more_written, ack_quorum, state,
            segments: std::iter::once(0).chain(starts).map(segment).collect(),
            digest, password, created_ms, custom, creator_token,
        }
    }
}

proptest! {
    #[test]
    fn entries_survive(
        digest in digest_type(), password in bytes(10), prefix in bytes(MAX_PREFIX_LEN), payload in bytes(300),
        ledger: i64, entry: i64, lac: i64, length: u64,
    ) {
        let digester = Digester::new(digest, &password);
        let header = EntryHeader {
            ledger: LedgerId(ledger), entry: EntryId(entry), last_add_confirmed: EntryId(lac), length,
        };
        let built = EntryBuf::new(&header, &digester, &prefix, payload.clone(), crc32c::crc32c(&payload));
        let whole = built.to_bytes();
        prop_assert_eq!(built.len(), whole.len());
        prop_assert_eq!(built.crc32c(), crc32c::crc32c(&whole));

        let view = EntryView::parse(whole.clone(), digest).unwrap();
        prop_assert_eq!(view.header, header);
        prop_assert!(view.check_digest(&digester).is_ok());
        prop_assert_eq!(&view.payload()[..], &[&prefix[..], &payload[..]].concat()[..]);

        let again = EntryBuf::verbatim(whole.clone()).unwrap();
        prop_assert_eq!((again.header(), again.crc32c(), again.to_bytes()), (header, built.crc32c(), whole));
    }

    #[test]
    fn short_entries_are_refused(bytes in bytes(60), digest in digest_type()) {
        let is_long_enough = bytes.len() >= ENTRY_HEADER_LEN + digest.len_bytes();
        prop_assert_eq!(EntryView::parse(bytes, digest).is_ok(), is_long_enough);
    }

    #[test]
    fn ledger_metadata_survives(metadata in metadata()) {
        prop_assert_eq!(LedgerMetadata::decode(&metadata.encode()), Ok(metadata));
    }

    #[test]
    fn cut_ledger_metadata_is_refused(metadata in metadata(), cut in any::<prop::sample::Index>()) {
        let bytes = metadata.encode();
        prop_assert!(LedgerMetadata::decode(&bytes[..cut.index(bytes.len())]).is_err());
    }

    #[test]
    fn any_bytes_are_met_calmly(version in 1..4u8, body in bytes(200)) {
        let bytes = [format!("BookieMetadataFormatVersion\t{version}\n").as_bytes(), &body].concat();
        let _ = LedgerMetadata::decode(&bytes);
    }

    #[test]
    fn any_text_is_met_calmly(body in "(quorumSize: 1|segment ?\\{|\\}|key: \"[^\"]*\"|state: OPEN|\\\\|[a-z:0-9\" ]){0,20}") {
        let _ = LedgerMetadata::decode(format!("BookieMetadataFormatVersion\t2\n{body}").as_bytes());
    }

    #[test]
    fn ledger_paths_lead_back(ledger in prop_oneof![0..=i64::MAX, 0..3_000_000_000i64]) {
        prop_assert_eq!(parse_ledger_path(&ledger_path(LedgerId(ledger))), Some(LedgerId(ledger)));
    }
}
