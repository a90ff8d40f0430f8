//! A disk in memory that keeps only what it promised: after a crash, everything since the last sync of a file or folder
//! may be lost, kept, reordered or torn, each piece on its own.
//!
//! [`SimDisk`] is a handle; clones see the same disk. A run is cut with [`SimDisk::crash_at`] and goes on with the disk that
//! [`SimDisk::after_crash`] returns. [`SimDisk::skip_sync`] leaves out one sync point, for tests that must then lose data.
//!
//! What is promised, and no more:
//! - a file's bytes and length are durable after its `sync`; before, every 4096-byte block may be in any state it went
//!   through since the last sync, or in a mixture of two of them by sectors of 512 bytes, independently of all other blocks;
//! - an entry of a folder (a file or a folder created, renamed or removed in it) is durable after `sync_dir` of that folder; before,
//!   every change may be lost or kept on its own, a rename as a whole. Syncing a file does not make its entry durable, nor does syncing a folder
//!   its own entry in its parent;
//! - a sync that fails drops what was dirty: readers still see it, a later sync does not write it.

mod file;
mod folder;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use self::file::Content;
use self::folder::{Folder, Inode};
use crate::{BLOCK, Disk, DiskFile, OpenMode, SyncPoint};

/// Handle to a simulated disk.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

/// Every operation after the crash fails with this, wrapped in an [`io::Error`].
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the simulated machine has crashed")]
pub struct Crashed;

/// Whether an error comes from the simulated crash.
pub fn is_crashed(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Crashed>())
}

/// One operation that changes the disk or makes a change durable. Reads are not counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A file was created.
    Create(PathBuf),
    /// A folder was created.
    CreateDir(PathBuf),
    /// A file was renamed.
    Rename(PathBuf, PathBuf),
    /// A file was removed.
    Remove(PathBuf),
    /// Bytes were written. The path is the one the file was opened by.
    Write {
        /// The file.
        path: PathBuf,
        /// In bytes.
        offset: u64,
        /// In bytes.
        len: usize,
    },
    /// A file's length was set.
    SetLen(PathBuf, u64),
    /// A file was synced.
    Sync(PathBuf, SyncPoint),
    /// A folder was synced.
    SyncDir(PathBuf, SyncPoint),
}

/// A fault for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with `StorageFull` and changes nothing.
    NoSpace,
    /// The operation fails with an I/O error. A write changes nothing; a sync drops what was dirty.
    Io,
}

struct State {
    nodes: BTreeMap<Inode, Node>,
    next_inode: u64,
    rng: SmallRng,
    ops: Vec<Op>,
    trace: DefaultHasher,
    crash_at: Option<u64>,
    crashed: bool,
    skipped: BTreeSet<SyncPoint>,
    syncs: BTreeMap<SyncPoint, u64>,
    faults: BTreeMap<u64, Fault>,
    capacity_bytes: Option<u64>,
    written_bytes: u64,
}

#[derive(Clone)]
enum Node {
    File(Content),
    Folder(Folder),
}

const ROOT: Inode = Inode(0);

/// How kind one crash is. Drawn once for a whole crash, because purely independent choices would hardly ever produce the
/// plain cases (nothing unsynced survived; everything did) in which most missing syncs show.
pub(crate) enum Fate {
    LoseAll,
    KeepAll,
    /// Every piece keeps a prefix of its changes.
    Prefix,
    /// Every piece is kept with this probability.
    Scatter(f64),
}

impl Fate {
    pub(crate) fn draw(rng: &mut SmallRng) -> Fate {
        match rng.random_range(0..8) {
            0 | 1 => Fate::LoseAll,
            2 => Fate::KeepAll,
            3 => Fate::Prefix,
            4 => Fate::Scatter(0.1),
            5 => Fate::Scatter(0.9),
            _ => Fate::Scatter(0.5),
        }
    }

    /// How many of `changes` successive states of one piece were gone through: 0 is the durable state.
    fn pick(&self, changes: usize, rng: &mut SmallRng) -> usize {
        match self {
            Fate::LoseAll => 0,
            Fate::KeepAll => changes,
            Fate::Prefix => rng.random_range(0..=changes),
            Fate::Scatter(_) if changes == 0 => 0,
            Fate::Scatter(keep) => {
                if rng.random_bool(*keep) {
                    rng.random_range(1..=changes)
                } else {
                    0
                }
            }
        }
    }

    /// Whether one change that is in the kept prefix, or not, survives.
    fn keeps(&self, in_prefix: bool, rng: &mut SmallRng) -> bool {
        match self {
            Fate::Scatter(keep) => rng.random_bool(*keep),
            Fate::LoseAll | Fate::KeepAll | Fate::Prefix => in_prefix,
        }
    }

    fn tears(&self, rng: &mut SmallRng) -> bool {
        match self {
            Fate::LoseAll | Fate::KeepAll => false,
            Fate::Prefix | Fate::Scatter(_) => rng.random_bool(0.25),
        }
    }
}

impl SimDisk {
    /// An empty disk. The seed decides what a failed sync leaves.
    pub fn new(seed: u64) -> SimDisk {
        let nodes = BTreeMap::from([(ROOT, Node::Folder(Folder::default()))]);
        SimDisk(Arc::new(Mutex::new(State {
            nodes,
            next_inode: 1,
            rng: SmallRng::seed_from_u64(seed),
            ops: Vec::new(),
            trace: DefaultHasher::new(),
            crash_at: None,
            crashed: false,
            skipped: BTreeSet::new(),
            syncs: BTreeMap::new(),
            faults: BTreeMap::new(),
            capacity_bytes: None,
            written_bytes: 0,
        })))
    }

    /// Lets the machine crash during operation number `op` (counted from 0): it may take effect as far as an unsynced one
    /// can, and it and all later ones, reads included, fail with [`Crashed`].
    pub fn crash_at(&self, op: u64) {
        self.0.lock().crash_at = Some(op);
    }

    /// Crashes between two operations: all later ones fail with [`Crashed`].
    pub fn crash_now(&self) {
        self.0.lock().crashed = true;
    }

    /// Whether the planned operation was reached, and the machine crashed in it.
    pub fn was_cut(&self) -> bool {
        let state = self.0.lock();
        state.crash_at.is_some_and(|op| (state.ops.len() as u64) > op)
    }

    /// Whether the machine has crashed.
    pub fn has_crashed(&self) -> bool {
        self.0.lock().crashed
    }

    /// The disk as the machine finds it when it starts again now; `seed` decides what unsynced changes survived. Skipped sync
    /// points and the capacity stay, counters start at zero, other faults are gone. This disk is left as it is, so that one history can
    /// be continued in several ways.
    pub fn after_crash(&self, seed: u64) -> SimDisk {
        let old = self.0.lock();
        let mut rng = SmallRng::seed_from_u64(seed);
        let fate = Fate::draw(&mut rng);
        let mut nodes = BTreeMap::new();
        let mut reached = vec![ROOT];
        while let Some(inode) = reached.pop() {
            // Every node exists: inodes are only dropped by not being reached here.
            let found = match &old.nodes[&inode] {
                Node::File(content) => Node::File(content.after_crash(&fate, &mut rng)),
                Node::Folder(folder) => {
                    let found = folder.after_crash(&fate, &mut rng);
                    reached.extend(found.entries.values().filter(|child| !nodes.contains_key(*child)));
                    Node::Folder(found)
                }
            };
            nodes.insert(inode, found);
        }
        let disk = SimDisk::new(seed);
        {
            let mut new = disk.0.lock();
            new.nodes = nodes;
            new.next_inode = old.next_inode;
            new.skipped.clone_from(&old.skipped);
            new.capacity_bytes = old.capacity_bytes;
        }
        disk
    }

    /// The disk as the next process finds it when this one is killed and the machine goes on: nothing is lost, and nothing is
    /// more durable than before. Otherwise as [`SimDisk::after_crash`].
    pub fn after_kill(&self, seed: u64) -> SimDisk {
        let old = self.0.lock();
        let disk = SimDisk::new(seed);
        {
            let mut new = disk.0.lock();
            new.nodes.clone_from(&old.nodes);
            new.next_inode = old.next_inode;
            new.skipped.clone_from(&old.skipped);
            new.capacity_bytes = old.capacity_bytes;
        }
        disk
    }

    /// Turns every sync at `point` into one that does nothing and reports success.
    pub fn skip_sync(&self, point: SyncPoint) {
        self.0.lock().skipped.insert(point);
    }

    /// Injects a fault into operation number `op` (counted from 0).
    pub fn fail_op(&self, op: u64, fault: Fault) {
        self.0.lock().faults.insert(op, fault);
    }

    /// Limits the bytes of written blocks of all files; `None` lifts the limit.
    pub fn set_capacity_bytes(&self, capacity: Option<u64>) {
        self.0.lock().capacity_bytes = capacity;
    }

    /// Bytes of written blocks of all files that have a name.
    pub fn used_bytes(&self) -> u64 {
        self.0.lock().used_bytes()
    }

    /// Bytes written since the disk was made.
    pub fn written_bytes(&self) -> u64 {
        self.0.lock().written_bytes
    }

    /// Operations so far; the next one has this number.
    pub fn op_count(&self) -> u64 {
        self.0.lock().ops.len() as u64
    }

    /// The operations so far.
    pub fn ops(&self) -> Vec<Op> {
        self.0.lock().ops.clone()
    }

    /// Syncs so far at each point, the skipped ones included.
    pub fn syncs(&self) -> BTreeMap<SyncPoint, u64> {
        self.0.lock().syncs.clone()
    }

    /// Digest of all operations so far with the bytes they wrote.
    pub fn trace(&self) -> u64 {
        self.0.lock().trace.finish()
    }

    /// Damages one bit of a file, durably. Nothing happens if that block was never written.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) -> io::Result<()> {
        let mut state = self.0.lock();
        let inode = state.find(path)?;
        state.content_mut(inode)?.flip_bit(offset, bit);
        Ok(())
    }

    /// Paths and lengths of all files.
    pub fn files(&self) -> BTreeMap<PathBuf, u64> {
        let state = self.0.lock();
        let mut files = BTreeMap::new();
        state.walk(ROOT, &mut PathBuf::new(), &mut |path, content| {
            files.insert(path.to_owned(), content.len());
        });
        files
    }

    fn open_file(&self, state: &State, inode: Inode, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        match &state.nodes[&inode] {
            Node::File(_) => Ok(Arc::new(SimFile { disk: self.clone(), inode, path: path.to_owned(), mode })),
            Node::Folder(_) => Err(refused(io::ErrorKind::IsADirectory, path)),
        }
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").field("ops", &self.op_count()).finish_non_exhaustive()
    }
}

/// What becomes of an operation that has been counted.
enum Verdict {
    Perform,
    /// The machine crashes meanwhile: the change is made, but not reported.
    PerformAndCrash,
    Fail(Fault),
}

impl State {
    fn alive(&self) -> io::Result<()> {
        if self.crashed { Err(io::Error::other(Crashed)) } else { Ok(()) }
    }

    fn count(&mut self, op: Op) -> io::Result<Verdict> {
        self.alive()?;
        let number = self.ops.len() as u64;
        op.hash(&mut self.trace);
        self.ops.push(op);
        if self.crash_at == Some(number) {
            self.crashed = true;
            return Ok(Verdict::PerformAndCrash);
        }
        Ok(self.faults.remove(&number).map_or(Verdict::Perform, Verdict::Fail))
    }

    /// Counts an operation and performs it as its verdict says.
    fn perform(&mut self, op: Op, change: impl FnOnce(&mut State)) -> io::Result<()> {
        match self.count(op)? {
            Verdict::Perform => {
                change(self);
                Ok(())
            }
            Verdict::PerformAndCrash => {
                change(self);
                Err(io::Error::other(Crashed))
            }
            Verdict::Fail(fault) => Err(fault.error()),
        }
    }

    fn find(&self, path: &Path) -> io::Result<Inode> {
        let mut inode = ROOT;
        for component in path.components() {
            let name = match component {
                Component::Normal(name) => {
                    name.to_str().ok_or_else(|| refused(io::ErrorKind::InvalidFilename, path))?
                }
                Component::CurDir => continue,
                _ => return Err(refused(io::ErrorKind::InvalidFilename, path)),
            };
            let Node::Folder(folder) = &self.nodes[&inode] else {
                return Err(refused(io::ErrorKind::NotADirectory, path));
            };
            inode = *folder.entries.get(name).ok_or_else(|| refused(io::ErrorKind::NotFound, path))?;
        }
        Ok(inode)
    }

    /// The folder a path lies in, and its name there.
    fn find_parent(&self, path: &Path) -> io::Result<(Inode, String)> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| refused(io::ErrorKind::InvalidFilename, path))?;
        let parent = self.find(path.parent().unwrap_or(Path::new("")))?;
        match self.nodes[&parent] {
            Node::Folder(_) => Ok((parent, name.to_owned())),
            Node::File(_) => Err(refused(io::ErrorKind::NotADirectory, path)),
        }
    }

    fn folder_mut(&mut self, inode: Inode) -> &mut Folder {
        match self.nodes.get_mut(&inode) {
            Some(Node::Folder(folder)) => folder,
            _ => unreachable!("the caller found a folder at {inode:?} under the same lock"),
        }
    }

    fn content(&self, inode: Inode) -> io::Result<&Content> {
        match self.nodes.get(&inode) {
            Some(Node::File(content)) => Ok(content),
            _ => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn content_mut(&mut self, inode: Inode) -> io::Result<&mut Content> {
        match self.nodes.get_mut(&inode) {
            Some(Node::File(content)) => Ok(content),
            _ => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn add(&mut self, node: Node) -> Inode {
        let inode = Inode(self.next_inode);
        self.next_inode += 1;
        self.nodes.insert(inode, node);
        inode
    }

    fn walk(&self, inode: Inode, path: &mut PathBuf, visit: &mut impl FnMut(&Path, &Content)) {
        match &self.nodes[&inode] {
            Node::File(content) => visit(path, content),
            Node::Folder(folder) => {
                for (name, child) in &folder.entries {
                    path.push(name);
                    self.walk(*child, path, visit);
                    path.pop();
                }
            }
        }
    }

    fn used_bytes(&self) -> u64 {
        let mut used = 0;
        self.walk(ROOT, &mut PathBuf::new(), &mut |_, content| used += content.allocated_bytes());
        used
    }

    fn available_bytes(&self) -> u64 {
        self.capacity_bytes.map_or(u64::MAX / 2, |capacity| capacity.saturating_sub(self.used_bytes()))
    }
}

impl Disk for SimDisk {
    fn create(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.0.lock();
        state.alive()?;
        if state.find(path).is_ok() {
            return Err(refused(io::ErrorKind::AlreadyExists, path));
        }
        let (parent, name) = state.find_parent(path)?;
        let inode = state.add(Node::File(Content::default()));
        state.perform(Op::Create(path.to_owned()), |state| state.folder_mut(parent).link(&name, inode))?;
        self.open_file(&state, inode, path, if mode == OpenMode::Read { OpenMode::Write } else { mode })
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.0.lock();
        state.alive()?;
        let inode = state.find(path)?;
        self.open_file(&state, inode, path, mode)
    }

    /// Within one folder only: nothing in the product moves a file between folders, and what a crash leaves of that is not modelled.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.alive()?;
        let inode = state.find(from)?;
        let (from_parent, from_name) = state.find_parent(from)?;
        let (to_parent, to_name) = state.find_parent(to)?;
        if from_parent != to_parent {
            return Err(refused(io::ErrorKind::CrossesDevices, to));
        }
        state.perform(Op::Rename(from.to_owned(), to.to_owned()), |state| {
            state.folder_mut(from_parent).rename(&from_name, &to_name, inode);
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.alive()?;
        let inode = state.find(path)?;
        state.content(inode)?;
        let (parent, name) = state.find_parent(path)?;
        state.perform(Op::Remove(path.to_owned()), |state| state.folder_mut(parent).unlink(&name))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.alive()?;
        let ancestors: Vec<&Path> = path.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        for folder in ancestors.into_iter().rev() {
            match state.find(folder).map(|inode| &state.nodes[&inode]) {
                Ok(Node::Folder(_)) => continue,
                Ok(Node::File(_)) => return Err(refused(io::ErrorKind::AlreadyExists, folder)),
                Err(_) => {}
            }
            let (parent, name) = state.find_parent(folder)?;
            let inode = state.add(Node::Folder(Folder::default()));
            state.perform(Op::CreateDir(folder.to_owned()), |state| state.folder_mut(parent).link(&name, inode))?;
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let state = self.0.lock();
        state.alive()?;
        match &state.nodes[&state.find(path)?] {
            Node::Folder(folder) => Ok(folder.entries.keys().cloned().collect()),
            Node::File(_) => Err(refused(io::ErrorKind::NotADirectory, path)),
        }
    }

    fn sync_dir(&self, path: &Path, point: SyncPoint) -> io::Result<()> {
        let mut state = self.0.lock();
        state.alive()?;
        let inode = state.find(path)?;
        if let Node::File(_) = state.nodes[&inode] {
            return Err(refused(io::ErrorKind::NotADirectory, path));
        }
        *state.syncs.entry(point).or_default() += 1;
        match state.count(Op::SyncDir(path.to_owned(), point))? {
            Verdict::Perform if state.skipped.contains(&point) => Ok(()),
            Verdict::Perform => {
                state.folder_mut(inode).sync();
                Ok(())
            }
            Verdict::PerformAndCrash => Err(io::Error::other(Crashed)),
            Verdict::Fail(fault) => Err(fault.error()),
        }
    }

    fn available_bytes(&self) -> io::Result<u64> {
        let state = self.0.lock();
        state.alive()?;
        Ok(state.available_bytes())
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: Inode,
    path: PathBuf,
    mode: OpenMode,
}

impl SimFile {
    /// The rules of direct I/O, as Linux enforces them.
    fn check_alignment(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let aligned = offset.is_multiple_of(BLOCK as u64)
            && buf.len().is_multiple_of(BLOCK)
            && (buf.as_ptr() as usize).is_multiple_of(BLOCK);
        if self.mode == OpenMode::Direct && !aligned {
            return Err(refused(io::ErrorKind::InvalidInput, &self.path));
        }
        Ok(())
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        let state = self.disk.0.lock();
        state.alive()?;
        Ok(state.content(self.inode)?.len())
    }

    fn is_direct(&self) -> bool {
        self.mode == OpenMode::Direct
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.content(self.inode)?;
        state.perform(Op::SetLen(self.path.clone(), len), |state| {
            if let Ok(content) = state.content_mut(self.inode) {
                content.set_len(len);
            }
        })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.check_alignment(buf, offset)?;
        let state = self.disk.0.lock();
        state.alive()?;
        Ok(state.content(self.inode)?.read(buf, offset))
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check_alignment(buf, offset)?;
        if self.mode == OpenMode::Read {
            return Err(refused(io::ErrorKind::PermissionDenied, &self.path));
        }
        let mut state = self.disk.0.lock();
        state.alive()?;
        if state.content(self.inode)?.bytes_to_allocate(offset, buf.len()) > state.available_bytes() {
            return Err(Fault::NoSpace.error());
        }
        state.written_bytes += buf.len() as u64;
        buf.hash(&mut state.trace);
        let op = Op::Write { path: self.path.clone(), offset, len: buf.len() };
        state.perform(op, |state| {
            if let Ok(content) = state.content_mut(self.inode) {
                content.write(buf, offset);
            }
        })
    }

    fn sync(&self, point: SyncPoint) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.alive()?;
        *state.syncs.entry(point).or_default() += 1;
        match state.count(Op::Sync(self.path.clone(), point))? {
            Verdict::Perform if state.skipped.contains(&point) => Ok(()),
            Verdict::Perform => {
                state.content_mut(self.inode)?.sync();
                Ok(())
            }
            Verdict::PerformAndCrash => Err(io::Error::other(Crashed)),
            Verdict::Fail(fault) => {
                let mut rng = SmallRng::seed_from_u64(state.rng.random());
                state.content_mut(self.inode)?.fail_sync(&mut rng);
                Err(fault.error())
            }
        }
    }
}

impl Fault {
    fn error(self) -> io::Error {
        match self {
            Fault::NoSpace => io::Error::new(io::ErrorKind::StorageFull, "injected: no space left on device"),
            Fault::Io => io::Error::other("injected: input/output error"),
        }
    }
}

fn refused(kind: io::ErrorKind, path: &Path) -> io::Error {
    io::Error::new(kind, format!("`{}`: {kind}", path.display()))
}
