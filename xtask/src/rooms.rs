//! What Cargo cannot say about the rooms: which way the arrows point, and that each says what it is for.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::run::Failed;

/// The rooms from the ground up: each may depend on those named beside it and on nothing else of ours.
const ARROWS: [(&str, &[&str]); 13] = [
    ("heap", &[]),
    ("disk", &[]),
    ("checksum", &[]),
    ("pulsar-proto", &["checksum"]),
    ("bookkeeper-proto", &["checksum"]),
    ("metadata", &["disk"]),
    ("bookie", &["disk", "bookkeeper-proto"]),
    ("ledger", &["bookkeeper-proto", "metadata"]),
    ("managed-ledger", &["pulsar-proto", "bookkeeper-proto", "metadata", "ledger"]),
    ("broker", &["pulsar-proto", "bookkeeper-proto", "metadata", "ledger", "managed-ledger"]),
    ("admin", &["pulsar-proto", "broker"]),
    ("hulse", &ALL),
    ("sim", &ALL),
];

const ALL: [&str; 11] = [
    "heap",
    "disk",
    "checksum",
    "pulsar-proto",
    "bookkeeper-proto",
    "metadata",
    "bookie",
    "ledger",
    "managed-ledger",
    "broker",
    "admin",
];

/// Marks that say "not finished"; assembled so that this list does not find itself.
const UNFINISHED: [&str; 4] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("todo", "!(")];

pub(crate) fn check() -> Result<(), Failed> {
    let arrows: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
    let mut wrong = Vec::new();
    for entry in fs::read_dir("crates").map_err(|error| Failed(format!("cannot list the rooms: {error}")))? {
        let folder = entry.map_err(|error| Failed(format!("cannot list the rooms: {error}")))?.path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match arrows.get(name.as_str()) {
            None => wrong.push(format!("crates/{name}: not in the list of rooms (xtask/src/rooms.rs)")),
            Some(allowed) => dependencies(&folder, &name, allowed, &mut wrong),
        }
        let head = ["src/lib.rs", "src/main.rs"].iter().find_map(|file| fs::read_to_string(folder.join(file)).ok());
        if !head.is_some_and(|text| text.starts_with("//!")) {
            wrong.push(format!("crates/{name}: its root file does not begin with `//!` that says what lives there"));
        }
        unfinished(&folder.join("src"), &mut wrong);
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failed(wrong.join("\n"))) }
}

/// Dependencies of the product; tests may reach further up.
fn dependencies(folder: &Path, name: &str, allowed: &[&str], wrong: &mut Vec<String>) {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
    let mut section = "";
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if section == "[dependencies]" {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if ARROWS.iter().any(|(room, _)| *room == dependency) && !allowed.contains(&dependency) {
                wrong.push(format!("crates/{name} depends on {dependency}: that arrow points the wrong way"));
            }
        }
    }
}

fn unfinished(folder: &Path, wrong: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            unfinished(&path, wrong);
        } else if let Ok(text) = fs::read_to_string(&path) {
            for (number, line) in text.lines().enumerate() {
                if let Some(mark) = UNFINISHED.iter().find(|mark| line.contains(**mark)) {
                    wrong.push(format!("{}:{}: left-over `{mark}`", path.display(), number + 1));
                }
            }
        }
    }
}
