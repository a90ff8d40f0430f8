//! Bytes of strangers: no reader panics, and none allocates more than a few times what it was given (plus its stated limit).
//!
//! The allocator of this test counts; one test function at a time measures, so the counters are not mixed up.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use proptest::prelude::*;

#[path = "../fuzz/fuzz_targets/read_everything.rs"]
mod read_everything;

struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; only thread-local counters are kept besides.
#[expect(unsafe_code, reason = "an allocator is unsafe to write; this one only counts")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.with(|live| {
            live.set(live.get().wrapping_add(layout.size()));
            PEAK_BYTES.with(|peak| peak.set(peak.get().max(live.get())));
        });
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.with(|live| live.set(live.get().wrapping_sub(layout.size())));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many bytes were allocated at once, at most, while `body` ran.
fn peak_bytes(body: impl FnOnce()) -> usize {
    let before = LIVE_BYTES.get();
    PEAK_BYTES.set(before);
    body();
    PEAK_BYTES.get() - before
}

/// One kind of read, of those `read_everything` chooses from by the first byte.
fn check(kind: u8, bytes: &[u8]) {
    let mut input = vec![kind];
    input.extend_from_slice(bytes);
    let peak = peak_bytes(|| read_everything::read_everything(&input));
    // Two bytes of an empty submessage become a struct of about a hundred.
    let bound = read_everything::LIMIT_BYTES * 3 + 200 * bytes.len() + (1 << 20);
    assert!(peak <= bound, "{peak} bytes for {} (bound {bound})", bytes.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes(kind: u8, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check(kind, &bytes);
    }

    /// Low field numbers and lengths: most of these get further than random bytes do.
    #[test]
    fn likely_bytes(kind: u8, bytes in prop::collection::vec(0u8..0x30, 0..300)) {
        check(kind, &bytes);
    }

    /// A valid frame cut short, or with one byte changed.
    #[test]
    fn damaged_frames(command: bool, cut: prop::sample::Index, at: prop::sample::Index, byte: u8) {
        let mut frame = read_everything::valid_frame(command);
        let at = at.index(frame.len());
        frame[at] = byte;
        frame.truncate(cut.index(frame.len()) + 1);
        check(0, &frame);
    }

    #[test]
    fn damaged_compression(codec in 0usize..4, plain in prop::collection::vec(0u8..3, 1..2000), at: prop::sample::Index, byte: u8) {
        let mut input = read_everything::compressed(codec, plain);
        let at = at.index(input.len());
        input[at] = byte;
        check(read_everything::DECOMPRESS, &input);
    }
}
