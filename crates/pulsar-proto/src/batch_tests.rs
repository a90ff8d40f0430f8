use proptest::prelude::*;

use super::*;
use crate::proto::KeyValue;

proptest! {
    #[test]
    fn round_trips(messages in prop::collection::vec((any::<Option<String>>(), any::<Vec<u8>>(), any::<u64>()), 0..20)) {
        let mut builder = BatchBuilder::new();
        let mut expected = Vec::new();
        for (partition_key, body, sequence_id) in messages {
            let metadata = SingleMessageMetadata {
                partition_key,
                sequence_id: Some(sequence_id),
                properties: vec![KeyValue { key: "k".to_owned(), value: sequence_id.to_string() }],
                payload_size: body.len() as i32,
                ..Default::default()
            };
            builder.push(metadata.clone(), &body);
            expected.push(Ok(BatchedMessage { metadata, body: body.into() }));
        }
        let count = builder.count();
        let batch = builder.finish();
        prop_assert_eq!(BatchReader::new(batch.clone(), count).collect::<Vec<_>>(), expected.clone());
        // Wherever it is cut, what comes before the cut is right, and then there is one error.
        for len in 0..batch.len() {
            let mut seen: Vec<_> = BatchReader::new(batch.slice(..len), count).collect();
            prop_assert!(matches!(seen.pop(), Some(Err(_))));
            prop_assert_eq!(&seen[..], &expected[..seen.len()]);
        }
    }
}

#[test]
fn damaged() {
    let read = |bytes: &'static [u8], count| BatchReader::new(Bytes::from_static(bytes), count).collect::<Vec<_>>();
    assert_eq!(read(b"", 0), []);
    assert_eq!(read(b"\0\0\0\x02\x18\x02cd", 0), []);
    let size_of_minus_one = b"\0\0\0\x0b\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    assert_eq!(read(size_of_minus_one, 3), [Err(BatchError::Truncated { index: 0 })]);
    assert_eq!(read(b"\xff\xff\xff\xff\x18\x02cd", 3), [Err(BatchError::Truncated { index: 0 })]);
    assert!(matches!(read(b"\0\0\0\x01\x18", 3)[..], [Err(BatchError::Malformed { index: 0, .. })]));
}
