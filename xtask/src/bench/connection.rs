//! One blocking connection to a broker.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::BytesMut;
use pulsar_proto::frame::{DEFAULT_MAX_MESSAGE_BYTES, encode_command};
use pulsar_proto::proto::command_lookup_topic_response::LookupType;
use pulsar_proto::proto::command_subscribe::{InitialPosition, SubType};
use pulsar_proto::proto::{
    CommandConnect, CommandLookupTopic, CommandPong, CommandProducer, CommandSubscribe, FeatureFlags, ServerError,
};
use pulsar_proto::{Command, Frame, FrameDecoder, PROTOCOL_VERSION};

use super::payload::{Batch, PRODUCER_NAME};
use super::target;
use crate::run::Failed;

/// Every connection has one producer or one consumer, with this id.
pub(crate) const ID: u64 = 1;

pub(crate) struct Connection {
    socket: TcpStream,
    decoder: FrameDecoder,
    buffer: BytesMut,
    chunk: Vec<u8>,
    next_request_id: u64,
}

impl Connection {
    /// Connects to the broker that owns `topic`, starting with a lookup at `address`.
    pub(crate) fn to_owner(address: &str, topic: &str) -> Result<Self, Failed> {
        let mut connection = Self::open(address)?;
        let mut authoritative = false;
        for _ in 0..LOOKUPS {
            let request_id = connection.request_id();
            let lookup = CommandLookupTopic {
                topic: topic.to_owned(),
                request_id,
                authoritative: Some(authoritative),
                ..Default::default()
            };
            connection.send(lookup)?;
            let Command::LookupTopicResponse(answer) = connection.answer()? else {
                return Err(Failed("a lookup was not answered as one".to_owned()));
            };
            let url = target::address(answer.broker_service_url()).unwrap_or_else(|| address.to_owned());
            match answer.response() {
                LookupType::Connect if url == address || answer.proxy_through_service_url() => return Ok(connection),
                LookupType::Connect => return Self::open(&url),
                LookupType::Redirect => {
                    authoritative = answer.authoritative();
                    connection = Self::open(&url)?;
                }
                LookupType::Failed if answer.error() == ServerError::ServiceNotReady => {
                    std::thread::sleep(Duration::from_millis(200));
                }
                LookupType::Failed => return Err(Failed(format!("lookup of {topic}: {}", answer.message()))),
            }
        }
        Err(Failed(format!("no broker owns {topic} after {LOOKUPS} lookups")))
    }

    fn open(address: &str) -> Result<Self, Failed> {
        let socket =
            TcpStream::connect(address).map_err(|error| Failed(format!("cannot connect to {address}: {error}")))?;
        socket.set_nodelay(true).map_err(failed)?;
        let decoder = FrameDecoder::new(DEFAULT_MAX_MESSAGE_BYTES);
        let mut connection =
            Connection { socket, decoder, buffer: BytesMut::new(), chunk: vec![0; 256 << 10], next_request_id: 0 };
        connection.send(CommandConnect {
            client_version: "hulse-bench".to_owned(),
            protocol_version: Some(PROTOCOL_VERSION),
            auth_method_name: Some("none".to_owned()),
            feature_flags: Some(FeatureFlags::default()),
            ..Default::default()
        })?;
        match connection.answer()? {
            Command::Connected(_) => Ok(connection),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn create_producer(&mut self, topic: &str) -> Result<(), Failed> {
        let request_id = self.request_id();
        self.send(CommandProducer {
            topic: topic.to_owned(),
            producer_id: ID,
            request_id,
            producer_name: Some(PRODUCER_NAME.to_owned()),
            ..Default::default()
        })?;
        match self.answer()? {
            Command::ProducerSuccess(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Exclusive, from the first message on.
    pub(crate) fn subscribe(&mut self, topic: &str) -> Result<(), Failed> {
        let request_id = self.request_id();
        self.send(CommandSubscribe {
            topic: topic.to_owned(),
            subscription: "bench".to_owned(),
            sub_type: SubType::Exclusive as i32,
            consumer_id: ID,
            request_id,
            consumer_name: Some("bench".to_owned()),
            initial_position: Some(InitialPosition::Earliest as i32),
            ..Default::default()
        })?;
        loop {
            match self.answer()? {
                Command::Success(_) => return Ok(()),
                Command::ActiveConsumerChange(_) => {}
                other => return Err(unexpected(&other)),
            }
        }
    }

    pub(crate) fn request_id(&mut self) -> u64 {
        self.next_request_id += 1;
        self.next_request_id
    }

    pub(crate) fn send(&mut self, command: impl Into<Command>) -> Result<(), Failed> {
        let mut bytes = BytesMut::new();
        encode_command(command, &mut bytes);
        self.socket.write_all(&bytes).map_err(failed)
    }

    /// Sends one batch; its receipt is up to the caller.
    pub(crate) fn publish(&mut self, batch: &Batch, sequence_id: u64) -> Result<(), Failed> {
        let mut head = BytesMut::new();
        batch.head(sequence_id, 0, &mut head);
        write_both(&mut self.socket, &head, &batch.payload)
    }

    /// Waits for one receipt.
    pub(crate) fn receipt(&mut self) -> Result<(), Failed> {
        match self.answer()? {
            Command::SendReceipt(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// The next command but for keep-alives; for requests, before any message may come.
    fn answer(&mut self) -> Result<Command, Failed> {
        loop {
            match self.read()?.map(|frame| frame.command) {
                Some(Command::Ping(_)) => self.send(CommandPong {})?,
                Some(command) => return Ok(command),
                None => {}
            }
        }
    }

    /// The next frame, or `None` when the read timeout has passed.
    pub(crate) fn read(&mut self) -> Result<Option<Frame>, Failed> {
        loop {
            let frame = self.decoder.decode(&mut self.buffer).map_err(|error| Failed(error.to_string()))?;
            if frame.is_some() {
                return Ok(frame);
            }
            match self.socket.read(&mut self.chunk) {
                Ok(0) => return Err(Failed("the server closed the connection".to_owned())),
                Ok(count) => self.buffer.extend_from_slice(&self.chunk[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    pub(crate) fn set_read_timeout(&self, timeout: Duration) -> Result<(), Failed> {
        self.socket.set_read_timeout(Some(timeout)).map_err(failed)
    }

    /// The same socket for a second thread. Only one thread may write.
    pub(crate) fn writer(&self) -> Result<TcpStream, Failed> {
        self.socket.try_clone().map_err(failed)
    }
}

const LOOKUPS: u32 = 100;

/// Writes a head and the payload behind it without joining them first.
pub(crate) fn write_both(socket: &mut TcpStream, mut head: &[u8], mut payload: &[u8]) -> Result<(), Failed> {
    while !head.is_empty() || !payload.is_empty() {
        let written = match socket.write_vectored(&[IoSlice::new(head), IoSlice::new(payload)]) {
            Ok(0) => return Err(Failed("the server closed the connection".to_owned())),
            Ok(written) => written,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => return Err(failed(error)),
        };
        let of_head = written.min(head.len());
        head = &head[of_head..];
        payload = &payload[written - of_head..];
    }
    Ok(())
}

pub(crate) fn unexpected(command: &Command) -> Failed {
    Failed(match command {
        Command::Error(error) => format!("the server says {:?}: {}", error.error(), error.message),
        Command::SendError(error) => format!("a message was refused with {:?}: {}", error.error(), error.message),
        other => format!("the server sent an unexpected {:?}", other.command_type()),
    })
}

fn failed(error: std::io::Error) -> Failed {
    Failed(format!("connection: {error}"))
}
