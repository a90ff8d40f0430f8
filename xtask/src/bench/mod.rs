//! Figures of running servers: a small blocking load generator over the binary protocol, for any Pulsar server.
//!
//! Read first: [`case::Case`] (what is offered), [`load`] (one run of it), [`figures`] (what is measured, and the table).
//! Absent on purpose: threads beyond the four of one producer and one consumer, and every claim about another machine.

mod case;
mod connection;
mod figures;
mod histogram;
mod load;
mod payload;
mod process;
mod server;
mod startup;
mod target;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;

use self::case::Case;
use self::load::Plan;
use self::server::Server;
use self::target::Target;
use crate::run::{self, Failed};

pub(crate) use self::startup::{StartupArgs, startup};

#[derive(Parser)]
pub(crate) struct Args {
    /// A running server: LABEL=pulsar://HOST:PORT@PID[,PID]; may be repeated. None: the release binary on a folder of its own
    #[arg(long = "target", value_name = "TARGET")]
    targets: Vec<Target>,
    /// `rate-N`: N messages a second; `full`: as many as it takes
    #[arg(long, value_delimiter = ',', default_value = "rate-10000,full")]
    cases: Vec<Case>,
    /// Length of the measured window
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Load before the window
    #[arg(long, default_value_t = 3)]
    warmup: u64,
    /// How often every case is run; the table shows medians
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Bytes of a message
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    size: u32,
    /// Messages of a batch at full load; at a fixed rate a batch is what is due within 1 ms
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    batch_messages: u32,
    /// Messages without a receipt yet, at most
    #[arg(long, default_value_t = 10_000)]
    window: u32,
    /// Messages the consumer lets come before it has taken the ones before
    #[arg(long, default_value_t = 1000)]
    receiver_queue: u32,
    /// Whether the consumer acknowledges each entry (sent in groups, as official clients do) or up to the last one
    #[arg(long, value_enum, default_value_t)]
    acks: load::Acks,
}

pub(crate) fn run(args: &Args) -> Result<(), Failed> {
    if let Some(done) = again_in_release() {
        return done;
    }
    if u64::from(args.size) * u64::from(args.batch_messages) > LARGEST_BATCH_BYTES {
        return Err(Failed(format!("a batch of {} x {} bytes is larger than 4 MiB", args.batch_messages, args.size)));
    }
    if args.window < args.batch_messages {
        return Err(Failed("--window must hold a batch at least".to_owned()));
    }
    // Kept until the end: dropping it stops the server and removes its folder.
    let mut own = None;
    let targets = if args.targets.is_empty() {
        let binary = run::release_binary()?;
        let server = own.insert(Server::start(&binary)?);
        server.wait_until_healthy()?;
        vec![server.target("hulse")]
    } else {
        args.targets.clone()
    };
    let mut rows = Vec::new();
    for case in &args.cases {
        let mut runs = vec![Vec::new(); targets.len()];
        for round in 1..=args.rounds {
            for (target, runs) in targets.iter().zip(&mut runs) {
                let plan = Plan {
                    case: *case,
                    warmup: Duration::from_secs(args.warmup),
                    measured: Duration::from_secs(args.seconds.max(1)),
                    size: args.size,
                    batch_messages: args.batch_messages,
                    window: u64::from(args.window),
                    receiver_queue: args.receiver_queue.max(1),
                    acks: args.acks,
                };
                let figures = load::run(&plan, target)
                    .map_err(|Failed(why)| Failed(format!("{case} against {}: {why}", target.label)))?;
                eprintln!("{case} round {round} {}: {}", target.label, figures.line());
                runs.push(figures);
            }
        }
        rows.push((*case, runs));
    }
    let labels: Vec<&str> = targets.iter().map(|target| target.label.as_str()).collect();
    println!("{}", figures::table(&labels, &rows));
    if let Some(server) = own {
        server.stop()?;
    }
    Ok(())
}

const LARGEST_BATCH_BYTES: u64 = 4 << 20;

/// A generator that was built without optimisation would take the server's CPU: the same command again, built for release.
fn again_in_release() -> Option<Result<(), Failed>> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut all = vec!["run", "--quiet", "--release", "--package", "xtask", "--"];
    all.extend(arguments.iter().map(String::as_str));
    Some(run::cargo(&all))
}

#[expect(clippy::disallowed_methods, reason = "measuring is reading the clock")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a message carries the time of its publication")]
fn wall_clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
