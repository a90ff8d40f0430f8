use std::collections::HashMap;
use std::sync::Arc;

use bookkeeper_proto::layout::ID_GENERATOR_PREFIX;
use bookkeeper_proto::ledger_path::ledger_path;
use bookkeeper_proto::{
    BookieId, DigestType, Digester, EntryId, EntryView, LedgerId, LedgerMetadata, LedgerState, MasterKey, Segment,
};
use bytes::Bytes;
use metadata::{CreateMode, Expected, MetadataError, MetadataStore};
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::StdRng;

use crate::{BookieAccess, LedgerError, LedgerWriter, Quorums, list, recover};

/// How often a compare-and-set that others win is tried again. Each loss is somebody's progress, so this is plenty.
const MAX_TRIES: usize = 32;

/// Ledgers whose readers' knowledge is kept; about 200 bytes each.
const MAX_CACHED_LAYOUTS: usize = 4096;

/// How new ledgers are made and old ones are read.
#[derive(Clone, Debug)]
pub struct LedgersConfig {
    pub quorums: Quorums,
    pub digest: DigestType,
    pub password: Bytes,
    pub verify: Verify,
}

/// What is checked about an entry before a reader gets it; that it is the right entry always is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verify {
    /// Its digest: for bytes that come over a network or from a bookie that does not check its disk.
    Digest,
    /// Nothing more: for a bookie in this process, which verified the checksum of its record on the same bytes.
    Identity,
}

/// One bookie for every entry, CRC-32C, an empty password, and digests are verified.
impl Default for LedgersConfig {
    fn default() -> Self {
        LedgersConfig {
            quorums: Quorums::new(1, 1, 1).expect("1/1/1 is valid"),
            digest: DigestType::Crc32c,
            password: Bytes::new(),
            verify: Verify::Digest,
        }
    }
}

/// All ledgers of a cluster.
pub struct Ledgers {
    store: Arc<dyn MetadataStore>,
    bookies: Vec<(BookieId, Arc<dyn BookieAccess>)>,
    config: LedgersConfig,
    tokens: Mutex<StdRng>,
    layouts: Mutex<HashMap<LedgerId, Arc<Layout>>>,
}

/// What was known about a ledger when it was opened.
#[derive(Clone, Debug)]
pub struct LedgerHandle {
    pub ledger: LedgerId,
    pub metadata: LedgerMetadata,
    /// The last entry that a reader may ask for: the end of a closed ledger, else LAC.
    pub last_confirmed: EntryId,
}

/// Where a ledger's entries lie and how they are verified.
#[derive(Clone)]
pub(crate) struct Layout {
    pub(crate) quorums: Quorums,
    pub(crate) segments: Vec<Segment>,
    pub(crate) digester: Digester,
}

/// Metadata as read, with what is needed to replace it.
struct Versioned {
    metadata: LedgerMetadata,
    version: i64,
}

/// What became of an attempt to replace a ledger's metadata.
enum Replaced {
    Yes,
    /// Another was first, or the outcome is unknown: read again, decide again.
    ReadAgain(MetadataError),
}

impl Ledgers {
    /// New ledgers lie on the first bookies. `rng` makes the tokens by which a creator recognises its own ledger.
    pub fn new(
        store: Arc<dyn MetadataStore>,
        bookies: Vec<(BookieId, Arc<dyn BookieAccess>)>,
        config: LedgersConfig,
        rng: StdRng,
    ) -> Ledgers {
        Ledgers { store, bookies, config, tokens: Mutex::new(rng), layouts: Mutex::default() }
    }

    /// Creates a ledger and returns its only writer, whose [`WriterEffect::Send`](crate::WriterEffect) go to
    /// [`Ledgers::bookie`]. No bookie is contacted.
    pub async fn create(&self, custom: Vec<(String, Bytes)>) -> Result<LedgerWriter, LedgerError> {
        let quorums = self.config.quorums;
        let Some(ensemble) = self.bookies.get(..quorums.ensemble()) else {
            return Err(LedgerError::NotEnoughBookies { wanted: quorums.ensemble(), available: self.bookies.len() });
        };
        let token = self.tokens.lock().random_range(0..=i64::MAX);
        let metadata = LedgerMetadata {
            ensemble_size: quorums.ensemble() as u32,
            write_quorum: quorums.write() as u32,
            ack_quorum: quorums.ack() as u32,
            state: LedgerState::Open,
            segments: vec![Segment {
                first_entry: EntryId(0),
                bookies: ensemble.iter().map(|(id, _)| id.clone()).collect(),
            }],
            digest: Some(self.config.digest),
            password: Some(self.config.password.clone()),
            created_ms: None,
            custom,
            creator_token: Some(token),
        };
        let value = metadata.encode();
        for _ in 0..MAX_TRIES {
            let ledger = self.draw_id().await?;
            if self.claim(ledger, &value, token).await? {
                let layout = self.remember(ledger, &metadata)?;
                return Ok(LedgerWriter::new(ledger, quorums, layout.digester.clone(), self.key()));
            }
        }
        Err(LedgerError::Contended { path: ID_GENERATOR_PREFIX.to_owned() })
    }

    /// Opens a ledger for reading and closes it, if it is not closed, at the highest entry that may have been acknowledged,
    /// after fencing its bookies.
    ///
    /// On return no earlier writer can get another add confirmed (fenced on enough bookies that no ack quorum is left).
    /// Idempotent; two recoveries may race, and the metadata version decides. Source: BookKeeper protocol, "Ledger recovery".
    /// # Errors
    /// [`LedgerError::Recovery`]: too few answered to know the end; the ledger is fenced but stays open. Retry later.
    pub async fn open_recover(&self, ledger: LedgerId) -> Result<LedgerHandle, LedgerError> {
        let mut failed = None;
        for _ in 0..MAX_TRIES {
            let found = self.metadata_of(ledger).await?;
            let layout = self.remember(ledger, &found.metadata)?;
            let replaced = match found.metadata.state {
                LedgerState::Closed { last_entry, .. } => {
                    return Ok(LedgerHandle { ledger, metadata: found.metadata, last_confirmed: last_entry });
                }
                // First of all, so that the writer can no longer change the ensemble whose bookies we are going to ask.
                LedgerState::Open => self.replace(ledger, &found, LedgerState::InRecovery).await?,
                LedgerState::InRecovery => {
                    let (last_entry, length) = recover::find_end(self, ledger, &layout, self.key()).await?;
                    self.replace(ledger, &found, LedgerState::Closed { last_entry, length }).await?
                }
            };
            if let Replaced::ReadAgain(error) = replaced {
                failed = Some(error);
            }
        }
        Err(self.gave_up(ledger, failed))
    }

    /// Opens a ledger for reading without disturbing its writer. Writes nothing.
    pub async fn open_read_only(&self, ledger: LedgerId) -> Result<LedgerHandle, LedgerError> {
        let Versioned { metadata, .. } = self.metadata_of(ledger).await?;
        self.remember(ledger, &metadata)?;
        let last_confirmed = match metadata.state {
            LedgerState::Closed { last_entry, .. } => last_entry,
            LedgerState::Open | LedgerState::InRecovery => self.highest_lac(ledger, &metadata).await?,
        };
        Ok(LedgerHandle { ledger, metadata, last_confirmed })
    }

    /// Ends a ledger with the values of its writer's [`WriterEffect::Seal`](crate::WriterEffect). Idempotent.
    ///
    /// On return the end is durable, and entries behind it will never be seen. Closing a ledger in somebody's recovery is
    /// fine: that recovery has not ended, and all that was confirmed lies before the writer's LAC.
    /// # Errors
    /// [`LedgerError::ClosedElsewhere`]: a recovery was first and found another end. If it lies behind `last_entry`, some adds
    /// of unknown outcome are in the ledger.
    pub async fn close(&self, ledger: LedgerId, last_entry: EntryId, length: u64) -> Result<(), LedgerError> {
        let end = LedgerState::Closed { last_entry, length };
        let mut failed = None;
        for _ in 0..MAX_TRIES {
            let found = self.metadata_of(ledger).await?;
            match found.metadata.state {
                LedgerState::Closed { .. } if found.metadata.state == end => return Ok(()),
                LedgerState::Closed { last_entry: found_last_entry, length: found_length } => {
                    let found = (found_last_entry, found_length);
                    return Err(LedgerError::ClosedElsewhere {
                        ledger,
                        last_entry,
                        length,
                        found_last_entry: found.0,
                        found_length: found.1,
                    });
                }
                LedgerState::Open | LedgerState::InRecovery => match self.replace(ledger, &found, end).await? {
                    Replaced::Yes => return Ok(()),
                    Replaced::ReadAgain(error) => failed = Some(error),
                },
            }
        }
        Err(self.gave_up(ledger, failed))
    }

    /// Deletes a ledger, whether open or closed. Idempotent: no error if there is none.
    ///
    /// On return its metadata is gone for good; bookies give its space back when they collect.
    pub async fn delete(&self, ledger: LedgerId) -> Result<(), LedgerError> {
        let path = ledger_path(ledger);
        match self.store.delete(&path, Expected::Any).await {
            Ok(()) | Err(MetadataError::NotFound { .. }) => {}
            // Nothing is forgotten before the metadata is certainly gone.
            Err(source) => return Err(LedgerError::Metadata { doing: "delete", path, source }),
        }
        self.layouts.lock().remove(&ledger);
        for (id, bookie) in &self.bookies {
            if let Err(error) = bookie.forget(ledger).await {
                // Not lost: the bookie's own collection finds the ledger missing from the list.
                tracing::warn!(%ledger, bookie = %id, %error, "bookie did not take note of a deleted ledger");
            }
        }
        Ok(())
    }

    /// Reads entries `first..=last`, in order and without gaps, as many as fit into `max_bytes` but at least one. Payloads are
    /// slices of what the bookie read. The caller keeps `last` at or below LAC.
    pub async fn read(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        max_bytes: usize,
    ) -> Result<Vec<EntryView>, LedgerError> {
        assert!(EntryId(0) <= first && first <= last, "read of entries {first}..={last} of ledger {ledger}");
        let layout = self.layout_of(ledger).await?;
        let (segment, last) = layout.run_from(first, last);
        let mut failed: Option<LedgerError> = None;
        for index in layout.quorums.write_set(first) {
            match self.read_from(ledger, &segment.bookies[index], &layout, (first, last), max_bytes).await {
                Ok(entries) => return Ok(entries),
                Err(error) => failed = Some(more_telling(failed, error)),
            }
        }
        Err(failed.expect("a write set has at least one bookie"))
    }

    /// All ledgers of the cluster, ascending.
    ///
    /// # Errors
    /// Whatever keeps the list from being complete: absence from it is a proof for garbage collection. (Ledgers created
    /// after the call began may be missing.)
    pub async fn list(&self) -> Result<Vec<LedgerId>, LedgerError> {
        list::list(&*self.store).await
    }

    /// Whether a new ledger could take entries now.
    ///
    /// # Errors
    /// [`LedgerError::NotEnoughBookies`]: too many are read-only.
    pub fn check_writable(&self) -> Result<(), LedgerError> {
        let wanted = self.config.quorums.ensemble();
        let available = self.bookies.iter().filter(|(_, bookie)| !bookie.is_read_only()).count();
        if available < wanted { Err(LedgerError::NotEnoughBookies { wanted, available }) } else { Ok(()) }
    }

    /// What the store says about a ledger; `None` if it does not know it.
    ///
    /// # Errors
    /// [`LedgerError::Metadata`] and [`LedgerError::BadMetadata`].
    pub async fn metadata(&self, ledger: LedgerId) -> Result<Option<LedgerMetadata>, LedgerError> {
        match self.metadata_of(ledger).await {
            Ok(found) => Ok(Some(found.metadata)),
            Err(LedgerError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The bookie with that index in the ensemble of a ledger this process writes.
    pub fn bookie(&self, index: usize) -> &Arc<dyn BookieAccess> {
        &self.bookies[index].1
    }

    pub(crate) fn bookie_by_id(&self, id: &BookieId) -> Option<&Arc<dyn BookieAccess>> {
        self.bookies.iter().find(|(known, _)| known == id).map(|(_, bookie)| bookie)
    }

    fn key(&self) -> MasterKey {
        MasterKey::from_password(&self.config.password)
    }

    /// A number that no ledger ever had, greater than all before: a sequential node that is deleted at once, as the original
    /// draws them.
    ///
    /// # Errors
    /// [`LedgerError::Metadata`] and [`LedgerError::IdsExhausted`].
    pub async fn draw_id(&self) -> Result<LedgerId, LedgerError> {
        let failed = |source| LedgerError::Metadata { doing: "create", path: ID_GENERATOR_PREFIX.to_owned(), source };
        let mode = CreateMode::EphemeralSequential;
        let path = self.store.create(ID_GENERATOR_PREFIX, Bytes::new(), mode).await.map_err(failed)?.path;
        if let Err(error) = self.store.delete(&path, Expected::Any).await {
            // Ephemeral, so it goes away with this process at the latest.
            tracing::debug!(path, %error, "cannot delete the node a ledger id was drawn from");
        }
        let id = path.strip_prefix(ID_GENERATOR_PREFIX).and_then(|number| number.parse().ok());
        id.filter(|id| (0..i64::from(i32::MAX)).contains(id)).map(LedgerId).ok_or(LedgerError::IdsExhausted)
    }

    /// Writes a new ledger's metadata. `false`: the id is somebody else's.
    async fn claim(&self, ledger: LedgerId, value: &Bytes, token: i64) -> Result<bool, LedgerError> {
        let path = ledger_path(ledger);
        let mut failed = None;
        for _ in 0..MAX_TRIES {
            match self.store.put(&path, value.clone(), Expected::Absent).await {
                Ok(_) => return Ok(true),
                // Perhaps it was us, when an earlier answer got lost: the token tells.
                Err(MetadataError::BadVersion { .. }) => {
                    let found = self.metadata_of(ledger).await?;
                    return Ok(found.metadata.creator_token == Some(token));
                }
                // The same write again: whichever of the two takes effect, it is ours.
                Err(error) if error.is_outcome_unknown() => failed = Some(error),
                Err(source) => return Err(LedgerError::Metadata { doing: "create", path, source }),
            }
        }
        Err(self.gave_up(ledger, failed))
    }

    async fn metadata_of(&self, ledger: LedgerId) -> Result<Versioned, LedgerError> {
        if ledger.0 < 0 {
            return Err(LedgerError::NotFound { ledger });
        }
        let path = ledger_path(ledger);
        let node = match self.store.get(&path).await {
            Ok(node) => node.ok_or(LedgerError::NotFound { ledger })?,
            Err(source) => return Err(LedgerError::Metadata { doing: "read", path, source }),
        };
        match LedgerMetadata::decode(&node.value) {
            Ok(metadata) => Ok(Versioned { metadata, version: node.stat.version }),
            Err(source) => Err(LedgerError::BadMetadata { path, source }),
        }
    }

    /// Moves a ledger on to `state` if its metadata is still what was found.
    async fn replace(&self, ledger: LedgerId, found: &Versioned, state: LedgerState) -> Result<Replaced, LedgerError> {
        let path = ledger_path(ledger);
        let metadata = LedgerMetadata { state, ..found.metadata.clone() };
        match self.store.put(&path, metadata.encode(), Expected::Version(found.version)).await {
            Ok(_) => Ok(Replaced::Yes),
            Err(error) if error.is_bad_version() || error.is_outcome_unknown() => Ok(Replaced::ReadAgain(error)),
            Err(source) => Err(LedgerError::Metadata { doing: "replace", path, source }),
        }
    }

    fn gave_up(&self, ledger: LedgerId, failed: Option<MetadataError>) -> LedgerError {
        let path = ledger_path(ledger);
        match failed {
            Some(source) if source.is_outcome_unknown() => LedgerError::Metadata { doing: "write", path, source },
            _ => LedgerError::Contended { path },
        }
    }

    /// Checks that we may read the ledger, and keeps what it takes.
    fn remember(&self, ledger: LedgerId, metadata: &LedgerMetadata) -> Result<Arc<Layout>, LedgerError> {
        if metadata.password.as_ref().is_some_and(|password| *password != self.config.password) {
            return Err(LedgerError::WrongPassword { ledger });
        }
        let (ensemble, write, ack) = (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum);
        let Some(quorums) = Quorums::new(ensemble, write, ack) else {
            return Err(LedgerError::NotEnoughBookies { wanted: ensemble as usize, available: self.bookies.len() });
        };
        let digest = metadata.digest.unwrap_or(self.config.digest);
        let layout = Arc::new(Layout {
            quorums,
            segments: metadata.segments.clone(),
            digester: Digester::new(digest, &self.config.password),
        });
        let mut layouts = self.layouts.lock();
        if layouts.len() >= MAX_CACHED_LAYOUTS {
            layouts.clear();
        }
        layouts.insert(ledger, layout.clone());
        Ok(layout)
    }

    async fn layout_of(&self, ledger: LedgerId) -> Result<Arc<Layout>, LedgerError> {
        let known = self.layouts.lock().get(&ledger).cloned();
        match known {
            Some(layout) => Ok(layout),
            None => self.remember(ledger, &self.metadata_of(ledger).await?.metadata),
        }
    }

    async fn highest_lac(&self, ledger: LedgerId, metadata: &LedgerMetadata) -> Result<EntryId, LedgerError> {
        let segment = metadata.last_segment();
        let mut highest = segment.first_entry.previous();
        let mut failed = None;
        for id in &segment.bookies {
            let Some(bookie) = self.bookie_by_id(id) else {
                failed = Some(LedgerError::UnknownBookie { ledger, bookie: id.clone() });
                continue;
            };
            match bookie.read_lac(ledger).await {
                Ok(lac) => highest = highest.max(lac),
                Err(error) if error.proves_absence() => {}
                Err(source) => {
                    let bookie = id.clone();
                    failed = Some(LedgerError::Bookie { doing: "read LAC of", ledger, bookie, source });
                }
            }
        }
        // A LAC that is too low hides entries for a while, and that is all it does: one bookie that answered is enough.
        match failed {
            Some(error) if highest < segment.first_entry => Err(error),
            _ => Ok(highest),
        }
    }

    async fn read_from(
        &self,
        ledger: LedgerId,
        id: &BookieId,
        layout: &Layout,
        (first, last): (EntryId, EntryId),
        max_bytes: usize,
    ) -> Result<Vec<EntryView>, LedgerError> {
        let unknown = || LedgerError::UnknownBookie { ledger, bookie: id.clone() };
        let bookie = self.bookie_by_id(id).ok_or_else(unknown)?;
        let failed = |source| LedgerError::Bookie { doing: "read", ledger, bookie: id.clone(), source };
        let entries = bookie.read(ledger, first, last, max_bytes).await.map_err(failed)?;

        let wanted = (last.0 - first.0) as u64 + 1;
        if entries.is_empty() || entries.len() as u64 > wanted {
            return Err(LedgerError::WrongCount { ledger, bookie: id.clone(), got: entries.len(), wanted });
        }
        let mut views = Vec::with_capacity(entries.len());
        for (bytes, entry) in entries.into_iter().zip(first.0..) {
            match layout.view(ledger, EntryId(entry), bytes, self.config.verify) {
                Ok(view) => views.push(view),
                // What came before it is good.
                Err(_) if !views.is_empty() => break,
                Err(source) => return Err(LedgerError::BadEntry { ledger, bookie: id.clone(), source }),
            }
        }
        Ok(views)
    }
}

impl Layout {
    pub(crate) fn segment_of(&self, entry: EntryId) -> (&Segment, Option<&Segment>) {
        let after = self.segments.partition_point(|segment| segment.first_entry <= entry);
        (&self.segments[after.saturating_sub(1)], self.segments.get(after))
    }

    /// The segment of `first`, and how far towards `last` one bookie of it holds every entry.
    fn run_from(&self, first: EntryId, last: EntryId) -> (&Segment, EntryId) {
        let (segment, next) = self.segment_of(first);
        let is_striped = self.quorums.ensemble() > self.quorums.write();
        let end = if is_striped { first } else { next.map_or(last, |next| next.first_entry.previous()) };
        (segment, last.min(end))
    }

    fn view(
        &self,
        ledger: LedgerId,
        entry: EntryId,
        bytes: Bytes,
        verify: Verify,
    ) -> Result<EntryView, bookkeeper_proto::EntryError> {
        let view = EntryView::parse(bytes, self.digester.digest_type())?;
        view.check_identity(ledger, entry)?;
        match verify {
            Verify::Digest => view.check_digest(&self.digester)?,
            Verify::Identity => {}
        }
        Ok(view)
    }
}

/// Of the errors of several replicas, the first that is not a mere absence.
fn more_telling(before: Option<LedgerError>, error: LedgerError) -> LedgerError {
    let is_absence =
        |error: &LedgerError| matches!(error, LedgerError::Bookie { source, .. } if source.proves_absence());
    match before {
        Some(before) if !is_absence(&before) || is_absence(&error) => before,
        _ => error,
    }
}
