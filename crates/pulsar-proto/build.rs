//! Compiles `proto/PulsarApi.proto` (no `protoc` needed) into the types of `pulsar_proto::proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/PulsarApi.proto");
    let descriptors = protox::compile(["proto/PulsarApi.proto"], ["proto"])?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]);
    // A command is moved through queues: the rare, big ones live behind a pointer so that SEND and FLOW stay small.
    for field in BOXED {
        config.boxed(field);
    }
    config.compile_fds(descriptors)?;
    Ok(())
}

const BOXED: [&str; 18] = [
    ".pulsar.proto.CommandSend.message_id",
    ".pulsar.proto.BaseCommand.command.connect",
    ".pulsar.proto.BaseCommand.command.connected",
    ".pulsar.proto.BaseCommand.command.subscribe",
    ".pulsar.proto.BaseCommand.command.producer",
    ".pulsar.proto.BaseCommand.command.message",
    ".pulsar.proto.BaseCommand.command.success",
    ".pulsar.proto.BaseCommand.command.partition_metadata",
    ".pulsar.proto.BaseCommand.command.lookup_topic",
    ".pulsar.proto.BaseCommand.command.lookup_topic_response",
    ".pulsar.proto.BaseCommand.command.consumer_stats_response",
    ".pulsar.proto.BaseCommand.command.seek",
    ".pulsar.proto.BaseCommand.command.get_last_message_id_response",
    ".pulsar.proto.BaseCommand.command.get_schema_response",
    ".pulsar.proto.BaseCommand.command.get_or_create_schema",
    ".pulsar.proto.BaseCommand.command.end_txn_on_partition",
    ".pulsar.proto.BaseCommand.command.end_txn_on_subscription",
    ".pulsar.proto.BaseCommand.command.get_topics_of_namespace",
];
