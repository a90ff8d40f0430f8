//! Configuration: the original's keys, from a properties file, the environment and `--set`, parsed once into types.
//!
//! Later sources win: defaults, `--conf FILE`, `PULSAR_PREFIX_<key>` variables, `--set KEY=VALUE`. A key that the
//! project does not act on is named in a warning; a wrong value is an error with the key, the value and what is allowed.

mod keys;
mod properties;
mod rooms;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub(crate) use keys::{Standalone, keys_table};
pub(crate) use rooms::{broker_config, limit, managed_ledger_config};

/// The environment prefix that the original's container images use to override keys.
const ENV_PREFIX: &str = "PULSAR_PREFIX_";

/// Raw values by key, with the source of each for error messages.
#[derive(Debug, Default)]
pub(crate) struct Values {
    by_key: BTreeMap<String, Value>,
}

#[derive(Debug, Clone)]
struct Value {
    text: String,
    source: String,
}

/// Why a configuration was refused.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the configuration file {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("cannot parse line {line} of {}: expected `key=value`", path.display())]
    BadLine { path: PathBuf, line: usize },
    #[error("cannot parse `--set {argument}`: expected `KEY=VALUE`")]
    BadSet { argument: String },
    #[error("{key}={value} ({from}) is not allowed: expected {expected}")]
    BadValue { key: &'static str, value: String, from: String, expected: &'static str },
}

impl Values {
    /// Collects every source. `environment` is passed in so that tests need not touch the process.
    pub(crate) fn collect(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        sets: &[String],
    ) -> Result<Self, ConfigError> {
        let mut values = Self::default();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
            let lines =
                properties::parse(&text).map_err(|line| ConfigError::BadLine { path: path.to_owned(), line })?;
            for (key, value) in lines {
                values.insert(key, value, path.display().to_string());
            }
        }
        for (name, value) in environment {
            if let Some(key) = name.strip_prefix(ENV_PREFIX) {
                values.insert(key.to_owned(), value, format!("environment variable {name}"));
            }
        }
        for argument in sets {
            let Some((key, value)) = argument.split_once('=') else {
                return Err(ConfigError::BadSet { argument: argument.clone() });
            };
            values.insert(key.trim().to_owned(), value.trim().to_owned(), "--set".to_owned());
        }
        Ok(values)
    }

    fn insert(&mut self, key: String, text: String, source: String) {
        self.by_key.insert(key, Value { text, source });
    }

    /// Keys that were given but that nothing in this version acts on, in order.
    pub(crate) fn without_effect(&self) -> Vec<&str> {
        self.by_key.keys().map(String::as_str).filter(|key| !keys::is_known(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(env: &[(&str, &str)], sets: &[&str]) -> Result<Values, ConfigError> {
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
        Values::collect(None, env, &sets)
    }

    #[test]
    fn later_sources_win_and_foreign_variables_are_left_alone() {
        let values =
            collect(&[("PULSAR_PREFIX_webServicePort", "1"), ("HOME", "/x")], &["webServicePort=18080"]).unwrap();
        let parsed = Standalone::parse(&values).unwrap();
        assert_eq!(parsed.web_service_port, 18080);
        assert!(values.without_effect().is_empty());
    }

    #[test]
    fn keys_without_effect_are_named() {
        let values = collect(&[], &["zooKeeperServers=x", "brokerServicePort=6650"]).unwrap();
        assert_eq!(values.without_effect(), ["zooKeeperServers"]);
    }

    #[test]
    fn a_wrong_value_names_key_value_source_and_what_is_allowed() {
        for (set, message) in [
            (
                "brokerServicePort=http",
                "brokerServicePort=http (--set) is not allowed: expected a port from 0 to 65535",
            ),
            ("allowAutoTopicCreation=yes", "allowAutoTopicCreation=yes (--set) is not allowed: expected true or false"),
            (
                "allowAutoTopicCreationType=both",
                "allowAutoTopicCreationType=both (--set) is not allowed: expected partitioned or non-partitioned",
            ),
            ("maxMessageSize=0", "maxMessageSize=0 (--set) is not allowed: expected bytes from 1 to 1073741824"),
        ] {
            let values = collect(&[], &[set]).unwrap();
            assert_eq!(Standalone::parse(&values).unwrap_err().to_string(), message);
        }
        assert_eq!(collect(&[], &["x"]).unwrap_err().to_string(), "cannot parse `--set x`: expected `KEY=VALUE`");
    }
}
