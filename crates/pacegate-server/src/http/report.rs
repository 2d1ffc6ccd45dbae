//! Reports for operators, and the reload.

use axum::extract::Request;
use http::{HeaderMap, StatusCode};

use super::{
    Context, HttpResult, ProblemDetails, Shared,
    bodies::{
        Health, PolicyCounts, PolicyList, PolicyModel, ProcessReport, Reloaded, StatsResponse,
    },
    openapi::document,
    read_request,
    request::CheckBody,
    response::{content, json},
};
use crate::{check::Check, config::Scope, explain::explain, metrics::Metrics, outage::StoreOutage};

/// `GET /v1/policies`: lists the policies of the domains that the API key covers.
pub(super) async fn policies(shared: Context, request: Request) -> HttpResult {
    let revision = shared.active.revision();
    let access = revision.access(request.headers())?;
    let policies = revision.engine.policies().policies().iter();
    let visible = policies.filter(|policy| access.allows(Scope::Check, &policy.domain));
    let policies = visible.map(PolicyModel::from).collect();
    json(&PolicyList { revision: revision.number, policies })
}

/// `GET /v1/stats`: returns counts and keys, and so requires the scope `admin`.
pub(super) async fn stats(shared: Context, request: Request) -> HttpResult {
    let revision = shared.active.revision();
    revision.access_everywhere(request.headers(), Scope::Admin)?;
    let stats = revision.engine.stats();
    json(&StatsResponse {
        process: ProcessReport::new(&shared.active, &revision, &stats),
        policies: stats.policies.iter().map(PolicyCounts::from).collect(),
        inline: PolicyCounts::from(&stats.inline),
        store_failures: stats.store_failures,
    })
}

/// `GET /v1/explain`.
pub(super) async fn explain_query(shared: Context, request: Request) -> HttpResult {
    let body = CheckBody::from_query(request.uri())?;
    explain_check(&shared, request.headers(), &body).await
}

/// `POST /v1/explain`.
pub(super) async fn explain_body(shared: Context, request: Request) -> HttpResult {
    let (head, body) = read_request(&shared, request).await?;
    let body = CheckBody::parse_without_id(&body)?;
    explain_check(&shared, &head.headers, &body).await
}

async fn explain_check(shared: &Shared, headers: &HeaderMap, body: &CheckBody<'_>) -> HttpResult {
    let revision = shared.active.revision();
    let check = body.validate(&revision.settings.bounds)?;
    revision.access_for(headers, Scope::Check, &check)?;
    let Check::Policies(request) = &check else {
        let detail =
            "policies do not apply to a `key` with a `limit`: GET /v1/state returns its state";
        return Err(ProblemDetails::request(detail));
    };
    json(&explain(&revision.engine, revision.number, request).await?)
}

/// `POST /v1/reload`: reloads the configuration.
pub(super) async fn reload(shared: Context, request: Request) -> HttpResult {
    let revision = shared.active.revision();
    let access = revision.access_everywhere(request.headers(), Scope::Admin)?;
    let credential = access.name();
    tracing::info!(target: "audit", action = "reload", credential, "requested a reload");
    let reload = shared.reload.clone();
    let result = tokio::task::spawn_blocking(move || reload()).await;
    let result = result.map_err(|_| ProblemDetails::unavailable("the reload was interrupted"))?;
    let revision = result.map_err(|error| ProblemDetails::reload_failed(error.to_string()))?;
    json(&Reloaded { revision })
}

/// `GET /healthz`: the liveness check.
pub(super) async fn healthz() -> HttpResult {
    json(&Health { status: "alive", degraded: None, store: None })
}

/// `GET /readyz`: the readiness check. A server without its store is ready: failure modes apply.
pub(super) async fn readyz(shared: Context, request: Request) -> HttpResult {
    if shared.active.is_draining() {
        return Err(ProblemDetails::draining());
    }
    if shared.active.lacks_rules() {
        return Err(ProblemDetails::unavailable("no configuration is loaded"));
    }
    let outage = StoreOutage::of(&shared.active);
    let degraded = Some(outage.is_some());
    let may_see = shared.active.revision().access(request.headers()).is_ok();
    json(&Health { status: "ready", degraded, store: outage.filter(|_| may_see) })
}

/// `GET /metrics`.
pub(super) async fn metrics(shared: Context, request: Request) -> HttpResult {
    shared.active.revision().access_everywhere(request.headers(), Scope::Check)?;
    let text = shared.metrics.encode();
    let text = text.map_err(|_| ProblemDetails::unavailable("cannot encode the metrics"))?;
    Ok(content(StatusCode::OK, Metrics::CONTENT_TYPE, text.into()))
}

/// `GET /openapi.json`.
pub(super) async fn openapi(shared: Context, request: Request) -> HttpResult {
    shared.active.revision().access(request.headers())?;
    Ok(content(StatusCode::OK, "application/json", document()))
}
