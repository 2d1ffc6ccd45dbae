//! A check of any listener: a request for the policies, or a key with inline limits.

use std::time::Duration;

use pacegate::{
    Charge, CheckError, CostError, Decision, Grant, KeyRef, Limit, Plan, PolicyName, Request,
    Reserved, SharedReservation,
};

use crate::{engine::Engine, inline_limits::Limits};

/// A valid check.
#[derive(Clone, Debug)]
pub(crate) enum Check<'a> {
    Policies(Request<'a>),
    Inline { key: &'a [u8], limits: Limits, cost: u64, id: Option<&'a [u8]>, spent: bool },
}

/// The limits that apply to a [`Check`], with their keys.
#[expect(clippy::large_enum_variant, reason = "lives on the stack for one request")]
pub(crate) enum CheckLimits<'e, 's> {
    Policies(Plan<'e>),
    Inline(&'s [u8], &'s [Limit]),
}

impl Check<'_> {
    /// Charges all limits, or none.
    pub(crate) async fn decide(&self, engine: &Engine) -> Result<Decision, CheckError> {
        match self {
            Self::Policies(request) => engine.check(request).await,
            Self::Inline { cost, id, .. } => {
                let limits = self.limits(engine);
                let mut charges = limits.charges(*cost)?;
                if self.is_spent() {
                    charges.retain(|charge| !charge.limit.algorithm().holds_permits());
                    charges.iter_mut().for_each(|charge| *charge = charge.spent());
                }
                Ok(engine.check_batch(&charges, *id).await?.decision)
            }
        }
    }

    /// Charges as many units as all limits have, up to the cost.
    pub(crate) async fn decide_up_to(&self, engine: &Engine) -> Result<Grant, CheckError> {
        let limits = self.limits(engine);
        // The cost may exceed a limit.
        let mut charges = limits.charges(self.cost().min(1))?;
        charges.iter_mut().for_each(|charge| charge.cost = self.cost());
        engine.check_up_to(&charges, self.id()).await
    }

    /// Reserves the cost, as an estimate, of all limits, or none.
    pub(crate) async fn reserve(
        &self,
        engine: &Engine,
        ttl: Duration,
    ) -> Result<Reserved<SharedReservation>, CheckError> {
        engine.reserve(&self.limits(engine).charges(self.cost())?, ttl).await
    }

    /// Returns the domain that the API key must cover. Inline limits belong to the unnamed domain.
    pub(crate) fn domain(&self) -> &str {
        match self {
            Self::Policies(request) => request.domain(),
            Self::Inline { .. } => "",
        }
    }

    pub(crate) fn is_inline(&self) -> bool {
        matches!(self, Self::Inline { .. })
    }

    pub(crate) fn cost(&self) -> u64 {
        match self {
            Self::Policies(request) => request.units(),
            Self::Inline { cost, .. } => *cost,
        }
    }

    /// Returns `true` if the cost is already spent, and recorded in full.
    pub(crate) fn is_spent(&self) -> bool {
        match self {
            Self::Policies(request) => request.is_spent() && request.units() > 0,
            Self::Inline { spent, cost, .. } => *spent && *cost > 0,
        }
    }

    pub(crate) fn id(&self) -> Option<&[u8]> {
        match self {
            Self::Policies(request) => request.id_bytes(),
            Self::Inline { id, .. } => *id,
        }
    }

    /// Returns the limits to charge.
    pub(crate) fn limits<'e>(&self, engine: &'e Engine) -> CheckLimits<'e, '_> {
        match self {
            Self::Policies(request) => CheckLimits::Policies(engine.plan(request)),
            Self::Inline { key, limits, .. } => CheckLimits::Inline(key, limits),
        }
    }

    /// Returns the limits that an earlier check was charged to, for refunds, resets and releases.
    pub(crate) fn charged_limits<'e>(&self, engine: &'e Engine) -> CheckLimits<'e, '_> {
        match self {
            Self::Policies(request) => CheckLimits::Policies(engine.charges().plan(request)),
            Self::Inline { key, limits, .. } => CheckLimits::Inline(key, limits),
        }
    }
}

impl CheckLimits<'_, '_> {
    /// Returns one charge of this cost for each limit.
    pub(crate) fn charges(&self, cost: u64) -> Result<Vec<Charge<'_>>, CostError> {
        match self {
            Self::Policies(plan) => plan.charges(cost),
            Self::Inline(key, limits) => {
                let key = KeyRef::new(key);
                let charges =
                    limits.iter().map(|&limit| Charge::new(PolicyName::INLINE, key, limit));
                Ok(charges.map(|charge| charge.cost(cost)).collect())
            }
        }
    }
}
