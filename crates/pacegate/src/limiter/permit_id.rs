//! Ids of permits.

use std::cell::RefCell;

/// Random bytes for the next ids of a thread. One system call provides [`IDS_PER_CALL`] ids.
struct RandomIds {
    bytes: [u8; ID_BYTES * IDS_PER_CALL],
    used: usize,
}

const ID_BYTES: usize = size_of::<u128>();
const IDS_PER_CALL: usize = 64;

impl RandomIds {
    const fn empty() -> Self {
        Self { bytes: [0; ID_BYTES * IDS_PER_CALL], used: ID_BYTES * IDS_PER_CALL }
    }

    fn next(&mut self) -> u128 {
        if self.used == self.bytes.len() {
            #[cfg(feature = "simulation")]
            if !seeded::fill(&mut self.bytes) {
                fill_random(&mut self.bytes);
            }
            #[cfg(not(feature = "simulation"))]
            fill_random(&mut self.bytes);
            self.used = 0;
        }
        let mut id = [0; ID_BYTES];
        let next = self.used + ID_BYTES;
        id.copy_from_slice(&self.bytes[self.used..next]);
        // An id that was returned does not stay in memory.
        self.bytes[self.used..next].fill(0);
        self.used = next;
        u128::from_le_bytes(id).max(1)
    }
}

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
fn fill_random(bytes: &mut [u8]) {
    if let Err(error) = getrandom::fill(bytes) {
        panic!("the operating system returned no random bytes: {error}");
    }
}

/// Without an operating system there are no random bytes: the ids are unique in the process, but can be guessed.
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
fn fill_random(bytes: &mut [u8]) {
    use std::sync::atomic::{AtomicU64, Ordering};

    static NEXT: AtomicU64 = AtomicU64::new(1);
    for id in bytes.chunks_exact_mut(ID_BYTES) {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        id.copy_from_slice(&u128::from(number).to_le_bytes());
    }
}

/// Returns a new id for a permit: 128 bits from the random number generator of the operating system, so that knowing
/// other ids does not help to guess it. Never 0, which means no permit.
///
/// # Panics
///
/// Panics if the operating system returns no random bytes.
pub(crate) fn new_permit_id() -> u128 {
    IDS.with_borrow_mut(RandomIds::next)
}

thread_local! {
    static IDS: RefCell<RandomIds> = const { RefCell::new(RandomIds::empty()) };
}

/// Ids that depend on a seed only, so that a simulation can be repeated.
#[cfg(feature = "simulation")]
mod seeded {
    use std::cell::Cell;

    use super::{IDS, RandomIds};

    thread_local! {
        static STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Makes the following permit ids of this thread depend on `seed` only. Such ids can be guessed: for simulations.
    pub fn seed_permit_ids(seed: u64) {
        STATE.set(Some(seed));
        IDS.set(RandomIds::empty());
    }

    /// Fills `bytes` if this thread has a seed. Returns `false` otherwise.
    pub(super) fn fill(bytes: &mut [u8]) -> bool {
        let Some(mut state) = STATE.get() else { return false };
        for word in bytes.chunks_exact_mut(8) {
            // SplitMix64.
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
        }
        STATE.set(Some(state));
        true
    }
}

#[cfg(feature = "simulation")]
pub use seeded::seed_permit_ids;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::new_permit_id;

    #[test]
    fn ids_use_all_bits_and_are_unpredictable() {
        let mut ids: Vec<u128> = (0..1_000).map(|_| new_permit_id()).collect();
        ids.extend(std::thread::spawn(|| [(); 1_000].map(|()| new_permit_id())).join().unwrap());
        let differences: HashSet<u128> =
            ids.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert_eq!(differences.len(), ids.len() - 1, "no two differences are equal");
        for bit in 0..128 {
            let set = ids.iter().filter(|id| (*id >> bit) & 1 == 1).count();
            // 1,000 of 2,000 are expected; the standard deviation is 22.
            assert!((800..1_200).contains(&set), "bit {bit} is set in {set} of 2,000 ids");
        }
        assert!(!ids.contains(&0));
    }
}
