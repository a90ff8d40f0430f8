//! Bytes of BookKeeper 4.17.1: see `golden/README.md`.
#![expect(clippy::unwrap_used, reason = "tests; the lint does not see that helpers of tests are tests")]

use bookkeeper_proto::ledger_path::{RootChild, ledger_path, parse_ledger_path};
use bookkeeper_proto::{
    BookieId, DigestType, Digester, EntryBuf, EntryHeader, EntryId, EntryView, LedgerId, LedgerMetadata, LedgerState,
    MasterKey, Segment,
};
use bytes::Bytes;
use serde_json::Value;

const FIRST_LEDGER: LedgerId = LedgerId(30_064_771_074);
const SECOND_LEDGER: LedgerId = LedgerId(30_064_771_084);

#[test]
fn entries_with_each_digest() {
    check_entry("add-CRC32C", FIRST_LEDGER, DigestType::Crc32c, b"golden", (0, 5), b"hello");
    check_entry("add-CRC32", FIRST_LEDGER, DigestType::Crc32, b"golden", (1, 10), b"hello");
    check_entry("add-HMAC", FIRST_LEDGER, DigestType::Hmac, b"golden", (2, 15), b"hello");
    check_entry("add-DUMMY", FIRST_LEDGER, DigestType::Dummy, b"golden", (3, 20), b"hello");
    check_entry("add-empty-password", SECOND_LEDGER, DigestType::Crc32c, b"", (0, 0), b"");
}

#[track_caller]
fn check_entry(
    name: &str,
    ledger: LedgerId,
    digest: DigestType,
    password: &[u8],
    (entry, length): (i64, u64),
    payload: &[u8],
) {
    let golden = golden("entries.json").into_iter().find(|case| case["name"] == name).expect("case is there");
    let golden = Bytes::from(unhex(&golden["entry"]));
    let digester = Digester::new(digest, password);
    let header = EntryHeader { ledger, entry: EntryId(entry), last_add_confirmed: EntryId(entry - 1), length };

    for split in 0..=payload.len() {
        let (prefix, rest) = payload.split_at(split);
        let built = EntryBuf::new(&header, &digester, prefix, Bytes::copy_from_slice(rest), crc32c::crc32c(rest));
        assert_eq!(built.to_bytes(), golden, "{name} built");
        assert_eq!(built.crc32c(), crc32c::crc32c(&golden), "{name} whole checksum");
        assert_eq!(built.header(), header, "{name} header");
    }

    let view = EntryView::parse(golden.clone(), digest).unwrap();
    assert_eq!(view.header, header, "{name} parsed");
    view.check_identity(ledger, EntryId(entry)).unwrap();
    view.check_digest(&digester).unwrap();
    assert_eq!(view.payload(), payload, "{name} payload");
    for at in 0..if digest == DigestType::Dummy { 0 } else { golden.len() } {
        let mut damaged = golden.to_vec();
        damaged[at] ^= 0x10;
        let view = EntryView::parse(damaged.into(), digest).unwrap();
        assert!(view.check_digest(&digester).is_err(), "{name} damaged at {at}");
    }
}

#[test]
fn master_keys() {
    let check = |password: &[u8], expected: &str| assert_eq!(hex(&MasterKey::from_password(password).0), expected);
    check(b"", "850bf1071c5e3d8c24235676f8816ae0cbe2f14f");
    check(b"golden", "615ed0089f3a2db1c1f7182910edc04428396d09");
}

#[test]
fn ledger_metadata_of_all_versions() {
    for case in golden("ledger-metadata.json") {
        let (version, state) = (case["version"].as_i64().unwrap(), case["state"].as_str().unwrap());
        let bytes = unhex(&case["hex"]);
        let metadata = LedgerMetadata::decode(&bytes).unwrap_or_else(|error| panic!("{version} {state}: {error}"));

        let ensemble = |names: [&str; 3]| names.map(BookieId::from).to_vec();
        let segments = vec![
            Segment { first_entry: EntryId(0), bookies: ensemble(["bookie1:3181", "bookie2:3181", "bookie3:3181"]) },
            Segment { first_entry: EntryId(100), bookies: ensemble(["bookie1:3181", "bookie4:3181", "bookie3:3181"]) },
        ];
        let is_v1 = version == 1;
        let expected = LedgerMetadata {
            ensemble_size: 3,
            write_quorum: 2,
            ack_quorum: if is_v1 { 2 } else { 1 },
            state: match state {
                "OPEN" => LedgerState::Open,
                "IN_RECOVERY" => LedgerState::InRecovery,
                _ => LedgerState::Closed { last_entry: EntryId(150), length: 4321 },
            },
            segments,
            digest: (!is_v1).then_some(DigestType::Crc32c),
            password: (!is_v1).then_some(Bytes::from_static(b"pw")),
            created_ms: (!is_v1).then_some(1_700_000_000_000),
            custom: if is_v1 { vec![] } else { vec![("application".to_owned(), Bytes::from_static(b"pulsar"))] },
            creator_token: metadata.creator_token,
        };
        assert_eq!(metadata, expected, "{version} {state}");
        assert_eq!(metadata.creator_token.is_some(), version == 3, "only version 3 has a token");
        if version == 3 {
            assert_eq!(hex(&metadata.encode()), case["hex"].as_str().unwrap(), "{state} encoded");
        }
        assert_eq!(LedgerMetadata::decode(&metadata.encode()).as_ref(), Ok(&metadata), "{version} {state} again");
    }
}

#[test]
fn ledger_metadata_that_is_none() {
    let check = |bytes: &[u8], expected: &str| {
        let error = LedgerMetadata::decode(bytes).expect_err("must not be accepted").to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(b"", "starts with ``");
    check(b"hello\n", "starts with `hello");
    check(b"BookieMetadataFormatVersion\t4\n", "version 4");
    check(b"BookieMetadataFormatVersion\t1\n2\n3\n0\n", "first segment");
    check(b"BookieMetadataFormatVersion\t1\n2\n3\n0\n0\ta\n", "has 1 bookies, not 3");
    check(b"BookieMetadataFormatVersion\t1\n0\n1\n0\n0\ta\n", "quorum");
    check(b"BookieMetadataFormatVersion\t2\nquorumSize: 1 colour: 2", "unknown field `colour`");
    check(b"BookieMetadataFormatVersion\t3\n\x05\x08", "cannot be read");
}

#[test]
fn strings_in_text_metadata() {
    let text = "BookieMetadataFormatVersion\t2\nquorumSize:1 ensembleSize:1 length:0 state:1 segment{ensembleMember:'a' \
                firstEntryId:0} password: \"\\000\\377\\n\\\"\\x41\" customMetadata: { key: \"k\", value: \"\" };";
    let metadata = LedgerMetadata::decode(text.as_bytes()).unwrap();
    assert_eq!(metadata.password, Some(Bytes::from_static(b"\0\xff\n\"A")));
    assert_eq!(metadata.custom, [("k".to_owned(), Bytes::new())]);
}

#[test]
fn ledger_paths() {
    let check = |ledger: i64, path: &str| {
        assert_eq!(ledger_path(LedgerId(ledger)), path);
        assert_eq!(parse_ledger_path(path), Some(LedgerId(ledger)), "{path}");
    };
    check(0, "/ledgers/00/0000/L0000");
    check(10, "/ledgers/00/0000/L0010");
    check(12345, "/ledgers/00/0001/L2345");
    check(2_147_483_646, "/ledgers/21/4748/L3646");
    check(2_147_483_647, "/ledgers/000/0000/0021/4748/L3647");
    check(5_000_000_000, "/ledgers/000/0000/0050/0000/L0000");
    check(i64::MAX, "/ledgers/922/3372/0368/5477/L5807");
}

#[test]
fn paths_of_no_ledger() {
    for path in [
        "/ledgers",
        "/ledgers/LAYOUT",
        "/ledgers/available/readonly",
        "/ledgers/00/0001",
        "/ledgers/00/0001/2345",
        "/ledgers/00/0001/L234",
        "/ledgers/00/0001/L23456",
        "/ledgers/00/+001/L2345",
        "/ledgers/99/9999/L9999",
        "/ledgers/000/0000/0000/0001/L2345",
        "/ledgers/999/9999/9999/9999/L9999",
        "/ledgers/L0000012345",
        "/other/00/0001/L2345",
    ] {
        assert_eq!(parse_ledger_path(path), None, "{path}");
    }
    let kinds = ["00", "21", "000", "LAYOUT", "idgen", "0a", "L0000012345"].map(RootChild::of);
    let special = RootChild::Special;
    assert_eq!(kinds, [RootChild::Short, RootChild::Short, RootChild::Long, special, special, special, special]);
}

fn golden(file: &str) -> Vec<Value> {
    let path = format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn unhex(value: &Value) -> Vec<u8> {
    let digits = value.as_str().expect("a string of hex digits").as_bytes();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
