//! `hulse standalone`: every room in one process.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use admin::{Admin, Sample};
use bookie::{Bookie, BookieConfig};
use bookkeeper_proto::DigestType;
use broker::Broker;
use broker::native::{ConnectionLimits, NativeConfig, NativeDoor};
use clap::Parser;
use disk::{Disk, RealDisk};
use ledger::{BookieAccess, Ledgers};
use managed_ledger::{CacheBudget, Context};
use metadata::{EmbeddedStore, MetadataStore};
use rand::SeedableRng;
use thiserror::Error;
use tracing::{info, warn};

use crate::bookie_access::InProcess;
use crate::config::{self, Standalone, Values};
use crate::logging::LogFormat;
use crate::memory::{Budget, ByteSize, SMALLEST_LIMIT};
use crate::{data_folder, garbage, halves, logging};

/// The version of the original whose behaviour clients are told to expect.
const ORIGINAL_VERSION: &str = "4.0.1";

#[derive(Debug, Parser)]
#[command(
    after_help = "Try it:  pip install pulsar-client, then point the client at the URL that is printed on start."
)]
pub(crate) struct Args {
    /// Folder for everything durable; created if it is missing
    #[arg(long, value_name = "DIR", default_value = "data/standalone")]
    data_dir: PathBuf,
    /// Properties file with keys of the original's standalone.conf (`hulse keys` lists those that take effect)
    #[arg(long, value_name = "FILE")]
    conf: Option<PathBuf>,
    /// One configuration key; wins over the file and PULSAR_PREFIX_ variables; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Budget for caches and buffers, at least 64MB; beyond it, back-pressure
    #[arg(long, value_name = "SIZE", default_value = "512MB")]
    memory_limit: ByteSize,
    /// Delete what a former run left in the data folder before starting
    #[arg(long)]
    wipe_data: bool,
    /// Start although entries that were in the log are missing at its end; they are lost then
    #[arg(long)]
    accept_log_loss: bool,
    /// Form of the log on standard error
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

/// Why the process could not start.
#[derive(Debug, Error)]
enum StartError {
    #[error("--memory-limit {given} is too small: at least {SMALLEST_LIMIT}")]
    MemoryLimit { given: ByteSize },
    #[error("bindAddress={given} is not an address: expected for example 127.0.0.1, 0.0.0.0 or ::1")]
    BindAddress { given: String },
    #[error("cannot listen on {address} ({key}); another program may use the port: choose one with --set {key}=PORT")]
    Listen { key: &'static str, address: SocketAddr, source: std::io::Error },
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(args: Args) -> Result<(), AnyError> {
    let values = Values::collect(args.conf.as_deref(), std::env::vars(), &args.sets)?;
    let keys = Standalone::parse(&values)?;
    if args.memory_limit < SMALLEST_LIMIT {
        return Err(StartError::MemoryLimit { given: args.memory_limit }.into());
    }
    // Before the first thread and the first large block.
    heap::give_back_large_blocks();
    logging::start(args.log_format);
    for key in values.without_effect() {
        warn!(key, "this configuration key has no effect in this version");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
    runtime.block_on(serve(&args, &keys))
}

async fn serve(args: &Args, keys: &Standalone) -> Result<(), AnyError> {
    let bind: IpAddr =
        keys.bind_address.parse().map_err(|_| StartError::BindAddress { given: keys.bind_address.clone() })?;
    // Ports are taken before anything is opened: a clash must not cost a recovery.
    let native_listener = listen(bind, keys.broker_service_port, "brokerServicePort")?;
    let web_listener = listen(bind, keys.web_service_port, "webServicePort")?;
    let native_address = native_listener.local_addr()?;
    let web_address = web_listener.local_addr()?;

    let budget = Budget::share_out(args.memory_limit);
    let storage = Storage::open(args, &budget, keys.max_message_size.0).await?;
    let host = advertised_host(&keys.advertised_address, bind);
    let config = config::broker_config(keys, &budget, &host, native_address.port(), web_address.port());
    let shutdown_timeout = config.shutdown_timeout;
    let urls = (config.service_url.clone(), config.web_service_url.clone());
    let context = storage.context(keys, &budget);
    let broker = Broker::start(config, context).await?;

    let native = NativeConfig {
        server_version: format!("Pulsar Server{ORIGINAL_VERSION}"),
        standalone: true,
        limits: ConnectionLimits {
            total: config::limit(keys.broker_max_connections).map(|count| count as usize),
            per_ip: config::limit(keys.broker_max_connections_per_ip).map(|count| count as usize),
        },
    };
    let door = NativeDoor::serve(broker.clone(), native, vec![native_listener])?;
    let status_file = (!keys.status_file_path.is_empty()).then(|| PathBuf::from(&keys.status_file_path));
    let bookie = Arc::clone(&storage.bookie);
    let native_stats = door.stats_source();
    let admin =
        Admin::new(broker.clone(), status_file, ORIGINAL_VERSION, move || samples(&bookie.stats(), &native_stats()));
    let web_listener = tokio::net::TcpListener::from_std(web_listener)?;
    let (stop_web, web_stopped) = tokio::sync::oneshot::channel::<()>();
    let web = tokio::spawn(async move {
        admin::serve(web_listener, admin, async {
            // A dropped sender stops the door as well.
            let _ = web_stopped.await;
        })
        .await
    });

    println!("hulse {} is ready", env!("CARGO_PKG_VERSION"));
    println!("  clients   {}", urls.0);
    println!("  REST      {}", urls.1);
    println!("  data      {}", args.data_dir.display());
    println!("  try       curl {}/admin/v2/brokers/health", urls.1);
    let (bookie, access, ledgers) =
        (Arc::clone(&storage.bookie), Arc::clone(&storage.access), Arc::clone(&storage.ledgers));
    let metadata = Arc::clone(&storage.metadata);
    let collecting = tokio::spawn(async move {
        halves::note(&bookie, &*metadata).await;
        garbage::collect(bookie, access, ledgers).await;
    });

    let signal = stop_signal().await?;
    info!(signal, "stopping");
    collecting.abort();
    let clean = tokio::time::timeout(shutdown_timeout, async {
        door.stop().await;
        let _ = stop_web.send(());
        broker.shutdown().await;
    })
    .await;
    if clean.is_err() {
        warn!(?shutdown_timeout, "the clean stop took too long and was cut short; nothing acknowledged is lost");
    }
    web.abort();
    storage.close().await;
    info!("stopped");
    Ok(())
}

fn listen(address: IpAddr, port: u16, key: &'static str) -> Result<std::net::TcpListener, StartError> {
    let address = SocketAddr::new(address, port);
    let failed = |source| StartError::Listen { key, address, source };
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None).map_err(failed)?;
    // A restart must not wait for the last run's connections to leave TIME_WAIT.
    socket.set_reuse_address(true).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    socket.bind(&address.into()).map_err(failed)?;
    socket.listen(1024).map_err(failed)?;
    Ok(socket.into())
}

/// What clients are told: the original's default is the host's name, which is wrong for a node on loopback.
fn advertised_host(configured: &str, bind: IpAddr) -> String {
    match bind {
        _ if !configured.is_empty() => configured.to_owned(),
        ip if ip.is_loopback() || ip.is_unspecified() => "localhost".to_owned(),
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    }
}

/// Everything durable.
struct Storage {
    metadata: Arc<EmbeddedStore>,
    bookie: Arc<Bookie>,
    access: Arc<dyn BookieAccess>,
    ledgers: Arc<Ledgers>,
}

impl Storage {
    async fn open(args: &Args, budget: &Budget, max_message_bytes: u32) -> Result<Self, AnyError> {
        halves::check_files(&args.data_dir).or_else(|error| if args.wipe_data { Ok(()) } else { Err(error) })?;
        let disk: Arc<RealDisk> = data_folder::open(&args.data_dir, args.wipe_data)?;
        if !disk.supports_direct() {
            warn!(
                folder = %args.data_dir.display(),
                "the file system does not take direct writes; buffered ones cost several times the CPU"
            );
        }
        let disk: Arc<dyn Disk> = disk;
        let clock: metadata::Clock = Arc::new(now_ms);
        let metadata = Arc::new(EmbeddedStore::open(
            Arc::clone(&disk),
            std::path::Path::new("metadata"),
            clock,
            metadata::Mode::Threaded,
        )?);
        let store: Arc<dyn MetadataStore> = metadata.clone();
        // Knows ledgers, reads none.
        let catalogue =
            Ledgers::new(Arc::clone(&store), Vec::new(), Default::default(), rand::rngs::StdRng::from_os_rng());
        halves::check_log_is_there(&*disk, &args.data_dir, &*store, &catalogue, args.accept_log_loss).await?;
        let bookie_config = BookieConfig {
            recent_bytes: budget.recent_blocks(),
            index_cache_bytes: budget.index_cache,
            queue_bytes: budget.publish_buffer + (max_message_bytes as usize),
            ..BookieConfig::default()
        };
        let (bookie, recovered) = Bookie::open(bookie_config, disk)?;
        for damage in &recovered.damage {
            tracing::error!(
                file = %damage.path.display(),
                offset = damage.offset,
                bytes = damage.len,
                "damage in the log: what lies there is not served"
            );
        }
        info!(
            segments = recovered.segments,
            scanned = recovered.scanned_segments,
            ledgers = recovered.ledgers,
            "log opened"
        );
        halves::check(&bookie, &*store, &catalogue, args.accept_log_loss).await?;
        let bookie = Arc::new(bookie);
        let access: Arc<dyn BookieAccess> =
            Arc::new(InProcess::new(Arc::clone(&bookie), budget.reads, max_message_bytes as usize));
        ledger::initialize(&*metadata, &uuid::Uuid::new_v4().to_string()).await?;
        let ledgers = Arc::new(Ledgers::new(
            store,
            vec![("127.0.0.1:3181".into(), Arc::clone(&access))],
            ledger::LedgersConfig { verify: ledger::Verify::Identity, ..Default::default() },
            rand::rngs::StdRng::from_os_rng(),
        ));
        Ok(Self { metadata, bookie, access, ledgers })
    }

    fn context(&self, keys: &Standalone, budget: &Budget) -> Context {
        Context {
            metadata: self.metadata.clone(),
            ledgers: Arc::clone(&self.ledgers),
            digest: DigestType::Crc32c,
            config: Arc::new(config::managed_ledger_config(keys)),
            cache: Arc::new(CacheBudget::new(budget.entry_cache as u64).with_read_budget(budget.read_cache as u64)),
        }
    }

    /// Everything acknowledged is durable already; this stops the threads.
    async fn close(self) {
        self.bookie.close();
        halves::note(&self.bookie, &*self.metadata).await;
        if let Err(error) = self.metadata.close() {
            tracing::error!(%error, "the metadata store did not close cleanly; the next start checks it");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the process reads the clock for its cores")]
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

async fn stop_signal() -> std::io::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Either ends the process; the order does not matter and nothing is lost by dropping the other.
    Ok(tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}

/// Storage and connections for `/metrics`.
fn samples(log: &bookie::Stats, native: &broker::native::NativeStats) -> Vec<Sample> {
    let counter = |name, value: u64| Sample { name, kind: "counter", value: value as f64 };
    let gauge = |name, value: u64| Sample { name, kind: "gauge", value: value as f64 };
    vec![
        gauge("pulsar_active_connections", native.active),
        gauge("pulsar_broker_throttled_connections", native.paused),
        counter("pulsar_connection_created_total_count", native.opened),
        counter("pulsar_connection_closed_total_count", native.closed),
        counter("pulsar_connection_create_success_count", native.handshakes),
        counter("pulsar_connection_create_fail_count", native.refused),
        counter("hulse_log_commits_total", log.commits),
        counter("hulse_log_entry_bytes_total", log.entry_bytes),
        counter("hulse_log_syncs_total", log.syncs),
        counter("hulse_log_entries_total", log.entries),
        counter("hulse_log_written_bytes_total", log.written_bytes),
        counter("hulse_log_reads_total", log.reads),
        counter("hulse_log_reads_from_disk_total", log.reads_from_disk),
        counter("hulse_log_damaged_reads_total", log.damaged_reads),
        gauge("hulse_log_queue_bytes", log.queue_bytes),
        gauge("hulse_log_segments", log.segments),
        gauge("hulse_log_free_segments", log.free_segments),
        gauge("hulse_log_live_bytes", log.live_bytes),
        gauge("hulse_log_read_only", u64::from(log.read_only)),
    ]
}
