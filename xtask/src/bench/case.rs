//! What is offered to a server.

use std::fmt;
use std::str::FromStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// So many messages a second, in batches of what is due within a millisecond. A late generator does not slow it down:
    /// latency counts from when a batch was due.
    Rate { messages_per_second: u64 },
    /// As fast as window and consumer let it.
    Full,
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rate = || text.strip_prefix("rate-")?.parse().ok().filter(|rate| *rate > 0);
        match (text, rate()) {
            ("full", _) => Ok(Case::Full),
            (_, Some(messages_per_second)) => Ok(Case::Rate { messages_per_second }),
            _ => Err(format!("cannot parse case `{text}`: expected `full` or, for example, `rate-10000`")),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Case::Rate { messages_per_second } => write!(f, "rate-{messages_per_second}"),
            Case::Full => f.write_str("full"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Case;

    #[test]
    fn cases_are_named_as_they_are_printed() {
        for good in ["full", "rate-1", "rate-10000"] {
            assert_eq!(good.parse::<Case>().unwrap().to_string(), good);
        }
        for bad in ["", "rate", "rate-", "rate-0", "rate--1", "Full", "10000"] {
            bad.parse::<Case>().unwrap_err();
        }
    }
}
