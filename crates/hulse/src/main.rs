//! The `hulse` binary: command line, configuration, and the composition of the rooms into processes.
//!
//! What lives here: [`config`] (published keys and where their values come from), [`standalone`] (one process with
//! everything in it), [`data_folder`] (who owns a folder and which format it has), [`halves`] (whether
//! metadata store and log belong together), [`bookie_access`] (the adapter
//! between the ledger client and a bookie in the same process). What it must never know: how any of them works inside.

mod bookie_access;
mod config;
mod data_folder;
mod garbage;
mod halves;
mod logging;
mod memory;
mod standalone;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Apache Pulsar and Apache BookKeeper in one small, fast binary.
#[derive(Debug, Parser)]
#[command(name = "hulse", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a complete single-node service: broker, storage and metadata in this process
    Standalone(standalone::Args),
    /// List the configuration keys that take effect, with unit, default and meaning
    Keys,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Standalone(args) => match standalone::run(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("hulse: {}", chain(&*error));
                ExitCode::FAILURE
            }
        },
        Command::Keys => {
            print!("{}", config::keys_table());
            ExitCode::SUCCESS
        }
    }
}

/// An error and its causes on one line, outermost first.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let line = inner.to_string();
        if !text.ends_with(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        cause = inner.source();
    }
    text
}
