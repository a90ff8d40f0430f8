//! Opening: load the node, end the last owner's ledger, name a new one, find the cursors. And deleting it all.

use std::borrow::Cow;

use metadata::{Expected, MetadataError};
use prost::Message;
use pulsar_proto::topic_name::decode_form;

use super::info::NEXT_INDEX;
use super::*;
use crate::cursor::{Cursor, Store};
use crate::cursor_ledger::{Replay, acks_of_info};
use crate::formats::{FormatError, ManagedCursorInfo, ManagedLedgerInfo, PositionInfo, decode_node};
use crate::line::Part;
use crate::task::{self, Context};

/// How to open a managed ledger.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Comes back in every `AddOp::owner` and `AddDone::owner`: the topic's key in its shard.
    pub owner: u64,
    /// Whether to create it if it is not there.
    pub create_if_missing: bool,
    /// `None`: those of the [`Context`].
    pub config: Option<Arc<ManagedLedgerConfig>>,
    /// Stored with a new managed ledger; ignored for one that exists.
    pub properties: Vec<(String, String)>,
    pub now: Now,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    #[error("no managed ledger `{name}`")]
    NotFound { name: String },
    /// Another broker opens or changes it at the same time.
    #[error("managed ledger `{name}` was changed by somebody else while it was being opened")]
    Contended { name: String },
    #[error("cannot use metadata node `{path}`")]
    Metadata {
        path: String,
        #[source]
        source: MetadataError,
    },
    #[error("cannot understand metadata node `{path}`")]
    Format {
        path: String,
        #[source]
        source: FormatError,
    },
    #[error("cannot use a ledger of `{name}`")]
    Ledger {
        name: String,
        #[source]
        source: ledger::LedgerError,
    },
}

/// What is stored with each ledger, so that operators can tell whose it is.
pub(crate) fn custom_metadata(managed_ledger: &str, cursor: Option<&str>) -> Vec<(String, Bytes)> {
    let mut custom = vec![
        ("application".to_owned(), Bytes::from_static(b"pulsar")),
        ("component".to_owned(), Bytes::from_static(b"managed-ledger")),
        ("pulsar/managed-ledger".to_owned(), Bytes::from(managed_ledger.to_owned())),
    ];
    custom.extend(cursor.map(|cursor| ("pulsar/cursor".to_owned(), Bytes::from(cursor.to_owned()))));
    custom
}

fn path_of(name: &str) -> String {
    format!("/managed-ledgers/{name}")
}

impl ManagedLedger {
    /// Opens (or creates) the managed ledger `/managed-ledgers/<name>`.
    ///
    /// The last owner's open ledger is fenced and closed, a new one is created and named in the node by compare-and-set: on
    /// return no earlier owner can get another add confirmed. A plain future: no runtime is needed.
    /// # Errors
    /// After an error nothing of it is open; trying again is safe.
    pub async fn open(context: &Context, name: &str, options: OpenOptions) -> Result<ManagedLedger, OpenError> {
        let path = path_of(name);
        let metadata_error = |source| OpenError::Metadata { path: path.clone(), source };
        let ledger_error = |source| OpenError::Ledger { name: name.to_owned(), source };

        let node = context.metadata.get(&path).await.map_err(metadata_error)?;
        // A node without a value is only the parent of others.
        let node = node.filter(|node| !node.value.is_empty() || options.create_if_missing);
        let (mut info, version) = match node {
            Some(node) => {
                let info = decode_node::<ManagedLedgerInfo>(&node.value)
                    .map_err(|source| OpenError::Format { path: path.clone(), source })?;
                (info, Expected::Version(node.stat.version))
            }
            None if !options.create_if_missing => return Err(OpenError::NotFound { name: name.to_owned() }),
            None => (ManagedLedgerInfo::default(), Expected::Absent),
        };
        if info.ledger_info.is_empty() && info.properties.is_empty() {
            let property = |(key, value): &(String, String)| KeyValue { key: key.clone(), value: value.clone() };
            info.properties = options.properties.iter().map(property).collect();
        }

        let stored_index = info.properties.iter().find(|property| property.key == NEXT_INDEX);
        let mut next_index: u64 = stored_index.and_then(|property| property.value.parse().ok()).unwrap_or(0);
        let terminated = info.terminated_position.map(|at| Position::new(at.ledger_id, at.entry_id));
        let mut line = Line::default();
        let mut empty = Vec::new();
        let mut measured = None;
        let count = info.ledger_info.len();
        for (index, ledger_info) in info.ledger_info.drain(..).enumerate() {
            let ledger = LedgerId(ledger_info.ledger_id);
            let is_closed = ledger_info.timestamp.unwrap_or(0) > 0 && ledger_info.entries.is_some();
            let part = if is_closed && (index + 1 < count || terminated.is_some()) {
                Part {
                    entries: ledger_info.entries.unwrap_or(0) as u64,
                    bytes: ledger_info.size.unwrap_or(0) as u64,
                    closed_ms: ledger_info.timestamp.map(|ms| ms as u64),
                    offload_context: ledger_info.offload_context,
                }
            } else {
                // Open, as far as the node knows: the end is where recovery finds it.
                let found = task::recover(context, ledger, None).await.map_err(ledger_error)?;
                next_index = next_index.max(found.next_index.unwrap_or(0));
                measured = Some(ledger);
                Part {
                    entries: (found.last.0 + 1) as u64,
                    bytes: found.length,
                    closed_ms: Some(options.now.unix_ms),
                    offload_context: ledger_info.offload_context,
                }
            };
            if part.entries > 0 {
                line.insert(ledger, part);
            } else {
                empty.push(ledger);
            }
        }
        // The index goes on after the last entry, also if the owner before did not store it in the node.
        let last = line.last();
        if !last.entry.is_none() && measured != Some(last.ledger) {
            let found = task::next_index_at(context, last.ledger, last.entry).await.map_err(ledger_error)?;
            next_index = next_index.max(found.unwrap_or(0));
        }

        let appender = match terminated {
            Some(_) => None,
            None => Some(task::create_ledger(context, custom_metadata(name, None)).await.map_err(ledger_error)?),
        };
        let owner_config = options.config.unwrap_or_else(|| Arc::clone(&context.config));
        let mut opened = ManagedLedger {
            name: name.to_owned(),
            path: path.clone(),
            owner: options.owner,
            config: owner_config,
            budget: Arc::clone(&context.cache),
            line,
            properties: info.properties,
            terminated,
            info_version: 0,
            info_put: None,
            writing: Writing::Terminated,
            adding: VecDeque::new(),
            queued: VecDeque::new(),
            sent_index: next_index,
            confirmed_index: next_index,
            indexes: IndexRuns::default(),
            scratch: Vec::new(),
            cursors: BTreeMap::new(),
            last_cursor: 0,
            cache: EntryCache::default(),
            reads: Vec::new(),
            readers: BTreeMap::new(),
            closing: None,
        };
        if let Some(appender) = &appender {
            opened.line.insert(appender.ledger(), Part::default());
        }
        // Also for a terminated one: the version tells an owner before us that it is over.
        let value = opened.info_of(&opened.line, terminated).encode_to_vec().into();
        match task::put(&*context.metadata, &path, value, version).await {
            Ok(stat) => opened.info_version = stat.version,
            Err(source) => {
                // A new ledger that the node may name must stay.
                if source.is_bad_version()
                    && let Some(appender) = &appender
                {
                    remove(context, appender.ledger()).await;
                    return Err(OpenError::Contended { name: name.to_owned() });
                }
                return Err(metadata_error(source));
            }
        }
        for ledger in empty {
            remove(context, ledger).await;
        }
        if let Some(appender) = appender {
            opened.writing = Writing::Open { appender, opened_ms: options.now.monotonic_ms, roll: Roll::NotDue };
        }
        opened.load_cursors(context).await?;
        Ok(opened)
    }

    /// Each cursor's node gets a new version before it is believed: an owner before us, who may still run and not know that it
    /// is over, can no longer change it. Its next attempt fences it, and not us.
    async fn load_cursors(&mut self, context: &Context) -> Result<(), OpenError> {
        let metadata_error = |path: &str, source| OpenError::Metadata { path: path.to_owned(), source };
        let children =
            context.metadata.children(&self.path).await.map_err(|source| metadata_error(&self.path, source))?;
        for child in children {
            let path = format!("{}/{child}", self.path);
            let Some(node) = context.metadata.get(&path).await.map_err(|source| metadata_error(&path, source))? else {
                continue;
            };
            let info = decode_node::<ManagedCursorInfo>(&node.value)
                .map_err(|source| OpenError::Format { path: path.clone(), source })?;
            let put = context.metadata.put(&path, node.value, Expected::Version(node.stat.version)).await;
            let version = match put {
                Ok(stat) => stat.version,
                Err(error) if error.is_bad_version() || error.is_not_found() => {
                    return Err(OpenError::Contended { name: self.name.clone() });
                }
                Err(source) => return Err(metadata_error(&path, source)),
            };
            let mut store = Store::new(&info, version);
            let acks = match store.in_info {
                None => acks_of_info(&info, &self.line),
                Some(ledger) => match replay(context, ledger).await {
                    Ok(Some(replay)) => {
                        let (acks, properties) = replay.finish(&self.line);
                        store.set_properties(properties);
                        acks
                    }
                    // Nothing was ever written there: the node has the position.
                    Ok(None) => acks_of_info(&info, &self.line),
                    Err(ReplayError::Gone(error)) => {
                        tracing::error!(managed_ledger = %self.name, cursor = %child, %ledger, %error,
                            "cursor ledger is unreadable: falling back to the position in the node, messages will be repeated");
                        acks_of_info(&info, &self.line)
                    }
                    Err(ReplayError::Later(source)) => {
                        return Err(OpenError::Ledger { name: self.name.clone(), source });
                    }
                },
            };
            let name = decode_form(&child).map_or_else(|| child.clone(), Cow::into_owned);
            self.last_cursor += 1;
            let id = CursorId(self.last_cursor);
            let cursor = Cursor::new(name, acks, Some(store));
            self.cursors.insert(id, cursors::Slot { cursor, phase: cursors::Phase::Live });
        }
        Ok(())
    }

    /// Deletes a managed ledger that nobody has open: cursors, node, then all ledgers. No error if there is none.
    ///
    /// What fails half-way is either still named by the node (call it again) or garbage without a name.
    pub async fn delete(context: &Context, name: &str) -> Result<(), OpenError> {
        let path = path_of(name);
        let metadata_error = |source| OpenError::Metadata { path: path.clone(), source };
        let Some(node) = context.metadata.get(&path).await.map_err(metadata_error)? else { return Ok(()) };
        let info = decode_node::<ManagedLedgerInfo>(&node.value)
            .map_err(|source| OpenError::Format { path: path.clone(), source })?;
        for child in context.metadata.children(&path).await.map_err(metadata_error)? {
            let child = format!("{path}/{child}");
            let node = context.metadata.get(&child).await.map_err(metadata_error)?;
            context.metadata.delete_recursive(&child).await.map_err(metadata_error)?;
            let cursor = node.and_then(|node| decode_node::<ManagedCursorInfo>(&node.value).ok());
            if let Some(cursor) = cursor.filter(|cursor| cursor.cursors_ledger_id >= 0) {
                remove(context, LedgerId(cursor.cursors_ledger_id)).await;
            }
        }
        match context.metadata.delete(&path, Expected::Version(node.stat.version)).await {
            Err(error) if error.is_bad_version() => return Err(OpenError::Contended { name: name.to_owned() }),
            Err(error) if !error.is_not_found() => return Err(metadata_error(error)),
            _ => {}
        }
        for ledger in info.ledger_info {
            remove(context, LedgerId(ledger.ledger_id)).await;
        }
        Ok(())
    }
}

enum ReplayError {
    /// The ledger is not there or not understood: it never will be.
    Gone(ledger::LedgerError),
    Later(ledger::LedgerError),
}

/// Fences a cursor ledger and reads back to its last complete snapshot.
async fn replay(context: &Context, ledger: LedgerId) -> Result<Option<Replay>, ReplayError> {
    let classify = |error: ledger::LedgerError| match error {
        ledger::LedgerError::NotFound { .. } | ledger::LedgerError::BadMetadata { .. } => ReplayError::Gone(error),
        error => ReplayError::Later(error),
    };
    let end = context.ledgers.open_recover(ledger).await.map_err(classify)?.last_confirmed;
    if end.is_none() {
        return Ok(None);
    }
    let decode = |entry: &crate::Entry| PositionInfo::decode(&entry.data[..]).ok();
    let last = task::read(context, ledger, end, end, 0).await.map_err(classify)?;
    let Some(info) = last.first().and_then(decode) else { return Ok(None) };
    let mut replay = Replay::new(end.0, info);
    let mut next = replay.begins_at();
    while next < end.0 {
        let entries =
            task::read(context, ledger, EntryId(next), EntryId(end.0 - 1), REPLAY_BYTES).await.map_err(classify)?;
        for entry in &entries {
            // An entry of another version that is not understood holds acknowledgements that are repeated, no more.
            if let Some(info) = decode(entry) {
                replay.add(entry.position.entry.0, info);
            }
        }
        next += entries.len().max(1) as i64;
    }
    Ok(Some(replay))
}

const REPLAY_BYTES: usize = 1 << 20;

async fn remove(context: &Context, ledger: LedgerId) {
    if let Err(error) = context.ledgers.delete(ledger).await {
        tracing::warn!(%ledger, %error, "cannot delete ledger; it stays as garbage");
    }
}
