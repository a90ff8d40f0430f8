//! Plays histories on a disk that crashes, and counts what that proved.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use disk::SyncPoint;
use disk::simulated::{Op, SimDisk};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::broken::Broken;

/// Something durable that is put to the test: a store, a log, a whole node.
pub trait Subject {
    /// What it promised so far; survives every crash, because the users remember.
    type Promises: Default;

    /// One life on a disk, from opening (or recovery) through a check of all promises and `steps` steps of work to its end. Returns early when the disk
    /// has crashed. Any failure that does not come from the crash is a broken promise.
    fn live(
        disk: &SimDisk,
        promises: &mut Self::Promises,
        rng: &mut SmallRng,
        steps: u32,
        counts: &mut Counts,
    ) -> Result<(), Broken>;
}

/// How often each interesting thing happened: a run in which one never did proves nothing.
pub type Counts = BTreeMap<&'static str, u64>;

/// One history.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Fixes everything: workload, scheduling, what crashes leave.
    pub seed: u64,
    /// Steps of work in the first life.
    pub steps: u32,
    /// The operation at which the first life is cut; `None`: after its last step.
    pub cut: Option<u64>,
    /// The sync point that does nothing.
    pub skip: Option<SyncPoint>,
}

/// What a history showed that kept all its promises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Operations of the first life.
    pub first_ops: u64,
    /// Lives that ended in a crash.
    pub cuts: u64,
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
    /// The last operations before the crash of the life before.
    pub last_ops: Vec<Op>,
}

/// Steps of the lives after the first: after a crash, some more work, another crash, and so on; the last only checks.
const LATER_LIVES: [u32; 3] = [6, 12, 0];

/// Plays one history: the first life is cut as planned, the second is often cut while it still recovers.
pub fn play<S: Subject>(plan: Plan) -> Result<Played, Box<Violation>> {
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
    let mut last_ops = Vec::new();
    let mut disk = SimDisk::new(plan.seed);
    if let Some(point) = plan.skip {
        disk.skip_sync(point);
    }
    if let Some(cut) = plan.cut {
        disk.crash_at(cut);
    }
    for (life, steps) in [plan.steps].into_iter().chain(LATER_LIVES).enumerate() {
        if life == 1 && fates.random_bool(0.5) {
            disk.crash_at(fates.random_range(0..40));
        }
        let lived = quietly(|| S::live(&disk, &mut promises, &mut work, steps, &mut played.counts));
        if let Err(broken) = lived {
            return Err(Box::new(Violation { plan, life, broken, last_ops }));
        }
        if life == 0 {
            played.first_ops = disk.op_count();
        }
        played.cuts += u64::from(disk.has_crashed());
        disk.trace().hash(&mut trace);
        for (point, times) in disk.syncs() {
            *played.syncs.entry(point).or_default() += times;
        }
        let ops = disk.ops();
        last_ops = ops[ops.len().saturating_sub(12)..].to_vec();
        disk = disk.after_crash(fates.random());
    }
    played.trace = trace.finish();
    Ok(played)
}

/// Runs without printing panics: the database asserts when its disk fails, the store catches that, and thousands of
/// backtraces would take most of the time.
fn quietly<T>(run: impl FnOnce() -> T) -> T {
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
        panic!("the product panicked: {text}")
    })
}

/// What many histories showed together.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub histories: u64,
    pub cuts: u64,
    pub syncs: BTreeMap<SyncPoint, u64>,
    pub counts: Counts,
}

impl Tally {
    /// Adds one history.
    pub fn add(&mut self, played: &Played) {
        self.histories += 1;
        self.cuts += played.cuts;
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
    for cut in 0..whole.first_ops {
        tally.add(&play::<S>(Plan { cut: Some(cut), ..plan })?);
    }
    Ok(())
}

/// Plays histories with one sync left out until one breaks a promise; `None` if none of them does.
pub fn find_missing_sync<S: Subject>(
    point: SyncPoint,
    steps: u32,
    seeds: impl IntoIterator<Item = u64>,
    cuts_per_seed: u64,
) -> Option<Box<Violation>> {
    for seed in seeds {
        let plan = Plan { seed, steps, cut: None, skip: Some(point) };
        let ops = match play::<S>(plan) {
            Ok(played) => played.first_ops,
            Err(violation) => return Some(violation),
        };
        let mut rng = SmallRng::seed_from_u64(seed);
        for _ in 0..cuts_per_seed {
            let cut = Some(rng.random_range(0..ops));
            if let Err(violation) = play::<S>(Plan { cut, ..plan }) {
                return Some(violation);
            }
        }
    }
    None
}
