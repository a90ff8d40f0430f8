//! Developer commands. `cargo xtask test` is everything that must pass; the others are longer or print figures.

mod bench;
mod licences;
mod rooms;
mod run;
mod venv;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::run::{Failed, cargo, step};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of the project")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that must pass before a change lands: format, lints, rooms, licences, tests, end to end
    Test,
    /// Format, lints, rooms and licences only
    Lint,
    /// The real binary with the official client only; arguments go to pytest
    EndToEnd {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// kill -9 under load with the official client, again and again on the same data
    CrashTest {
        /// How many kills
        #[arg(long, default_value_t = 100)]
        kills: u32,
    },
    /// One million messages of 1 KB: exclusive and shared, single and batched
    Million {
        /// Messages of each of the four runs
        #[arg(long, default_value_t = 1_000_000)]
        messages: u64,
    },
    /// Server CPU, written bytes, memory, throughput and latency under load, of any Pulsar servers side by side
    Bench(bench::Args),
    /// Time from the start of the process until it serves, idle memory, size of the binary
    Startup(bench::StartupArgs),
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    std::env::set_current_dir(root).expect("the workspace exists");
    let done = match Cli::parse().command {
        Command::Test => test(),
        Command::Lint => lint(),
        Command::EndToEnd { arguments } => end_to_end(&arguments),
        Command::CrashTest { kills } => script("tests/e2e/crash.py", &["--kills", &kills.to_string()]),
        Command::Million { messages } => script("tests/e2e/million.py", &["--messages", &messages.to_string()]),
        Command::Bench(args) => bench::run(&args),
        Command::Startup(args) => bench::startup(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed(what)) => {
            eprintln!("xtask: {what}");
            ExitCode::FAILURE
        }
    }
}

fn lint() -> Result<(), Failed> {
    step("format", || cargo(&["fmt", "--all", "--check"]))?;
    step("rooms", rooms::check)?;
    step("licences", licences::check)?;
    step("lints", || cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))
}

fn test() -> Result<(), Failed> {
    lint()?;
    step("tests", || cargo(&["test", "--workspace", "--no-fail-fast"]))?;
    end_to_end(&[])?;
    step("kill -9 (short; `cargo xtask crash-test` for the full run)", || {
        script("tests/e2e/crash.py", &["--kills", "8"])
    })
}

fn end_to_end(arguments: &[String]) -> Result<(), Failed> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    step("end to end", || {
        let python = venv::python()?;
        let binary = run::release_binary()?;
        let mut all = vec!["-m", "pytest", "-q", "tests/e2e"];
        all.extend(arguments);
        run::command(&python, &all, &[("HULSE_BIN", &binary)])
    })
}

fn script(path: &str, arguments: &[&str]) -> Result<(), Failed> {
    let python = venv::python()?;
    let binary = run::release_binary()?;
    let mut all = vec![path];
    all.extend(arguments);
    run::command(&python, &all, &[("HULSE_BIN", &binary)])
}
