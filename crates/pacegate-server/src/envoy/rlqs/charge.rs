//! Charges units to the limits of a bucket, so that they can be assigned.

use std::time::Duration;

use pacegate::{Charge, CheckError, CostError, Decision, Excess, Request, Source};
use tokio::time::Instant;

use super::{
    proto::BucketId,
    registry::{QuotaRegistry, RegisteredNeeds},
    share::{Budget, Rate, need, units},
};
use crate::{active_config::Revision, long_key_digest::BoundedPlan};

/// The result of charging a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// These units are charged. A message that is sent now must not let Envoy spend them after `expires`, see
    /// [`whole_seconds`]. The window ends at `ends`. `is_scarce`: the bucket needs more.
    Units { units: u64, expires: Instant, is_scarce: bool, ends: Instant },
    /// No limit applies.
    Unlimited,
    /// No units are left until this instant; `None` if it is not known.
    Nothing { until: Option<Instant> },
    /// The window is about to end: too late for an assignment.
    Later { until: Instant },
}

/// A bucket with its policies.
pub(super) struct BucketRequest<'a> {
    pub(super) registry: &'a QuotaRegistry,
    pub(super) revision: &'a Revision,
    pub(super) domain: &'a str,
    pub(super) id: &'a BucketId,
    pub(super) rate: Option<Rate>,
}

/// The shortest period of a limit: assignments live for whole seconds, and need some time to be used up.
pub(crate) const MIN_PERIOD: Duration = Duration::from_secs(10);
/// The time that an assignment may take from the server to Envoy. Includes the wait for the connection, see
/// [`SEND_TIMEOUT`](super::session::SEND_TIMEOUT).
pub(super) const DELIVERY_MARGIN: Duration = Duration::from_millis(750);
/// The shortest life of an assignment that Envoy supports.
const MIN_LIFE: Duration = Duration::from_secs(1);
/// The longest life of an assignment. Envoy adds a token each year, and less than one in this time. The tokens that are
/// left are then replaced by new ones.
const MAX_LIFE: Duration = Duration::from_secs(24 * 3_600);
/// The longest life of units that a failure mode admitted because the store did not answer.
const MAX_DEGRADED_LIFE: Duration = Duration::from_secs(10);
/// Time to wait after the expected end of a window, because the clock of the store is not known exactly.
const BOUNDARY_DELAY: Duration = Duration::from_millis(2);
/// Attempts to charge units while others charge them too.
const MAX_ATTEMPTS: usize = 4;

impl BucketRequest<'_> {
    /// Charges units for the bucket to all of its limits.
    pub(super) async fn charge(&self, needs: &mut RegisteredNeeds) -> Result<Grant, CheckError> {
        let Self { registry, revision, .. } = self;
        let mut request = Request::new().in_domain(self.domain);
        for (name, value) in &self.id.attributes {
            request = request.with(name, value);
        }
        let plan = BoundedPlan::new(&revision.engine, &request, revision.settings.bounds.key_bytes);
        let peeks = charges(&plan, 0)?;
        if !self.is_limited(&peeks) {
            return Ok(Grant::Unlimited);
        }
        if !self.are_declared(&peeks) {
            return Ok(Grant::Nothing { until: None });
        }
        let sent = Instant::now();
        let peeked = revision.engine.check_batch(&peeks, None).await?;
        if peeked.decision.source() == Source::Blocked {
            return Ok(Grant::Nothing { until: None });
        }
        let until_end = until_end(&peeks, &peeked.each);
        let next = sent + until_end + BOUNDARY_DELAY;
        let Some(left) = until_end.checked_sub(DELIVERY_MARGIN).filter(|left| *left >= MIN_LIFE)
        else {
            return Ok(Grant::Later { until: next });
        };
        let own = |charge: &Charge<'_>| need(self.rate, charge.limit.amount(), left);
        let totals = registry
            .update(needs, peeks.iter().map(|charge| (registry.counter(charge), own(charge))));
        let shares = peeks.iter().zip(&peeked.each).zip(totals);
        let shares =
            shares.filter(|((charge, _), _)| charge.enforced).map(|((charge, decision), total)| {
                let (limit, remaining) = (charge.limit.amount(), decision.remaining());
                units(own(charge), Budget { limit, remaining, total_need: total })
            });
        let most = shares.min().unwrap_or_default().min(u64::from(u32::MAX));
        let wanted = peeks.iter().filter(|charge| charge.enforced).map(own).min();
        self.charge_up_to(&plan, most, wanted.unwrap_or_default(), next).await
    }

    /// Charges this many units, or fewer if others have charged meanwhile. `next` is the start of the next window.
    async fn charge_up_to(
        &self,
        plan: &BoundedPlan<'_>,
        mut units: u64,
        wanted: u64,
        next: Instant,
    ) -> Result<Grant, CheckError> {
        for _ in 0..MAX_ATTEMPTS {
            if units == 0 {
                return Ok(Grant::Nothing { until: Some(next) });
            }
            let charges = match charges(plan, units) {
                Ok(charges) => charges,
                Err(error) => {
                    units = error.max;
                    continue;
                }
            };
            let sent = Instant::now();
            let batch = self.revision.engine.check_batch(&charges, None).await?;
            if batch.decision.is_allowed() {
                // The store charged after `sent`, so the window ends at `ends` or later.
                let until_end = until_end(&charges, &batch.each);
                let ends = sent + until_end + BOUNDARY_DELAY;
                let expires = sent + until_end.saturating_sub(DELIVERY_MARGIN);
                return Ok(match whole_seconds(expires, Instant::now()) {
                    None => Grant::Later { until: ends },
                    Some(_) => Grant::Units { units, expires, is_scarce: units < wanted, ends },
                });
            }
            let left = enforced(&charges, &batch.each).map(|(_, decision)| decision.remaining());
            units = left.min().unwrap_or_default().min(units - 1);
        }
        Ok(Grant::Nothing { until: None })
    }

    fn is_limited(&self, charges: &[Charge<'_>]) -> bool {
        let warning = &self.registry.warnings.uncovered;
        if charges.is_empty()
            && let Some(events) = warning.events()
        {
            tracing::warn!(
                events,
                "no policy covers a quota bucket of Envoy: its requests pass without a limit"
            );
        }
        charges.iter().any(|charge| charge.enforced)
    }

    /// Returns true if all policies of the bucket are declared with `envoy_quota`. The limits of others cannot be kept
    /// by assignments, so the requests of the bucket are denied.
    fn are_declared(&self, charges: &[Charge<'_>]) -> bool {
        let declared = &self.revision.settings.envoy_quotas;
        let other = charges.iter().find(|charge| !declared.contains(&charge.policy));
        if let Some(other) = other
            && let Some(events) = self.registry.warnings.undeclared.events()
        {
            let policy = other.policy;
            tracing::warn!(%policy, events, "denied a quota bucket of Envoy: set `envoy_quota: true` in its policy");
        }
        other.is_none()
    }
}

/// Returns the charges of a bucket. A denied charge changes nothing, even if a policy records spent units in full:
/// units that are not assigned are not spent.
fn charges<'p>(plan: &'p BoundedPlan<'_>, units: u64) -> Result<Vec<Charge<'p>>, CostError> {
    let charges = plan.charges(units)?;
    Ok(charges.into_iter().map(|charge| charge.excess(Excess::Reject)).collect())
}

/// Returns the life of an assignment that is sent now, in whole seconds as Envoy supports it. `None`: it is too late.
pub(super) fn whole_seconds(expires: Instant, now: Instant) -> Option<i64> {
    let seconds = expires.saturating_duration_since(now).as_secs();
    Some(i64::try_from(seconds).unwrap_or(i64::MAX)).filter(|seconds| *seconds > 0)
}

fn enforced<'a>(
    charges: &'a [Charge<'a>],
    decisions: &'a [Decision],
) -> impl Iterator<Item = (&'a Charge<'a>, &'a Decision)> {
    charges.iter().zip(decisions).filter(|(charge, _)| charge.enforced)
}

/// Returns the time until the first window of the enforced limits ends, or until the longest life of an assignment is
/// over. All of them are fixed windows.
fn until_end(charges: &[Charge<'_>], decisions: &[Decision]) -> Duration {
    let ends = enforced(charges, decisions).map(|(charge, decision)| {
        let until_end = match decision.reset_after() {
            Duration::ZERO => charge.limit.period(),
            until_end => until_end,
        };
        until_end.min(if decision.is_degraded() { MAX_DEGRADED_LIFE } else { MAX_LIFE })
    });
    ends.min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_life_of_an_assignment_is_rounded_down_when_it_is_sent() {
        let now = Instant::now();
        let expires = now + Duration::from_millis(3_999);
        let after = |millis| whole_seconds(expires, now + Duration::from_millis(millis));
        assert_eq!(after(0), Some(3));
        assert_eq!(after(999), Some(3));
        assert_eq!(after(1_000), Some(2));
        assert_eq!(after(2_999), Some(1));
        assert_eq!(after(3_000), None);
        assert_eq!(after(9_000), None, "after the end");
    }
}
