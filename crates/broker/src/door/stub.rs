//! Stands in until the rooms below have landed theirs.

pub use pulsar_proto::{NamespaceName, TopicName};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position {
    pub ledger: i64,
    pub entry: i64,
}
