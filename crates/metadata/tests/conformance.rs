//! Every rule of the trait against every store.

mod common;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use common::{block_on, clock, now};
use disk::simulated::SimDisk;
use disk::{Disk, RealDisk};
use metadata::conformance::{RULES, Subject};
use metadata::{EmbeddedStore, MemoryStore, MetadataStore, Mode};
use parking_lot::Mutex;

struct Memory(Mutex<Arc<MemoryStore>>);

#[async_trait]
impl Subject for Memory {
    fn store(&self) -> Arc<dyn MetadataStore> {
        self.0.lock().clone()
    }

    async fn expire_session(&self) {
        let store = self.0.lock().clone();
        store.lose_session();
        store.regain_session();
    }

    async fn restart(&self) {
        let mut store = self.0.lock();
        let next = store.connect();
        store.lose_session();
        *store = Arc::new(next);
    }
}

struct Embedded {
    disk: Arc<dyn Disk>,
    mode: Mode,
    store: Mutex<Option<Arc<EmbeddedStore>>>,
}

impl Embedded {
    fn new(disk: Arc<dyn Disk>, mode: Mode) -> Embedded {
        let store = Embedded::open(&disk, mode);
        Embedded { disk, mode, store: Mutex::new(Some(store)) }
    }

    fn open(disk: &Arc<dyn Disk>, mode: Mode) -> Arc<EmbeddedStore> {
        Arc::new(EmbeddedStore::open(disk.clone(), Path::new("metadata"), clock(), mode).expect("the store opens"))
    }

    fn current(&self) -> Arc<EmbeddedStore> {
        self.store.lock().clone().expect("a store is open")
    }
}

#[async_trait]
impl Subject for Embedded {
    fn store(&self) -> Arc<dyn MetadataStore> {
        self.current()
    }

    async fn expire_session(&self) {
        let store = self.current();
        store.expire_session().await.expect("a session can end");
    }

    async fn restart(&self) {
        let mut store = self.store.lock();
        store.take().expect("a store is open").close().expect("a healthy store closes");
        *store = Some(Embedded::open(&self.disk, self.mode));
    }
}

#[test]
fn memory() {
    for (name, rule) in RULES {
        println!("{name}");
        now(rule(&Memory(Mutex::new(Arc::new(MemoryStore::new())))));
    }
}

#[test]
fn embedded_with_its_thread() {
    for (name, rule) in RULES {
        println!("{name}");
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
        block_on(rule(&Embedded::new(disk, Mode::Threaded)));
    }
}

#[test]
fn embedded_inline() {
    for (name, rule) in RULES {
        println!("{name}");
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
        now(rule(&Embedded::new(disk, Mode::Inline)));
    }
}

#[test]
fn embedded_on_the_simulated_disk() {
    for (name, rule) in RULES {
        println!("{name}");
        now(rule(&Embedded::new(Arc::new(SimDisk::new(1)), Mode::Inline)));
    }
}
