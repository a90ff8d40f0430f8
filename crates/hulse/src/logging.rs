//! Structured logs on standard error.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// Form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people: time, level, fields.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// Starts logging. `HULSE_LOG` filters by level and room (`info`, `warn,broker=debug`); default `info`.
pub(crate) fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env("HULSE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}
