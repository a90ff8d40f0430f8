//! Which server is measured.

use std::str::FromStr;

/// One server: where it listens, and the processes whose work is counted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) label: String,
    /// `host:port`.
    pub(crate) address: String,
    pub(crate) pids: Vec<u32>,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (label, rest) = text.split_once('=')?;
            let (url, pids) = rest.rsplit_once('@')?;
            let address = address(url)?;
            let pids: Option<Vec<u32>> = pids.split(',').map(|pid| pid.parse().ok().filter(|pid| *pid > 0)).collect();
            (!label.is_empty()).then_some(Target { label: label.to_owned(), address, pids: pids? })
        };
        parse().ok_or_else(|| format!("cannot parse target `{text}`: expected LABEL=pulsar://HOST:PORT@PID[,PID]"))
    }
}

/// `host:port` of a service URL.
pub(crate) fn address(url: &str) -> Option<String> {
    let address = url.strip_prefix("pulsar://")?.trim_end_matches('/');
    let (host, port) = address.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    (!host.is_empty()).then(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::Target;

    #[test]
    fn targets_name_a_label_an_address_and_processes() {
        let check = |text: &str, label: &str, address: &str, pids: &[u32]| {
            let expected = Target { label: label.to_owned(), address: address.to_owned(), pids: pids.to_vec() };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        };
        check("new=pulsar://127.0.0.1:6650@17", "new", "127.0.0.1:6650", &[17]);
        check("a b=pulsar://localhost:6650/@1,2,3", "a b", "localhost:6650", &[1, 2, 3]);
        check("six=pulsar://[::1]:6650@9", "six", "[::1]:6650", &[9]);
    }

    #[test]
    fn anything_else_is_refused_with_what_would_be_right() {
        for bad in [
            "",
            "pulsar://h:1@1",
            "=pulsar://h:1@1",
            "a=h:1@1",
            "a=pulsar://h@1",
            "a=pulsar://:1@1",
            "a=pulsar://h:70000@1",
            "a=pulsar://h:1",
            "a=pulsar://h:1@",
            "a=pulsar://h:1@0",
            "a=pulsar://h:1@1,",
            "a=pulsar+ssl://h:1@1",
        ] {
            let error = bad.parse::<Target>().unwrap_err();
            assert!(error.contains("LABEL=pulsar://HOST:PORT@PID"), "{bad}: {error}");
        }
    }
}
