//! (stub, being written)
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use disk::Disk;

use crate::{
    Clock, CreateMode, Created, Expected, MemoryStore, MetadataError, MetadataStore, Node, SessionWatch, Stat, Watch,
};

/// Who performs commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A commit thread; what waits is committed together.
    Threaded,
    /// The calling thread, within the call: no thread and no runtime, for the simulator.
    Inline,
}

/// Counts since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    pub commits: u64,
    pub writes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("metadata I/O failed: {0}")]
    Io(#[from] std::io::Error),
}

/// One durable tree in one file.
pub struct EmbeddedStore {
    stub: MemoryStore,
}

impl EmbeddedStore {
    /// Opens the store in folder `dir` of `disk`, or creates it there.
    pub fn open(_disk: Arc<dyn Disk>, _dir: &Path, clock: Clock, _mode: Mode) -> Result<EmbeddedStore, OpenError> {
        Ok(EmbeddedStore { stub: MemoryStore::with_clock(clock) })
    }

    /// Commits what is queued and closes the file; later calls fail with [`MetadataError::Closed`]. Blocks.
    pub fn close(&self) -> Result<(), MetadataError> {
        Ok(())
    }

    /// Ends the session and starts a new one, as a test or simulation wants it.
    pub async fn expire_session(&self) -> Result<(), MetadataError> {
        self.stub.lose_session();
        self.stub.regain_session();
        Ok(())
    }

    pub fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

#[async_trait]
impl MetadataStore for EmbeddedStore {
    async fn get(&self, path: &str) -> Result<Option<Node>, MetadataError> {
        self.stub.get(path).await
    }
    async fn put(&self, path: &str, value: Bytes, expected: Expected) -> Result<Stat, MetadataError> {
        self.stub.put(path, value, expected).await
    }
    async fn create(&self, path: &str, value: Bytes, mode: CreateMode) -> Result<Created, MetadataError> {
        self.stub.create(path, value, mode).await
    }
    async fn delete(&self, path: &str, expected: Expected) -> Result<(), MetadataError> {
        self.stub.delete(path, expected).await
    }
    async fn delete_recursive(&self, path: &str) -> Result<(), MetadataError> {
        self.stub.delete_recursive(path).await
    }
    async fn children(&self, path: &str) -> Result<Vec<String>, MetadataError> {
        self.stub.children(path).await
    }
    async fn exists(&self, path: &str) -> Result<bool, MetadataError> {
        self.stub.exists(path).await
    }
    fn watch(&self, prefix: &str) -> Watch {
        self.stub.watch(prefix)
    }
    fn session(&self) -> SessionWatch {
        self.stub.session()
    }
}
