//! The rules of the tree: what each operation checks, changes and announces. Every local store runs this one
//! implementation over its own [`Space`].

use std::sync::Arc;

use bytes::Bytes;

use crate::path::{self, parent_of};
use crate::{CreateMode, Created, Event, Expected, MAX_VALUE_BYTES, MetadataError, Node, Stat};

/// One write.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Put {
        path: String,
        value: Bytes,
        expected: Expected,
    },
    Create {
        path: String,
        value: Bytes,
        mode: CreateMode,
        session: u64,
    },
    Delete {
        path: String,
        expected: Expected,
    },
    DeleteRecursive {
        path: String,
    },
    /// The session is over: its nodes go.
    EndSession {
        session: u64,
    },
}

impl Op {
    pub(crate) fn put(path: &str, value: Bytes, expected: Expected) -> Result<Op, MetadataError> {
        path::check_writable(path)?;
        check_size(path, &value)?;
        Ok(Op::Put { path: path.into(), value, expected })
    }

    pub(crate) fn create(path: &str, value: Bytes, mode: CreateMode, session: u64) -> Result<Op, MetadataError> {
        if mode.is_sequential() {
            path::check_sequential(path)?
        } else {
            path::check_writable(path)?
        }
        check_size(path, &value)?;
        Ok(Op::Create { path: path.into(), value, mode, session })
    }

    pub(crate) fn delete(path: &str, expected: Expected) -> Result<Op, MetadataError> {
        path::check_writable(path)?;
        Ok(Op::Delete { path: path.into(), expected })
    }

    pub(crate) fn delete_recursive(path: &str) -> Result<Op, MetadataError> {
        path::check_writable(path)?;
        Ok(Op::DeleteRecursive { path: path.into() })
    }

    /// Roughly what it occupies while it waits.
    pub(crate) fn bytes(&self) -> usize {
        const OVERHEAD: usize = 256;
        OVERHEAD
            + match self {
                Op::Put { path, value, .. } | Op::Create { path, value, .. } => path.len() + value.len(),
                Op::Delete { path, .. } | Op::DeleteRecursive { path } => path.len(),
                Op::EndSession { .. } => 0,
            }
    }

    /// Whether it can make the store larger for good.
    pub(crate) fn grows(&self) -> bool {
        matches!(self, Op::Put { .. } | Op::Create { .. })
    }
}

fn check_size(path: &str, value: &Bytes) -> Result<(), MetadataError> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(MetadataError::TooLarge { path: path.into(), size: value.len() });
    }
    Ok(())
}

/// What an operation answers.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Stat(Stat),
    Created(Created),
    Done,
}

impl Reply {
    pub(crate) fn into_stat(self) -> Stat {
        match self {
            Reply::Stat(stat) => stat,
            other => unreachable!("put answered {other:?}"),
        }
    }

    pub(crate) fn into_created(self) -> Created {
        match self {
            Reply::Created(created) => created,
            other => unreachable!("create answered {other:?}"),
        }
    }
}

/// A node as kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) version: i64,
    pub(crate) created_ms: u64,
    pub(crate) modified_ms: u64,
    /// Session that an ephemeral node belongs to.
    pub(crate) owner: Option<u64>,
    pub(crate) value: Bytes,
}

impl Record {
    pub(crate) fn stat(&self, session: u64) -> Stat {
        Stat {
            version: self.version,
            created_ms: self.created_ms,
            modified_ms: self.modified_ms,
            ephemeral: self.owner.is_some(),
            mine: self.owner == Some(session),
        }
    }

    pub(crate) fn into_node(self, session: u64) -> Node {
        Node { stat: self.stat(session), value: self.value }
    }
}

/// The root, which is there without being kept.
pub(crate) fn root() -> Record {
    Record { version: 0, created_ms: 0, modified_ms: 0, owner: None, value: Bytes::new() }
}

/// Where nodes are kept. `E` is a failure of the space itself.
pub(crate) trait Space {
    type Error;
    fn get(&self, path: &str) -> Result<Option<Record>, Self::Error>;
    fn exists(&self, path: &str) -> Result<bool, Self::Error>;
    fn has_children(&self, path: &str) -> Result<bool, Self::Error>;
    /// Everything below `path`, without `path`, nearest first.
    fn descendants(&self, path: &str) -> Result<Vec<String>, Self::Error>;
    /// Nodes of one session.
    fn ephemerals(&self, session: u64) -> Result<Vec<String>, Self::Error>;
    fn put(&mut self, path: &str, record: &Record) -> Result<(), Self::Error>;
    fn remove(&mut self, path: &str) -> Result<(), Self::Error>;
    /// The next number below `parent`; each is returned once, whatever is deleted in between.
    fn next_number(&mut self, parent: &str) -> Result<u64, Self::Error>;
}

/// Why an operation did not happen.
#[derive(Debug)]
pub(crate) enum Fault<E> {
    /// By the rules; nothing was changed.
    Refused(MetadataError),
    /// The space failed and may be half changed: the caller throws the whole transaction away.
    Space(E),
}

impl<E> From<E> for Fault<E> {
    fn from(error: E) -> Fault<E> {
        Fault::Space(error)
    }
}

/// The situation in which operations are applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) ms: u64,
    /// Sessions other than this one are over, or (in a shared tree) not the caller's.
    pub(crate) session: u64,
}

/// Checks and performs one operation, and appends what watchers should hear.
pub(crate) fn apply<S: Space>(
    space: &mut S,
    op: &Op,
    now: Now,
    events: &mut Vec<Event>,
) -> Result<Reply, Fault<S::Error>> {
    match op {
        Op::Put { path, value, expected } => put(space, path, value, *expected, now, events).map(Reply::Stat),
        Op::Create { session, .. } if *session != now.session => Err(Fault::Refused(MetadataError::SessionLost)),
        Op::Create { path, value, mode, .. } => create(space, path, value, *mode, now, events).map(Reply::Created),
        Op::Delete { path, expected } => delete(space, path, *expected, events).map(|()| Reply::Done),
        Op::DeleteRecursive { path } => {
            let mut doomed = space.descendants(path)?;
            if space.exists(path)? {
                doomed.insert(0, path.clone());
            }
            for path in doomed.iter().rev() {
                remove(space, path, events)?;
            }
            Ok(Reply::Done)
        }
        Op::EndSession { session } => {
            for path in space.ephemerals(*session)? {
                remove(space, &path, events)?;
            }
            Ok(Reply::Done)
        }
    }
}

fn put<S: Space>(
    space: &mut S,
    path: &str,
    value: &Bytes,
    expected: Expected,
    now: Now,
    events: &mut Vec<Event>,
) -> Result<Stat, Fault<S::Error>> {
    let found = space.get(path)?;
    check_version(path, expected, found.as_ref())?;
    match found {
        Some(found) => {
            let version = found.version + 1;
            let record = Record { version, modified_ms: now.ms, value: value.clone(), ..found };
            space.put(path, &record)?;
            events.push(Event::Modified { path: path.into() });
            Ok(record.stat(now.session))
        }
        None => add(space, path, value, None, now, events),
    }
}

fn create<S: Space>(
    space: &mut S,
    path: &str,
    value: &Bytes,
    mode: CreateMode,
    now: Now,
    events: &mut Vec<Event>,
) -> Result<Created, Fault<S::Error>> {
    let path = if mode.is_sequential() {
        // A refused creation must not use up a number's parent: check before taking one.
        let parent = parent_of(path).expect("a sequential path starts with `/` and is checked");
        check_parents(space, path)?;
        loop {
            let numbered = format!("{path}{:010}", space.next_number(parent)?);
            if !space.exists(&numbered)? {
                break numbered;
            }
        }
    } else {
        check_version(path, Expected::Absent, space.get(path)?.as_ref())?;
        path.to_owned()
    };
    let owner = mode.is_ephemeral().then_some(now.session);
    let stat = add(space, &path, value, owner, now, events)?;
    Ok(Created { path, stat })
}

fn delete<S: Space>(
    space: &mut S,
    path: &str,
    expected: Expected,
    events: &mut Vec<Event>,
) -> Result<(), Fault<S::Error>> {
    let Some(found) = space.get(path)? else {
        return Err(Fault::Refused(MetadataError::NotFound { path: path.into() }));
    };
    check_version(path, expected, Some(&found))?;
    if space.has_children(path)? {
        return Err(Fault::Refused(MetadataError::NotEmpty { path: path.into() }));
    }
    Ok(remove(space, path, events)?)
}

fn check_version<E>(path: &str, expected: Expected, found: Option<&Record>) -> Result<(), Fault<E>> {
    let found = found.map(|record| record.version);
    let as_expected = match expected {
        Expected::Any => true,
        Expected::Absent => found.is_none(),
        Expected::Version(version) => found == Some(version),
    };
    if as_expected {
        return Ok(());
    }
    Err(Fault::Refused(MetadataError::BadVersion { path: path.into(), expected, found }))
}

/// An ephemeral node has no children; the missing ancestors that this finds are returned, nearest first.
fn check_parents<S: Space>(space: &S, path: &str) -> Result<Vec<String>, Fault<S::Error>> {
    let mut missing = Vec::new();
    let mut at = path;
    while let Some(parent) = parent_of(at).filter(|parent| *parent != "/") {
        match space.get(parent)? {
            Some(found) if found.owner.is_some() => {
                return Err(Fault::Refused(MetadataError::EphemeralParent { path: parent.into() }));
            }
            Some(_) => break,
            None => missing.push(parent.to_owned()),
        }
        at = parent;
    }
    Ok(missing)
}

/// Adds a node that is known to be absent, its missing parents first.
fn add<S: Space>(
    space: &mut S,
    path: &str,
    value: &Bytes,
    owner: Option<u64>,
    now: Now,
    events: &mut Vec<Event>,
) -> Result<Stat, Fault<S::Error>> {
    let fresh = |value: Bytes, owner| Record { version: 0, created_ms: now.ms, modified_ms: now.ms, owner, value };
    for parent in check_parents(space, path)?.iter().rev() {
        space.put(parent, &fresh(Bytes::new(), None))?;
        announce_birth(parent, events);
    }
    let record = fresh(value.clone(), owner);
    space.put(path, &record)?;
    announce_birth(path, events);
    Ok(record.stat(now.session))
}

fn announce_birth(path: &str, events: &mut Vec<Event>) {
    events.push(Event::Created { path: path.into() });
    announce_parent(path, events);
}

fn remove<S: Space>(space: &mut S, path: &str, events: &mut Vec<Event>) -> Result<(), S::Error> {
    space.remove(path)?;
    events.push(Event::Deleted { path: path.into() });
    announce_parent(path, events);
    Ok(())
}

fn announce_parent(path: &str, events: &mut Vec<Event>) {
    if let Some(parent) = parent_of(path) {
        events.push(Event::ChildrenChanged { path: Arc::from(parent) });
    }
}
