use std::io;
use std::path::Path;
use std::sync::Arc;

use disk::{Disk, DiskFile, OpenMode, SyncPoint};
use parking_lot::Mutex;

/// A disk that hands the writes between two syncs of a file on in the order of their offsets.
///
/// The database under the metadata store writes a commit's pages in the order of a hash table, which is another one in every
/// run; the same seed would not give the same history. No promise is lost: between syncs the order means nothing.
pub(crate) struct SortedWrites(pub(crate) Arc<dyn Disk>);

#[derive(Debug)]
struct SortedFile {
    file: Arc<dyn DiskFile>,
    held_back: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl SortedWrites {
    fn wrap(file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(SortedFile { file, held_back: Mutex::default() })
    }
}

impl SortedFile {
    fn flush(&self) -> io::Result<()> {
        let mut writes = std::mem::take(&mut *self.held_back.lock());
        writes.sort_by_key(|(offset, _)| *offset); // Stable: two writes of one place keep their order.
        writes.iter().try_for_each(|(offset, bytes)| self.file.write_all_at(bytes, *offset))
    }
}

impl Disk for SortedWrites {
    fn create(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.0.create(path, mode).map(SortedWrites::wrap)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.0.open(path, mode).map(SortedWrites::wrap)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.0.list(path)
    }
    fn sync_dir(&self, path: &Path, point: SyncPoint) -> io::Result<()> {
        self.0.sync_dir(path, point)
    }
    fn available_bytes(&self) -> io::Result<u64> {
        self.0.available_bytes()
    }
}

impl DiskFile for SortedFile {
    fn len(&self) -> io::Result<u64> {
        self.flush()?;
        self.file.len()
    }
    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.flush()?;
        self.file.set_len(len)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.flush()?;
        self.file.read_at(buf, offset)
    }
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.held_back.lock().push((offset, buf.to_vec()));
        Ok(())
    }
    fn sync(&self, point: SyncPoint) -> io::Result<()> {
        self.flush()?;
        self.file.sync(point)
    }
}
