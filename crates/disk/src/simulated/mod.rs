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

mod fate;
mod file;
mod folder;
mod seam;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use self::fate::Fate;
use self::file::Content;
use self::folder::{Folder, Inode};
use crate::SyncPoint;

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
