//! `cargo +nightly fuzz run fuzz` in `crates/pulsar-proto`: nothing panics, whatever the bytes.
#![no_main]

mod read_everything;

libfuzzer_sys::fuzz_target!(|input: &[u8]| read_everything::read_everything(input));
