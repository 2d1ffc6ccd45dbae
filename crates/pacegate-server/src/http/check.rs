//! `POST /v1/check`, and the same for many requests at once.

use axum::extract::Request;
use bytes::Bytes;
use futures_util::future::join_all;
use http::{StatusCode, request::Parts};
use hyper::body::Body;
use pacegate::{Charge, CheckError, Decision, Grant};

use super::{
    Context, HttpResult, ProblemDetails, Shared,
    bodies::{BatchAnswer, BatchResponse, CheckResponse},
    permit, read_json, read_request,
    request::{self, CheckBody, Object},
    response::{DecisionResponse, json, key_of, mark_degraded},
};
use crate::{
    active_config::ActiveConfig,
    check::{Check, CheckLimits},
    config::Scope,
    engine::Engine,
    trace,
};

/// `POST /v1/check`: checks one request.
pub(super) async fn check<B>(shared: &Shared, head: &Parts, body: B) -> HttpResult
where
    B: Body<Data = Bytes> + Unpin,
{
    let bounds = shared.bounds();
    let body = read_json(shared, head, body).await?;
    let body: CheckBody<'_> = request::parse(&body)?;
    let check = body.validate(&bounds)?;
    let revision = shared.active.revision();
    revision.access_for(&head.headers, Scope::Check, &check)?;
    let now = shared.now();
    let (decision, granted) = decide(&revision.engine, &check, body.up_to).await?;
    trace::decided(&decision);
    let response = DecisionResponse { decision, headers: revision.settings.headers, now };
    if revision.settings.problem_details && !decision.is_allowed() {
        let key = match &check {
            Check::Policies(request) => key_of(&revision, &decision, request),
            Check::Inline { key, .. } => String::from_utf8_lossy(key).into_owned(),
        };
        return response.problem(StatusCode::TOO_MANY_REQUESTS, &key, revision.number);
    }
    response.json(&CheckResponse { decision, granted, revision: revision.number })
}

/// `POST /v1/check/batch`: checks requests independently, in their order.
pub(super) async fn batch(shared: Context, request: Request) -> HttpResult {
    let (head, body) = read_request(&shared, request).await?;
    let revision = shared.active.revision();
    let bounds = &revision.settings.bounds;
    let bodies = request::parse_batch(&body, bounds.batch)?;
    let access = revision.access(&head.headers)?;
    let checks = bodies.iter().map(|Object(body)| {
        let check = body.validate(bounds)?;
        permit(&access, Scope::Check, check.domain(), check.is_inline())?;
        Ok((check, body.up_to))
    });
    let decisions = decide_each(&revision.engine, checks.collect()).await;
    let is_degraded = decisions.iter().flatten().any(|(decision, _)| decision.is_degraded());
    let answers = decisions.into_iter().map(|decision| match decision {
        Ok((decision, granted)) => {
            BatchAnswer::Decision(CheckResponse { decision, granted, revision: revision.number })
        }
        Err(error) => BatchAnswer::Error { error },
    });
    Ok(mark_degraded(is_degraded, json(&BatchResponse { answers: answers.collect() })?))
}

/// Decides a check. `up_to`: it may take fewer units than its cost, and the answer has their number.
async fn decide(
    engine: &Engine,
    check: &Check<'_>,
    up_to: bool,
) -> Result<(Decision, Option<u64>), CheckError> {
    if !up_to {
        return Ok((check.decide(engine).await?, None));
    }
    let Grant { units, decision } = check.decide_up_to(engine).await?;
    Ok((decision, Some(units)))
}

/// Decides checks independently: in one store call if each has a single limit, else concurrently.
async fn decide_each(
    engine: &Engine,
    checks: Vec<Result<(Check<'_>, bool), ProblemDetails>>,
) -> Vec<Result<(Decision, Option<u64>), ProblemDetails>> {
    let limits: Vec<_> = checks.iter().flatten().map(|(check, _)| check.limits(engine)).collect();
    let charges = checks.iter().flatten().zip(&limits);
    let charges =
        charges.map(|((check, up_to), limits)| single_charge(check, limits).filter(|_| !up_to));
    let decisions: Vec<_> = match charges.collect::<Option<Vec<_>>>() {
        Some(charges) => {
            let mut decisions = Vec::new();
            engine.check_each(&charges, &mut decisions).await;
            decisions.into_iter().map(|decision| Ok((decision?, None))).collect()
        }
        None => {
            let checks = checks.iter().flatten();
            join_all(checks.map(|(check, up_to)| decide(engine, check, *up_to))).await
        }
    };
    let mut decisions = decisions
        .into_iter()
        .map(|decision: Result<_, CheckError>| decision.map_err(ProblemDetails::from));
    let merged = checks.iter().filter_map(|check| match check {
        Ok(_) => decisions.next(),
        Err(problem) => Some(Err(problem.clone())),
    });
    merged.collect()
}

/// Returns the only charge of a check that has a single enforced limit and no id.
fn single_charge<'a>(check: &Check<'_>, limits: &'a CheckLimits<'_, '_>) -> Option<Charge<'a>> {
    match &*limits.charges(check.cost()).ok()? {
        [charge] if charge.enforced && check.id().is_none() && !check.is_spent() => Some(*charge),
        _ => None,
    }
}

/// Checks arbitrary bytes as the body of one request and of a batch, for fuzzing.
pub(crate) async fn check_bytes(active: &ActiveConfig, body: &[u8]) {
    let revision = active.revision();
    let bounds = &revision.settings.bounds;
    let mut bodies = request::parse_batch(body, bounds.batch).unwrap_or_default();
    bodies.extend(request::parse(body).map(Object));
    for Object(body) in &bodies {
        if let Ok(check) = body.validate(bounds) {
            // Only panics and hangs matter here.
            let _ = check.decide(&revision.engine).await;
        }
    }
}
