use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::OFlags;

use crate::{AlignedBuf, BLOCK, Disk, DiskFile, OpenMode, SyncPoint};

const LOCK_FILE: &str = "LOCK";
const PROBE_FILE: &str = "direct-io.probe";

/// A folder of the operating system's file system, held by this process alone until it is dropped.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
    /// Holds the folder's lock; the kernel releases it when the process ends, however it ends.
    _lock: File,
    direct: OnceLock<bool>,
}

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenDiskError {
    /// Another process holds the folder.
    #[error("data folder `{}` is in use by another process{}: stop that one first, or choose another folder", .root.display(), .holder)]
    InUse {
        /// The folder.
        root: PathBuf,
        /// ` (pid N)`, or empty if it is not known.
        holder: String,
    },
    /// The operating system refused.
    #[error("cannot {tried} `{}`", .path.display())]
    Io {
        /// What was tried.
        tried: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl RealDisk {
    /// Creates the folder if it is missing and takes its lock. On return the folder itself is durable in its parent.
    pub fn open(root: impl Into<PathBuf>) -> Result<RealDisk, OpenDiskError> {
        let root = root.into();
        create_folder_durably(&root).map_err(|source| OpenDiskError::Io {
            tried: "create the data folder",
            path: root.clone(),
            source,
        })?;
        let path = root.join(LOCK_FILE);
        let failed = |tried| {
            let path = path.clone();
            move |source| OpenDiskError::Io { tried, path, source }
        };
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed("open the lock file"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let known = lock.read_to_string(&mut pid).is_ok() && !pid.trim().is_empty();
                let holder = if known { format!(" (pid {})", pid.trim()) } else { String::new() };
                return Err(OpenDiskError::InUse { root, holder });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        // The process id only serves the message above; losing it costs nothing.
        lock.set_len(0).map_err(failed("truncate"))?;
        writeln!(lock, "{}", std::process::id()).map_err(failed("write to"))?;
        Ok(RealDisk { root, _lock: lock, direct: OnceLock::new() })
    }

    /// Whether the file system takes direct writes. Probed once, by writing one block. If it does not, files opened with
    /// [`OpenMode::Direct`] are buffered, which costs several times the CPU: worth one warning.
    pub fn supports_direct(&self) -> bool {
        *self.direct.get_or_init(|| {
            let path = self.root.join(PROBE_FILE);
            let taken = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .custom_flags(direct_flag())
                .open(&path)
                .and_then(|file| file.write_all_at(&AlignedBuf::zeroed(BLOCK), 0));
            let _ = std::fs::remove_file(&path);
            taken.is_ok()
        })
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn open_file(&self, path: &Path, mode: OpenMode, create_new: bool) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(mode != OpenMode::Read || create_new).create_new(create_new);
        let direct = mode == OpenMode::Direct && self.supports_direct();
        if direct {
            options.custom_flags(direct_flag());
        }
        let file = options.open(self.root.join(path)).map_err(|error| name_path(error, path))?;
        Ok(Arc::new(RealFile { file, direct }))
    }
}

fn direct_flag() -> i32 {
    OFlags::DIRECT.bits().cast_signed()
}

/// Names the file in the error, which the operating system does not.
fn name_path(error: io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("`{}`: {error}", path.display()))
}

/// Creates what is missing of `root` from the top down, syncing each parent, so that no later sync inside it is in vain.
fn create_folder_durably(root: &Path) -> io::Result<()> {
    if root.is_dir() {
        return Ok(());
    }
    let parent = match root.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    create_folder_durably(parent)?;
    match std::fs::create_dir(root) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    File::open(parent)?.sync_all()
}

impl Disk for RealDisk {
    fn create(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.open_file(path, mode, true)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.open_file(path, mode, false)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(self.root.join(from), self.root.join(to)).map_err(|error| name_path(error, from))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(self.root.join(path)).map_err(|error| name_path(error, path))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir_all(self.root.join(path)).map_err(|error| name_path(error, path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.root.join(path)).map_err(|error| name_path(error, path))? {
            let name = entry?.file_name().into_string();
            names.push(name.map_err(|name| io::Error::other(format!("file name {name:?} is not UTF-8")))?);
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_dir(&self, path: &Path, _point: SyncPoint) -> io::Result<()> {
        File::open(self.root.join(path)).and_then(|folder| folder.sync_all()).map_err(|error| name_path(error, path))
    }

    fn available_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
    direct: bool,
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.file.read_at(&mut buf[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            // A direct read that ends inside a block has met the end of the file; going on from there would not be aligned.
            if self.direct && !filled.is_multiple_of(BLOCK) {
                break;
            }
        }
        Ok(filled)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }

    fn sync(&self, _point: SyncPoint) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINT: SyncPoint = SyncPoint("test");

    #[test]
    fn what_is_written_is_read_back_in_every_mode() {
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(folder.path().join("a/b")).unwrap();
        disk.create_dir(Path::new("log")).unwrap();
        for mode in [OpenMode::Write, OpenMode::Direct] {
            let path = PathBuf::from(format!("log/{mode:?}"));
            let file = disk.create(&path, mode).unwrap();
            assert_eq!(file.is_direct(), mode == OpenMode::Direct && disk.supports_direct());
            let mut block = AlignedBuf::zeroed(BLOCK);
            block.fill(7);
            file.write_all_at(&block, 4096).unwrap();
            file.sync(POINT).unwrap();
            assert_eq!(file.len().unwrap(), 8192);
            let mut back = AlignedBuf::zeroed(3 * BLOCK);
            assert_eq!(file.read_at(&mut back, 0).unwrap(), 8192);
            assert!(back[..BLOCK].iter().all(|&b| b == 0) && back[BLOCK..2 * BLOCK].iter().all(|&b| b == 7));
            file.set_len(5000).unwrap();
            assert_eq!(file.read_at(&mut back, 4096).unwrap(), 904);
            let exists = disk.create(&path, mode).unwrap_err();
            assert_eq!(exists.kind(), io::ErrorKind::AlreadyExists);
        }
        disk.rename(Path::new("log/Write"), Path::new("log/x")).unwrap();
        disk.sync_dir(Path::new("log"), POINT).unwrap();
        assert_eq!(disk.list(Path::new("log")).unwrap(), ["Direct", "x"]);
        disk.remove(Path::new("log/x")).unwrap();
        let missing = disk.open(Path::new("log/x"), OpenMode::Read).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(missing.to_string().contains("log/x"), "{missing}");
        assert!(disk.available_bytes().unwrap() > 0);
    }

    #[test]
    fn a_folder_in_use_is_refused_with_the_holders_pid() {
        let folder = tempfile::tempdir().unwrap();
        let first = RealDisk::open(folder.path()).unwrap();
        let refused = RealDisk::open(folder.path()).unwrap_err().to_string();
        assert!(refused.contains(&format!("in use by another process (pid {})", std::process::id())), "{refused}");
        drop(first);
        RealDisk::open(folder.path()).unwrap();
    }
}
