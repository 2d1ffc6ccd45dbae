//! Ids of permits.

use std::cell::RefCell;

use chacha20::{
    ChaCha12Rng,
    rand_core::{Rng, SeedableRng},
};

thread_local! {
    /// The generator of this thread. Its seed is from the operating system, whose random bytes take longer than a
    /// check.
    static GENERATOR: RefCell<ChaCha12Rng> = RefCell::new(ChaCha12Rng::from_seed(random_seed()));
}

/// Returns a new id for a permit: 128 bits of a cryptographic generator, so that knowing other ids does not help to
/// guess it. Never 0, which means no permit.
///
/// # Panics
///
/// Panics if the operating system returns no random bytes.
pub(crate) fn new_permit_id() -> u128 {
    GENERATOR.with_borrow_mut(|generator| {
        let (high, low) = (generator.next_u64(), generator.next_u64());
        (u128::from(high) << 64 | u128::from(low)).max(1)
    })
}

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
fn random_seed() -> [u8; 32] {
    let mut seed = [0; 32];
    if let Err(error) = getrandom::fill(&mut seed) {
        panic!("the operating system returned no random bytes: {error}");
    }
    seed
}

/// Without an operating system there are no random bytes: the ids are unique in the process, but can be guessed.
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
fn random_seed() -> [u8; 32] {
    use std::sync::atomic::{AtomicU64, Ordering};

    static NEXT: AtomicU64 = AtomicU64::new(1);
    seed_of(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Makes the following permit ids of this thread depend on `seed` only. Such ids can be guessed: for simulations.
#[cfg(feature = "simulation")]
pub fn seed_permit_ids(seed: u64) {
    GENERATOR.set(ChaCha12Rng::from_seed(seed_of(seed)));
}

#[cfg(any(feature = "simulation", all(target_family = "wasm", target_os = "unknown")))]
fn seed_of(number: u64) -> [u8; 32] {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    seed
}

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
