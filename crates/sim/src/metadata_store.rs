//! The embedded metadata store alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use disk::simulated::SimDisk;
use metadata::{CreateMode, EmbeddedStore, Expected, MetadataError, MetadataStore, Mode};
use rand::Rng;
use rand::rngs::SmallRng;

use crate::broken::{Broken, promise};
use crate::executor;
use crate::harness::{Record, Subject};
use crate::sorted_writes::SortedWrites;

/// Puts, deletions, numbered and ephemeral nodes, one after another.
pub struct MetadataHistory;

type Tree = BTreeMap<String, Bytes>;

/// The nodes that must be there, and the write whose outcome is open.
#[derive(Debug, Default)]
pub struct MetadataPromises {
    sure: Tree,
    /// The tree with the open write.
    maybe: Option<Tree>,
    /// Numbers below this have been given out.
    next_number: u64,
}

const FOLDER: &str = "data/metadata";

impl Subject for MetadataHistory {
    type Promises = MetadataPromises;

    fn live(
        disk: &SimDisk,
        promises: &mut MetadataPromises,
        rng: &mut SmallRng,
        steps: u32,
        record: &mut Record,
    ) -> Result<(), Broken> {
        let opened = EmbeddedStore::open(
            Arc::new(SortedWrites(Arc::new(disk.clone()))),
            Path::new(FOLDER),
            Arc::new(|| 1),
            Mode::Inline,
        );
        let store = match opened {
            Ok(store) => store,
            Err(_) if disk.has_crashed() => return Ok(()),
            Err(error) => return Err(Broken(format!("the metadata store does not open: {error}"))),
        };
        let lived = live(&store, disk, promises, rng, steps, record);
        if rng.random_bool(0.5) {
            // Otherwise dropping the store would close it in order.
            disk.crash_now();
        }
        lived
    }
}

fn live(
    store: &EmbeddedStore,
    disk: &SimDisk,
    promises: &mut MetadataPromises,
    rng: &mut SmallRng,
    steps: u32,
    record: &mut Record,
) -> Result<(), Broken> {
    let Some(found) = read_tree(store) else {
        promise!(disk.has_crashed(), "the metadata store cannot be read");
        return Ok(());
    };
    promise!(
        found == promises.sure || promises.maybe.as_ref() == Some(&found),
        "nodes found: {:?}, promised: {:?}, open: {:?}",
        found.keys(),
        promises.sure.keys(),
        promises.maybe.as_ref().map(|tree| tree.keys())
    );
    promises.sure = found;
    promises.maybe = None;
    for _ in 0..steps {
        if !step(store, promises, rng, record)? {
            promise!(disk.has_crashed(), "the metadata store failed on a healthy disk");
            return Ok(());
        }
    }
    Ok(())
}

/// Everything below the root except parents; ephemeral nodes of an earlier life must be gone.
fn read_tree(store: &EmbeddedStore) -> Option<Tree> {
    let mut tree = Tree::new();
    let mut folders = vec!["/".to_owned()];
    while let Some(folder) = folders.pop() {
        for name in now(store.children(&folder)).ok()? {
            let path = if folder == "/" { format!("/{name}") } else { format!("{folder}/{name}") };
            let node = now(store.get(&path)).ok()??;
            if !node.value.is_empty() {
                tree.insert(path.clone(), node.value);
            }
            folders.push(path);
        }
    }
    Some(tree)
}

/// One write; false if it failed for a reason that only a crash can have.
fn step(
    store: &EmbeddedStore,
    promises: &mut MetadataPromises,
    rng: &mut SmallRng,
    record: &mut Record,
) -> Result<bool, Broken> {
    let path = format!("/t/{}/{}", rng.random_range(0..3), rng.random_range(0..8));
    let long = rng.random_bool(0.1);
    let value = Bytes::from(vec![rng.random_range(1..=255); if long { 200_000 } else { rng.random_range(1..500) }]);
    let mut after = promises.sure.clone();
    let done = match rng.random_range(0..10) {
        0..5 => {
            after.insert(path.clone(), value.clone());
            promises.maybe = Some(after.clone());
            record.count("put");
            now(store.put(&path, value, Expected::Any)).map(drop)
        }
        5..7 => {
            let there = after.remove(&path).is_some();
            promises.maybe = Some(after.clone());
            match now(store.delete(&path, Expected::Any)) {
                Err(error) if error.is_not_found() => {
                    promise!(!there, "node `{path}` was promised, and is not there to be deleted");
                    Ok(())
                }
                other => {
                    record.count("delete");
                    other
                }
            }
        }
        7..9 => {
            record.count("numbered");
            // The number is not known before the answer, so the node is deleted again and only the number is checked.
            match now(store.create("/numbered/n-", Bytes::new(), CreateMode::PersistentSequential)) {
                Ok(created) => {
                    let number = created.path.rsplit('-').next().and_then(|number| number.parse::<u64>().ok());
                    let number = number.ok_or_else(|| Broken(format!("`{}` has no number", created.path)))?;
                    promise!(number >= promises.next_number, "number {number} was given out twice");
                    promises.next_number = number + 1;
                    now(store.delete(&created.path, Expected::Any))
                }
                Err(error) => Err(error),
            }
        }
        _ => {
            record.count("ephemeral");
            let created = now(store.create("/gone/e", Bytes::from_static(b"x"), CreateMode::Ephemeral));
            created.map(drop).or_else(|error| if error.is_bad_version() { Ok(()) } else { Err(error) })
        }
    };
    if let Err(error) = done {
        promise!(
            matches!(
                error,
                MetadataError::OutcomeUnknown { .. } | MetadataError::Io(_) | MetadataError::Stopped { .. }
            ),
            "{error}"
        );
        return Ok(false);
    }
    promises.sure = after;
    promises.maybe = None;
    Ok(true)
}

/// In inline mode every answer is there at once.
fn now<T>(answer: impl Future<Output = Result<T, MetadataError>>) -> Result<T, MetadataError> {
    executor::run(answer, 1, || ()).expect("an inline store answers at once")
}
