//! The store's one file: a block that says what it is, then the database, reached through the disk seam.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disk::{BLOCK, Disk, DiskFile, OpenMode};
use redb::{Database, DatabaseError, StorageBackend};

use super::{OpenError, space, sync_points};

/// Name of the file in its folder.
pub(super) const FILE: &str = "metadata.db";
/// Where a store grows up: it gets its name only once it is whole.
const NEWBORN: &str = "metadata.db.new";

const MAGIC: &[u8; 8] = b"HULSEMD\n";
/// 1: redb file format 3 behind one block; tables as in `space`.
const FORMAT: u32 = 1;
/// Offset of the byte in the first block that is 1 while the store is closed in order.
const ENDED_AT: u64 = 12;
/// Bytes of database pages kept in memory, for reading and for the transaction being written.
const CACHE_BYTES: usize = 6 << 20;

/// Leaves word for the next process that this one ended in order.
pub(super) struct EndMark {
    file: Arc<dyn DiskFile>,
    /// Something could not be written: what can be read is not what is durable.
    failed: Arc<AtomicBool>,
}

impl EndMark {
    /// To be called when the database is closed. Not synced: a power cut that loses the mark loses what it is about, too.
    pub(super) fn leave(&self) {
        if !self.failed.load(Ordering::Relaxed)
            && let Err(error) = self.file.write_all_at(&[1], ENDED_AT)
        {
            tracing::warn!(%error, "cannot mark the metadata store as closed; the next start takes longer");
        }
    }
}

/// Opens the store's database in folder `dir`, or creates it there.
pub(super) fn open(disk: &dyn Disk, dir: &Path) -> Result<(Database, EndMark), OpenError> {
    let path = dir.join(FILE);
    let io = |doing: &'static str| {
        let path = path.clone();
        move |source| OpenError::Io { doing, path, source }
    };
    create_dir(disk, dir).map_err(io("create the folder of"))?;
    let names = disk.list(dir).map_err(io("list the folder of"))?;
    if names.iter().any(|name| name == NEWBORN) {
        // A process died while it created the store: nobody was ever told that it exists.
        disk.remove(&dir.join(NEWBORN)).map_err(io("remove the unfinished beginnings of"))?;
    }
    if !names.iter().any(|name| name == FILE) {
        return create(disk, dir, &path);
    }
    let file = disk.open(&path, OpenMode::Write).map_err(io("open"))?;
    let ended_in_order = check_header(&*file, &path)?;
    if ended_in_order {
        file.write_all_at(&[0], ENDED_AT).map_err(io("mark as open"))?;
    } else {
        tracing::info!("metadata store was not closed in order: checking it");
        write_again(&*file).map_err(io("write again"))?;
    }
    // Whoever created it may have died before its name was durable.
    disk.sync_dir(dir, sync_points::APPEAR).map_err(io("sync the folder of"))?;
    database(Backend { file, creating: Arc::default(), failed: Arc::default() }, &path)
}

/// After a failed sync, Linux goes on showing what it could not write, and no later sync writes it. The process before this one may
/// have met that and died: what is read here becomes durable only by being written again, before anything is built upon it.
fn write_again(file: &dyn DiskFile) -> io::Result<()> {
    let mut buf = vec![0; 1 << 20];
    let mut offset = 0;
    loop {
        let read = file.read_at(&mut buf, offset)?;
        if read == 0 {
            return Ok(());
        }
        file.write_all_at(&buf[..read], offset)?;
        offset += read as u64;
    }
}

fn create(disk: &dyn Disk, dir: &Path, path: &Path) -> Result<(Database, EndMark), OpenError> {
    let io = |source| OpenError::Io { doing: "create", path: path.to_owned(), source };
    let newborn = dir.join(NEWBORN);
    let file = disk.create(&newborn, OpenMode::Write).map_err(io)?;
    let mut header = [0; BLOCK];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_be_bytes());
    file.write_all_at(&header, 0).map_err(io)?;

    let creating = Arc::new(AtomicBool::new(true));
    let (database, end_mark) = database(Backend { file, creating: creating.clone(), failed: Arc::default() }, path)?;
    space::create_tables(&database).map_err(|error| io(space::into_io(error)))?;
    creating.store(false, Ordering::Relaxed);

    // Everything in the file is synced by now, so whoever sees the name sees a whole store.
    disk.rename(&newborn, path).map_err(io)?;
    disk.sync_dir(dir, sync_points::APPEAR).map_err(io)?;
    Ok((database, end_mark))
}

/// Creates the folder durably: a commit in a folder that a power cut removes would be a broken promise. An existing folder
/// is synced too, because a process that created it may have died before it did so.
fn create_dir(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    disk.create_dir(dir)?;
    dir.ancestors().skip(1).try_for_each(|parent| disk.sync_dir(parent, sync_points::FOLDER))
}

/// Whether the store was closed in order.
fn check_header(file: &dyn DiskFile, path: &Path) -> Result<bool, OpenError> {
    let path = || path.to_owned();
    let mut header = [0; 13];
    let read = file.read_at(&mut header, 0).map_err(|source| OpenError::Io { doing: "read", path: path(), source })?;
    if read < header.len() || header[..8] != *MAGIC {
        return Err(OpenError::Foreign { path: path() });
    }
    let found = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
    if found > FORMAT {
        return Err(OpenError::Newer { path: path(), found, supported: FORMAT });
    }
    Ok(header[ENDED_AT as usize] == 1)
}

fn database(backend: Backend, path: &Path) -> Result<(Database, EndMark), OpenError> {
    let end_mark = EndMark { file: backend.file.clone(), failed: backend.failed.clone() };
    let damaged = |reason: String| OpenError::Damaged { path: path.to_owned(), reason };
    let open = || {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(CACHE_BYTES).create_with_file_format_v3(true);
        builder.create_with_backend(backend)
    };
    // The database asserts what it reads.
    match catch_unwind(AssertUnwindSafe(open)) {
        Ok(Ok(database)) => Ok((database, end_mark)),
        Ok(Err(DatabaseError::Storage(redb::StorageError::Io(source))))
            if source.kind() != io::ErrorKind::InvalidData =>
        {
            Err(OpenError::Io { doing: "open", path: path.to_owned(), source })
        }
        Ok(Err(error)) => Err(damaged(error.to_string())),
        Err(panic) => Err(damaged(panic_text(&*panic))),
    }
}

pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic").to_owned()
}

/// The database's view of the file: everything after the first block.
#[derive(Debug)]
struct Backend {
    file: Arc<dyn DiskFile>,
    /// Until the store has its name, its syncs are another sync point.
    creating: Arc<AtomicBool>,
    failed: Arc<AtomicBool>,
}

impl Backend {
    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }
}

const HEADER_BYTES: u64 = BLOCK as u64;

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.len()?.saturating_sub(HEADER_BYTES))
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.file.read_at(&mut bytes, HEADER_BYTES + offset)?;
        if read < len {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "metadata file is shorter than it should be"));
        }
        Ok(bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let grows = len > self.len()?;
        self.note(self.file.set_len(HEADER_BYTES + len))?;
        if grows && !self.creating.load(Ordering::Relaxed) {
            // The next header states the new length. Should it become durable before the length does, the database
            // would find itself cut off and refuse to open.
            self.note(self.file.sync(sync_points::GROW))?;
        }
        Ok(())
    }

    fn sync_data(&self, _eventual: bool) -> io::Result<()> {
        let creating = self.creating.load(Ordering::Relaxed);
        self.note(self.file.sync(if creating { sync_points::CREATE } else { sync_points::COMMIT }))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(self.file.write_all_at(data, HEADER_BYTES + offset))
    }
}

/// For messages.
pub(super) fn path_in(dir: &Path) -> PathBuf {
    dir.join(FILE)
}
