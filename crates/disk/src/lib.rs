//! The seam between everything durable and the operating system's files.
//!
//! What lives here: the [`Disk`] and [`DiskFile`] traits, the real file system behind them ([`RealDisk`]), and (in
//! `simulated`) a disk that loses, reorders and tears whatever was not synced. Log, metadata and cursors reach files
//! only through this seam, so that the simulated disk can prove that no sync is missing.
//!
//! What this room must never know: formats, ledgers, topics.
//!
//! Read first: [`Disk`], [`DiskFile`], [`SyncPoint`]. Tests: beside the code, and `tests/simulated.rs` for the simulated
//! disk, which is held to its promises by random histories.

mod aligned;
mod real;
pub mod simulated;

use std::io;
use std::path::Path;
use std::sync::Arc;

pub use aligned::AlignedBuf;
pub use real::{OpenDiskError, RealDisk};

/// Names one place in the product where a sync is issued, so that a test can leave out exactly that one and must
/// then find data lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SyncPoint(pub &'static str);

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reads only, through the page cache.
    Read,
    /// Reads and writes through the page cache.
    Write,
    /// Reads and writes around the page cache where the file system allows it, else as [`OpenMode::Write`]
    /// (see [`DiskFile::is_direct`]). Buffers, offsets and lengths must be multiples of [`BLOCK`].
    Direct,
}

/// Alignment, in bytes, of direct I/O. A power cut may keep any part of an unsynced block, by sectors of 512 bytes.
pub const BLOCK: usize = 4096;

/// A folder tree. Paths are relative to its root. All calls block.
pub trait Disk: Send + Sync + 'static {
    /// Creates a new empty file; fails with `AlreadyExists` if there is one. The directory entry is durable only
    /// after [`Disk::sync_dir`].
    fn create(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file; `NotFound` if there is none.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames over whatever is at `to`. Durable only after [`Disk::sync_dir`] of the folders.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file. Durable only after [`Disk::sync_dir`].
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Creates a folder and its parents; no error if it exists.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Names (not paths) in a folder, sorted; `NotFound` if there is no such folder.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Makes the folder's entries durable.
    fn sync_dir(&self, path: &Path, point: SyncPoint) -> io::Result<()>;
    /// Bytes a process may still write.
    fn available_bytes(&self) -> io::Result<u64>;
}

/// One open file. Positioned calls only; safe to share between threads.
pub trait DiskFile: Send + Sync + std::fmt::Debug + 'static {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Whether writes go around the page cache.
    fn is_direct(&self) -> bool;
    /// Sets the length; new bytes read as zero.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Fills `buf` from `offset`; returns the bytes read, fewer than `buf.len()` only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `buf` at `offset`.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// fdatasync: on return everything written before is durable, and so is the length.
    fn sync(&self, point: SyncPoint) -> io::Result<()>;
}
