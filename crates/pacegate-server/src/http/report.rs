//! What the people who run the service want to know of it, and the one thing they tell it.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::StatusCode;

use super::{
    Answer, Problem, Shared,
    answer::{json, typed},
    ask::{self, Asked, Form, Subject},
    budget::{from_query, without_id},
    model::{Health, PolicyList, PolicyModel, Reloaded, StatsModel},
    openapi::document,
    posted,
};
use crate::{config::Scope, explain::explain, metrics::Metrics, outage::StoreOutage};

/// `GET /v1/policies`: those of the domains that the credential is for.
pub(super) async fn policies(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let revision = shared.gate.revision();
    let access = revision.access(request.headers())?;
    let all = revision.engine.policies().policies().iter();
    let seen = all.filter(|policy| access.allows(Scope::Check, &policy.domain));
    let policies = seen.map(PolicyModel::from).collect();
    json(StatusCode::OK, &PolicyList { revision: revision.number, policies })
}

/// `GET /v1/stats`. It names keys, so it is not for everybody.
pub(super) async fn stats(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let revision = shared.gate.revision();
    revision.access_everywhere(request.headers(), Scope::Admin)?;
    let (reloads_refused, reload_complaint) = shared.gate.refusals();
    let stats = StatsModel::new(revision.number, &revision.engine.stats(), shared.gate.state());
    json(StatusCode::OK, &StatsModel { reloads_refused, reload_complaint, ..stats })
}

/// `GET /v1/explain`.
pub(super) async fn explain_query(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let asked = from_query(request.uri())?;
    explained(&shared, request.headers(), &asked).await
}

/// `POST /v1/explain`.
pub(super) async fn explain_body(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let (head, body) = posted(&shared, request).await?;
    let asked = without_id(ask::parse(&body, Form::Check)?)?;
    explained(&shared, &head.headers, &asked).await
}

async fn explained(
    shared: &Shared,
    headers: &http::HeaderMap,
    asked: &Asked<'_>,
) -> Result<Answer, Problem> {
    let revision = shared.gate.revision();
    let subject = asked.subject(&revision.settings.bounds)?;
    revision.access_for(headers, Scope::Check, &subject)?;
    let Subject::Policies(request) = &subject else {
        let detail = "a `key` with its own `limit` meets no policy: GET /v1/state tells how it is";
        return Err(Problem::request(detail));
    };
    json(StatusCode::OK, &explain(&revision.engine, revision.number, request).await?)
}

/// `POST /v1/reload`: reads the configuration again.
pub(super) async fn reload(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let revision = shared.gate.revision();
    let access = revision.access_everywhere(request.headers(), Scope::Admin)?;
    let credential = access.name();
    tracing::info!(target: "audit", action = "reload", credential, "asked for a reload");
    let reload = shared.reload.clone();
    let done = tokio::task::spawn_blocking(move || reload()).await;
    let done = done.map_err(|_| Problem::unavailable("the reload did not come to its end"))?;
    let number = done.map_err(Problem::reload_refused)?;
    json(StatusCode::OK, &Reloaded { revision: number })
}

/// `GET /healthz`: the process answers.
pub(super) async fn healthz() -> Result<Answer, Problem> {
    json(StatusCode::OK, &Health { status: "alive", degraded: None, store: None })
}

/// `GET /readyz`: the server takes requests. It also does so without the store: failure modes apply.
pub(super) async fn readyz(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    if shared.gate.is_draining() {
        return Err(Problem::draining());
    }
    let outage = StoreOutage::of(&shared.gate);
    let degraded = Some(outage.is_some());
    let may_see = shared.gate.revision().access(request.headers()).is_ok();
    json(StatusCode::OK, &Health { status: "ready", degraded, store: outage.filter(|_| may_see) })
}

/// `GET /metrics`.
pub(super) async fn metrics(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    shared.gate.revision().access_everywhere(request.headers(), Scope::Check)?;
    let text = shared.metrics.encode();
    let text = text.map_err(|_| Problem::unavailable("the metrics cannot be written"))?;
    Ok(typed(StatusCode::OK, Metrics::CONTENT_TYPE, text.into()))
}

/// `GET /openapi.json`.
pub(super) async fn openapi(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    shared.gate.revision().access(request.headers())?;
    Ok(typed(StatusCode::OK, "application/json", document()))
}
