//! Counts events within a sliding period, with a resolution of a twentieth of it.

/// Requests and admissions of one key in the period that ends now.
///
/// The period is divided into twenty parts. The oldest part, which is only partly within the period, is not
/// counted. So the sums may be too low by the events of one part, but never too high: a reported excess is
/// real.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Microseconds per part.
    part: u64,
    /// Number of the newest part, counted from the Unix epoch.
    newest: u64,
    parts: [Sums; PARTS],
    sums: Sums,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) asked: u32,
    pub(super) admitted: u32,
}

const PARTS: usize = 20;

impl Window {
    pub(super) fn new(period: u64, at: u64) -> Self {
        let part = period.div_ceil(PARTS as u64).max(1);
        let (parts, sums) = ([Sums::default(); PARTS], Sums::default());
        Self { part, newest: at / part, parts, sums }
    }

    /// Counts an event, which must not be earlier than the last one, and returns the sums including it.
    #[inline]
    pub(super) fn add(&mut self, at: u64, admitted: bool) -> Sums {
        let number = at / self.part;
        if number != self.newest {
            self.move_to(number);
        }
        let part = &mut self.parts[place(number)];
        part.asked = part.asked.saturating_add(1);
        self.sums.asked = self.sums.asked.saturating_add(1);
        if admitted {
            part.admitted = part.admitted.saturating_add(1);
            self.sums.admitted = self.sums.admitted.saturating_add(1);
        }
        self.sums
    }

    fn move_to(&mut self, number: u64) {
        let passed = number.saturating_sub(self.newest);
        if passed >= PARTS as u64 {
            self.parts = [Sums::default(); PARTS];
            self.sums = Sums::default();
        } else {
            for gone in self.newest + 1..=number {
                let Sums { asked, admitted } = std::mem::take(&mut self.parts[place(gone)]);
                self.sums.asked = self.sums.asked.saturating_sub(asked);
                self.sums.admitted = self.sums.admitted.saturating_sub(admitted);
            }
        }
        self.newest = number;
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number % PARTS as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_never_too_high_and_too_low_by_at_most_one_part() {
        let mut random = 7_u64;
        let (period, mut at) = (60_000_000, 0);
        let mut window = Window::new(period, 0);
        let mut all: Vec<(u64, bool)> = Vec::new();
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let gap = if random >> 60 == 0 { 30_000_000 } else { random >> 44 };
            at += gap;
            all.push((at, random >> 63 == 0));
            let sums = window.add(at, random >> 63 == 0);
            let within = |length: u64| {
                let recent = all.iter().rev().take_while(|(then, _)| at - then < length);
                recent.fold((0, 0), |(asked, admitted), (_, yes)| {
                    (asked + 1, admitted + u32::from(*yes))
                })
            };
            let (most, least) = (within(period), within(period - period / 20));
            assert!((least.0..=most.0).contains(&sums.asked), "{sums:?} {most:?} {least:?}");
            assert!((least.1..=most.1).contains(&sums.admitted));
        }
    }
}
