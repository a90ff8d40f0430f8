//! Which entries are acknowledged, exactly, without a cap: one bit an entry where acknowledgements are scattered, and
//! next to nothing where they are dense.

use std::collections::BTreeMap;

const CHUNK: i64 = 1024;
const WORDS: usize = (CHUNK / 64) as usize;

/// A set of entry ids of one ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EntrySet {
    chunks: BTreeMap<i64, Chunk>,
    len: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Chunk {
    Full,
    /// Never all ones.
    Bits {
        words: Box<[u64; WORDS]>,
        ones: u32,
    },
}

impl EntrySet {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn contains(&self, entry: i64) -> bool {
        let (chunk, bit) = split(entry);
        match self.chunks.get(&chunk) {
            None => false,
            Some(Chunk::Full) => true,
            Some(Chunk::Bits { words, .. }) => words[bit / 64] >> (bit % 64) & 1 == 1,
        }
    }

    /// Adds `first..=last`; returns how many of them are new.
    pub(crate) fn insert(&mut self, first: i64, last: i64) -> u64 {
        let mut added = 0;
        let mut at = first;
        while at <= last {
            let (chunk, low) = split(at);
            let chunk_end = chunk * CHUNK + CHUNK - 1;
            let high = split(last.min(chunk_end)).1;
            let slot = self.chunks.entry(chunk).or_insert_with(|| Chunk::Bits { words: Box::new([0; WORDS]), ones: 0 });
            if let Chunk::Bits { words, ones } = slot {
                for (index, word) in words.iter_mut().enumerate().take(high / 64 + 1).skip(low / 64) {
                    let from = low.saturating_sub(index * 64).min(63);
                    let to = (high - index * 64).min(63);
                    let mask = (u64::MAX << from) & (u64::MAX >> (63 - to));
                    added += u64::from((mask & !*word).count_ones());
                    *ones += (mask & !*word).count_ones();
                    *word |= mask;
                }
                if i64::from(*ones) == CHUNK {
                    *slot = Chunk::Full;
                }
            }
            at = chunk_end + 1;
        }
        self.len += added;
        added
    }

    /// Removes everything up to and including `last`; returns how many were there.
    pub(crate) fn remove_through(&mut self, last: i64) -> u64 {
        let (chunk, bit) = split(last);
        let kept = self.chunks.split_off(&chunk);
        let mut removed: u64 = self.chunks.values().map(Chunk::ones).sum();
        self.chunks = kept;
        if let Some(slot) = self.chunks.get_mut(&chunk) {
            let before = slot.ones();
            let mut words = match slot {
                Chunk::Full => Box::new([u64::MAX; WORDS]),
                Chunk::Bits { words, .. } => words.clone(),
            };
            words[..bit / 64].fill(0);
            words[bit / 64] &= u64::MAX.checked_shl(bit as u32 % 64 + 1).unwrap_or(0);
            let ones: u32 = words.iter().map(|word| word.count_ones()).sum();
            removed += before - u64::from(ones);
            if ones == 0 {
                self.chunks.remove(&chunk);
            } else {
                *slot = Chunk::Bits { words, ones };
            }
        }
        self.len -= removed;
        removed
    }

    /// The first entry at or after `from` that is not in the set.
    pub(crate) fn next_absent(&self, from: i64) -> i64 {
        self.next_matching(from, false).expect("ids do not end")
    }

    /// The first entry at or after `from` that is in the set.
    pub(crate) fn next_present(&self, from: i64) -> Option<i64> {
        self.next_matching(from, true)
    }

    fn next_matching(&self, from: i64, wanted: bool) -> Option<i64> {
        let mut at = from;
        loop {
            let (chunk, bit) = split(at);
            match self.chunks.get(&chunk) {
                None if !wanted => return Some(at),
                // Jump over the hole.
                None => at = self.chunks.range(chunk..).next()?.0 * CHUNK,
                Some(Chunk::Full) if wanted => return Some(at),
                Some(Chunk::Full) => at = (chunk + 1) * CHUNK,
                Some(Chunk::Bits { words, .. }) => {
                    for index in bit / 64..WORDS {
                        let word = if wanted { words[index] } else { !words[index] };
                        let low = bit.saturating_sub(index * 64).min(63);
                        let word = word & (u64::MAX << low);
                        if word != 0 {
                            return Some(chunk * CHUNK + index as i64 * 64 + i64::from(word.trailing_zeros()));
                        }
                    }
                    at = (chunk + 1) * CHUNK;
                }
            }
        }
    }

    /// The maximal ranges, first and last inclusive, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = self.next_present(at)?;
            at = self.next_absent(first);
            Some((first, at - 1))
        })
    }
}

impl Chunk {
    fn ones(&self) -> u64 {
        match self {
            Chunk::Full => CHUNK as u64,
            Chunk::Bits { ones, .. } => u64::from(*ones),
        }
    }
}

/// Chunk number and bit in it. Entry ids are never negative.
fn split(entry: i64) -> (i64, usize) {
    assert!(entry >= 0, "entry {entry} cannot be acknowledged");
    (entry / CHUNK, (entry % CHUNK) as usize)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(i64, i64),
        RemoveThrough(i64),
    }

    proptest! {
        #[test]
        fn behaves_like_a_set(steps in prop::collection::vec(prop_oneof![
            4 => (0..5000i64, prop_oneof![0..3i64, 0..2500i64]).prop_map(|(first, more)| Step::Insert(first, first + more)),
            1 => (0..5000i64).prop_map(Step::RemoveThrough),
        ], 1..30), probes in prop::collection::vec(0..8000i64, 20)) {
            let (mut set, mut model) = (EntrySet::default(), BTreeSet::new());
            for step in steps {
                match step {
                    Step::Insert(first, last) => {
                        let new = (first..=last).filter(|&entry| model.insert(entry)).count();
                        prop_assert_eq!(set.insert(first, last), new as u64);
                    }
                    Step::RemoveThrough(last) => {
                        let kept = model.split_off(&(last + 1));
                        prop_assert_eq!(set.remove_through(last), model.len() as u64);
                        model = kept;
                    }
                }
                prop_assert_eq!(set.len(), model.len() as u64);
            }
            let listed: Vec<i64> = set.ranges().flat_map(|(first, last)| first..=last).collect();
            prop_assert_eq!(&listed, &model.iter().copied().collect::<Vec<_>>());
            let ranges: Vec<_> = set.ranges().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
            for probe in probes {
                prop_assert_eq!(set.contains(probe), model.contains(&probe));
                prop_assert_eq!(set.next_present(probe), model.range(probe..).next().copied());
                prop_assert_eq!(set.next_absent(probe), (probe..).find(|entry| !model.contains(entry)).unwrap());
            }
        }
    }

    #[test]
    fn every_other_of_a_million_takes_about_a_bit_each() {
        let mut set = EntrySet::default();
        (0..1_000_000).step_by(2).for_each(|entry| assert_eq!(set.insert(entry, entry), 1));
        assert_eq!((set.len(), set.chunks.len()), (500_000, 977));
        (1..1_000_000).step_by(2).for_each(|entry| assert_eq!(set.insert(entry, entry), 1));
        assert_eq!(set.next_absent(0), 1_000_000);
        assert!(set.chunks.values().filter(|chunk| matches!(chunk, Chunk::Bits { .. })).count() <= 1);
    }
}
