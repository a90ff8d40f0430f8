use rand::Rng;
use rand::rngs::SmallRng;

/// How kind one crash is. Drawn once for a whole crash, because purely independent choices would hardly ever produce the
/// plain cases (nothing unsynced survived; everything did) in which most missing syncs show.
pub(super) enum Fate {
    LoseAll,
    KeepAll,
    /// Every piece keeps a prefix of its changes.
    Prefix,
    /// Every piece is kept with this probability.
    Scatter(f64),
}

impl Fate {
    pub(super) fn draw(rng: &mut SmallRng) -> Fate {
        match rng.random_range(0..8) {
            0 | 1 => Fate::LoseAll,
            2 => Fate::KeepAll,
            3 => Fate::Prefix,
            4 => Fate::Scatter(0.1),
            5 => Fate::Scatter(0.9),
            _ => Fate::Scatter(0.5),
        }
    }

    /// How many of `changes` successive states of one piece were gone through: 0 is the durable state.
    pub(super) fn pick(&self, changes: usize, rng: &mut SmallRng) -> usize {
        match self {
            Fate::LoseAll => 0,
            Fate::KeepAll => changes,
            Fate::Prefix => rng.random_range(0..=changes),
            Fate::Scatter(_) if changes == 0 => 0,
            Fate::Scatter(keep) => {
                if rng.random_bool(*keep) {
                    rng.random_range(1..=changes)
                } else {
                    0
                }
            }
        }
    }

    /// Whether one change that is in the kept prefix, or not, survives.
    pub(super) fn keeps(&self, in_prefix: bool, rng: &mut SmallRng) -> bool {
        match self {
            Fate::Scatter(keep) => rng.random_bool(*keep),
            Fate::LoseAll | Fate::KeepAll | Fate::Prefix => in_prefix,
        }
    }

    pub(super) fn tears(&self, rng: &mut SmallRng) -> bool {
        match self {
            Fate::LoseAll | Fate::KeepAll => false,
            Fate::Prefix | Fate::Scatter(_) => rng.random_bool(0.25),
        }
    }
}
