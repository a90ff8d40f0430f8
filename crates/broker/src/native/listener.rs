//! Accepting connections, spreading them over the shards' threads, and stopping.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::sleep,
};
use tracing::{Instrument as _, debug, info, info_span, warn};

use super::{NativeConfig, NativeStats, Shared, admission::Admission, connection::Connection};
use crate::door::Broker;

/// After `accept` failed (too many open files, mostly): time for connections to end.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A listening door of the binary protocol. [`Self::stop`] it before the broker.
pub struct NativeDoor {
    shared: Arc<Shared>,
    local_addresses: Vec<SocketAddr>,
    acceptors: Vec<JoinHandle<()>>,
}

impl NativeDoor {
    /// Binds every address; connections are served from now on, on the threads of the broker's shards.
    ///
    /// To be called on a runtime with I/O and time: it accepts.
    pub async fn listen(broker: Broker, config: NativeConfig, addresses: &[SocketAddr]) -> io::Result<Self> {
        let mut listeners = Vec::new();
        for address in addresses {
            listeners.push(TcpListener::bind(address).await?);
        }
        Self::serve_on(broker, config, listeners)
    }

    /// The same on sockets that listen already, and do not block: a process takes its ports before it opens its storage.
    pub fn serve(broker: Broker, config: NativeConfig, listeners: Vec<std::net::TcpListener>) -> io::Result<Self> {
        let listeners = listeners.into_iter().map(TcpListener::from_std).collect::<io::Result<_>>()?;
        Self::serve_on(broker, config, listeners)
    }

    fn serve_on(broker: Broker, config: NativeConfig, listeners: Vec<TcpListener>) -> io::Result<Self> {
        let admission = Admission::new(config.limits);
        let shared = Shared::new(broker, config);
        let next_shard = Arc::new(AtomicUsize::new(0));
        let local_addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        let accept = |listener| accept(listener, Arc::clone(&shared), Arc::clone(&admission), Arc::clone(&next_shard));
        let acceptors = listeners.into_iter().map(|listener| tokio::spawn(accept(listener))).collect();
        Ok(Self { shared, local_addresses, acceptors })
    }

    /// Where it listens, in the order of the addresses asked for.
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.local_addresses
    }

    pub fn stats(&self) -> NativeStats {
        self.shared.counters.read()
    }

    /// Bytes of messages that were read and are not durable yet.
    pub fn publish_buffer_bytes(&self) -> usize {
        self.shared.budget.used_bytes()
    }

    /// A handle for metrics, which outlives the door.
    pub fn stats_source(&self) -> impl Fn() -> NativeStats + Send + Sync + Clone + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.counters.read()
    }

    /// Takes no more connections, ends those that are open, and returns when all have ended.
    pub async fn stop(mut self) {
        for acceptor in &self.acceptors {
            acceptor.abort();
        }
        for acceptor in self.acceptors.drain(..) {
            // Its only other end is a panic, which was reported by its thread.
            let _ = acceptor.await;
        }
        self.shared.stopping.store(true, SeqCst);
        loop {
            // Whoever registers after this look sees `stopping` in its first turn.
            let open = {
                let live = self.shared.live.lock();
                live.connections.values().for_each(|outbox| outbox.wake());
                live.connections.len()
            };
            if open == 0 {
                break;
            }
            self.shared.all_gone.notified().await;
        }
        info!("binary protocol stopped");
    }
}

impl Drop for NativeDoor {
    fn drop(&mut self) {
        for acceptor in &self.acceptors {
            acceptor.abort();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, admission: Arc<Admission>, next_shard: Arc<AtomicUsize>) {
    loop {
        match listener.accept().await {
            Ok((stream, remote)) => {
                let shard = next_shard.fetch_add(1, SeqCst) % shared.broker.shards();
                if let Err(error) = hand_over(stream, remote, &shared, &admission, shard) {
                    debug!(%remote, %error, "connection lost before it was served");
                }
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection, will try again");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Moves the socket to the thread of its shard.
fn hand_over(
    stream: TcpStream,
    remote: SocketAddr,
    shared: &Arc<Shared>,
    admission: &Arc<Admission>,
    shard: usize,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    let seat = admission.admit(remote.ip());
    let broker = shared.broker.clone();
    let shared = Arc::clone(shared);
    broker.spawn_on(shard, move || async move {
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => return warn!(%remote, %error, "cannot serve a connection"),
        };
        let (seat, refused) = match seat {
            Ok(seat) => (Some(seat), None),
            Err(refused) => (None, Some(refused)),
        };
        let connection = Connection::new(Arc::clone(&shared), stream, remote, seat);
        shared.on_connection_opened(&connection.outbox);
        let span = info_span!("connection", cnx = %connection.address);
        match refused {
            None => connection.run().instrument(span).await,
            Some(refused) => connection.refuse(refused).instrument(span).await,
        }
    });
    Ok(())
}
