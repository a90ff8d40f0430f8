//! One memory budget, shared out between everything in the process that grows with load.

use std::fmt;
use std::str::FromStr;

/// An amount of memory or disk, in bytes. Parses `512MB`, `1G`, `65536`; units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let shift = match text[digits..].trim().to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            "K" | "KB" | "KIB" => 10,
            "M" | "MB" | "MIB" => 20,
            "G" | "GB" | "GIB" => 30,
            _ => return Err(format!("`{text}` is not a size: expected for example 512MB, 2G or 65536")),
        };
        let number: u64 = text[..digits].parse().map_err(|_| format!("`{text}` does not start with a number"))?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| format!("`{text}` is too large"))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 30 && bytes % (1 << 30) == 0 => write!(f, "{}GB", bytes >> 30),
            bytes if bytes >= 1 << 20 => write!(f, "{}MB", bytes >> 20),
            bytes => write!(f, "{bytes}B"),
        }
    }
}

/// The parts of `--memory-limit`. What is left over belongs to code, stacks, topic state and the allocator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Entries kept for consumers that are caught up or nearly so, counted by the commit blocks they pin.
    pub(crate) entry_cache: usize,
    /// Entries that were read from the disk, for those who read the same backlog.
    pub(crate) read_cache: usize,
    /// Reads from the disk that are under way, over all topics.
    pub(crate) reads: usize,
    /// Publishes received and not yet durable, over all connections.
    pub(crate) publish_buffer: usize,
    /// Messages handed to connections and not yet taken by the socket, over all connections.
    pub(crate) outbound_buffer: usize,
    /// Index tables of the bookie's sealed segments.
    pub(crate) index_cache: usize,
}

/// The smallest limit with which every part can still hold the largest message.
pub(crate) const SMALLEST_LIMIT: ByteSize = ByteSize(64 << 20);

impl Budget {
    /// Shares out a limit of at least [`SMALLEST_LIMIT`].
    pub(crate) fn share_out(limit: ByteSize) -> Self {
        // What is not counted below, measured: 10 MB for the process, 15 MB for 1000 topics with a producer each, and the
        // commit that is being written.
        let counted = (limit.0 - (limit.0 / 4).max(40 << 20).min(limit.0 / 2)) as usize;
        Self {
            entry_cache: counted / 4,
            read_cache: counted / 16,
            reads: counted / 8,
            publish_buffer: counted / 4,
            outbound_buffer: counted / 4,
            index_cache: counted / 16,
        }
    }

    /// Commit blocks that the bookie keeps by itself. They are the newest of those that the entry cache keeps, so they are
    /// not counted twice.
    pub(crate) fn recent_blocks(&self) -> usize {
        self.entry_cache / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_print() {
        for (text, bytes, printed) in [
            ("512MB", 512 << 20, "512MB"),
            ("1g", 1 << 30, "1GB"),
            ("65536", 65536, "65536B"),
            ("3 KiB", 3072, "3072B"),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, printed));
        }
        for wrong in ["", "MB", "12 parsecs", "99999999999G", "-1"] {
            assert!(wrong.parse::<ByteSize>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn parts_stay_below_the_limit() {
        for mb in [64u64, 128, 512, 16384] {
            let budget = Budget::share_out(ByteSize(mb << 20));
            let sum = budget.entry_cache
                + budget.read_cache
                + budget.reads
                + budget.publish_buffer
                + budget.outbound_buffer
                + budget.index_cache;
            assert!(sum as u64 <= (mb << 20) * 3 / 4, "{mb} MB: {budget:?}");
        }
    }
}
