//! The permits of concurrency limits.

use super::{Counter, Judge};

impl Judge<'_> {
    /// Checks that no more permits were held than the limit allows.
    pub(super) fn excess_permits(&self, counter: &Counter<'_>) -> Option<String> {
        let period = counter.period();
        let is_admitted =
            |it: &super::Decided<'_>| it.units() > 0 && !it.place(counter).is_ambiguous;
        for segment in self.segments(counter, is_admitted) {
            let admitted = &segment.decided;
            let at = |place: usize| admitted[place].1.place(counter).at;
            for (place, &(_, one, is_own)) in admitted.iter().enumerate() {
                let same = admitted.partition_point(|it| it.1.place(counter).at <= at(place));
                let earlier = admitted[..same.max(place + 1)]
                    .iter()
                    .rev()
                    .take_while(|(_, it, _)| at(place) < it.place(counter).at + period);
                let is_held = |(_, other, _): &&(usize, &super::Decided<'_>, bool)| {
                    other.check.released.is_none_or(|at| at > one.check.ended)
                };
                let held: u64 = earlier.filter(is_held).map(|(_, it, _)| it.units()).sum();
                if is_own && held > counter.limits[0].amount() {
                    return Some(format!("{}: {held} permits are held: {one:?}", counter.name()));
                }
            }
        }
        None
    }
}
