//! Compiles `proto/PulsarApi.proto` (no `protoc` needed) into the types of `pulsar_proto::proto`, and into a table of the
//! fields that are required, because the generated code reads a missing one as zero.

use std::fmt::Write as _;
use std::path::PathBuf;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/PulsarApi.proto");
    let descriptors = protox::compile(["proto/PulsarApi.proto"], ["proto"])?;
    let out_dir = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    std::fs::write(out_dir.join("required.rs"), required_fields(&descriptors))?;
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

/// A `MessageShape` for every message of the file that anything below `BaseCommand` can hold.
fn required_fields(set: &FileDescriptorSet) -> String {
    let messages: Vec<&DescriptorProto> = set.file.iter().flat_map(|file| &file.message_type).collect();
    let mut table = String::from("static SHAPES: &[MessageShape] = &[\n");
    for message in &messages {
        let (mut required, mut enums, mut nested) = (Vec::new(), Vec::new(), Vec::new());
        for field in &message.field {
            if field.label() == Label::Required {
                required.push(field.number());
            }
            match field.r#type() {
                Type::Enum => enums.push((field.number(), enum_values(set, field.type_name()))),
                Type::Message => {
                    let name = field.type_name().trim_start_matches(".pulsar.proto.");
                    let index = messages.iter().position(|message| message.name() == name);
                    nested.push((field.number(), index.expect("messages are not nested in others")));
                }
                _ => {}
            }
        }
        let enums: Vec<String> = enums.iter().map(|(field, values)| format!("({field}, &{values:?})")).collect();
        writeln!(
            table,
            "MessageShape {{ name: {:?}, required: &{required:?}, enums: &[{}], nested: &{nested:?} }},",
            message.name(),
            enums.join(", "),
        )
        .expect("writing to a string cannot fail");
    }
    table.push_str("];\n");
    table
}

fn enum_values(set: &FileDescriptorSet, type_name: &str) -> Vec<i32> {
    let values = |enums: &[EnumDescriptorProto], prefix: &str| {
        let found = enums.iter().find(|candidate| format!("{prefix}{}", candidate.name()) == type_name)?;
        Some(found.value.iter().map(|value| value.number()).collect::<Vec<i32>>())
    };
    set.file
        .iter()
        .find_map(|file| {
            values(&file.enum_type, ".pulsar.proto.").or_else(|| {
                let mut messages = file.message_type.iter();
                messages.find_map(|message| values(&message.enum_type, &format!(".pulsar.proto.{}.", message.name())))
            })
        })
        .expect("every enum is declared in the file or in a message of it")
}
