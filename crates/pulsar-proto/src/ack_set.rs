//! The bit set of a batch: which of its messages are still unacknowledged.
//!
//! On the wire it is a list of 64-bit words, bit `i` of word `w` for batch index `64 w + i`; 1 means still unacknowledged.
//! Words of zeros at the end are left out.

/// The messages of a batch that are still unacknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AckSet {
    words: Vec<u64>,
}

/// The largest batch an [`AckSet`] can be made for: a bound on memory, beyond what fits into a message.
pub const MAX_BATCH_SIZE: u32 = 1 << 24;

impl AckSet {
    /// Nothing acknowledged yet. `batch_size` beyond [`MAX_BATCH_SIZE`] is cut to it.
    pub fn unacked(batch_size: u32) -> Self {
        let batch_size = batch_size.min(MAX_BATCH_SIZE) as usize;
        let mut words = vec![u64::MAX; batch_size.div_ceil(64)];
        if let Some(last) = words.last_mut()
            && !batch_size.is_multiple_of(64)
        {
            *last = (1 << (batch_size % 64)) - 1;
        }
        AckSet { words }
    }

    /// As a client or a stored cursor writes it.
    pub fn from_words(words: &[i64]) -> Self {
        let mut set = AckSet { words: words.iter().map(|word| *word as u64).collect() };
        set.trim();
        set
    }

    /// As it goes to a client or a stored cursor.
    pub fn to_words(&self) -> Vec<i64> {
        self.words.iter().map(|word| *word as i64).collect()
    }

    pub fn is_unacked(&self, batch_index: u32) -> bool {
        self.words.get(batch_index as usize / 64).is_some_and(|word| word & (1 << (batch_index % 64)) != 0)
    }

    /// Acknowledges one message; false if it was already.
    pub fn ack(&mut self, batch_index: u32) -> bool {
        let unacked = self.is_unacked(batch_index);
        if unacked {
            self.words[batch_index as usize / 64] &= !(1 << (batch_index % 64));
            self.trim();
        }
        unacked
    }

    /// Acknowledges everything up to and including `batch_index`.
    pub fn ack_cumulative(&mut self, batch_index: u32) {
        let whole_words = (batch_index as usize / 64).min(self.words.len());
        self.words[..whole_words].fill(0);
        if let Some(word) = self.words.get_mut(batch_index as usize / 64) {
            // The shift by 64 bits of the last index of a word leaves nothing.
            *word &= u64::MAX.checked_shl(batch_index % 64 + 1).unwrap_or(0);
        }
        self.trim();
    }

    /// Acknowledges what `other` has acknowledged: only what is unacknowledged in both stays.
    pub fn merge(&mut self, other: &AckSet) {
        self.words.truncate(other.words.len());
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
        self.trim();
    }

    /// How many messages are unacknowledged.
    pub fn unacked_count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Everything is acknowledged, and with it the entry.
    pub fn is_done(&self) -> bool {
        self.words.is_empty()
    }

    fn trim(&mut self) {
        let len = self.words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        self.words.truncate(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The set as text, batch index 0 first: `1` unacknowledged.
    fn show(set: &AckSet, batch_size: u32) -> String {
        (0..batch_size).map(|index| if set.is_unacked(index) { '1' } else { '0' }).collect()
    }

    #[test]
    fn words_of_small_batches() {
        assert_eq!(AckSet::unacked(0).to_words(), Vec::<i64>::new());
        assert_eq!(AckSet::unacked(10).to_words(), [0x3ff]);
        assert_eq!(AckSet::unacked(64).to_words(), [-1]);
        assert_eq!(AckSet::unacked(65).to_words(), [-1, 1]);
        let mut set = AckSet::unacked(65);
        assert!(set.ack(64));
        assert!(!set.ack(64));
        assert!(!set.ack(1000));
        assert_eq!(set.to_words(), [-1], "words of zeros are left out");
        set.ack_cumulative(63);
        assert!(set.is_done());
    }

    #[test]
    fn acks_add_up() {
        let mut set = AckSet::unacked(10);
        set.ack_cumulative(2);
        assert_eq!(show(&set, 10), "0001111111");
        let mut other = AckSet::unacked(10);
        other.ack(9);
        other.ack(4);
        set.merge(&other);
        assert_eq!(show(&set, 10), "0001011110");
        assert_eq!(set.unacked_count(), 5);
    }

    proptest! {
        #[test]
        fn cumulative_is_one_by_one(batch_size in 1u32..300, upto in 0u32..400) {
            let mut at_once = AckSet::unacked(batch_size);
            at_once.ack_cumulative(upto);
            let mut singly = AckSet::unacked(batch_size);
            for index in 0..=upto {
                singly.ack(index);
            }
            prop_assert_eq!(&at_once, &singly);
            prop_assert_eq!(AckSet::from_words(&at_once.to_words()), at_once);
        }
    }
}
