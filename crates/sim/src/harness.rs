//! Plays histories on a disk that crashes, and counts what that proved.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Once;

use disk::SyncPoint;
use disk::simulated::{Fault, Op, SimDisk};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::broken::Broken;

/// Something durable that is put to the test: a store, a log, a whole node.
pub trait Subject {
    /// What it promised so far; survives every crash, because the users remember.
    type Promises: Default;

    /// One life on a disk, from opening (or recovery) through a check of all promises and `steps` steps of work to its
    /// end. Returns early when the disk has crashed. Any failure that comes neither from the crash nor from
    /// [`Record::trouble`] is a broken promise.
    fn live(
        disk: &SimDisk,
        promises: &mut Self::Promises,
        rng: &mut SmallRng,
        steps: u32,
        record: &mut Record,
    ) -> Result<(), Broken>;

    /// Files in which a turned bit must be noticed, with their lengths in bytes.
    fn damageable(_disk: &SimDisk) -> Vec<(PathBuf, u64)> {
        Vec::new()
    }
}

/// How often each interesting thing happened: a run in which one never did proves nothing.
pub type Counts = BTreeMap<&'static str, u64>;

/// What is written down about a history while it is played.
#[derive(Debug, Default)]
pub struct Record {
    counts: Counts,
    trouble: Trouble,
    /// Told only when a history that broke a promise is played again.
    story: Option<Vec<String>>,
}

/// What may keep a life from going on although its disk does not crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trouble {
    #[default]
    None,
    /// An operation fails.
    Failing,
    /// There is little room.
    Full,
    /// Bits have turned.
    Damaged,
}

impl Record {
    /// What may make work fail in this life.
    pub fn trouble(&self) -> Trouble {
        self.trouble
    }

    /// There is room again: from now on, all work must succeed.
    pub fn space_is_back(&mut self) {
        self.trouble = Trouble::None;
    }

    /// Something interesting happened.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// A line of the story, if it is told.
    pub fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(line());
        }
    }
}

/// One history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Fixes everything: workload, scheduling, what crashes leave.
    pub seed: u64,
    /// Steps of work in the first life.
    pub steps: u32,
    /// The operation at which the first life is cut; `None`: after its last step.
    pub cut: Option<u64>,
    /// The sync point that does nothing.
    pub skip: Option<SyncPoint>,
    /// An operation of the first life that fails, and how.
    pub fault: Option<(u64, Fault)>,
    /// Room on the disk in the first life, in bytes.
    pub capacity: Option<u64>,
    /// Bits that turn over between the first life and the second, in files that the subject chooses.
    pub flips: u32,
}

/// What a history showed that kept all its promises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Operations of the first life.
    pub ops: Vec<Op>,
    /// Lives that were cut in the middle of an operation.
    pub cuts: u64,
    /// Starts on what an earlier life had left.
    pub recoveries: u64,
    /// Digest of everything that was written, in all lives.
    pub trace: u64,
    /// Syncs by point, in all lives.
    pub syncs: BTreeMap<SyncPoint, u64>,
    pub counts: Counts,
}

/// A history that broke a promise.
#[derive(Clone, Debug)]
pub struct Violation {
    pub plan: Plan,
    /// Which life noticed, counted from 0.
    pub life: usize,
    pub broken: Broken,
    /// What happened, operations of the disk included.
    pub story: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.story {
            writeln!(f, "{line}")?;
        }
        write!(f, "{:?}, life {}: {}", self.plan, self.life, self.broken)
    }
}

/// Steps of the lives after the first: after a crash (or, sometimes, a kill), some more work, another crash, and so on.
/// One only recovers and checks, so that what was shown after a kill meets a crash before anything else makes it durable;
/// so does the last.
const LATER_LIVES: [u32; 4] = [6, 0, 12, 0];

/// Plays one history: the first life is cut as planned, the second is often cut while it still recovers.
pub fn play<S: Subject>(plan: Plan) -> Result<Played, Box<Violation>> {
    let mut record = Record::default();
    play_recorded::<S>(plan, &mut record)
        .map_err(|(life, broken)| Box::new(Violation { plan, life, broken, story: Vec::new() }))
}

/// Plays a history that breaks a promise once more, and tells its story.
pub fn tell<S: Subject>(mut violation: Box<Violation>) -> Box<Violation> {
    let mut record = Record { story: Some(Vec::new()), ..Record::default() };
    let _ = play_recorded::<S>(violation.plan, &mut record);
    violation.story = record.story.unwrap_or_default();
    violation
}

fn play_recorded<S: Subject>(plan: Plan, record: &mut Record) -> Result<Played, (usize, Broken)> {
    // Independent streams, so that one more draw in the workload does not change what crashes leave.
    let stream = |name: &str| {
        let mut hasher = DefaultHasher::new();
        (plan.seed, name).hash(&mut hasher);
        SmallRng::seed_from_u64(hasher.finish())
    };
    let (mut work, mut faults) = (stream("work"), stream("faults"));
    // The same history must meet a different fate at each of its cuts.
    let mut fates = SmallRng::seed_from_u64(faults.random::<u64>() ^ plan.cut.unwrap_or(u64::MAX));

    let mut promises = S::Promises::default();
    let mut played = Played::default();
    let mut trace = DefaultHasher::new();
    let mut disk = SimDisk::new(plan.seed);
    if let Some(point) = plan.skip {
        disk.skip_sync(point);
    }
    if let Some(cut) = plan.cut {
        disk.crash_at(cut);
    }
    if let Some((op, fault)) = plan.fault {
        disk.fail_op(op, fault);
    }
    disk.set_capacity_bytes(plan.capacity);
    record.trouble = match (plan.fault, plan.capacity) {
        (Some(_), _) => Trouble::Failing,
        (None, Some(_)) => Trouble::Full,
        (None, None) => Trouble::None,
    };
    for (life, steps) in [plan.steps].into_iter().chain(LATER_LIVES).enumerate() {
        if life == 1 && fates.random_bool(0.5) {
            disk.crash_at(fates.random_range(0..40));
        }
        let lived = quietly(|| S::live(&disk, &mut promises, &mut work, steps, record));
        record.tell(|| {
            format!("life {life} ends after {} operations; the last: {:?}", disk.op_count(), disk.ops().last())
        });
        if let Err(broken) = lived {
            return Err((life, broken));
        }
        if life == 0 {
            played.ops = disk.ops();
        }
        played.cuts += u64::from(disk.was_cut());
        played.recoveries += u64::from(life > 0);
        disk.trace().hash(&mut trace);
        for (point, times) in disk.syncs() {
            *played.syncs.entry(point).or_default() += times;
        }
        record.trouble = if plan.flips > 0 { Trouble::Damaged } else { Trouble::None };
        let fate = fates.random();
        disk = if fates.random_bool(0.35) {
            record.tell(|| "the process was killed".to_owned());
            disk.after_kill(fate)
        } else {
            record.tell(|| "the machine crashed".to_owned());
            disk.after_crash(fate)
        };
        disk.set_capacity_bytes(None);
        if life == 0 {
            let files = S::damageable(&disk);
            for _ in 0..if files.is_empty() { 0 } else { plan.flips } {
                let (path, len) = &files[fates.random_range(0..files.len())];
                let (offset, bit) = (fates.random_range(0..*len), fates.random_range(0..8));
                record.tell(|| format!("bit {bit} at {offset} of {} turns", path.display()));
                disk.flip_bit(path, offset, bit)
                    .map_err(|error| (life, Broken(format!("cannot damage the disk: {error}"))))?;
            }
        }
    }
    played.trace = trace.finish();
    played.counts = std::mem::take(&mut record.counts);
    Ok(played)
}

/// Runs without printing panics, which break a promise, too: the database asserts when its disk fails, the store catches
/// that, and thousands of backtraces would take most of the time.
fn quietly(run: impl FnOnce() -> Result<(), Broken>) -> Result<(), Broken> {
    thread_local!(static QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    QUIET.set(false);
    result.unwrap_or_else(|panicked| {
        let text = panicked.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panicked.downcast_ref::<&str>().copied()).unwrap_or("no text");
        Err(Broken(format!("panic: {text}")))
    })
}

/// What many histories showed together.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub histories: u64,
    pub cuts: u64,
    pub recoveries: u64,
    pub syncs: BTreeMap<SyncPoint, u64>,
    pub counts: Counts,
}

impl Tally {
    /// Adds one history.
    pub fn add(&mut self, played: &Played) {
        self.histories += 1;
        self.cuts += played.cuts;
        self.recoveries += played.recoveries;
        for (point, times) in &played.syncs {
            *self.syncs.entry(*point).or_default() += times;
        }
        for (what, times) in &played.counts {
            *self.counts.entry(what).or_default() += times;
        }
    }
}

/// Cuts the history of one seed at every operation.
pub fn cut_everywhere<S: Subject>(plan: Plan, tally: &mut Tally) -> Result<(), Box<Violation>> {
    let whole = play::<S>(Plan { cut: None, ..plan })?;
    tally.add(&whole);
    for cut in 0..whole.ops.len() as u64 {
        tally.add(&play::<S>(Plan { cut: Some(cut), ..plan })?);
    }
    Ok(())
}

/// Plays histories with one sync left out until one breaks a promise; `None` if none of them does.
///
/// Half of the cuts fall behind a sync that was left out; the others hit every kind of operation equally often, however
/// rare it is.
pub fn find_missing_sync<S: Subject>(
    point: SyncPoint,
    steps: u32,
    seeds: impl IntoIterator<Item = u64>,
    cuts_per_seed: u64,
) -> Option<Box<Violation>> {
    for seed in seeds {
        let plan = Plan { seed, steps, skip: Some(point), ..Plan::default() };
        let ops = match play::<S>(plan) {
            Ok(played) => played.ops,
            Err(violation) => return Some(violation),
        };
        let mut kinds = BTreeMap::<String, Vec<u64>>::new();
        let mut behind = Vec::new();
        for (number, op) in (0..).zip(&ops) {
            kinds.entry(kind(op)).or_default().push(number);
            if matches!(op, Op::Sync(_, at) | Op::SyncDir(_, at) if *at == point) {
                behind.extend(number + 1..(number + 8).min(ops.len() as u64));
            }
        }
        let kinds: Vec<Vec<u64>> = kinds.into_values().collect();
        let mut rng = SmallRng::seed_from_u64(seed);
        for _ in 0..cuts_per_seed {
            let any = &kinds[rng.random_range(0..kinds.len())];
            let from = if behind.is_empty() || rng.random_bool(0.5) { any } else { &behind };
            let cut = Some(from[rng.random_range(0..from.len())]);
            if let Err(violation) = play::<S>(Plan { cut, ..plan }) {
                return Some(violation);
            }
        }
    }
    None
}

/// Operations that are alike.
fn kind(op: &Op) -> String {
    let folder = |path: &Path| path.parent().unwrap_or(path).display().to_string();
    match op {
        Op::Create(path) => format!("create {}", folder(path)),
        Op::CreateDir(_) => "create folder".to_owned(),
        Op::Rename(path, _) => format!("rename {}", folder(path)),
        Op::Remove(path) => format!("remove {}", folder(path)),
        Op::Write { path, .. } => format!("write {}", folder(path)),
        Op::SetLen(path, _) => format!("set length {}", folder(path)),
        Op::Sync(_, point) | Op::SyncDir(_, point) => format!("sync {}", point.0),
    }
}
