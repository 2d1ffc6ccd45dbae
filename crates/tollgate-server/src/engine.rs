//! The limiter behind all listeners: in this process or over a store, with one set of calls.

use tollgate::{
    Charge, CheckError, Decision, Limiter, Plan, PolicySet, Request, SharedLimiter, Stats,
    StoreError, Verdict,
};

/// Decides. In memory every call is ready at once; over a store it waits for that.
#[derive(Clone, Debug)]
pub(crate) enum Engine {
    /// State in this process.
    Memory(Limiter),
    /// State in a store that others share.
    Shared(SharedLimiter),
}

impl Engine {
    /// Charges a request to every policy that covers it, all or nothing.
    pub(crate) async fn check(&self, request: &Request<'_>) -> Result<Decision, CheckError> {
        match self {
            Self::Memory(_) if request.id_bytes().is_some() => Err(no_ids()),
            Self::Memory(limiter) => Ok(limiter.check_request(request)?),
            Self::Shared(limiter) => limiter.check_request(request).await,
        }
    }

    /// Which limits apply to a request.
    pub(crate) fn plan(&self, request: &Request<'_>) -> Plan<'_> {
        match self {
            Self::Memory(limiter) => limiter.plan(request),
            Self::Shared(limiter) => limiter.plan(request),
        }
    }

    /// Decides charges, all or nothing. With an id it counts once, however often it is asked, if the store can.
    pub(crate) async fn verdict(
        &self,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<Verdict, CheckError> {
        match (self, id) {
            (Self::Memory(_), Some(_)) => Err(no_ids()),
            (Self::Memory(limiter), None) => Ok(limiter.verdict(charges)?),
            (Self::Shared(limiter), Some(id)) => limiter.verdict_once(id, charges).await,
            (Self::Shared(limiter), None) => limiter.verdict(charges).await,
        }
    }

    /// Decides charges, each by itself, and adds the decisions to `decisions`.
    pub(crate) async fn check_each(
        &self,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Result<Decision, CheckError>>,
    ) {
        match self {
            Self::Memory(limiter) => limiter.check_each(charges, decisions),
            Self::Shared(limiter) => limiter.check_each(charges, decisions).await,
        }
    }

    /// Gives back up to the cost of each charge, and no more than is used.
    pub(crate) async fn refund(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        match self {
            Self::Memory(limiter) => limiter.refund_all(charges),
            Self::Shared(limiter) => limiter.refund_all(charges).await?,
        }
        Ok(())
    }

    /// Forgets what was charged to the keys of charges.
    pub(crate) async fn reset(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        match self {
            Self::Memory(limiter) => limiter.reset_all(charges),
            Self::Shared(limiter) => limiter.reset_all(charges).await?,
        }
        Ok(())
    }

    /// Returns the permits of charges.
    pub(crate) async fn release(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        match self {
            Self::Memory(limiter) => limiter.release_all(charges),
            Self::Shared(limiter) => limiter.release_all(charges).await?,
        }
        Ok(())
    }

    /// Starts the life of the permits of charges anew. `false` if any was gone.
    pub(crate) async fn renew(&self, charges: &[Charge<'_>]) -> Result<bool, StoreError> {
        match self {
            Self::Memory(limiter) => Ok(limiter.renew_all(charges)),
            Self::Shared(limiter) => limiter.renew_all(charges).await,
        }
    }

    /// The policies in force.
    pub(crate) fn policies(&self) -> &PolicySet {
        match self {
            Self::Memory(limiter) => limiter.policies(),
            Self::Shared(limiter) => limiter.policies(),
        }
    }

    /// What has been decided so far, by this process.
    pub(crate) fn stats(&self) -> Stats {
        match self {
            Self::Memory(limiter) => limiter.stats(),
            Self::Shared(limiter) => limiter.stats(),
        }
    }

    /// Other policies on the same state and statistics.
    pub(crate) fn with_policies(&self, policies: PolicySet) -> Self {
        match self {
            Self::Memory(limiter) => Self::Memory(limiter.with_policies(policies)),
            Self::Shared(limiter) => Self::Shared(limiter.with_policies(policies)),
        }
    }
}

fn no_ids() -> CheckError {
    let text = "the memory store takes no request ids: leave the id out, or use a Redis store";
    CheckError::Store(StoreError::Unsupported(text.to_owned()))
}
