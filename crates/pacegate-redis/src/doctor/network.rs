//! Checks the connection: latency, clock, encryption and password.

use std::{net::IpAddr, time::Duration};

use pacegate::{Clock, SystemClock};
use tokio::time::{Instant, timeout};

use super::{
    Finding,
    ask::{Checked, TIME},
    findings as table,
};
use crate::link::{Access, Address, Link};

/// Number of round trips to measure, and the maximum total time.
const TRIPS: usize = 200;
const TRIPS_TIME: Duration = Duration::from_secs(2);
/// Clock difference from which on there is a warning, in microseconds.
const FAR_APART: u64 = 1_000_000;

/// Measures the round trips; returns them in ascending order.
pub(super) async fn round_trips(link: &mut Link) -> Vec<Duration> {
    let begun = Instant::now();
    let mut trips = Vec::with_capacity(TRIPS);
    while trips.len() < TRIPS && begun.elapsed() < TRIPS_TIME {
        match timeout(TRIPS_TIME, link.ping()).await {
            Ok(Ok(trip)) => trips.push(trip),
            Ok(Err(_)) => break,
            // At least this long.
            Err(_) => trips.push(TRIPS_TIME),
        }
    }
    trips.sort_unstable();
    trips
}

pub(super) fn check_round_trips(trips: &[Duration], deadline: Duration) -> Finding {
    let (Some(half), Some(most)) = (percentile(trips, 50), percentile(trips, 99)) else {
        return table::NO_PING.with(&[]);
    };
    let seen = format!("round trips: p50 {half:.1?}, p99 {most:.1?} of {}", trips.len());
    let advised = Duration::from_millis(most.as_millis() as u64 * 3 + 1);
    let row = match (half >= deadline, most > deadline / 3) {
        (true, _) => table::LATENCY_TOO_HIGH,
        (false, true) => table::LATENCY_HIGH,
        (false, false) => table::LATENCY,
    };
    row.with(&[&seen, &format!("{deadline:?}"), &format!("{advised:?}")])
}

fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

/// Returns how far the server's clock is ahead of ours, in microseconds; the round trip limits the precision.
pub(super) async fn clock_ahead(link: &mut Link, user: &str) -> Checked<i64> {
    let clock = SystemClock::new();
    let sent = clock.now().as_micros();
    let (seconds, micros): (u64, u64) = TIME.ask(link, user, &[]).await?;
    let received = clock.now().as_micros();
    let there = seconds * 1_000_000 + micros;
    Ok(there as i64 - there.clamp(sent, received.max(sent)) as i64)
}

pub(super) fn check_clock(ahead: &Checked<i64>) -> Finding {
    let ahead = match ahead {
        Err(failed) => return failed.finding("clock"),
        Ok(ahead) => *ahead,
    };
    let apart = format!("{:.1?}", Duration::from_micros(ahead.unsigned_abs()));
    let side = if ahead < 0 { "behind" } else { "ahead of" };
    let row = match ahead.unsigned_abs() {
        0 => table::CLOCK_SAME,
        micros if micros <= FAR_APART => table::CLOCK_CLOSE,
        _ => table::CLOCK_FAR,
    };
    row.with(&[&apart, &side])
}

/// Returns true if the server is on this machine.
pub(super) async fn is_local(address: &Address) -> bool {
    let Address::Tcp(host, port) = address else { return true };
    if let Ok(ip) = host.parse::<IpAddr>() {
        return ip.is_loopback();
    }
    match tokio::net::lookup_host((host.as_str(), *port)).await {
        Ok(found) => {
            let all: Vec<_> = found.collect();
            !all.is_empty() && all.iter().all(|address| address.ip().is_loopback())
        }
        Err(_) => false,
    }
}

/// Returns true if the server accepts commands without a password.
pub(super) async fn serves_strangers(address: &Address, access: &Access) -> bool {
    let stranger = Access { user: None, password: None, ..access.clone() };
    let Ok(mut link) = Link::open(address, &stranger, false).await else { return false };
    matches!(timeout(TRIPS_TIME, link.ping()).await, Ok(Ok(_)))
}

/// Checks encryption and password protection of a remote server.
pub(super) fn check_exposure(encrypted: bool, strangers: bool, address: &str) -> Vec<Finding> {
    let tls = if encrypted { table::TLS } else { table::NO_TLS };
    let password = if strangers { table::NO_PASSWORD } else { table::PASSWORD };
    vec![tls.with(&[&address]), password.with(&[])]
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    fn latency(trips: &[u64]) -> Level {
        let mut trips: Vec<_> = trips.iter().copied().map(Duration::from_micros).collect();
        trips.sort_unstable();
        check_round_trips(&trips, Duration::from_millis(20)).level
    }

    #[test]
    fn round_trips_are_compared_with_a_third_of_the_deadline() {
        assert_eq!(latency(&[300; 200]), Level::Good);
        assert_eq!(latency(&[6_666; 200]), Level::Good);
        assert_eq!(latency(&[6_667; 200]), Level::Warning);
        assert_eq!(latency(&[20_000; 200]), Level::Problem);
        assert_eq!(latency(&[]), Level::Notice);
        // One or two of 200 may be late, three may not.
        let with = |late: usize| [vec![300; 200 - late], vec![9_000; late]].concat();
        assert_eq!(latency(&with(2)), Level::Good);
        assert_eq!(latency(&with(3)), Level::Warning);
    }

    #[test]
    fn clocks_may_differ_by_a_second() {
        let level = |ahead| check_clock(&Ok(ahead)).level;
        assert_eq!((level(1_000_000), level(-1_000_000)), (Level::Good, Level::Good));
        assert_eq!((level(1_000_001), level(-1_000_001)), (Level::Warning, Level::Warning));
        let text = check_clock(&Ok(-2_500_000)).text;
        assert!(
            text.starts_with("2.5s behind this machine's; decisions and windows use the server's")
        );
    }

    #[test]
    fn a_remote_server_needs_tls_and_a_password() {
        let levels = |encrypted, strangers| {
            let found = check_exposure(encrypted, strangers, "redis.example:6379");
            [found[0].level, found[1].level]
        };
        assert_eq!(levels(true, false), [Level::Good, Level::Good]);
        assert_eq!(levels(false, true), [Level::Notice, Level::Warning]);
    }
}
