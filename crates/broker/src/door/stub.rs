//! Stands in until the rooms below have landed theirs.

use std::fmt;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TopicName(pub String);

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NamespaceName(pub String);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position {
    pub ledger: i64,
    pub entry: i64,
}
