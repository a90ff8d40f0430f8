//! The hashes clients and brokers must agree on: keys to consumers, partitions and bundles.

/// Murmur3 x86 32 bit with seed 0, without its top bit. Chooses Key_Shared consumers and (for C++, Go, Python) partitions.
pub fn murmur3(key: &[u8]) -> u32 {
    const C1: u32 = 0xcc9e_2d51;
    const C2: u32 = 0x1b87_3593;
    let mix = |k: u32| k.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);
    let (blocks, tail) = key.as_chunks::<4>();
    let mut hash = 0u32;
    for block in blocks {
        hash ^= mix(u32::from_le_bytes(*block));
        hash = hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    let last = tail.iter().rev().fold(0u32, |k, byte| k << 8 | u32::from(*byte));
    hash ^= mix(last);
    hash ^= key.len() as u32;
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^= hash >> 16;
    hash & 0x7fff_ffff
}

/// `String.hashCode` of Java without its top bit: how Java clients choose a partition by default.
pub fn java_string_hash(key: &str) -> u32 {
    key.encode_utf16().fold(0u32, |hash, unit| hash.wrapping_mul(31).wrapping_add(u32::from(unit))) & 0x7fff_ffff
}

/// How many slots the keys of a Key_Shared subscription are spread over.
pub const STICKY_KEY_SLOTS: u32 = 65_536;

/// The slot of a key on a Key_Shared subscription: 1 to 65535, because 0 is reserved.
pub fn sticky_key_slot(key: &[u8]) -> u16 {
    ((murmur3(key) % STICKY_KEY_SLOTS) as u16).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_original_4_0_1() {
        for (key, murmur, java) in [
            ("", 0, 0),
            ("a", 1_009_084_850, 97),
            ("key", 1_654_417_988, 106_079),
            ("key-1", 414_258_592, 101_943_363),
            ("pulsar", 5_536_699, 1_170_364_285),
        ] {
            // The string hash of "pulsar" is negative in Java: 1_170_364_285 is it without the sign.
            assert_eq!((murmur3(key.as_bytes()), java_string_hash(key)), (murmur, java), "{key}");
        }
    }

    #[test]
    fn slot_zero_is_never_given_out() {
        assert_eq!(sticky_key_slot(b""), 1);
    }
}
