//! One command of the protocol, and how it is told from its bytes.

use bytes::BytesMut;
use prost::Message as _;

use crate::proto::{base_command::Type, *};
use crate::required;
use crate::wire::{self, Reader, WireError};

/// The command of a frame: one variant a type (generated; the variant's field number is the type number).
pub use crate::proto::base_command::Command;

/// Why the bytes of a command are not one. The door closes the connection on every one of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("unknown command {type_number}")]
    Unknown { type_number: u64 },
    #[error("command without a type")]
    NoType,
    #[error("command {command:?} without its sub-message")]
    NoSubMessage { command: Type },
    /// An enum value we do not know counts as absent, so it ends here as well.
    #[error("{message} without the required field {field}")]
    NoField { message: &'static str, field: u32 },
    #[error("{message} is nested too deeply")]
    TooDeep { message: &'static str },
    #[error("cannot parse command {command:?}: {reason}")]
    Malformed { command: Type, reason: String },
    #[error("cannot parse a command: {0}")]
    Wire(#[from] WireError),
}

/// Reads a `BaseCommand`. Copies what it keeps, so the read buffer is not pinned by a small string.
///
/// Unknown fields are skipped. Sub-messages of another type than `type` says are skipped as well.
pub fn decode_command(bytes: &[u8]) -> Result<Command, DecodeError> {
    let (command, body) = split_command(bytes)?;
    match command {
        Type::Send => wire::decode_send(body).map(Command::Send),
        Type::Ack => wire::decode_ack(body).map(Command::Ack),
        Type::Flow => wire::decode_flow(body).map(Command::Flow),
        other => {
            required::check_command(other, body)?;
            decode_body(other, body)
        }
    }
}

/// Appends one simple command as a frame: total size, command size, `BaseCommand`.
pub fn encode_command(command: impl Into<Command>, out: &mut BytesMut) {
    let command = command.into();
    let base = BaseCommand { r#type: command.command_type() as i32, command: Some(command) };
    let len = base.encoded_len();
    out.reserve(8 + len);
    let size = u32::try_from(len).expect("a command we build is far below 4 GiB");
    out.extend_from_slice(&(size + 4).to_be_bytes());
    out.extend_from_slice(&size.to_be_bytes());
    base.encode_raw(out);
}

/// The type, and the bytes of the sub-message with the same number (the last one, if it occurs twice).
fn split_command(bytes: &[u8]) -> Result<(Type, &[u8]), DecodeError> {
    // Every peer writes `type` first, but the order of fields is free: the first pass finds it wherever it is.
    let mut type_number = None;
    let mut reader = Reader::new(bytes);
    while let Some(field) = reader.next_field()? {
        if field.number == TYPE_FIELD {
            type_number = Some(field.varint()?);
        }
    }
    let type_number = type_number.ok_or(DecodeError::NoType)?;
    let command = i32::try_from(type_number)
        .ok()
        .and_then(|number| Type::try_from(number).ok())
        .ok_or(DecodeError::Unknown { type_number })?;
    let mut body = None;
    let mut reader = Reader::new(bytes);
    while let Some(field) = reader.next_field()? {
        if u64::from(field.number) == type_number && field.number != TYPE_FIELD {
            body = Some(field.bytes()?);
        }
    }
    body.map(|body| (command, body)).ok_or(DecodeError::NoSubMessage { command })
}

const TYPE_FIELD: u32 = 1;

/// Everything that says which variant, type number and message belong together.
macro_rules! commands {
    ($($variant:ident($message:ident) , $type:ident;)*) => {
        impl Command {
            /// The type number's name.
            pub fn command_type(&self) -> Type {
                match self { $(Command::$variant(_) => Type::$type,)* }
            }
        }

        fn decode_body(command: Type, body: &[u8]) -> Result<Command, DecodeError> {
            match command {
                $(Type::$type => $message::decode(body).map(Command::from),)*
            }
            .map_err(|error| DecodeError::Malformed { command, reason: error.to_string() })
        }

        $(impl From<$message> for Command {
            fn from(message: $message) -> Self {
                Command::$variant(message.into())
            }
        })*
    };
}

commands! {
    Connect(CommandConnect), Connect;
    Connected(CommandConnected), Connected;
    Subscribe(CommandSubscribe), Subscribe;
    Producer(CommandProducer), Producer;
    Send(CommandSend), Send;
    SendReceipt(CommandSendReceipt), SendReceipt;
    SendError(CommandSendError), SendError;
    Message(CommandMessage), Message;
    Ack(CommandAck), Ack;
    Flow(CommandFlow), Flow;
    Unsubscribe(CommandUnsubscribe), Unsubscribe;
    Success(CommandSuccess), Success;
    Error(CommandError), Error;
    CloseProducer(CommandCloseProducer), CloseProducer;
    CloseConsumer(CommandCloseConsumer), CloseConsumer;
    ProducerSuccess(CommandProducerSuccess), ProducerSuccess;
    Ping(CommandPing), Ping;
    Pong(CommandPong), Pong;
    RedeliverUnacknowledgedMessages(CommandRedeliverUnacknowledgedMessages), RedeliverUnacknowledgedMessages;
    PartitionMetadata(CommandPartitionedTopicMetadata), PartitionedMetadata;
    PartitionMetadataResponse(CommandPartitionedTopicMetadataResponse), PartitionedMetadataResponse;
    LookupTopic(CommandLookupTopic), Lookup;
    LookupTopicResponse(CommandLookupTopicResponse), LookupResponse;
    ConsumerStats(CommandConsumerStats), ConsumerStats;
    ConsumerStatsResponse(CommandConsumerStatsResponse), ConsumerStatsResponse;
    ReachedEndOfTopic(CommandReachedEndOfTopic), ReachedEndOfTopic;
    Seek(CommandSeek), Seek;
    GetLastMessageId(CommandGetLastMessageId), GetLastMessageId;
    GetLastMessageIdResponse(CommandGetLastMessageIdResponse), GetLastMessageIdResponse;
    ActiveConsumerChange(CommandActiveConsumerChange), ActiveConsumerChange;
    GetTopicsOfNamespace(CommandGetTopicsOfNamespace), GetTopicsOfNamespace;
    GetTopicsOfNamespaceResponse(CommandGetTopicsOfNamespaceResponse), GetTopicsOfNamespaceResponse;
    GetSchema(CommandGetSchema), GetSchema;
    GetSchemaResponse(CommandGetSchemaResponse), GetSchemaResponse;
    AuthChallenge(CommandAuthChallenge), AuthChallenge;
    AuthResponse(CommandAuthResponse), AuthResponse;
    AckResponse(CommandAckResponse), AckResponse;
    GetOrCreateSchema(CommandGetOrCreateSchema), GetOrCreateSchema;
    GetOrCreateSchemaResponse(CommandGetOrCreateSchemaResponse), GetOrCreateSchemaResponse;
    NewTxn(CommandNewTxn), NewTxn;
    NewTxnResponse(CommandNewTxnResponse), NewTxnResponse;
    AddPartitionToTxn(CommandAddPartitionToTxn), AddPartitionToTxn;
    AddPartitionToTxnResponse(CommandAddPartitionToTxnResponse), AddPartitionToTxnResponse;
    AddSubscriptionToTxn(CommandAddSubscriptionToTxn), AddSubscriptionToTxn;
    AddSubscriptionToTxnResponse(CommandAddSubscriptionToTxnResponse), AddSubscriptionToTxnResponse;
    EndTxn(CommandEndTxn), EndTxn;
    EndTxnResponse(CommandEndTxnResponse), EndTxnResponse;
    EndTxnOnPartition(CommandEndTxnOnPartition), EndTxnOnPartition;
    EndTxnOnPartitionResponse(CommandEndTxnOnPartitionResponse), EndTxnOnPartitionResponse;
    EndTxnOnSubscription(CommandEndTxnOnSubscription), EndTxnOnSubscription;
    EndTxnOnSubscriptionResponse(CommandEndTxnOnSubscriptionResponse), EndTxnOnSubscriptionResponse;
    TcClientConnectRequest(CommandTcClientConnectRequest), TcClientConnectRequest;
    TcClientConnectResponse(CommandTcClientConnectResponse), TcClientConnectResponse;
    WatchTopicList(CommandWatchTopicList), WatchTopicList;
    WatchTopicListSuccess(CommandWatchTopicListSuccess), WatchTopicListSuccess;
    WatchTopicUpdate(CommandWatchTopicUpdate), WatchTopicUpdate;
    WatchTopicListClose(CommandWatchTopicListClose), WatchTopicListClose;
    TopicMigrated(CommandTopicMigrated), TopicMigrated;
}
