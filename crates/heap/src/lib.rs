//! How the process's allocator treats large blocks.
//!
//! Lives here: the one call to the C library that tells it. Must never know: anything of ours. Its test is
//! `tests/e2e/test_memory.py`, which measures what the whole process holds.

/// Blocks from this size on get a mapping of their own, in bytes: above the blocks that sockets are read into, which come and
/// go too often to be mapped each time, and below most commits.
#[cfg(target_env = "gnu")]
const OWN_MAPPING: libc::c_int = 384 << 10;

/// What a thread's heap may keep free at its end, in bytes. Setting [`OWN_MAPPING`] freezes this at 128 KiB, with which the blocks
/// that sockets are read into would be given back and faulted in again all the time.
#[cfg(target_env = "gnu")]
const KEPT_FREE: libc::c_int = 8 << 20;

/// From now on the memory of a large block goes back to the system when the block is freed.
///
/// Of itself the GNU C library stops doing so: with the first large block that is freed it decides to serve its like from the
/// heap of the thread that asks. Ours are filled on one thread and freed on another, and between two that are long gone there
/// is always a small one that stays: with messages of 5 MB under a limit of 128 MB the process kept 160 MB of which it used
/// 100. Costs the zeroing of each new block by the system, some 0.2 s for each GB. Other C libraries need no such call.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        #[expect(unsafe_code, reason = "the C library has no other way to be told")]
        // SAFETY: mallopt takes two integers and no pointers, and takes the allocator's own lock, so that it may be called at
        // any time from any thread. It changes where later blocks come from; every block remembers how to be freed.
        let taken = unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING) & libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_FREE)
        };
        debug_assert!(taken == 1, "the size is below the library's upper bound of 32 MB");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn blocks_of_before_and_after_are_freed_alike() {
        let before = vec![1u8; 8 << 20];
        super::give_back_large_blocks();
        let after = vec![2u8; 8 << 20];
        drop(before);
        drop(after);
    }
}
