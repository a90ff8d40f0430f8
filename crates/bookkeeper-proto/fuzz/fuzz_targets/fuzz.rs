//! Any bytes: no panic, bounded memory, and what is accepted can be written and read again.
#![no_main]

use bookkeeper_proto::ledger_path::parse_ledger_path;
use bookkeeper_proto::{DigestType, Digester, EntryBuf, EntryView, LedgerMetadata};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(metadata) = LedgerMetadata::decode(data) {
        assert_eq!(LedgerMetadata::decode(&metadata.encode()), Ok(metadata));
    }
    for version in 1..=3 {
        let _ = LedgerMetadata::decode(&[format!("BookieMetadataFormatVersion\t{version}\n").as_bytes(), data].concat());
    }
    for digest in [DigestType::Crc32, DigestType::Hmac, DigestType::Crc32c, DigestType::Dummy] {
        let bytes = Bytes::copy_from_slice(data);
        if let Ok(view) = EntryView::parse(bytes.clone(), digest) {
            let _ = view.check_digest(&Digester::new(digest, b"password"));
            let again = EntryBuf::verbatim(bytes).expect("what has a header and a digest has a header");
            assert_eq!(again.header(), view.header);
        }
    }
    let _ = std::str::from_utf8(data).map(parse_ledger_path);
});
