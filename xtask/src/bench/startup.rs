//! How long a start takes, on an empty folder and after `kill -9`.

use std::time::Duration;

use clap::Parser;

use super::connection::Connection;
use super::figures::median;
use super::payload::Batch;
use super::process;
use super::server::Server;
use crate::run::{self, Failed};

#[derive(Parser)]
pub(crate) struct StartupArgs {
    /// Also: fill the folder with so many GB, kill -9, and measure the start on it
    #[arg(long, value_name = "GB")]
    kill9_gb: Option<u64>,
}

const STARTS: usize = 10;
/// Until "idle" is true: what a start left to do is done.
const SETTLE: Duration = Duration::from_secs(3);

pub(crate) fn startup(args: &StartupArgs) -> Result<(), Failed> {
    if let Some(done) = super::again_in_release() {
        return done;
    }
    let binary = run::release_binary()?;
    let size = std::fs::metadata(&binary).map_err(|error| Failed(format!("cannot read {binary}: {error}")))?.len();
    let (mut healthy, mut published, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    for start in 1..=STARTS {
        let mut server = Server::start(&binary)?;
        let times = (server.wait_until_healthy()?, server.publish_one()?);
        eprintln!("start {start}: healthy after {:?}, published after {:?}", times.0, times.1);
        healthy.push(ms(times.0));
        published.push(ms(times.1));
        if start == STARTS {
            std::thread::sleep(SETTLE);
            idle.push(process::rss_bytes(&server.target("").pids)? as f64 / 1e6);
        }
        server.stop()?;
    }
    println!("| figure | value |\n|---|--:|");
    println!("| start on an empty folder until healthy, median of {STARTS} | {:.1} ms |", median(healthy));
    println!("| … until a message to a new topic is durable | {:.1} ms |", median(published));
    println!("| memory when idle | {:.1} MB |", median(idle));
    println!("| size of the binary | {:.1} MB |", size as f64 / 1e6);
    if let Some(gigabytes) = args.kill9_gb {
        let mut server = Server::start(&binary)?;
        server.wait_until_healthy()?;
        fill(&server, gigabytes)?;
        server.kill_and_restart()?;
        let (healthy, published) = (server.wait_until_healthy()?, server.publish_one()?);
        println!("| start on {gigabytes} GB after kill -9 until healthy | {:.1} ms |", ms(healthy));
        println!("| … until a message to a new topic is durable | {:.1} ms |", ms(published));
        let bytes = process::rss_bytes(&server.target("").pids)?;
        println!("| … memory then | {:.1} MB |", bytes as f64 / 1e6);
        server.stop()?;
    }
    Ok(())
}

/// Publishes to a topic with a subscription that takes nothing, so that all of it stays, and leaves while batches are
/// under way.
fn fill(server: &Server, gigabytes: u64) -> Result<(), Failed> {
    let topic = "persistent://public/default/fill";
    let mut consumer = Connection::to_owner(&server.address(), topic)?;
    consumer.subscribe(topic)?;
    let mut producer = Connection::to_owner(&server.address(), topic)?;
    producer.create_producer(topic)?;
    let batch = Batch::new(100, 1024);
    let batches = gigabytes * 1_000_000_000 / batch.payload.len() as u64;
    for index in 0..batches + UNDER_WAY {
        producer.publish(&batch, index * batch.messages)?;
        if index >= UNDER_WAY {
            producer.receipt()?;
        }
        if index % 10_000 == 0 {
            eprintln!("filling: {} of {gigabytes} GB", index * batch.payload.len() as u64 / 1_000_000_000);
        }
    }
    Ok(())
}

/// Batches without a receipt.
const UNDER_WAY: u64 = 50;

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
