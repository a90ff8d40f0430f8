use std::collections::BTreeMap;

use rand::rngs::SmallRng;

use super::Fate;

/// Names a file or folder of the simulated disk whatever its path is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Inode(pub(super) u64);

/// The entries of one folder: what a process sees, what is durable, and the changes in between.
#[derive(Clone, Default)]
pub(super) struct Folder {
    pub(super) entries: BTreeMap<String, Inode>,
    durable: BTreeMap<String, Inode>,
    /// Changes since the last sync, oldest first. Each may have reached the medium, or not.
    unsynced: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Link {
        name: String,
        inode: Inode,
    },
    Unlink {
        name: String,
    },
    /// One step, as every journaling file system has it: never half of it.
    Rename {
        from: String,
        to: String,
        inode: Inode,
    },
}

impl Folder {
    pub(super) fn link(&mut self, name: &str, inode: Inode) {
        self.change(Change::Link { name: name.to_owned(), inode });
    }

    pub(super) fn unlink(&mut self, name: &str) {
        self.change(Change::Unlink { name: name.to_owned() });
    }

    pub(super) fn rename(&mut self, from: &str, to: &str, inode: Inode) {
        self.change(Change::Rename { from: from.to_owned(), to: to.to_owned(), inode });
    }

    pub(super) fn sync(&mut self) {
        self.durable.clone_from(&self.entries);
        self.unsynced.clear();
    }

    /// What a machine finds after a crash: any subset of the unsynced changes.
    pub(super) fn after_crash(&self, fate: &Fate, rng: &mut SmallRng) -> Folder {
        let mut entries = self.durable.clone();
        let prefix = fate.pick(self.unsynced.len(), rng);
        for (n, change) in self.unsynced.iter().enumerate() {
            if fate.keeps(n < prefix, rng) {
                apply(&mut entries, change);
            }
        }
        Folder { durable: entries.clone(), entries, unsynced: Vec::new() }
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.entries, &change);
        self.unsynced.push(change);
    }
}

fn apply(entries: &mut BTreeMap<String, Inode>, change: &Change) {
    match change {
        Change::Link { name, inode } => {
            entries.insert(name.clone(), *inode);
        }
        Change::Unlink { name } => {
            entries.remove(name);
        }
        Change::Rename { from, to, inode } => {
            if entries.get(from) == Some(inode) {
                entries.remove(from);
            }
            entries.insert(to.clone(), *inode);
        }
    }
}
