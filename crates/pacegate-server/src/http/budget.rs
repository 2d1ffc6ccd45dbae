//! What is done to budgets besides a check: look at them, empty them, give back, hold and let go.

use std::sync::Arc;

use axum::{
    extract::{Query, Request, State},
    response::Response,
};
use http::{StatusCode, Uri};
use pacegate::Charge;

use super::{
    Answer, Problem, Shared,
    answer::{Decided, degraded_if, json, write_decision_and},
    ask::{self, Asked, Form},
    block::Named,
    model::{DecisionModel, Done, StateModel},
    permit::{PermitBody, Unsent},
    posted,
};
use crate::{config::Scope, gate::Revision};

/// `GET /v1/state`: what a request would meet, without charging anything.
pub(super) async fn peek(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let revision = shared.gate.revision();
    if let Some(named) = Named::from_query(&request, &revision)? {
        revision.access_to(request.headers(), Scope::Check, named.domain)?;
        let plan = revision.engine.plan_for(named.counting()?, named.key.as_ref());
        return state(&revision, &plan.charges(0)?).await;
    }
    let asked = from_query(request.uri())?;
    let subject = asked.subject(&revision.settings.bounds)?;
    revision.access_for(request.headers(), Scope::Check, &subject)?;
    let budgets = subject.budgets(&revision.engine);
    state(&revision, &budgets.charges(0)?).await
}

async fn state(revision: &Revision, charges: &[Charge<'_>]) -> Result<Answer, Problem> {
    let verdict = revision.engine.verdict(charges, None).await?;
    let model = StateModel {
        decision: DecisionModel::whole(&verdict.decision, revision.number),
        limits: verdict.each.iter().map(DecisionModel::part).collect(),
    };
    Ok(degraded_if(verdict.decision.is_degraded(), json(StatusCode::OK, &model)?))
}

/// `DELETE /v1/state`: forgets what was charged.
pub(super) async fn reset(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let revision = shared.gate.revision();
    if let Some(named) = Named::from_query(&request, &revision)? {
        let access = revision.access_to(request.headers(), Scope::Admin, named.domain)?;
        let plan = revision.engine.plan_for_all(named.counting()?, named.key.as_ref());
        let charges = plan.charges(0)?;
        revision.engine.reset(&charges).await?;
        shared.gate.audit().charges("reset", &access, &charges[..1]);
        return json(StatusCode::OK, &Done { limits: charges.len() });
    }
    let asked = from_query(request.uri())?;
    let subject = asked.subject(&revision.settings.bounds)?;
    let access = revision.access_for(request.headers(), Scope::Admin, &subject)?;
    let budgets = subject.counted(&revision.engine);
    let charges = budgets.charges(0)?;
    revision.engine.reset(&charges).await?;
    shared.gate.audit().charges("reset", &access, &charges);
    json(StatusCode::OK, &Done { limits: charges.len() })
}

/// `POST /v1/refund`: gives units back.
pub(super) async fn refund(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let (head, body) = posted(&shared, request).await?;
    let asked = without_id(ask::parse(&body, Form::Check)?)?;
    let revision = shared.gate.revision();
    let subject = asked.subject(&revision.settings.bounds)?;
    let access = revision.access_for(&head.headers, Scope::Admin, &subject)?;
    let budgets = subject.counted(&revision.engine);
    let charges = budgets.charges(subject.cost())?;
    revision.engine.refund(&charges).await?;
    shared.gate.audit().charges("refund", &access, &charges);
    json(StatusCode::OK, &Done { limits: charges.len() })
}

/// `POST /v1/acquire`: a check whose concurrency limits hold their units under a permit.
pub(super) async fn acquire(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, body) = posted(&shared, request).await?;
    let asked = without_id(ask::parse(&body, Form::Check)?)?;
    let revision = shared.gate.revision();
    let subject = asked.subject(&revision.settings.bounds)?;
    revision.access_for(&head.headers, Scope::Check, &subject)?;
    let budgets = subject.budgets(&revision.engine);
    let permit = revision.engine.charges().new_permit_id();
    let charges = held(budgets.charges(subject.cost())?, permit);
    let now = shared.now();
    let decision = revision.engine.verdict(&charges, None).await?.decision;
    let holds =
        decision.is_allowed() && charges.iter().any(|charge| charge.permit != 0 && charge.cost > 0);
    let decided = Decided { decision, headers: revision.settings.headers, now };
    let answer = decided.answer_with(|body| {
        write_decision_and(body, decision, revision.number, |body| match holds {
            true => body.extend_from_slice(format!(",\"permit\":\"{permit:032x}\"").as_bytes()),
            false => body.extend_from_slice(b",\"permit\":null"),
        });
    });
    let unsent = holds.then(|| Unsent::new(&revision.engine, &charges));
    Ok(answer.map(|body| axum::body::Body::new(PermitBody { body, unsent })))
}

/// `POST /v1/release`: gives a permit back. One that is gone already is no trouble.
pub(super) async fn release(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    with_permit(&shared, request, Release::Release).await
}

/// `POST /v1/renew`: starts a permit's life anew, if it has not ended.
pub(super) async fn renew(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    with_permit(&shared, request, Release::Renew).await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    Release,
    Renew,
}

async fn with_permit(shared: &Shared, request: Request, what: Release) -> Result<Answer, Problem> {
    let (head, body) = posted(shared, request).await?;
    let asked = without_id(ask::parse(&body, Form::Held)?)?;
    let permit = asked.permit.as_deref().and_then(parse_permit).ok_or_else(|| {
        Problem::request("`permit` is what POST /v1/acquire gave, 32 hexadecimal digits")
    })?;
    let revision = shared.gate.revision();
    let subject = asked.subject(&revision.settings.bounds)?;
    let access = revision.access_for(&head.headers, Scope::Check, &subject)?;
    let budgets = subject.counted(&revision.engine);
    let mut charges = held(budgets.charges(0)?, permit);
    charges.retain(|charge| charge.permit != 0);
    match what {
        Release::Release => {
            revision.engine.release(&charges).await?;
            if access.is_authenticated() && !charges.is_empty() {
                shared.gate.audit().charges("release", &access, &charges);
            }
        }
        Release::Renew => {
            if charges.is_empty() || !revision.engine.renew(&charges).await? {
                return Err(Problem::permit_lost());
            }
        }
    }
    json(StatusCode::OK, &Done { limits: charges.len() })
}

fn held(charges: Vec<Charge<'_>>, permit: u128) -> Vec<Charge<'_>> {
    charges.into_iter().map(|charge| charge.holding(permit)).collect()
}

fn parse_permit(text: &str) -> Option<u128> {
    let is_hex = (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

/// What query parameters ask about. They charge nothing, so they name no cost.
pub(super) fn from_query(uri: &Uri) -> Result<Asked<'static>, Problem> {
    let query = Query::<Vec<(String, String)>>::try_from_uri(uri);
    let Query(pairs) = query.map_err(|error| Problem::request(error.body_text()))?;
    Asked::from_query(pairs)
}

/// An id makes a check count once. Nothing else has one.
pub(super) fn without_id(asked: Asked<'_>) -> Result<Asked<'_>, Problem> {
    match asked.id {
        Some(_) => Err(Problem::request("leave `id` out: only a check has one")),
        None => Ok(asked),
    }
}
