//! The simulated disk behind the seam's traits.

use std::hash::Hash;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::file::Content;
use super::folder::{Folder, Inode};
use super::{Crashed, Fault, Node, Op, SimDisk, State, Verdict, refused};
use crate::{BLOCK, Disk, DiskFile, OpenMode, SyncPoint};

impl SimDisk {
    fn open_file(&self, state: &State, inode: Inode, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        match &state.nodes[&inode] {
            Node::File(_) => Ok(Arc::new(SimFile { disk: self.clone(), inode, path: path.to_owned(), mode })),
            Node::Folder(_) => Err(refused(io::ErrorKind::IsADirectory, path)),
        }
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
