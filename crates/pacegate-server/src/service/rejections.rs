//! Wrong API keys: how many an address may show, and the log lines about them.

use std::{net::IpAddr, time::Duration};

use pacegate::{Clock, Limit, Limiter, SystemClock};

use super::{Quiet, source::network};

/// Limits the wrong API keys that each address may show to a listener.
///
/// An address that has shown too many is rejected before its key is compared. So the rate of guesses does not depend on
/// the number of connections. Clients of that address that have authenticated before are not affected.
#[derive(Debug)]
pub(crate) struct Guesses {
    limiter: Limiter,
}

/// Logs rejected API keys, at a limited rate.
#[derive(Debug, Default)]
pub(crate) struct RejectionLog(Quiet);

/// Wrong API keys that one address may show: 20 at once, then 10 a second.
const MAX_GUESSES: (u32, u64) = (10, 20);
/// Addresses that are counted by themselves. All others share one counter.
const MAX_ADDRESSES: usize = 10_000;

impl Guesses {
    pub(crate) fn new() -> Self {
        Self::with_clock(SystemClock::new())
    }

    fn with_clock(clock: impl Clock) -> Self {
        let (rate, burst) = MAX_GUESSES;
        let limit = Limit::per_second(rate);
        // A burst is only rejected if it is 0 or too large.
        let limit = limit.with_burst(burst).unwrap_or(limit);
        let limiter = Limiter::builder().limit(limit).max_keys(MAX_ADDRESSES).clock(clock).build();
        Self { limiter: limiter.unwrap_or_else(|_| Limiter::memory(limit)) }
    }

    /// Counts a guess. An error is the time after which the address may try again.
    pub(crate) fn begin(&self, address: IpAddr) -> Result<(), Duration> {
        let decision = self.limiter.check(network(address).octets());
        match decision.is_allowed() {
            true => Ok(()),
            false => Err(decision.retry_after().unwrap_or_default()),
        }
    }

    /// Takes the last guess back: the API key was right.
    pub(crate) fn was_right(&self, address: IpAddr) {
        self.limiter.refund(network(address).octets(), 1);
    }
}

impl RejectionLog {
    /// Logs that API keys were rejected, with their number since the last line.
    pub(crate) fn record(&self, listener: &str, peer: Option<IpAddr>) {
        if let Some(rejected) = self.0.events() {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(target: "audit", listener, rejected, peer, "rejected API keys");
        }
    }
}

#[cfg(test)]
mod tests {
    use pacegate::ManualClock;

    use super::*;

    #[test]
    fn an_address_has_20_guesses_and_then_10_a_second() {
        let clock = ManualClock::new();
        let guesses = Guesses::with_clock(clock.clone());
        let address = "192.0.2.1".parse().unwrap();
        let wait = Duration::from_millis(100);
        for guess in 1..=20 {
            assert_eq!(guesses.begin(address), Ok(()), "{guess}");
        }
        assert_eq!(guesses.begin(address), Err(wait));
        assert_eq!(guesses.begin("192.0.2.2".parse().unwrap()), Ok(()), "another address");
        assert_eq!(guesses.begin("::ffff:192.0.2.1".parse().unwrap()), Err(wait), "the same one");
        for second in 0..10 {
            clock.advance(Duration::from_secs(1));
            let allowed = (0..1_000).filter(|_| guesses.begin(address).is_ok()).count();
            assert_eq!(allowed, 10, "second {second}");
        }
    }

    #[test]
    fn right_keys_are_not_guesses() {
        let guesses = Guesses::with_clock(ManualClock::new());
        let address = "192.0.2.1".parse().unwrap();
        for _ in 0..1_000 {
            assert_eq!(guesses.begin(address), Ok(()));
            guesses.was_right(address);
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let guesses = Guesses::with_clock(ManualClock::new());
        let own = |host: u32| format!("2001:db8:1:2::{host:x}").parse().unwrap();
        let allowed = (0..100).filter(|host| guesses.begin(own(*host)).is_ok()).count();
        assert_eq!(allowed, 20);
        assert_eq!(guesses.begin("2001:db8:1:3::1".parse().unwrap()), Ok(()));
    }
}
