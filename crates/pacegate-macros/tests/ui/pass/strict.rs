//! In a crate that forbids everything.
#![forbid(unsafe_code)]
#![deny(warnings, missing_docs, unused, nonstandard_style, rust_2018_idioms, let_underscore_drop)]
#![deny(unused_qualifications, unused_results, single_use_lifetimes, trivial_casts, unreachable_pub)]

use pacegate::{Denied, Limiter};
use pacegate_macros::rate_limit;

/// A service.
#[derive(Debug)]
pub struct Service {
    limiter: Limiter,
}

impl Service {
    /// Sends what there is.
    #[rate_limit("2/day", "9/day burst 2", key = (to, 1), cost = items.len(), limiter = self.limiter, enabled = on,
        failure = "closed", name = "send", scope = "key",)]
    #[must_use]
    pub async fn send(&self, to: &str, items: &[u8], on: bool) -> Result<usize, Denied> {
        Ok(items.len())
    }
}

/// The same for one that does not wait.
#[rate_limit(limit = service.limiter.policies().policies()[0].limits[0], limiter = &service.limiter, on_denied = |_| 0)]
pub fn size(service: &Service) -> usize {
    1
}

fn main() {
    let service = Service { limiter: Limiter::memory(pacegate::Limit::per_day(1)) };
    assert_eq!(size(&service) + size(&service), 1);
    drop(service.send("alice", &[1], true));
}
