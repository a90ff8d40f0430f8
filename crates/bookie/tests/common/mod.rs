//! What the tests of this crate share: small logs on a simulated disk, and a sink that keeps what it is told.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "every test binary uses its own part")]

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bookie::{BookieConfig, BookieCore, Request};
use bookkeeper_proto::{AddDone, AddOp, AddSink, BookieError, EntryBuf, EntryHeader, EntryId, LedgerId, MasterKey};
use bytes::Bytes;
use disk::{Disk, DiskFile, OpenMode, SyncPoint};
use parking_lot::Mutex;

pub const KEY: MasterKey = MasterKey([7; 20]);
pub const OTHER_KEY: MasterKey = MasterKey([8; 20]);

pub fn config() -> BookieConfig {
    BookieConfig {
        segment_bytes: 64 << 10,
        commit_bytes: 16 << 10,
        recent_bytes: 0,
        reserve_bytes: 64 << 10,
        pool_segments: 2,
        log_number: Some(0x0123_4567_89ab_cdef),
        ..BookieConfig::default()
    }
}

#[derive(Default)]
pub struct Collected {
    calls: Mutex<Vec<Vec<AddDone>>>,
}

impl AddSink for Collected {
    fn added(&self, done: Vec<AddDone>) {
        self.calls.lock().push(done);
    }
}

impl Collected {
    pub fn take_calls(&self) -> Vec<Vec<AddDone>> {
        std::mem::take(&mut self.calls.lock())
    }

    pub fn take(&self) -> Vec<AddDone> {
        self.take_calls().into_iter().flatten().collect()
    }
}

/// The bytes of an entry, whose content follows from its name and `salt`.
pub fn entry_bytes(ledger: i64, entry: i64, lac: i64, len: usize, salt: u8) -> Bytes {
    let header = EntryHeader {
        ledger: LedgerId(ledger),
        entry: EntryId(entry),
        last_add_confirmed: EntryId(lac),
        length: len as u64,
    };
    let mut bytes = header.encode().to_vec();
    bytes.extend((0..len).map(|i| (i as i64 * 31 + ledger * 7).wrapping_add(entry.wrapping_mul(13)) as u8 ^ salt));
    bytes.into()
}

pub fn add_op(ledger: i64, entry: i64, len: usize) -> AddOp {
    AddOp {
        ledger: LedgerId(ledger),
        entry: EntryId(entry),
        key: KEY,
        recovery: false,
        bytes: EntryBuf::verbatim(entry_bytes(ledger, entry, entry - 1, len, 0)).unwrap(),
        owner: 42,
    }
}

/// Adds in one call; the results in the order of the adds.
pub fn add_all(core: &mut BookieCore, ops: Vec<AddOp>) -> Vec<Result<Bytes, BookieError>> {
    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn AddSink> = collected.clone();
    core.commit(ops.into_iter().map(|op| Request::Add { op, sink: sink.clone() }));
    collected.take().into_iter().map(|done| done.result).collect()
}

pub fn add(core: &mut BookieCore, ledger: i64, entry: i64, len: usize) -> Result<Bytes, BookieError> {
    add_all(core, vec![add_op(ledger, entry, len)]).remove(0)
}

/// Posts a request that answers with nothing but success.
pub fn ask(
    core: &mut BookieCore,
    request: impl FnOnce(Box<dyn FnOnce(Result<(), BookieError>) + Send>) -> Request,
) -> Result<(), BookieError> {
    let answer = Arc::new(Mutex::new(None));
    let to = answer.clone();
    core.commit([request(Box::new(move |result| *to.lock() = Some(result)))]);
    let answer = answer.lock().take();
    answer.expect("every request is answered before commit returns")
}

pub fn fence(core: &mut BookieCore, ledger: i64) -> Result<(), BookieError> {
    ask(core, |done| Request::Fence { ledger: LedgerId(ledger), key: KEY, done })
}

pub fn delete(core: &mut BookieCore, ledger: i64) -> Result<(), BookieError> {
    ask(core, |done| Request::Delete { ledger: LedgerId(ledger), done })
}

pub fn lac_blob(ledger: i64, lac: i64) -> Bytes {
    [ledger.to_be_bytes(), lac.to_be_bytes()].concat().into()
}

pub fn write_lac(core: &mut BookieCore, ledger: i64, lac: i64) -> Result<(), BookieError> {
    let blob = lac_blob(ledger, lac);
    ask(core, |done| Request::WriteLac { ledger: LedgerId(ledger), key: KEY, blob, done })
}

pub fn read(core: &BookieCore, ledger: i64, entry: i64) -> Result<Bytes, BookieError> {
    core.reader().read(LedgerId(ledger), EntryId(entry))
}

/// A process that can be killed between two operations on its disk: from then on none of its operations takes effect, while what it did
/// before, synced or not, is there for the next process.
#[derive(Clone)]
pub struct Process {
    disk: Arc<dyn Disk>,
    operations_left: Arc<AtomicI64>,
}

impl Process {
    pub fn new(disk: impl Disk) -> Process {
        Process { disk: Arc::new(disk), operations_left: Arc::new(AtomicI64::new(i64::MAX)) }
    }

    pub fn kill_after(&self, operations: i64) {
        self.operations_left.store(operations, Ordering::Relaxed);
    }

    pub fn is_dead(&self) -> bool {
        self.operations_left.load(Ordering::Relaxed) <= 0
    }

    fn operate(&self) -> io::Result<()> {
        if self.operations_left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Err(io::Error::other("the process was killed"));
        }
        Ok(())
    }

    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(ProcessFile { process: self.clone(), file })
    }
}

impl Disk for Process {
    fn create(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.operate()?;
        Ok(self.file(self.disk.create(path, mode)?))
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.disk.open(path, mode)?))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate()?;
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.operate()?;
        self.disk.remove(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.operate()?;
        self.disk.create_dir(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.disk.list(path)
    }
    fn sync_dir(&self, path: &Path, point: SyncPoint) -> io::Result<()> {
        self.operate()?;
        self.disk.sync_dir(path, point)
    }
    fn available_bytes(&self) -> io::Result<u64> {
        self.disk.available_bytes()
    }
}

struct ProcessFile {
    process: Process,
    file: Arc<dyn DiskFile>,
}

impl std::fmt::Debug for ProcessFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}

impl DiskFile for ProcessFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.process.operate()?;
        self.file.set_len(len)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.process.operate()?;
        self.file.write_all_at(buf, offset)
    }
    fn sync(&self, point: SyncPoint) -> io::Result<()> {
        self.process.operate()?;
        self.file.sync(point)
    }
}
