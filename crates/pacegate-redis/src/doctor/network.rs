//! The way to the server: how long it is, and who may listen in or come along.

use std::{net::IpAddr, time::Duration};

use pacegate::{Clock, SystemClock};
use tokio::time::{Instant, timeout};

use super::{
    Finding,
    ask::{Seen, TIME},
};
use crate::link::{Access, Address, Link};

/// So many round trips, unless they take too long together.
const TRIPS: usize = 200;
const TRIPS_TIME: Duration = Duration::from_secs(2);
/// Between clocks; in microseconds.
const FAR_APART: u64 = 1_000_000;

/// How long the server took to answer, each time, in ascending order.
pub(super) async fn round_trips(link: &mut Link) -> Vec<Duration> {
    let begun = Instant::now();
    let mut trips = Vec::with_capacity(TRIPS);
    while trips.len() < TRIPS && begun.elapsed() < TRIPS_TIME {
        match timeout(TRIPS_TIME, link.ping()).await {
            Ok(Ok(trip)) => trips.push(trip),
            Ok(Err(_)) => break,
            // So long at least.
            Err(_) => trips.push(TRIPS_TIME),
        }
    }
    trips.sort_unstable();
    trips
}

pub(super) fn check_round_trips(trips: &[Duration], deadline: Duration) -> Finding {
    const SUBJECT: &str = "latency";
    let (Some(half), Some(most)) = (percentile(trips, 50), percentile(trips, 99)) else {
        let advice = "see whether the user may PING: ACL SETUSER NAME +ping";
        return Finding::notice(SUBJECT, "could not look: no answer to PING", advice);
    };
    let seen = format!("round trips: p50 {half:.1?}, p99 {most:.1?} of {}", trips.len());
    let least = Duration::from_millis(most.as_millis() as u64 * 3 + 1);
    let advice = format!(
        "bring the server nearer, see what it is busy with (SLOWLOG GET 10), or allow {least:?}"
    );
    if half >= deadline {
        let text = format!(
            "{seen}; most take longer than the deadline of {deadline:?}, and failure modes decide"
        );
        return Finding::problem(SUBJECT, text, advice);
    }
    if most > deadline / 3 {
        let text = format!(
            "{seen}; above a third of the deadline of {deadline:?}, a busy moment is enough to miss it"
        );
        return Finding::warning(SUBJECT, text, advice);
    }
    Finding::good(SUBJECT, format!("{seen}; the deadline is {deadline:?}"))
}

fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

/// How many microseconds the server's clock is ahead of ours, as far as the trip leaves no doubt.
pub(super) async fn clock_ahead(link: &mut Link, user: &str) -> Seen<i64> {
    let clock = SystemClock::new();
    let sent = clock.now().as_micros();
    let (seconds, micros): (u64, u64) = TIME.ask(link, user, &[]).await?;
    let received = clock.now().as_micros();
    let there = seconds * 1_000_000 + micros;
    Ok(there as i64 - there.clamp(sent, received.max(sent)) as i64)
}

pub(super) fn check_clock(ahead: &Seen<i64>) -> Finding {
    const SUBJECT: &str = "clock";
    match ahead {
        Err(blind) => blind.finding(SUBJECT),
        Ok(ahead) => {
            if *ahead == 0 {
                return Finding::good(SUBJECT, "no difference to this machine's can be seen");
            }
            let apart = Duration::from_micros(ahead.unsigned_abs());
            let side = if *ahead < 0 { "behind" } else { "ahead of" };
            if ahead.unsigned_abs() <= FAR_APART {
                return Finding::good(SUBJECT, format!("{apart:.1?} {side} this machine's"));
            }
            let text = format!(
                "{apart:.1?} {side} this machine's; decisions go by the server's clock, and windows begin and end by it"
            );
            let advice = "let both follow the same time; `timedatectl` on each shows who is wrong";
            Finding::warning(SUBJECT, text, advice)
        }
    }
}

/// Whether the way to the server leaves this machine.
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

/// Whether the server serves somebody who does not say who they are.
pub(super) async fn serves_strangers(address: &Address, access: &Access) -> bool {
    let stranger = Access { user: None, password: None, ..access.clone() };
    let Ok(mut link) = Link::open(address, &stranger, false).await else { return false };
    matches!(timeout(TRIPS_TIME, link.ping()).await, Ok(Ok(_)))
}

/// For servers elsewhere: who can listen in, and who can come along.
pub(super) fn check_exposure(encrypted: bool, strangers: bool, address: &str) -> Vec<Finding> {
    let tls = match encrypted {
        true => Finding::good("tls", "encrypted, and the server is verified"),
        false => Finding::notice(
            "tls",
            "passwords and names of keys pass the network in the clear",
            format!(
                "set `tls-port` in the server's file, and write rediss://{address} with ?ca=FILE if need be"
            ),
        ),
    };
    let password = match strangers {
        false => Finding::good("password", "nobody is served without one"),
        true => Finding::warning(
            "password",
            "the user `default` needs no password: whoever reaches the port may change every budget",
            "make a user for Pacegate (see the rights), then ACL SETUSER default off, and keep both in the server's \
             file",
        ),
    };
    vec![tls, password]
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
    fn round_trips_are_held_against_a_third_of_the_deadline() {
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
        assert!(text.starts_with("2.5s behind this machine's; decisions go by the server's"));
    }

    #[test]
    fn a_server_elsewhere_wants_tls_and_a_password() {
        let levels = |encrypted, strangers| {
            let found = check_exposure(encrypted, strangers, "redis.example:6379");
            [found[0].level, found[1].level]
        };
        assert_eq!(levels(true, false), [Level::Good, Level::Good]);
        assert_eq!(levels(false, true), [Level::Notice, Level::Warning]);
    }
}
