//! Ledgers whose metadata is gone but whose entries are still in the log: what a crash between the two deletions leaves.

use std::collections::HashSet;
use std::sync::Arc;

use bookie::Bookie;
use bookkeeper_proto::LedgerId;
use ledger::{BookieAccess, Ledgers};
use tracing::{info, warn};

/// Deletes entries of ledgers that are proved dead, once, in the background after a start.
///
/// The bookie is listed before the metadata: a ledger's metadata exists before its first entry, so a ledger that is in the
/// first list and not in the second was deleted. A failed or empty listing of the metadata proves nothing and deletes nothing.
pub(crate) async fn collect(bookie: Arc<Bookie>, access: Arc<dyn BookieAccess>, ledgers: Arc<Ledgers>) {
    let stored = bookie.ledgers();
    let known = match ledgers.list().await {
        Ok(known) => known,
        Err(error) => {
            warn!(%error, "cannot list the ledgers, so none is collected");
            return;
        }
    };
    let dead = dead(&stored, &known);
    let mut collected = 0_u64;
    for ledger in dead {
        match access.forget(ledger).await {
            Ok(()) => collected += 1,
            Err(error) => {
                warn!(%ledger, %error, "cannot collect a deleted ledger; the next start tries again");
                return;
            }
        }
    }
    if collected > 0 {
        info!(collected, "collected ledgers that were deleted before the last stop");
    }
}

fn dead(stored: &[LedgerId], known: &[LedgerId]) -> Vec<LedgerId> {
    if known.is_empty() {
        return Vec::new();
    }
    let known: HashSet<LedgerId> = known.iter().copied().collect();
    stored.iter().copied().filter(|ledger| !known.contains(ledger)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_proved_dead_is_deleted() {
        let ids = |ids: &[i64]| ids.iter().copied().map(LedgerId).collect::<Vec<_>>();
        for (stored, known, expected) in
            [(&[1, 2, 3][..], &[1, 3][..], &[2][..]), (&[1, 2], &[1, 2, 9], &[]), (&[1, 2], &[], &[]), (&[], &[1], &[])]
        {
            assert_eq!(dead(&ids(stored), &ids(known)), ids(expected), "{stored:?} {known:?}");
        }
    }
}
