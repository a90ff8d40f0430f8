//! What a process has used so far, from `/proc`.

use std::ops::Sub;
use std::time::Duration;

use crate::run::Failed;

/// Sums over the processes of one server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// User and system time.
    pub(crate) cpu: Duration,
    /// What the process made the file system write (`write_bytes`), whether or not it has reached the disk.
    pub(crate) written_bytes: u64,
}

impl Usage {
    pub(crate) fn of(pids: &[u32]) -> Result<Self, Failed> {
        let mut sum = Usage::default();
        for pid in pids {
            sum.cpu += cpu(&read(*pid, "stat")?)
                .ok_or_else(|| Failed(format!("cannot read the CPU time of process {pid}")))?;
            sum.written_bytes += field(&read(*pid, "io")?, "write_bytes:")
                .ok_or_else(|| Failed(format!("cannot read the written bytes of process {pid}")))?;
        }
        Ok(sum)
    }
}

impl Sub for Usage {
    type Output = Usage;

    fn sub(self, before: Usage) -> Usage {
        Usage { cpu: self.cpu - before.cpu, written_bytes: self.written_bytes - before.written_bytes }
    }
}

/// Resident memory of all of them.
pub(crate) fn rss_bytes(pids: &[u32]) -> Result<u64, Failed> {
    pids.iter().try_fold(0, |sum, pid| {
        let kilobytes = field(&read(*pid, "status")?, "VmRSS:")
            .ok_or_else(|| Failed(format!("cannot read the memory of process {pid}")))?;
        Ok(sum + kilobytes * 1024)
    })
}

fn read(pid: u32, file: &str) -> Result<String, Failed> {
    let path = format!("/proc/{pid}/{file}");
    std::fs::read_to_string(&path)
        .map_err(|error| Failed(format!("cannot read {path}: {error} (does the process run, and as the same user?)")))
}

/// Fields 14 and 15 of `stat`, in hundredths of a second on every Linux. Field 2, the name, may hold anything but ends at
/// the last parenthesis.
fn cpu(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis(10 * (user + system)))
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{cpu, field};

    #[test]
    fn the_kernel_s_lines() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 900 0 7 0 123 45 0 0 20 0 5 0 100 200 300";
        assert_eq!(cpu(stat), Some(Duration::from_millis(1680)));
        assert_eq!(field("Name:\tx\nVmRSS:\t   1234 kB\n", "VmRSS:"), Some(1234));
        assert_eq!(field("wchar: 7\nwrite_bytes: 4096\ncancelled_write_bytes: 1\n", "write_bytes:"), Some(4096));
        assert_eq!(field("wchar: 7\n", "write_bytes:"), None);
    }
}
