//! Prefetching: the CPU loads the memory of a key while it reads the clock and locks the shard. It would begin only
//! after both, because it reads its time stamp counter and takes a lock only when all earlier loads have completed.
//!
//! The only module of the library with unsafe code. With a million keys, a check takes a third less time: see
//! `docs/decisions/speed.md`. Without effect on CPUs other than x86-64.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The place of a list in memory, for prefetching while another thread may change it.
///
/// The place may be outdated, or be that of two lists. Then a prefetch loads other memory, or none.
#[derive(Debug)]
pub(super) struct Place<T> {
    first: AtomicPtr<T>,
    length: AtomicUsize,
}

impl<T> Default for Place<T> {
    fn default() -> Self {
        Self { first: AtomicPtr::default(), length: AtomicUsize::new(0) }
    }
}

impl<T> Place<T> {
    pub(super) fn set(&self, list: &[T]) {
        self.first.store(list.as_ptr().cast_mut(), Ordering::Relaxed);
        self.length.store(list.len(), Ordering::Relaxed);
    }

    /// Returns the address of the item whose index `index` returns for the length of the list.
    #[inline(always)]
    pub(super) fn address(&self, index: impl FnOnce(usize) -> usize) -> *const T {
        let index = index(self.length.load(Ordering::Relaxed));
        self.first.load(Ordering::Relaxed).wrapping_add(index)
    }
}

/// Prefetches memory that is changed soon.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefetcher {
    /// The CPU can load a cache line and take it away from all other CPUs in one step.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other CPUs do nothing"))]
    can_own: bool,
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the standard library has no safe prefetch")]
impl Prefetcher {
    pub(super) fn new() -> Self {
        use std::arch::x86_64::__cpuid;
        if cfg!(miri) {
            return Self { can_own: false };
        }
        // SAFETY: every x86-64 CPU has the instruction. It has the second leaf if the first one returns a number above.
        #[allow(unused_unsafe, reason = "safe in newer versions of Rust")]
        let (leaves, features) = unsafe { (__cpuid(0x8000_0000).eax, __cpuid(0x8000_0001).ecx) };
        // The bit of `prefetchw`: of AMD always, of Intel since 2014.
        Self { can_own: leaves > 0x8000_0000 && features & (1 << 8) != 0 }
    }

    /// Loads the cache line at an address, which need not be valid. Does not wait for it.
    #[inline(always)]
    pub(super) fn prefetch<T>(self, address: *const T) {
        use std::arch::{
            asm,
            x86_64::{_MM_HINT_T0, _mm_prefetch},
        };
        if self.can_own {
            // SAFETY: the CPU has the instruction. It changes nothing that a program could observe, and an invalid
            // address has no effect.
            unsafe {
                asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
            }
        } else {
            // SAFETY: as above. Every x86-64 CPU has this instruction.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Prefetcher {
    pub(super) fn new() -> Self {
        Self { can_own: false }
    }

    pub(super) fn prefetch<T>(self, _: *const T) {}
}

#[cfg(all(test, not(pacegate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_in_the_current_list() {
        let (place, lists) = (Place::default(), [vec![0_u64; 3], vec![0_u64]]);
        let start: *const u64 = place.address(|length| length);
        assert!(start.is_null());
        for list in lists {
            place.set(&list);
            let end = place.address(|length| length);
            assert_eq!(end, list.as_ptr_range().end);
        }
    }

    #[test]
    fn any_address_can_be_prefetched() {
        for can_own in [false, Prefetcher::new().can_own] {
            for address in [0, 1, 63, usize::MAX / 2, usize::MAX] {
                Prefetcher { can_own }.prefetch(std::ptr::without_provenance::<u128>(address));
            }
        }
    }
}
