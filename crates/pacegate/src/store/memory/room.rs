//! The capacity of the store, and its division between the shares.
//!
//! Half of the room is divided evenly between the shares as their guarantees: a share can always use its guarantee. The
//! rest is first come, first served. A single share can use all of the room.

use crossbeam_utils::CachePadded;

#[cfg(pacegate_loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(pacegate_loom))]
use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    lock::Lock,
    share::{SHARES, Share},
};

/// Room for keys, or for entries of logs.
///
/// A share takes the larger of its use and its guarantee. `taken` is at least the sum over all shares: it grows before
/// the use of a share grows, and shrinks after the use shrinks. It never exceeds `max`. So the total use does not
/// exceed
/// `max` either, and no share has to wait for its guarantee.
#[derive(Debug)]
pub(super) struct Room {
    max: u64,
    taken: CachePadded<AtomicU64>,
    /// The [`Uses`] of each share.
    uses: [AtomicU64; SHARES],
    /// Locked while a share is opened. Protects the numbers of shares in `uses`.
    opening: Lock<Opening>,
}

/// The shares that divide the room, one bit for each. Some may still wait for their guarantee.
#[derive(Debug, Default)]
struct Opening {
    known: u64,
}

/// The use of a share in the low 56 bits. The high bits are the number of shares for which its guarantee was computed:
/// 0 if it has no guarantee yet.
#[derive(Clone, Copy)]
struct Uses(u64);

/// Room to return, added up as long as it belongs to one share.
pub(super) struct Returns<'a> {
    room: &'a Room,
    share: Share,
    count: usize,
}

const USED_BITS: u32 = 56;
const ONE_SHARE: u64 = 1 << USED_BITS;

impl Uses {
    fn shares(self) -> u64 {
        self.0 >> USED_BITS
    }

    fn used(self) -> u64 {
        self.0 & (ONE_SHARE - 1)
    }
}

impl Room {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max: max as u64,
            taken: CachePadded::new(AtomicU64::new(0)),
            uses: std::array::from_fn(|_| AtomicU64::new(0)),
            opening: Lock::new(Opening::default()),
        }
    }

    /// Gives a share its guarantee, which reduces the guarantees of the others. Returns `false` if too much is in use:
    /// the share can then use free room only, until a later call opens it.
    pub(super) fn open(&self, share: Share) -> bool {
        let mut opening = self.opening.lock();
        let own = &self.uses[share.index()];
        if self.load(share).shares() > 0 {
            return true;
        }
        opening.known |= share.bit();
        let shares = u64::from(opening.known.count_ones());
        for uses in &self.uses {
            let old = Uses(uses.load(Ordering::Acquire)).shares();
            if old > 0 && old < shares {
                let before = Uses(uses.fetch_add((shares - old) * ONE_SHARE, Ordering::AcqRel));
                self.shrink(
                    self.taken_by(before.used(), old),
                    self.taken_by(before.used(), shares),
                );
            }
        }
        let mut before = self.load(share);
        loop {
            let more = self.taken_by(before.used(), shares) - before.used();
            if !self.grow(more) {
                return false;
            }
            let after = before.0 + shares * ONE_SHARE;
            match own.compare_exchange(before.0, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => {
                    self.taken.fetch_sub(more, Ordering::AcqRel);
                    before = Uses(now);
                }
            }
        }
    }

    /// Takes room for `count`. Returns `false`, and takes nothing, if that does not fit.
    pub(super) fn take(&self, share: Share, count: usize) -> bool {
        self.try_take(share, count as u64) || self.open_and_take(share, count as u64)
    }

    /// Takes room for `count` if that fits within `max` and the guarantees of the other shares.
    fn try_take(&self, share: Share, count: u64) -> bool {
        let own = &self.uses[share.index()];
        let mut before = self.load(share);
        loop {
            let (used, guaranteed) = (before.used(), self.guaranteed(before.shares()));
            let more = (used + count).max(guaranteed) - used.max(guaranteed);
            if !self.grow(more) {
                return false;
            }
            let after = before.0 + count;
            match own.compare_exchange(before.0, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => {
                    self.taken.fetch_sub(more, Ordering::AcqRel);
                    before = Uses(now);
                }
            }
        }
    }

    /// Retries to open a share that did not fit when it was new: keys may have expired since.
    #[cold]
    fn open_and_take(&self, share: Share, count: u64) -> bool {
        self.load(share).shares() == 0 && self.open(share) && self.try_take(share, count)
    }

    /// Returns room for `count` of a share.
    pub(super) fn give_back(&self, share: Share, count: usize) {
        if count == 0 {
            return;
        }
        let own = &self.uses[share.index()];
        let before = Uses(own.fetch_sub(count as u64, Ordering::AcqRel));
        let (used, guaranteed) = (before.used(), self.guaranteed(before.shares()));
        self.shrink(used.max(guaranteed), (used - count as u64).max(guaranteed));
    }

    /// Returns a collector for room of several shares, which is returned when it is dropped.
    pub(super) fn returns(&self) -> Returns<'_> {
        Returns { room: self, share: Share::INLINE, count: 0 }
    }

    /// Returns the total use of all shares.
    pub(super) fn used(&self) -> usize {
        self.uses.iter().map(|uses| Uses(uses.load(Ordering::Acquire)).used() as usize).sum()
    }

    /// Returns the use of a share, and its guarantee.
    pub(super) fn of(&self, share: Share) -> (usize, usize) {
        let uses = self.load(share);
        (uses.used() as usize, self.guaranteed(uses.shares()) as usize)
    }

    /// Returns `true` if a share was ever opened, even if it still waits for its guarantee.
    pub(super) fn is_known(&self, share: Share) -> bool {
        self.opening.lock().known & share.bit() != 0
    }

    pub(super) fn max(&self) -> usize {
        self.max as usize
    }

    fn load(&self, share: Share) -> Uses {
        Uses(self.uses[share.index()].load(Ordering::Acquire))
    }

    /// Returns the guarantee of each share, if the room is divided between this number of shares.
    fn guaranteed(&self, shares: u64) -> u64 {
        match shares {
            // The usual case needs no division.
            1 => self.max / 2,
            _ => (self.max / 2).checked_div(shares).unwrap_or(0),
        }
    }

    /// Returns the room that a share takes: its use or its guarantee.
    fn taken_by(&self, used: u64, shares: u64) -> u64 {
        used.max(self.guaranteed(shares))
    }

    /// Adds to `taken`. Returns `false`, and adds nothing, if that would exceed `max`.
    fn grow(&self, more: u64) -> bool {
        let fits = |taken: u64| Some(taken + more).filter(|taken| *taken <= self.max);
        more == 0 || self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }

    fn shrink(&self, old: u64, new: u64) {
        if new < old {
            self.taken.fetch_sub(old - new, Ordering::AcqRel);
        }
    }
}

impl Returns<'_> {
    pub(super) fn add(&mut self, share: Share, count: usize) {
        if share != self.share {
            self.flush();
            self.share = share;
        }
        self.count += count;
    }

    fn flush(&mut self) {
        self.room.give_back(self.share, std::mem::take(&mut self.count));
    }
}

impl Drop for Returns<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(all(test, not(pacegate_loom)))]
mod tests {
    use super::*;

    fn shares<const N: usize>() -> [Share; N] {
        std::array::from_fn(|n| Share::of_test(n as u8 + 1))
    }

    fn fill(room: &Room, share: Share) -> usize {
        std::iter::repeat_with(|| room.take(share, 1)).take_while(|taken| *taken).count()
    }

    #[test]
    fn one_share_has_all_of_the_room() {
        for max in [1, 2, 3, 100] {
            let (room, [only]) = (Room::new(max), shares());
            assert!(room.open(only));
            assert_eq!(fill(&room, only), max);
            room.give_back(only, max);
            assert!(room.take(only, max) && !room.take(only, 1));
        }
    }

    #[test]
    fn each_share_can_use_its_guarantee() {
        let (room, [greedy, first, second]) = (Room::new(600), shares());
        assert!([greedy, first, second].map(|share| room.open(share)).iter().all(|open| *open));
        assert_eq!(fill(&room, greedy), 400, "its hundred, and the three hundred for all");
        assert_eq!([first, second].map(|share| fill(&room, share)), [100, 100]);
        assert_eq!(room.used(), 600);
        room.give_back(greedy, 350);
        assert_eq!(fill(&room, first), 300, "all but the guarantee of the first");
        assert_eq!(fill(&room, greedy), 50);
        assert_eq!((room.of(greedy), room.of(first)), ((100, 100), (400, 100)));
        assert_eq!(room.used(), 600);
    }

    #[test]
    fn a_share_that_comes_late_waits_for_its_guarantee_and_takes_none_of_the_others() {
        let (room, [greedy, first, late]) = (Room::new(600), shares());
        assert!(room.open(greedy) && room.open(first));
        assert_eq!(fill(&room, greedy), 450);
        assert!(!room.open(late), "50 are free besides the guarantee of the first");
        assert_eq!((room.of(first), room.of(late)), ((0, 100), (0, 0)));
        assert_eq!((fill(&room, late), fill(&room, first)), (50, 100));
        room.give_back(greedy, 49);
        assert_eq!(fill(&room, late), 49);
        room.give_back(greedy, 1);
        assert!(room.take(late, 1) && !room.take(late, 1));
        assert_eq!(room.of(late), (100, 100), "it has its guarantee since that can be met");
        assert_eq!(room.used(), 600);
    }

    #[test]
    fn concurrent_takes_respect_the_maximum_and_the_guarantees() {
        let (room, shares) = (Room::new(4_000), shares::<4>());
        assert!(shares.iter().all(|share| room.open(*share)));
        let held = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for (n, share) in shares.into_iter().enumerate() {
                let (room, held) = (&room, &held);
                scope.spawn(move || {
                    for round in 1..2_000 {
                        let own = 1 + (round * (n + 7)) % 500;
                        assert!(room.take(share, own), "within the guarantee");
                        let more = if room.take(share, 600) { 600 } else { 0 };
                        let all = held.fetch_add(own + more, Ordering::Relaxed) + own + more;
                        assert!(all <= 4_000, "{all}");
                        held.fetch_sub(own + more, Ordering::Relaxed);
                        room.give_back(share, own + more);
                    }
                });
            }
        });
        let guarantees = 4 * 500;
        assert_eq!((room.used(), room.taken.load(Ordering::Relaxed)), (0, guarantees));
    }
}
