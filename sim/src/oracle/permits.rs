//! The permits of concurrency limits.

use super::{Counter, Decided, Judge};

impl Judge<'_> {
    /// Checks that no more permits were held than the limit allows.
    pub(super) fn excess_permits(&self, counter: &Counter<'_>) -> Option<String> {
        let period = counter.period();
        let is_admitted =
            |it: &&Decided<'_>| counter.applies_to(it.check) && it.units() > 0 && !it.is_ambiguous;
        let mut admitted: Vec<_> =
            self.decided.iter().filter(is_admitted).map(|it| (it.segment(counter), it)).collect();
        admitted.sort_by_key(|(segment, it)| (*segment, it.at));
        for (place, (segment, one)) in admitted.iter().enumerate() {
            let same = admitted.partition_point(|it| (it.0, it.1.at) <= (*segment, one.at));
            let earlier = admitted[..same.max(place + 1)]
                .iter()
                .rev()
                .take_while(|(other, it)| other == segment && one.at < it.at + period);
            let is_held = |(_, other): &&(usize, &Decided<'_>)| {
                other.check.released.is_none_or(|at| at > one.check.ended)
            };
            let held: u64 = earlier.filter(is_held).map(|(_, it)| it.units()).sum();
            if held > counter.limits[0].amount() {
                return Some(format!("{}: {held} permits are held: {one:?}", counter.name()));
            }
        }
        None
    }
}
