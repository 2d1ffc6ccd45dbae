//! The traffic for the engine, and its decisions. Times are milliseconds since the start of a window.

use std::{error::Error, time::Duration};

use pacegate::{Clock, Limiter, ManualClock};

/// The period of all limits.
pub(crate) const PERIOD: u64 = 10_000;
/// The time range of all images: three periods.
pub(crate) const SPAN: u64 = 3 * PERIOD;

/// One request and its decision.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub at: u64,
    pub allowed: bool,
}

/// One permit: when it was acquired, when it ended, and whether it was released or expired.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub from: u64,
    pub until: u64,
    pub returned: bool,
}

/// Returns the request times: quiet for most of a period; 12 requests within half a second before the
/// boundary and again after it; then, from 13 s on, a request every half second, which is twice the limit.
pub(crate) fn instants() -> Vec<u64> {
    let before = (0..12).map(|n| 9_520 + 40 * n);
    let after = (0..12).map(|n| 10_020 + 40 * n);
    let steady = (13_250..SPAN).step_by(500);
    before.chain(after).chain(steady).collect()
}

/// Checks one unit at each of these times, with one limit.
pub(crate) fn ask(limit: &str) -> Result<Vec<Asked>, Box<dyn Error>> {
    let clock = ManualClock::new();
    let start = clock.now();
    let limiter = Limiter::builder().limit(limit).clock(clock.clone()).build()?;
    let asked = instants().into_iter().map(|at| {
        clock.set(start.after(Duration::from_millis(at)));
        Asked { at, allowed: limiter.check("alice").is_allowed() }
    });
    Ok(asked.collect())
}

/// Returns the number admitted in the trailing period, `(t - PERIOD, t]`, as steps: a time and the count from
/// there on.
pub(crate) fn trailing(asked: &[Asked]) -> Vec<(u64, i64)> {
    let admitted = asked.iter().filter(|one| one.allowed);
    steps(admitted.map(|one| (one.at, one.at + PERIOD)))
}

/// Returns the number of permits held, as steps.
pub(crate) fn held_at_once(held: &[Held]) -> Vec<(u64, i64)> {
    steps(held.iter().map(|one| (one.from, one.until)))
}

fn steps(spans: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, i64)> {
    let mut changes: Vec<_> = spans.flat_map(|(from, until)| [(until, -1), (from, 1)]).collect();
    changes.sort_unstable();
    let mut steps: Vec<(u64, i64)> = vec![(0, 0)];
    for (at, change) in changes {
        let count = steps.last().map_or(0, |last| last.1) + change;
        match steps.last_mut() {
            Some(last) if last.0 == at => last.1 = count,
            _ => steps.push((at, count)),
        }
    }
    steps.retain(|step| step.0 <= SPAN);
    steps
}

/// When a permit is requested, and how long it is held; `None` for one that is never released.
const HOLDERS: [(u64, Option<u64>); 14] = [
    (1_250, Some(4_500)),
    (2_750, None),
    (4_250, Some(5_000)),
    (5_250, Some(3_000)),
    (6_750, Some(3_500)),
    (7_750, Some(3_000)),
    (8_750, Some(4_000)),
    (10_750, Some(5_500)),
    (11_750, Some(4_000)),
    (12_250, Some(3_000)),
    (13_750, Some(6_000)),
    (17_250, Some(4_000)),
    (20_250, Some(5_500)),
    (24_250, Some(4_000)),
];

/// Acquires and releases permits under a concurrency limit.
pub(crate) fn hold(limit: &str) -> Result<(Vec<Asked>, Vec<Held>), Box<dyn Error>> {
    let clock = ManualClock::new();
    let start = clock.now();
    let limiter = Limiter::builder().limit(limit).clock(clock.clone()).build()?;
    let (mut asked, mut held, mut permits) = (Vec::new(), Vec::new(), Vec::new());
    for at in (0..SPAN).step_by(250) {
        clock.set(start.after(Duration::from_millis(at)));
        permits.retain(|(until, _)| *until > at);
        for (_, holds) in HOLDERS.into_iter().filter(|holder| holder.0 == at) {
            let admission = limiter.acquire("alice");
            asked.push(Asked { at, allowed: admission.permit.is_some() });
            if let Some(permit) = admission.permit {
                let until = at + holds.unwrap_or(PERIOD);
                held.push(Held { from: at, until, returned: holds.is_some() });
                // The permit that is never released is kept beyond the end of the image: it only expires.
                permits.push((holds.map_or(SPAN, |holds| at + holds), permit));
            }
        }
        let by_engine = limiter.peek("alice").remaining() as i64;
        let drawn = held_at_once(&held).iter().rfind(|step| step.0 <= at).map_or(0, |step| step.1);
        if by_engine + drawn != limiter.policies().policies()[0].limits[0].amount() as i64 {
            return Err(format!(
                "at {at} ms, the image shows {drawn} permits, but the engine has {by_engine} left"
            )
            .into());
        }
    }
    Ok((asked, held))
}
