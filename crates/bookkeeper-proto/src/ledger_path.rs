//! Where a ledger's metadata lies under the ledgers root, and back.
//!
//! Ids below 2^31 - 1 have the short form, the digits of `%010d` split 2-4-4; others the long one, `%019d` split
//! 3-4-4-4-4. The last part bears an `L`: `00/0001/L2345`, `000/0000/0050/0000/L0000` for 5 000 000 000.

use crate::LedgerId;
use crate::layout::LEDGERS_ROOT;

const SHORT: [usize; 3] = [2, 4, 4];
const LONG: [usize; 5] = [3, 4, 4, 4, 4];

/// The first id with a long path.
const FIRST_LONG: i64 = i32::MAX as i64;

/// The path of a ledger's metadata. Ids are never negative (asserted).
pub fn ledger_path(ledger: LedgerId) -> String {
    assert!(ledger.0 >= 0, "ledger id {ledger} is negative");
    let (digits, parts) = if ledger.0 < FIRST_LONG {
        (format!("{ledger:0>10}"), &SHORT[..])
    } else {
        (format!("{ledger:0>19}"), &LONG[..])
    };
    let mut path = String::from(LEDGERS_ROOT);
    let mut at = 0;
    for (i, &len) in parts.iter().enumerate() {
        path.push('/');
        if i + 1 == parts.len() {
            path.push('L');
        }
        path.push_str(&digits[at..at + len]);
        at += len;
    }
    path
}

/// The ledger whose metadata lies at `path`, or `None` for any other node. The inverse of [`ledger_path`]: a short id in
/// long form is no ledger path.
pub fn parse_ledger_path(path: &str) -> Option<LedgerId> {
    let below_root = path.strip_prefix(LEDGERS_ROOT)?.strip_prefix('/')?;
    let (parents, leaf) = below_root.rsplit_once("/L")?;
    let parts = || parents.split('/').chain([leaf]);
    let fits = |lens: &[usize]| parts().map(str::len).eq(lens.iter().copied());
    if !fits(&SHORT) && !fits(&LONG) {
        return None;
    }
    let digits: String = parts().collect();
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let ledger = LedgerId(digits.parse().ok()?);
    (ledger_path(ledger) == path).then_some(ledger)
}

/// How far below the root ledgers lie under a child of that name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RootChild {
    /// Two digits: short ids, one directory between this and the leaves.
    Short,
    /// Three digits: long ids, three directories between this and the leaves.
    Long,
    /// Everything else: LAYOUT, available, idgen, cookies, …
    Special,
}

impl RootChild {
    pub fn of(name: &str) -> RootChild {
        match (name.len(), name.bytes().all(|digit| digit.is_ascii_digit())) {
            (2, true) => RootChild::Short,
            (3, true) => RootChild::Long,
            _ => RootChild::Special,
        }
    }

    /// The directories between this child and the `L` leaves.
    pub fn directories_below(self) -> usize {
        match self {
            RootChild::Short => SHORT.len() - 2,
            RootChild::Long => LONG.len() - 2,
            RootChild::Special => 0,
        }
    }
}
