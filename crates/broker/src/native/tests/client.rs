//! A client that says what it is told to, right or wrong.

use std::{net::SocketAddr, time::Duration};

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use pulsar_proto::{
    Command, Frame, FrameDecoder, PayloadBlock,
    frame::{encode_command, encode_payload_command},
    proto::{self, base_command::Type},
};

const DEADLINE: Duration = Duration::from_secs(10);

pub(super) struct Client {
    stream: TcpStream,
    received: BytesMut,
}

/// What a server did next.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    Frame(Box<Frame>),
    Closed,
}

impl Client {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), received: BytesMut::new() }
    }

    /// Connected and past the handshake.
    pub(super) async fn hello(address: SocketAddr) -> Self {
        let mut client = Self::connect(address).await;
        client.say(hello(21)).await;
        assert_eq!(client.next_type().await, Some(Type::Connected));
        client
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) {
        // The server may have hung up already; what it said before is still there to be read.
        let _ = self.stream.write_all(bytes).await;
    }

    pub(super) async fn say(&mut self, command: impl Into<Command>) {
        let mut bytes = BytesMut::new();
        encode_command(command, &mut bytes);
        self.write(&bytes).await;
    }

    pub(super) async fn say_with_payload(&mut self, command: impl Into<Command>, payload: &[u8]) {
        let mut bytes = BytesMut::new();
        encode_payload_command(command, payload.len(), &mut bytes);
        bytes.extend_from_slice(payload);
        self.write(&bytes).await;
    }

    pub(super) async fn publish(&mut self, producer_id: u64, sequence_id: u64, payload: &[u8]) {
        let block = block(payload);
        self.say_with_payload(send(producer_id, sequence_id), block.bytes()).await;
    }

    /// No more will come from this side.
    pub(super) async fn finish(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    pub(super) async fn next(&mut self) -> Next {
        let decoder = FrameDecoder::new(64 << 20);
        loop {
            if let Some(frame) = decoder.decode(&mut self.received).unwrap() {
                return Next::Frame(Box::new(frame));
            }
            let read = timeout(DEADLINE, self.stream.read_buf(&mut self.received)).await.expect("the server is silent");
            // A reset is a way of closing, too.
            if read.unwrap_or(0) == 0 {
                return Next::Closed;
            }
        }
    }

    pub(super) async fn next_command(&mut self) -> Command {
        match self.next().await {
            Next::Frame(frame) => frame.command,
            Next::Closed => panic!("the server has closed the connection"),
        }
    }

    /// `None`: closed.
    pub(super) async fn next_type(&mut self) -> Option<Type> {
        match self.next().await {
            Next::Frame(frame) => Some(frame.command.command_type()),
            Next::Closed => None,
        }
    }

    /// Whether the server answers a PING within the deadline.
    pub(super) async fn assert_alive(&mut self) {
        self.say(Command::Ping(proto::CommandPing {})).await;
        assert_eq!(self.next_type().await, Some(Type::Pong));
    }

    /// Nothing comes for a while.
    pub(super) async fn assert_silent(&mut self, wait: Duration) {
        assert!(self.received.is_empty());
        let read = timeout(wait, self.stream.read_buf(&mut self.received)).await;
        assert!(read.is_err(), "expected silence, got {read:?}");
    }

    pub(super) async fn open_producer(&mut self, producer_id: u64, topic: &str) {
        self.say(producer(producer_id, topic)).await;
        assert_eq!(self.next_type().await, Some(Type::ProducerSuccess));
    }

    pub(super) async fn open_consumer(&mut self, consumer_id: u64, topic: &str) {
        self.say(subscribe(consumer_id, topic)).await;
        assert_eq!(self.next_type().await, Some(Type::Success));
    }
}

pub(super) fn block(payload: &[u8]) -> PayloadBlock {
    let metadata =
        proto::MessageMetadata { producer_name: "p".into(), sequence_id: 0, publish_time: 1, ..Default::default() };
    PayloadBlock::build(&metadata, payload)
}

pub(super) fn hello(version: i32) -> proto::CommandConnect {
    proto::CommandConnect { client_version: "test".into(), protocol_version: Some(version), ..Default::default() }
}

pub(super) fn producer(producer_id: u64, topic: &str) -> Command {
    proto::CommandProducer { topic: topic.into(), producer_id, request_id: 100 + producer_id, ..Default::default() }
        .into()
}

pub(super) fn subscribe(consumer_id: u64, topic: &str) -> Command {
    proto::CommandSubscribe {
        topic: topic.into(),
        subscription: "sub".into(),
        sub_type: proto::command_subscribe::SubType::Shared as i32,
        consumer_id,
        request_id: 200 + consumer_id,
        initial_position: Some(proto::command_subscribe::InitialPosition::Earliest as i32),
        ..Default::default()
    }
    .into()
}

pub(super) fn send(producer_id: u64, sequence_id: u64) -> proto::CommandSend {
    proto::CommandSend { producer_id, sequence_id, ..Default::default() }
}

pub(super) fn flow(consumer_id: u64, message_permits: u32) -> Command {
    Command::Flow(proto::CommandFlow { consumer_id, message_permits })
}
