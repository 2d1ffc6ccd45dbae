//! Bytes of heap per key: a counting allocator around the system's own.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use crate::{report::Row, row, subjects::ALL, traffic::key};

const KEYS: u64 = 1_000_000;

/// Live bytes by subject, with a million keys and after they have expired.
///
/// One million keys whose whole budget is back after two seconds; then one key more, and whatever the subject offers to
/// clean up.
pub fn bytes_per_key() -> Vec<Row> {
    let period = Duration::from_secs(2);
    let mut rows = Vec::new();
    for make in ALL {
        let before = LIVE.load(Ordering::Relaxed);
        let subject = make(1_000, Duration::from_secs(3_600));
        let name = subject.name();
        eprintln!("a million keys: {name}");
        (0..KEYS).for_each(|n| {
            std::hint::black_box(subject.check(&key(n)));
        });
        let held = LIVE.load(Ordering::Relaxed).saturating_sub(before);
        rows.push(row("1M keys", name, "bytes per key", vec![held as f64 / KEYS as f64]));
        drop(subject);

        let before = LIVE.load(Ordering::Relaxed);
        let subject = make(1_000, period);
        (0..KEYS).for_each(|n| {
            std::hint::black_box(subject.check(&key(n)));
        });
        std::thread::sleep(2 * period + Duration::from_millis(200));
        subject.check(&key(0));
        subject.reclaim();
        let held = LIVE.load(Ordering::Relaxed).saturating_sub(before);
        rows.push(row("1M keys, expired", name, "bytes per key", vec![held as f64 / KEYS as f64]));
    }
    rows
}

static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: hands every call on to the system's allocator as it is, and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those that `System` asks for.
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
