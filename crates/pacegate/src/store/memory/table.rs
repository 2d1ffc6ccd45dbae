//! One shard: an open-addressing table of 32-byte cells, two to a cache line, kept between 82 and 90 percent full.
//!
//! A cell is found by linear probing from the line its identity names, so a lookup is one or two adjacent cache lines.
//! Removal shifts later cells back over the hole, so the table needs neither tombstones nor compaction.

use super::{
    ShardClock, counts::ShardCounts, identity::Identity, reservations::Reservations,
    returns::ReturnMark,
};
use crate::algorithm::{ReturnedTokens, State};

/// The cells of one shard, and its clock.
#[derive(Debug, Default)]
pub(super) struct Table {
    lines: Box<[CacheLine]>,
    live: u32,
    /// The cell at which the next sweep starts.
    hand: u32,
    pub(super) shard_clock: ShardClock,
    pub(super) counts: ShardCounts,
    /// Allocated for the first reservation.
    reservations: Option<Box<Reservations>>,
}

/// Two cells in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct CacheLine([Cell; 2]);

/// The identity of a key, and its state.
#[derive(Clone, Copy, Debug)]
struct Cell {
    id: Identity,
    /// Empty in an empty cell.
    state: State,
}

impl Cell {
    const EMPTY: Self = Self { id: Identity::ZERO, state: State::EMPTY };
}

/// The smallest table, in lines.
const MIN_LINES: usize = 4;

/// Returns the fill level of a new table for this number of cells, in percent. A large table is dense to save memory,
/// and is rebuilt after it grows by a tenth. A small table is sparse: it takes little memory, and probes are shorter.
fn fill(cells: usize) -> usize {
    if cells < 512 { 45 } else { 82 }
}

impl Table {
    /// Returns the index of the cell of a key, if it has one.
    #[inline]
    pub(super) fn find(&self, id: Identity) -> Option<usize> {
        let (line, cell) = self.find_line(id)?;
        Some(2 * line + cell)
    }

    /// Returns the line of a key, and the index of its cell in it.
    #[inline(always)]
    fn find_line(&self, id: Identity) -> Option<(usize, usize)> {
        let lines = &*self.lines;
        let mut line = id.spread(lines.len());
        loop {
            // There is none in an empty table.
            let [first, second] = &lines.get(line)?.0;
            // One branch for both cells: the CPU can predict that the key is in this line, but not in which cell. Of
            // two comparisons joined by `|` the compiler makes two branches.
            let [first_bits, second_bits] = [first, second].map(|cell| cell.id.difference(id));
            if first_bits.min(second_bits) == 0 {
                return Some((line, usize::from(second_bits == 0)));
            }
            if first.state.is_empty() | second.state.is_empty() {
                return None;
            }
            line += 1;
            if line == lines.len() {
                line = 0;
            }
        }
    }

    /// Does the same as [`Table::find`], and sometimes swaps a key that is not in its first line with a key in that
    /// line. So frequent keys move to their first line, where a lookup is one cache miss.
    ///
    /// Both keys can still be found: all cells between the two are taken, so a probe for the other key reaches its new
    /// cell.
    #[inline(always)]
    pub(super) fn find_often(&mut self, id: Identity) -> Option<&mut State> {
        let (mut line, cell) = self.find_line(id)?;
        if line != id.spread(self.lines.len()) && self.shard_clock.decisions.is_multiple_of(4) {
            line = self.swap(id, line, cell);
        }
        Some(&mut self.lines[line].0[cell].state)
    }

    /// Swaps a cell with that in the first line of its key. Returns its new line.
    #[cold]
    fn swap(&mut self, id: Identity, line: usize, cell: usize) -> usize {
        let home = id.spread(self.lines.len());
        let far = self.lines[line].0[cell];
        self.lines[line].0[cell] = std::mem::replace(&mut self.lines[home].0[cell], far);
        home
    }

    #[inline]
    pub(super) fn state(&self, place: usize) -> State {
        self.cell(place).state
    }

    #[inline]
    pub(super) fn state_mut(&mut self, place: usize) -> &mut State {
        &mut self.cell_mut(place).state
    }

    /// Adds a cell for a key that has none. Calls `removed` for each expired cell that a rebuild removed.
    pub(super) fn insert(
        &mut self,
        id: Identity,
        state: State,
        now: u64,
        removed: impl FnMut(Identity),
    ) {
        if (self.live() + 1) * 10 > self.capacity() * 9 {
            self.rebuild(1, |cell| !cell.state.is_expired(now), removed);
        }
        self.put(Cell { id, state });
    }

    /// Empties the cell at `place` and closes the gap.
    pub(super) fn remove(&mut self, place: usize) {
        self.forget_returns(self.cell(place).id);
        let mut hole = place;
        let mut probe = place;
        loop {
            probe = self.after(probe);
            let cell = *self.cell(probe);
            if cell.state.is_empty() {
                break;
            }
            let home = 2 * cell.id.spread(self.lines.len());
            if self.distance(home, probe) >= self.distance(hole, probe) {
                *self.cell_mut(hole) = cell;
                hole = probe;
            }
        }
        *self.cell_mut(hole) = Cell::EMPTY;
        self.live -= 1;
    }

    /// Looks at the next `cells` cells and removes the expired, with a call of `removed` for each. At the end of a
    /// round a table that has become too large is made smaller.
    pub(super) fn sweep(&mut self, cells: usize, now: u64, mut removed: impl FnMut(Identity)) {
        for _ in 0..cells.min(self.capacity()) {
            let Cell { id, state } = *self.cell(self.hand as usize);
            if !state.is_empty() && state.is_expired(now) {
                // What the removal shifts into this place is looked at next.
                self.remove(self.hand as usize);
                removed(id);
                continue;
            }
            self.hand = self.after(self.hand as usize) as u32;
            if self.hand == 0
                && self.capacity() > 2 * MIN_LINES
                && self.live() * 5 < self.capacity() * 2
            {
                return self.rebuild(0, |cell| !cell.state.is_expired(now), removed);
            }
        }
    }

    /// Removes every cell whose key `is_meant`, with a call of `removed` for each.
    pub(super) fn clear(
        &mut self,
        is_meant: impl Fn(Identity) -> bool,
        removed: impl FnMut(Identity),
    ) {
        let mut cells = self.lines.iter().flat_map(|line| line.0);
        if cells.any(|cell| !cell.state.is_empty() && is_meant(cell.id)) {
            self.rebuild(0, |cell| !is_meant(cell.id), removed);
        }
    }

    pub(super) fn lines(&self) -> &[CacheLine] {
        &self.lines
    }

    pub(super) fn live(&self) -> usize {
        self.live as usize
    }

    /// Cells that there is memory for.
    pub(super) fn capacity(&self) -> usize {
        2 * self.lines.len()
    }

    /// Moves the cells to `keep` into a table of the right size for them and `more`. Calls `removed` for each other.
    #[cold]
    fn rebuild(
        &mut self,
        more: usize,
        keep: impl Fn(&Cell) -> bool,
        mut removed: impl FnMut(Identity),
    ) {
        let old = std::mem::take(&mut self.lines);
        let cells = || old.iter().flat_map(|line| line.0).filter(|cell| !cell.state.is_empty());
        let kept = cells().filter(&keep).count();
        self.live = 0;
        self.hand = 0;
        if kept + more > 0 {
            let lines = ((kept + more) * 50).div_ceil(fill(kept)).max(MIN_LINES);
            self.lines = vec![CacheLine([Cell::EMPTY; 2]); lines].into_boxed_slice();
        }
        for cell in cells() {
            if keep(&cell) {
                self.put(cell);
            } else {
                self.forget_returns(cell.id);
                removed(cell.id);
            }
        }
    }

    /// Returns the reservations of this shard.
    #[inline]
    pub(super) fn reservations(&mut self) -> &mut Reservations {
        self.reservations.get_or_insert_default()
    }

    /// Returns the reservations of this shard, if it ever had one.
    pub(super) fn known_reservations(&mut self) -> Option<&mut Reservations> {
        self.reservations.as_deref_mut()
    }

    /// Returns the number of tokens that were returned to a key. Counts them from now on. The key has a cell.
    pub(super) fn mark_returns(&mut self, id: Identity) -> ReturnMark {
        self.reservations().returns.mark(id)
    }

    /// Returns tokens to a key: `owed` gets those that were returned since `mark`, and returns how many follow. 0 if
    /// the cell was removed meanwhile.
    pub(super) fn settle_tokens(
        &mut self,
        id: Identity,
        mark: Option<ReturnMark>,
        owed: impl FnOnce(ReturnedTokens) -> u64,
    ) -> u64 {
        let reservations = mark.zip(self.reservations.as_mut());
        reservations.and_then(|(mark, all)| all.returns.settle(id, mark, owed)).unwrap_or(0)
    }

    /// Counts tokens that were returned to a key, if its reservations need their number.
    pub(super) fn count_returned(&mut self, id: Identity, tokens: ReturnedTokens) {
        if let Some(reservations) = &mut self.reservations {
            reservations.returns.add(id, tokens);
        }
    }

    fn forget_returns(&mut self, id: Identity) {
        if let Some(reservations) = &mut self.reservations {
            reservations.returns.forget(id);
        }
    }

    /// Puts a cell into the first empty place of its probe. There is one: the table is never full.
    fn put(&mut self, cell: Cell) {
        let mut place = 2 * cell.id.spread(self.lines.len());
        while !self.cell(place).state.is_empty() {
            place = self.after(place);
        }
        *self.cell_mut(place) = cell;
        self.live += 1;
    }

    #[inline]
    fn after(&self, place: usize) -> usize {
        if place + 1 == self.capacity() { 0 } else { place + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.capacity() - from }
    }

    #[inline]
    fn cell(&self, place: usize) -> &Cell {
        &self.lines[place / 2].0[place % 2]
    }

    #[inline]
    fn cell_mut(&mut self, place: usize) -> &mut Cell {
        &mut self.lines[place / 2].0[place % 2]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;
    use crate::clock::Timestamp;

    fn state(at: u64, life: u64, payload: u128) -> State {
        State::new(Timestamp::from_micros(at), life, payload)
    }

    #[test]
    fn a_cell_is_half_a_cache_line() {
        assert_eq!(
            (size_of::<Cell>(), size_of::<CacheLine>(), align_of::<CacheLine>()),
            (32, 64, 64)
        );
    }

    /// Two keys of one line that share a half with the key between them.
    #[test]
    fn a_key_is_found_by_both_halves_of_its_identity() {
        let ids = Identity::of_halves(&[(1 << 20, 1), (2 << 20, 1), (1 << 20, 2)]);
        let mut table = Table::default();
        table.insert(ids[1], state(0, 1 << 40, 1), 0, |_| {});
        table.insert(ids[2], state(0, 1 << 40, 2), 0, |_| {});
        assert_eq!(table.find(ids[0]), None);
        let found = [ids[1], ids[2]].map(|id| table.find(id).map(|place| table.state(place)));
        assert_eq!(found, [Some(state(0, 1 << 40, 1)), Some(state(0, 1 << 40, 2))]);
    }

    /// A decision then loads one line for the lock, the clock, the counts and the address of the cells.
    #[cfg(not(pacegate_loom))]
    #[test]
    fn the_head_of_a_shard_is_a_cache_line() {
        assert_eq!(size_of::<super::super::lock::Lock<Table>>(), 64);
    }

    #[test]
    fn stays_between_82_and_90_percent_full_while_it_grows() {
        let mut table = Table::default();
        for n in 1..20_000 {
            table.insert(Identity::of_test(n), state(0, 1 << 40, 1), 0, |_| {});
            let used = table.live() * 100;
            assert!(used <= 90 * table.capacity(), "{n}");
            assert!(n < 600 || used >= 81 * table.capacity(), "{n}: {}", table.capacity());
        }
    }

    #[test]
    fn memory_goes_back_when_all_has_expired() {
        let mut table = Table::default();
        for n in 0..5_000 {
            table.insert(Identity::of_test(n), state(0, 1_000, 1), 0, |_| {});
        }
        let mut removed = 0;
        for _ in 0..2 {
            table.sweep(table.capacity(), 2_000_000, |_| removed += 1);
        }
        assert_eq!((removed, table.live(), table.capacity()), (5_000, 0, 0));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Put(u64, u64),
        Often(u64),
        Remove(u64),
        Sweep(usize),
        Clear(u64),
        Pass(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0..300_u64, 1..4_000_000_u64).prop_map(|(id, life)| Op::Put(id, life)),
            6 => (0..300_u64).prop_map(Op::Often),
            2 => (0..300_u64).prop_map(Op::Remove),
            2 => (0..40_usize).prop_map(Op::Sweep),
            1 => (1..300_u64).prop_map(Op::Clear),
            1 => (0..1_000_000_u64).prop_map(Op::Pass),
        ]
    }

    proptest! {
        /// After any sequence of operations, the table equals a map, except for expired keys.
        #[test]
        fn holds_what_a_map_holds(ops in prop::collection::vec(op(), 1..600)) {
            let (mut table, mut map, mut now) = (Table::default(), HashMap::new(), 0);
            for op in ops {
                let (before, mut removed) = (table.live(), Vec::new());
                let is_sweep = matches!(op, Op::Sweep(_));
                match op {
                    Op::Put(id, life) => {
                        let (key, value) = (Identity::of_test(id), state(now, life, id.into()));
                        match table.find(key) {
                            Some(place) => *table.state_mut(place) = value,
                            None => table.insert(key, value, now, |id| removed.push(id)),
                        }
                        map.insert(id, value);
                    }
                    Op::Often(id) => {
                        let id = Identity::of_test(id);
                        let before = table.find(id).map(|place| table.state(place));
                        let after = table.find_often(id).copied();
                        prop_assert_eq!(before, after);
                    }
                    Op::Remove(id) => {
                        if let Some(place) = table.find(Identity::of_test(id)) {
                            table.remove(place);
                        }
                        map.remove(&id);
                    }
                    Op::Sweep(cells) => table.sweep(cells, now, |id| removed.push(id)),
                    Op::Clear(divisor) => {
                        let meant: HashSet<_> =
                            (0..300).filter(|id| id % divisor == 0).map(Identity::of_test).collect();
                        table.clear(|id| meant.contains(&id), |_| {});
                        map.retain(|id, _| id % divisor != 0);
                    }
                    Op::Pass(micros) => now += micros,
                }
                prop_assert!(!is_sweep || before == table.live() + removed.len());
                for id in removed {
                    prop_assert!(table.find(id).is_none());
                }
                for id in 0..300 {
                    let found = table.find(Identity::of_test(id)).map(|place| table.state(place));
                    let expected = map.get(&id).copied();
                    match found {
                        Some(_) => prop_assert_eq!(found, expected),
                        None => prop_assert!(expected.is_none_or(|state| state.is_expired(now))),
                    }
                }
            }
        }
    }
}
