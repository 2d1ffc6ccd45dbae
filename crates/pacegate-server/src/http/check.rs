//! `POST /v1/check`, and the same for many requests at once.

use axum::extract::Request;
use bytes::Bytes;
use futures_util::future::join_all;
use http::{StatusCode, request::Parts};
use hyper::body::Body;
use pacegate::{Charge, Decision};

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
    let decision = check.decide(&revision.engine).await?;
    trace::decided(&decision);
    let response = DecisionResponse { decision, headers: revision.settings.headers, now };
    if revision.settings.problem_details && !decision.is_allowed() {
        let key = match &check {
            Check::Policies(request) => key_of(&revision, &decision, request),
            Check::Inline { key, .. } => String::from_utf8_lossy(key).into_owned(),
        };
        return response.problem(StatusCode::TOO_MANY_REQUESTS, &key, revision.number);
    }
    response.json(&CheckResponse { decision, revision: revision.number })
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
        Ok(check)
    });
    let decisions = decide_each(&revision.engine, checks.collect()).await;
    let is_degraded = decisions.iter().flatten().any(Decision::is_degraded);
    let answers = decisions.into_iter().map(|decision| match decision {
        Ok(decision) => {
            BatchAnswer::Decision(CheckResponse { decision, revision: revision.number })
        }
        Err(error) => BatchAnswer::Error { error },
    });
    Ok(mark_degraded(is_degraded, json(&BatchResponse { answers: answers.collect() })?))
}

/// Decides checks independently: in one store call if each has a single limit, else concurrently.
async fn decide_each(
    engine: &Engine,
    checks: Vec<Result<Check<'_>, ProblemDetails>>,
) -> Vec<Result<Decision, ProblemDetails>> {
    let limits: Vec<_> =
        checks.iter().flatten().map(|check| (check, check.limits(engine))).collect();
    let charges = limits.iter().map(|(check, limits)| single_charge(check, limits));
    let mut decisions = Vec::new();
    match charges.collect::<Option<Vec<_>>>() {
        Some(charges) => engine.check_each(&charges, &mut decisions).await,
        None => {
            decisions = join_all(checks.iter().flatten().map(|check| check.decide(engine))).await;
        }
    }
    let mut decisions =
        decisions.into_iter().map(|decision| decision.map_err(ProblemDetails::from));
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
