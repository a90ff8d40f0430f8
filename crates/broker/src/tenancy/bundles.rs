//! How a namespace's topics are spread over bundles.

use std::fmt;
use std::sync::Arc;

use super::BundlesData;

/// A range of topic hashes of one namespace: the unit of ownership.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Bundle {
    namespace: Arc<str>,
    low: u32,
    high: u32,
}

impl Bundle {
    /// `/namespace/<tenant>/<namespace>/<0xlow_0xhigh>`
    pub(crate) fn owner_path(&self) -> String {
        format!("/namespace/{self}")
    }
}

impl fmt::Display for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/0x{:08x}_0x{:08x}", self.namespace, self.low, self.high)
    }
}

/// The boundaries of a namespace's bundles.
///
/// Invariant: at least two, strictly rising, from 0 to 0xffffffff.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bundles {
    boundaries: Vec<u32>,
}

impl Bundles {
    /// Equal parts; the last bundle takes the division's rest.
    pub(crate) fn even(count: u32) -> Self {
        let count = count.max(1);
        let step = (1u64 << 32) / u64::from(count);
        let mut boundaries: Vec<u32> = (0..u64::from(count)).map(|index| (index * step) as u32).collect();
        boundaries.push(u32::MAX);
        Self { boundaries }
    }

    pub(crate) fn parse(data: &BundlesData) -> Result<Self, String> {
        let boundaries = data
            .boundaries
            .iter()
            .map(|text| {
                let digits = text.strip_prefix("0x").unwrap_or(text);
                u32::from_str_radix(digits, 16)
                    .map_err(|_| format!("bundle boundary `{text}` is not a hexadecimal number"))
            })
            .collect::<Result<Vec<u32>, String>>()?;
        let rising = boundaries.windows(2).all(|pair| pair[0] < pair[1]);
        if boundaries.len() < 2 || !rising || boundaries.first() != Some(&0) || boundaries.last() != Some(&u32::MAX) {
            return Err(format!("bundle boundaries {:?} do not rise from 0x00000000 to 0xffffffff", data.boundaries));
        }
        Ok(Self { boundaries })
    }

    pub(crate) fn data(&self) -> BundlesData {
        BundlesData {
            boundaries: self.boundaries.iter().map(|boundary| format!("0x{boundary:08x}")).collect(),
            num_bundles: self.boundaries.len() as u32 - 1,
        }
    }

    /// The bundle of a topic hash: lower bound inclusive, upper exclusive, but the last bundle holds 0xffffffff.
    pub(crate) fn of(&self, namespace: &str, hash: u32) -> Bundle {
        let upper = self.boundaries.partition_point(|boundary| *boundary <= hash).min(self.boundaries.len() - 1);
        Bundle { namespace: namespace.into(), low: self.boundaries[upper - 1], high: self.boundaries[upper] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_follow_the_originals_boundaries() {
        let four = Bundles::even(4);
        assert_eq!(four.data().boundaries, ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]);
        assert_eq!(Bundles::parse(&four.data()), Ok(four.clone()));
        assert_eq!(Bundles::even(1).data().boundaries, ["0x00000000", "0xffffffff"]);
        let cases = [
            (0, "0x00000000_0x40000000"),
            (0x3fff_ffff, "0x00000000_0x40000000"),
            (0x4000_0000, "0x40000000_0x80000000"),
            (0xffff_fffe, "0xc0000000_0xffffffff"),
            (0xffff_ffff, "0xc0000000_0xffffffff"),
        ];
        for (hash, expected) in cases {
            assert_eq!(four.of("t/n", hash).to_string(), format!("t/n/{expected}"));
        }
        for bad in
            [&["0x00000000"][..], &["0x00000000", "0xfffffffe"], &["0x0", "0x5", "0x5", "0xffffffff"], &["x", "y"]]
        {
            let data = BundlesData { boundaries: bad.iter().map(|text| (*text).to_owned()).collect(), num_bundles: 1 };
            assert!(Bundles::parse(&data).is_err(), "{bad:?}");
        }
    }
}
