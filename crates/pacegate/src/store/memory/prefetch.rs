//! Prefetching: the CPU loads the memory of a key while it reads the clock and locks the shard. Without a prefetch, the
//! load starts after both: the CPU reads its time stamp counter, and takes a lock, only when all earlier loads have
//! completed.
//!
//! The only module of the library with unsafe code. With a million keys, a check takes a fifth less time, and a batch
//! of several threads a third: see `docs/decisions/speed.md`. Without effect on CPUs other than x86-64.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The address and the length of a list, for prefetching while another thread may replace it.
///
/// Both may be outdated, or belong to different lists. Then a prefetch loads other memory, or none.
#[derive(Debug)]
pub(super) struct ListAddress<T> {
    first: AtomicPtr<T>,
    length: AtomicUsize,
}

impl<T> Default for ListAddress<T> {
    fn default() -> Self {
        Self { first: AtomicPtr::default(), length: AtomicUsize::new(0) }
    }
}

impl<T> ListAddress<T> {
    pub(super) fn set(&self, list: &[T]) {
        let (first, length) = (list.as_ptr().cast_mut(), list.len());
        // A store takes the cache line away from other CPUs, so there is none without a change.
        if self.first.load(Ordering::Relaxed) != first {
            self.first.store(first, Ordering::Relaxed);
        }
        if self.length.load(Ordering::Relaxed) != length {
            self.length.store(length, Ordering::Relaxed);
        }
    }

    /// Returns the address of the item whose index `index` returns for the length of the list.
    #[inline(always)]
    pub(super) fn of(&self, index: impl FnOnce(usize) -> usize) -> *const T {
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
        // Miri does not know the instruction, and SGX enclaves reject it.
        if cfg!(any(miri, target_env = "sgx")) {
            return Self { can_own: false };
        }
        // SAFETY: every x86-64 CPU has the instruction. A leaf that it lacks returns other data, so the features count
        // only if the highest leaf is above the first one.
        #[allow(unused_unsafe, reason = "safe in newer versions of Rust")]
        let (leaves, features) = unsafe { (__cpuid(0x8000_0000).eax, __cpuid(0x8000_0001).ecx) };
        // Bit 8 is `prefetchw`: AMD always has it, Intel since 2014.
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
    fn an_address_is_that_of_an_item_of_the_last_list() {
        let address = ListAddress::<u64>::default();
        assert!(address.of(|length| length).is_null());
        for list in [vec![0; 3], vec![0], vec![0]] {
            address.set(&list);
            assert_eq!(address.of(|length| length - 1), std::ptr::from_ref(&list[list.len() - 1]));
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
