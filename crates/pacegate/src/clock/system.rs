use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering, fence},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
use quanta::Clock as TickCounter;

use super::{Clock, Timestamp};

/// The wall clock of this machine; reading it takes about ten nanoseconds.
///
/// Reads the CPU's time stamp counter if it is reliable, otherwise the monotonic clock of the operating
/// system. When in use, it compares itself with the system's wall clock about once per second: small
/// differences are slewed at no more than 500 parts per million, so that time never runs backwards; a
/// difference of more than a quarter of a second is a step, and is applied immediately.
///
/// Limits in memory follow this clock. It is not shared with other machines: with a store on another machine, the clock
/// of the store decides.
///
/// `wasm32-unknown-unknown` has no clock: reading this one panics there. Set another with
/// [`LimiterBuilder::clock`](crate::LimiterBuilder::clock).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// Returns the process-wide clock. All values are equivalent, so there is nothing to share.
    pub fn new() -> Self {
        Self
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(disciplined().micros())
    }

    fn elapsed(&self) -> Duration {
        Duration::from_micros(disciplined().elapsed())
    }
}

/// Returns the clock that all [`SystemClock`] values share.
pub(crate) fn disciplined() -> &'static Disciplined {
    static CLOCK: OnceLock<Disciplined> = OnceLock::new();
    CLOCK.get_or_init(Disciplined::start)
}

/// WebAssembly without an operating system has no clock, so every limiter needs one of the program.
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
#[derive(Debug)]
struct TickCounter;

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
impl TickCounter {
    fn new() -> Self {
        panic!("this target has no clock: set one with `LimiterBuilder::clock`");
    }

    fn raw(&self) -> u64 {
        0
    }

    fn delta_as_nanos(&self, from: u64, to: u64) -> u64 {
        to - from
    }
}

/// Bits for fractions of a microsecond in `Line::micros`.
const FRACTION: u32 = 10;
/// Bits for fractions of a microsecond in `Line::slope`.
const SLOPE: u32 = 44;
/// A larger difference to the wall clock is a step, not drift. In microseconds.
const STEP: i128 = 250_000;
/// Maximum correction of drift per second, in microseconds.
const SLEW: i128 = 500;

/// A linear function from counter ticks to microseconds, adjusted every second towards the wall clock.
#[derive(Debug)]
pub(crate) struct Disciplined {
    counter: TickCounter,
    ticks_per_second: u64,
    nominal_slope: u64,
    /// Odd while `line` is being written: readers then retry. A writer holds `bending`.
    version: AtomicU64,
    line: [AtomicU64; 4],
    bending: Mutex<()>,
}

/// `micros` (with [`FRACTION`]) at the counter's `tick`, and microseconds per tick from there (with
/// [`SLOPE`]).
#[derive(Clone, Copy, Debug)]
struct Line {
    tick: u64,
    micros: u64,
    slope: u64,
    /// Sum of all steps so far in microseconds, forward minus backward. It wraps.
    stepped: u64,
}

impl Disciplined {
    fn start() -> Self {
        let counter = TickCounter::new();
        let ticks = 1_000_000_000;
        let nanos = u128::from(counter.delta_as_nanos(0, ticks).max(1));
        let nominal_slope = ((nanos << SLOPE) / 1_000 / u128::from(ticks)) as u64;
        let ticks_per_second = (u128::from(ticks) * 1_000_000_000 / nanos) as u64;
        let micros = wall() << FRACTION;
        let line = Line { tick: counter.raw(), micros, slope: nominal_slope, stepped: 0 };
        Self {
            counter,
            ticks_per_second,
            nominal_slope,
            version: AtomicU64::new(0),
            line: line.parts().map(AtomicU64::new),
            bending: Mutex::new(()),
        }
    }

    /// Returns the microseconds since the Unix epoch.
    #[inline]
    pub(crate) fn micros(&self) -> u64 {
        let tick = self.counter.raw();
        // Without the part that only `elapsed` needs: this is on the path of every decision.
        let [begun, micros, slope] = self.parts();
        let line = Line { tick: begun, micros, slope, stepped: 0 };
        if line.is_old(tick, self.ticks_per_second) {
            return self.bend();
        }
        line.at(tick) >> FRACTION
    }

    /// Returns the microseconds since some instant, without steps.
    pub(crate) fn elapsed(&self) -> u64 {
        let tick = self.counter.raw();
        self.read().elapsed_at(tick)
    }

    fn read(&self) -> Line {
        let [tick, micros, slope, stepped] = self.parts();
        Line { tick, micros, slope, stepped }
    }

    /// Reads the first parts of the line consistently.
    #[inline]
    fn parts<const PARTS: usize>(&self) -> [u64; PARTS] {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let parts = std::array::from_fn(|part| self.line[part].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return parts;
            }
            std::hint::spin_loop();
        }
    }

    /// Compares with the wall clock and starts a new line. If another thread is already doing that, continues
    /// with the old line.
    #[cold]
    fn bend(&self) -> u64 {
        let as_before = || self.read().at(self.counter.raw()) >> FRACTION;
        let Some(_bending) = self.bending.try_lock() else { return as_before() };
        let Some((wall, tick)) = self.compare() else { return as_before() };
        let line = self.read().towards(wall, tick, self.nominal_slope);
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (cell, value) in self.line.iter().zip(line.parts()) {
            cell.store(value, Ordering::Relaxed);
        }
        self.version.fetch_add(1, Ordering::Release);
        line.micros >> FRACTION
    }

    /// Reads the wall clock and the counter at the same instant, within a millisecond. Returns `None` if the
    /// thread was preempted in between each time; then the next caller tries again.
    fn compare(&self) -> Option<(u64, u64)> {
        (0..3).find_map(|_| {
            let (before, wall, tick) = (self.counter.raw(), wall(), self.counter.raw());
            (tick.saturating_sub(before) <= self.ticks_per_second / 1_000).then_some((wall, tick))
        })
    }
}

impl Line {
    /// Returns true if the line is more than a second old. A tick before its start is from a slower thread.
    #[inline]
    fn is_old(self, tick: u64, ticks_per_second: u64) -> bool {
        tick.saturating_sub(self.tick) > ticks_per_second
    }

    /// Returns the microseconds, with [`FRACTION`], at `tick`. A tick just before the start of the line is
    /// from a slower thread.
    #[inline]
    fn at(self, tick: u64) -> u64 {
        let ticks = tick.saturating_sub(self.tick);
        let passed = (u128::from(ticks) * u128::from(self.slope)) >> (SLOPE - FRACTION);
        self.micros + passed as u64
    }

    /// Returns the microseconds at `tick`, without steps.
    fn elapsed_at(self, tick: u64) -> u64 {
        (self.at(tick) >> FRACTION).wrapping_sub(self.stepped)
    }

    /// Returns a line that continues from here and meets `wall` in a second, as far as [`SLEW`] allows.
    fn towards(self, wall: u64, tick: u64, nominal_slope: u64) -> Self {
        // Never start before the current line: from there, the new line would run ahead.
        let tick = tick.max(self.tick);
        let here = self.at(tick);
        let behind = i128::from(wall) - i128::from(here >> FRACTION);
        if behind.abs() > STEP {
            let stepped = self.stepped.wrapping_add(wall).wrapping_sub(here >> FRACTION);
            return Self { tick, micros: wall << FRACTION, slope: nominal_slope, stepped };
        }
        let change = i128::from(nominal_slope) * behind.clamp(-SLEW, SLEW) / 1_000_000;
        let slope = (i128::from(nominal_slope) + change) as u64;
        Self { tick, micros: here, slope, ..self }
    }

    fn parts(self) -> [u64; 4] {
        [self.tick, self.micros, self.slope, self.stepped]
    }
}

#[expect(clippy::disallowed_methods, reason = "the only place that reads the wall clock")]
fn wall() -> u64 {
    Timestamp::from(SystemTime::now()).as_micros()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOMINAL: u64 = (1 << SLOPE) / 3_000;
    const SECOND: u64 = 3_000_000_000;

    fn start(micros: u64) -> Line {
        Line { tick: 7, micros: micros << FRACTION, slope: NOMINAL, stepped: 0 }
    }

    #[test]
    fn goes_at_the_nominal_rate() {
        let passed = (start(1_000).at(7 + SECOND) >> FRACTION) - 1_000;
        assert!((999_999..=1_000_000).contains(&passed), "{passed}");
    }

    #[test]
    fn small_differences_are_slewed_without_a_jump() {
        for behind in [-200_000_i64, -300, -1, 0, 1, 300, 200_000] {
            let here = start(1_000_000).at(7 + SECOND) >> FRACTION;
            let wall = here.strict_add_signed(behind);
            let line = start(1_000_000).towards(wall, 7 + SECOND, NOMINAL);
            assert_eq!(line.micros >> FRACTION, here, "no jump at {behind}");
            let gained = (line.at(7 + 2 * SECOND) >> FRACTION) as i64 - here as i64 - 1_000_000;
            let expected = behind.clamp(-500, 500);
            assert!((gained - expected).abs() <= 2, "{behind}: gained {gained}");
        }
    }

    #[test]
    fn a_step_is_followed_at_once() {
        for wall in [0, 600_000, 3_600_000_000] {
            let line = start(1_000_000).towards(wall, 7 + SECOND, NOMINAL);
            assert_eq!((line.micros >> FRACTION, line.slope), (wall, NOMINAL));
        }
    }

    /// A thread was preempted and has a tick from two seconds ago; another thread has started a line since.
    #[test]
    fn a_tick_from_before_the_line_does_not_move_it() {
        let line = Line { tick: 7 + 2 * SECOND, ..start(2_000_000) };
        for wall in [2_000_000, 2_000_300, 9_000_000] {
            let late = line.towards(wall, 7, NOMINAL);
            assert_eq!(late.tick, line.tick);
            let here = if wall == 9_000_000 { wall } else { 2_000_000 };
            assert_eq!(late.at(line.tick) >> FRACTION, here, "no two seconds ahead");
        }
    }

    #[test]
    fn a_line_is_old_after_a_second_and_not_before_it_began() {
        let line = Line { tick: 2 * SECOND, ..start(0) };
        for (tick, old) in [(0, false), (2 * SECOND, false), (3 * SECOND, false)] {
            assert_eq!(line.is_old(tick, SECOND), old, "{tick}");
        }
        assert!(line.is_old(3 * SECOND + 1, SECOND));
    }

    #[test]
    fn elapsed_time_ignores_steps_of_the_clock() {
        let mut line = start(1_000_000);
        for (second, wall) in [(1, 3_600_000_000), (2, 0), (3, 500_000), (4, 1_200_000)] {
            let tick = 7 + second * SECOND;
            let before = line.elapsed_at(tick);
            line = line.towards(wall, tick, NOMINAL);
            assert_eq!(line.elapsed_at(tick), before, "no jump at second {second}");
            let expected = 1_000_000 + second * 1_000_000;
            // A microsecond is lost to rounding at each adjustment.
            assert!((expected - 4..=expected).contains(&before), "second {second}: {before}");
        }
    }

    #[test]
    fn shows_the_wall_clock() {
        let clock = SystemClock::new();
        let (before, now, after) = (wall(), clock.now().as_micros(), wall());
        assert!(now + 10_000 > before && now < after + 10_000, "{before} {now} {after}");
    }

    #[test]
    fn never_goes_back_in_one_thread() {
        let clock = SystemClock::new();
        let mut last = clock.now();
        for _ in 0..200_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
