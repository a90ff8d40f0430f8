//! The hash by which a client tells that a list of topics has not changed.

/// Lower-case hex of the CRC32C over the sorted, comma-joined full topic names; the bytes in little-endian order.
pub fn topics_hash<S: AsRef<str>>(topics: &[S]) -> String {
    let mut names: Vec<&str> = topics.iter().map(AsRef::as_ref).collect();
    names.sort_unstable();
    let mut crc = 0;
    for (index, name) in names.iter().enumerate() {
        if index > 0 {
            crc = crc32c::crc32c_append(crc, b",");
        }
        crc = crc32c::crc32c_append(crc, name.as_bytes());
    }
    crc.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_the_original_4_0_1() {
        assert_eq!(topics_hash(&["persistent://t1/n1/b", "persistent://t1/n1/a"]), "d830645f");
        assert_eq!(topics_hash::<&str>(&[]), "00000000");
    }
}
