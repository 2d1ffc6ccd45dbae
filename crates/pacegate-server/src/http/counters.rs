//! Operations on counters other than checks: peek, reset, refund, and permits.

use std::sync::Arc;

use axum::extract::Request;
use pacegate::Charge;

use super::{
    Context, HttpResult, ProblemDetails, Shared,
    bodies::{AcquireResponse, Done, StateResponse},
    permit::UnsentPermit,
    read_request,
    request::{self, CheckBody, PermitBody},
    response::{DecisionResponse, json, mark_degraded},
};
use crate::{
    active_config::Revision, blocks::NamedKey, config::Scope, explain::LimitState, service::Access,
};

/// `GET /v1/state`: returns the state of limits without charging them.
pub(super) async fn peek(shared: Context, request: Request) -> HttpResult {
    let revision = shared.active.revision();
    if let Some(named) = NamedKey::from_query(&request, &revision)? {
        revision.access_to(request.headers(), Scope::Check, named.domain)?;
        let plan =
            revision.engine.charges().plan_for(named.configured_policy()?, named.key.as_ref());
        return state(&revision, &plan.charges(0)?).await;
    }
    let body = CheckBody::from_query(request.uri())?;
    let check = body.validate(&revision.settings.bounds)?;
    revision.access_for(request.headers(), Scope::Check, &check)?;
    let limits = check.limits(&revision.engine);
    state(&revision, &limits.charges(0)?).await
}

async fn state(revision: &Revision, charges: &[Charge<'_>]) -> HttpResult {
    let batch = revision.engine.check_batch(charges, None).await?;
    let decision = batch.decision;
    let now = revision.engine.now();
    let limits = batch.each.iter().map(|decision| LimitState::new(decision, now));
    let state = StateResponse { decision, revision: revision.number, limits: limits.collect() };
    Ok(mark_degraded(decision.is_degraded(), json(&state)?))
}

/// `DELETE /v1/state`: resets counters.
pub(super) async fn reset(shared: Context, request: Request) -> HttpResult {
    let revision = shared.active.revision();
    if let Some(named) = NamedKey::from_query(&request, &revision)? {
        let access = revision.access_to(request.headers(), Scope::Admin, named.domain)?;
        let plan =
            revision.engine.charges().plan_for_all(named.configured_policy()?, named.key.as_ref());
        let charges = plan.charges(0)?;
        return reset_charges(&shared, &revision, access, &charges, &charges[..1]).await;
    }
    let body = CheckBody::from_query(request.uri())?;
    let check = body.validate(&revision.settings.bounds)?;
    let access = revision.access_for(request.headers(), Scope::Admin, &check)?;
    let limits = check.charged_limits(&revision.engine);
    let charges = limits.charges(0)?;
    reset_charges(&shared, &revision, access, &charges, &charges).await
}

async fn reset_charges(
    shared: &Shared,
    revision: &Revision,
    access: Access<'_>,
    charges: &[Charge<'_>],
    audited: &[Charge<'_>],
) -> HttpResult {
    revision.engine.charges().reset(charges).await?;
    shared.active.audit.charges("reset", &access, audited);
    json(&Done { limits: charges.len() })
}

/// `POST /v1/refund`: refunds units.
pub(super) async fn refund(shared: Context, request: Request) -> HttpResult {
    let (head, body) = read_request(&shared, request).await?;
    let body = CheckBody::parse_without_id(&body)?;
    let revision = shared.active.revision();
    let check = body.validate(&revision.settings.bounds)?;
    let access = revision.access_for(&head.headers, Scope::Admin, &check)?;
    let limits = check.charged_limits(&revision.engine);
    let charges = limits.charges(check.cost())?;
    revision.engine.refund(&charges).await?;
    shared.active.audit.charges("refund", &access, &charges);
    json(&Done { limits: charges.len() })
}

/// `POST /v1/acquire`: a check that holds units of concurrency limits under a permit.
pub(super) async fn acquire(shared: Context, request: Request) -> HttpResult {
    let (head, body) = read_request(&shared, request).await?;
    let body = CheckBody::parse_without_id(&body)?;
    let revision = shared.active.revision();
    let check = body.validate(&revision.settings.bounds)?;
    revision.access_for(&head.headers, Scope::Check, &check)?;
    let limits = check.limits(&revision.engine);
    let permit = revision.engine.charges().new_permit_id();
    let charges = with_permit(limits.charges(check.cost())?, permit);
    let now = shared.now();
    let decision = revision.engine.check_batch(&charges, None).await?.decision;
    let holds_units =
        decision.is_allowed() && charges.iter().any(|charge| charge.permit != 0 && charge.cost > 0);
    // Created before anything can fail, so that an error releases the permit.
    let unsent = holds_units.then(|| UnsentPermit::new(&revision.engine, &charges));
    let response = DecisionResponse { decision, headers: revision.settings.headers, now };
    let mut response = response.json(&AcquireResponse {
        decision,
        revision: revision.number,
        permit: holds_units.then(|| format!("{permit:032x}")),
    })?;
    if let Some(unsent) = unsent {
        response.extensions_mut().insert(Arc::new(unsent));
    }
    Ok(response)
}

/// `POST /v1/release`: releases a permit. Does nothing if the permit has expired.
pub(super) async fn release(shared: Context, request: Request) -> HttpResult {
    change_permit(&shared, request, PermitChange::Release).await
}

/// `POST /v1/renew`: extends a permit by its full period, unless it has expired.
pub(super) async fn renew(shared: Context, request: Request) -> HttpResult {
    change_permit(&shared, request, PermitChange::Renew).await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PermitChange {
    Release,
    Renew,
}

async fn change_permit(shared: &Shared, request: Request, change: PermitChange) -> HttpResult {
    let (head, body) = read_request(shared, request).await?;
    let (permit, body) = request::parse::<PermitBody<'_>>(&body)?.split()?;
    let revision = shared.active.revision();
    let check = body.validate(&revision.settings.bounds)?;
    let access = revision.access_for(&head.headers, Scope::Check, &check)?;
    let limits = check.charged_limits(&revision.engine);
    let mut charges = with_permit(limits.charges(0)?, permit);
    charges.retain(|charge| charge.permit != 0);
    match change {
        PermitChange::Release => {
            revision.engine.charges().release(&charges).await?;
            if access.is_authenticated() && !charges.is_empty() {
                shared.active.audit.charges("release", &access, &charges);
            }
        }
        PermitChange::Renew => {
            if charges.is_empty() || !revision.engine.charges().renew(&charges).await? {
                return Err(ProblemDetails::permit_lost());
            }
        }
    }
    json(&Done { limits: charges.len() })
}

fn with_permit(charges: Vec<Charge<'_>>, permit: u128) -> Vec<Charge<'_>> {
    charges.into_iter().map(|charge| charge.holding(permit)).collect()
}
