//! Counts over time, in steps that grow with the covered time.

use serde::Serialize;

use super::OutcomeCounts;

/// Counts over time. The step is as small as the maximum number of bins allows; when it grows, bins are
/// merged.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Microseconds per bin.
    step: u64,
    /// Number of the first bin, counted from the Unix epoch.
    base: u64,
    bins: Vec<Bin>,
}

/// The counts of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    pub counts: OutcomeCounts,
    /// The most requests of any key within one period that ends here.
    pub asked: u64,
    /// The most admitted requests of any key within one period that ends here.
    pub admitted: u64,
}

/// The counts as columns, for the report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Columns {
    /// Start of the first step, in seconds since the Unix epoch.
    pub start: u64,
    /// Seconds per step.
    pub step: u64,
    pub allowed: Vec<u64>,
    pub denied: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shadow_denied: Vec<u64>,
    /// The most requests of one key in any one period.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<u64>,
    /// The most admitted requests of one key in any one period.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub admitted: Vec<u64>,
}

const SECOND: u64 = 1_000_000;
const MAX_BINS: u64 = 750;
/// In seconds; each is a multiple of the previous one. Further steps double.
const STEPS: [u64; 16] = [
    1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_419_200,
    29_030_400,
];

impl Timeline {
    /// Returns the bin of a time, which must not be before the first one.
    #[inline]
    pub fn at(&mut self, micros: u64) -> &mut Bin {
        if self.bins.is_empty() {
            self.step = SECOND;
            self.base = micros / SECOND;
        }
        let mut place = (micros / self.step).saturating_sub(self.base);
        while place >= MAX_BINS {
            self.coarsen();
            place = (micros / self.step).saturating_sub(self.base);
        }
        let place = usize::try_from(place).unwrap_or_default();
        if place >= self.bins.len() {
            self.bins.resize(place + 1, Bin::default());
        }
        &mut self.bins[place]
    }

    /// Gives several timelines the same steps, so that they share one axis.
    pub fn align(timelines: &mut [&mut Self]) {
        let step = timelines.iter().map(|one| one.step).max().unwrap_or_default();
        for one in timelines.iter_mut().filter(|one| !one.bins.is_empty()) {
            while one.step < step {
                one.coarsen();
            }
        }
        let used = || timelines.iter().filter(|one| !one.bins.is_empty());
        let Some(base) = used().map(|one| one.base).min() else { return };
        let end = used().map(|one| one.base + one.bins.len() as u64).max().unwrap_or(base);
        let length = usize::try_from(end - base).unwrap_or_default();
        for one in timelines {
            let before = if one.bins.is_empty() { 0 } else { one.base - base };
            let before = usize::try_from(before).unwrap_or_default();
            one.bins.splice(0..0, std::iter::repeat_n(Bin::default(), before));
            one.bins.resize(length, Bin::default());
            (one.base, one.step) = (base, step);
        }
    }

    pub fn columns(&self) -> Columns {
        let column = |of: fn(&Bin) -> u64| self.bins.iter().map(of).collect::<Vec<_>>();
        let present = |values: Vec<u64>| match values.iter().any(|value| *value > 0) {
            true => values,
            false => Vec::new(),
        };
        Columns {
            start: self.base * (self.step / SECOND),
            step: self.step / SECOND,
            allowed: column(|bin| bin.counts.allowed),
            denied: column(|bin| bin.counts.denied),
            shadow_denied: present(column(|bin| bin.counts.shadow_denied)),
            asked: present(column(|bin| bin.asked)),
            admitted: present(column(|bin| bin.admitted)),
        }
    }

    fn coarsen(&mut self) {
        let wider = STEPS.iter().map(|step| step * SECOND).find(|step| *step > self.step);
        let factor = wider.map_or(2, |wider| wider / self.step);
        let base = self.base / factor;
        let mut bins: Vec<Bin> = Vec::new();
        for (bin, number) in self.bins.iter().zip(self.base..) {
            let place = usize::try_from(number / factor - base).unwrap_or_default();
            bins.resize(bins.len().max(place + 1), Bin::default());
            bins[place].add(bin);
        }
        (self.bins, self.base, self.step) = (bins, base, self.step * factor);
    }
}

impl Bin {
    fn add(&mut self, other: &Self) {
        self.counts.allowed += other.counts.allowed;
        self.counts.denied += other.counts.denied;
        self.counts.shadow_denied += other.counts.shadow_denied;
        self.asked = self.asked.max(other.asked);
        self.admitted = self.admitted.max(other.admitted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_multiples_of_one_another() {
        for pair in STEPS.windows(2) {
            assert_eq!(pair[1] % pair[0], 0, "{pair:?}");
        }
    }

    #[test]
    fn timelines_are_aligned_to_the_same_steps() {
        let mut timelines = [(100, 3), (60, 700), (90, 2_000), (0, 0)].map(|(start, seconds)| {
            let mut timeline = Timeline::default();
            (start..start + seconds).for_each(|at| timeline.at(at * SECOND).counts.denied += 1);
            timeline
        });
        let mut all: Vec<_> = timelines.iter_mut().collect();
        Timeline::align(&mut all);
        let columns = timelines.map(|timeline| timeline.columns());
        for (one, sum) in columns.iter().zip([3, 700, 2_000, 0]) {
            assert_eq!((one.start, one.step, one.denied.len()), (60, 5, 406));
            assert_eq!(one.denied.iter().sum::<u64>(), sum);
        }
        assert_eq!(columns[0].denied[8], 3);
        assert_eq!(
            (columns[1].denied[0], columns[1].denied[139], columns[1].denied[140]),
            (5, 5, 0)
        );
        assert_eq!((columns[2].denied[5], columns[2].denied[6], columns[2].denied[405]), (0, 5, 5));
    }

    #[test]
    fn counts_are_preserved_when_the_step_grows() {
        let mut timeline = Timeline::default();
        let start = 1_767_225_607;
        for second in 0..86_400_u64 {
            let bin = timeline.at((start + second) * SECOND);
            bin.counts.allowed += 1;
            bin.admitted = bin.admitted.max(second);
        }
        let columns = timeline.columns();
        assert_eq!((columns.step, columns.start % 300), (300, 0));
        assert_eq!(columns.allowed.len(), 289);
        assert_eq!(columns.allowed[0], 293);
        assert!(columns.allowed[1..288].iter().all(|count| *count == 300));
        assert_eq!(columns.allowed[288], 7);
        assert_eq!(columns.admitted[0], 292);
        assert_eq!(columns.admitted[288], 86_399);
    }
}
