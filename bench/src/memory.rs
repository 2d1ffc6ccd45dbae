//! Measures heap bytes per key, with a counting allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use crate::{report::Row, row, subjects::ALL, traffic::key};

const KEYS: u64 = 1_000_000;

/// Returns the live bytes per key of each subject, with a million keys and after they have expired.
///
/// The limit resets after two seconds. Then one more key is added, and the subject's clean-up function is
/// called, if it has one.
pub fn bytes_per_key() -> Vec<Row> {
    let period = Duration::from_secs(2);
    let mut rows = Vec::new();
    for make in ALL {
        let before = live_bytes();
        let subject = make(1_000, Duration::from_secs(3_600));
        let name = subject.name();
        eprintln!("one million keys: {name}");
        (0..KEYS).for_each(|n| {
            std::hint::black_box(subject.check(&key(n)));
        });
        let held = live_bytes().saturating_sub(before);
        rows.push(row("1M keys", name, "bytes per key", vec![held as f64 / KEYS as f64]));
        drop(subject);

        let before = live_bytes();
        let subject = make(1_000, period);
        (0..KEYS).for_each(|n| {
            std::hint::black_box(subject.check(&key(n)));
        });
        std::thread::sleep(2 * period + Duration::from_millis(200));
        subject.check(&key(0));
        subject.reclaim();
        let held = live_bytes().saturating_sub(before);
        rows.push(row("1M keys, expired", name, "bytes per key", vec![held as f64 / KEYS as f64]));
    }
    rows
}

/// Returns the number of bytes that are allocated.
pub fn live_bytes() -> usize {
    LIVE.load(Ordering::Relaxed)
}

static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: forwards every call to the system allocator unchanged, and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees what `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}
