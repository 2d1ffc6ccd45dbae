//! The table of endpoints: path, method, handler and description of each.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    routing::{any, delete, get, post},
};
use schemars::{Schema, json_schema};

use super::{
    Context, HttpResult, ProblemDetails, Shared,
    block::{self, BlockRequest, BlockResponse},
    bodies::{
        AcquireResponse, BatchResponse, CheckResponse, Done, Health, PolicyList, Reloaded,
        ReserveResponse, SeedResponse, SettleResponse, StateResponse, StatsResponse,
    },
    check,
    clear::{self, ClearRequest, ClearResponse},
    counters, descriptors,
    events::{self, EventList},
    live::{self, LiveResponse, RecentResponse},
    openapi::{Parameter, Route, SchemaOf, schema},
    page, proxy, report,
    request::{BatchBody, CancelBody, CheckBody, PermitBody, ReserveBody, SettleBody},
    reservations,
};
use crate::{
    envoy::proto::{RateLimitRequest, RateLimitResponse},
    explain::Explanation,
};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";

const POLICY: Parameter = Parameter::query(
    "policy",
    "Policy name; `key` is then one of its keys as GET /v1/live shows it",
);

const CHECK_QUERY: &[Parameter] = &[
    Parameter::query("domain", "Domain whose policies apply"),
    Parameter::query("attribute", "Attribute as NAME:VALUE; may be repeated")
        .with(schema::<Vec<String>>),
    Parameter::query("key", "Key to limit by `limit`"),
    Parameter::query("limit", "Limit such as 100/minute; may be repeated")
        .with(schema::<Vec<String>>),
    POLICY,
];

const BLOCK_QUERY: &[Parameter] =
    &[POLICY.required(), Parameter::query("key", "Key as GET /v1/live shows it").required()];

const LIVE_QUERY: &[Parameter] = &[
    Parameter::query("since", "Omit the history up to this Unix time in seconds")
        .with(schema::<u64>),
    Parameter::query(
        "step",
        "Seconds of a sample: 1 for the last five minutes, 15 for an hour, 300 for a day",
    )
    .with(sample_seconds),
];

const USER_ID: &[Parameter] = &[Parameter::query("userId", "User").required()];

const AUTH_PARAMETERS: &[Parameter] = &[
    Parameter::query("domain", "Domain whose policies apply"),
    Parameter::query(
        "deny",
        "Status of a denial, and the headers to read: 403 for nginx (X-Original-*), 429 for Traefik and \
         Caddy (X-Forwarded-*)",
    )
    .with(deny_status),
    Parameter::header("X-Original-URI", "Attribute `path`, without the query"),
    Parameter::header("X-Original-Method", "Attribute `method`"),
    Parameter::header("X-Original-Host", "Attribute `host`"),
    Parameter::header("X-Real-IP", "Attribute `ip`"),
    Parameter::header("X-Forwarded-Uri", "Attribute `path`, without the query"),
    Parameter::header("X-Forwarded-Method", "Attribute `method`"),
    Parameter::header("X-Forwarded-Host", "Attribute `host`"),
    Parameter::header("X-Forwarded-For", "The last entry is the attribute `ip`"),
    Parameter::header("X-Pacegate-User", "Attribute `user`; any other name works the same way"),
];

fn sample_seconds(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "enum": [1, 15, 300], "default": 1 })
}

fn deny_status(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["403", "429"], "default": "403" })
}

/// Returns every endpoint except the files of the dashboard.
pub(super) fn routes() -> Vec<Route> {
    let groups = [checks(), reservations(), counters(), reports(), operations(), proxies()];
    groups.into_iter().flatten().collect()
}

/// Returns whether the requests for a path count as decisions in the latency of the listener.
pub(super) fn decides(path: &str) -> bool {
    matches!(
        path,
        "/v1/check"
            | "/v1/check/batch"
            | "/v1/acquire"
            | "/v1/reserve"
            | "/v1/auth"
            | "/check"
            | "/json"
    )
}

fn checks() -> Vec<Route> {
    let problem = ("application/problem+json", schema::<CheckResponse> as SchemaOf);
    vec![
        Route::new("/v1/check", "post check", post(checked))
            .summary("Checks one request")
            .body::<CheckBody<'_>>("Request to check")
            .decision(
                &[(JSON, schema::<CheckResponse>)],
                &[(JSON, schema::<CheckResponse>), problem],
            ),
        Route::new("/v1/check/batch", "post checkBatch", post(check::batch))
            .summary("Checks several requests independently")
            .body::<BatchBody<CheckBody<'_>>>("Requests to check")
            .returns::<BatchResponse>("Decisions in the order of the requests"),
        Route::new("/v1/acquire", "post acquire", post(counters::acquire))
            .summary("Checks a request and holds units of its concurrency limits")
            .body::<CheckBody<'_>>("Request to check")
            .decision(&[(JSON, schema::<AcquireResponse>)], &[(JSON, schema::<AcquireResponse>)]),
        Route::new("/v1/release", "post release", post(counters::release))
            .summary("Releases a permit; does nothing if it has expired")
            .body::<PermitBody<'_>>("Request that acquired the permit, and the permit")
            .returns::<Done>("The permit is not held"),
        Route::new("/v1/renew", "post renew", post(counters::renew))
            .summary("Extends a permit by its full period")
            .body::<PermitBody<'_>>("Request that acquired the permit, and the permit")
            .returns::<Done>("The permit is held for another period")
            .problem(409, "The permit has expired"),
    ]
}

fn reservations() -> Vec<Route> {
    vec![
        Route::new("/v1/reserve", "post reserve", post(reservations::reserve))
            .summary("Charges an estimate, to be settled once the real cost is known")
            .body::<ReserveBody<'_>>("Request to check; `cost` is the estimate")
            .decision(&[(JSON, schema::<ReserveResponse>)], &[(JSON, schema::<ReserveResponse>)]),
        Route::new("/v1/settle", "post settle", post(reservations::settle))
            .summary(
                "Ends a reservation with the units that were used; repeated calls change nothing",
            )
            .body::<SettleBody>("Reservation, and the units that were used")
            .returns::<SettleResponse>("The reservation is not open"),
        Route::new("/v1/cancel", "post cancel", post(reservations::cancel))
            .summary("Ends a reservation of which nothing was used; repeated calls change nothing")
            .body::<CancelBody>("Reservation")
            .returns::<SettleResponse>("The reservation is not open"),
    ]
}

fn counters() -> Vec<Route> {
    vec![
        Route::new("/v1/state", "get peek", get(counters::peek))
            .summary("Returns the state of limits without charging them")
            .parameters(CHECK_QUERY)
            .returns::<StateResponse>("State of the limits"),
        Route::new("/v1/state", "delete reset", delete(counters::reset))
            .summary("Resets counters")
            .admin()
            .parameters(CHECK_QUERY)
            .returns::<Done>("The counters are reset"),
        Route::new("/v1/refund", "post refund", post(counters::refund))
            .summary("Refunds units")
            .admin()
            .body::<CheckBody<'_>>(
                "Request that was charged; `cost` is the number of units to refund",
            )
            .returns::<Done>("The units are refunded, at most as many as were used"),
        Route::new("/v1/clear", "post clear", post(clear::clear))
            .summary("Clears all keys of a policy or a domain; memory store only")
            .admin()
            .body::<ClearRequest>("Keys to clear")
            .returns::<ClearResponse>("The keys are cleared"),
        Route::new("/v1/block", "post block", post(block::block))
            .summary("Denies a key of a policy for some time")
            .admin()
            .body::<BlockRequest>("Key to block, and for how long")
            .returns::<BlockResponse>("The key is denied until then")
            .problem(409, "Too many keys are blocked"),
        Route::new("/v1/block", "delete unblock", delete(block::unblock))
            .summary("Removes a block")
            .admin()
            .parameters(BLOCK_QUERY)
            .returns::<Done>("The key is not blocked; `limits` is 0 if it was not blocked before"),
    ]
}

fn reports() -> Vec<Route> {
    vec![
        Route::new("/v1/explain", "get explain", get(report::explain_query))
            .summary("Explains which policies apply to a request")
            .parameters(&CHECK_QUERY[..4])
            .returns::<Explanation>("Result for each policy"),
        Route::new("/v1/explain", "post explainBody", post(report::explain_body))
            .summary("Explains which policies apply to a request in the body")
            .body::<CheckBody<'_>>("Request to explain")
            .returns::<Explanation>("Result for each policy"),
        Route::new("/v1/policies", "get policies", get(report::policies))
            .summary("Lists the policies of the domains that the API key covers")
            .returns::<PolicyList>("Policies"),
        Route::new("/v1/stats", "get stats", get(report::stats))
            .summary("Returns the counts of this process")
            .admin()
            .returns::<StatsResponse>("Counts"),
        Route::new("/v1/live", "get live", get(live::live))
            .summary("Returns what the dashboard shows")
            .admin()
            .parameters(LIVE_QUERY)
            .returns::<LiveResponse>("Counts and keys of this process"),
        Route::new("/v1/decisions", "get decisions", get(live::decisions))
            .summary("Returns recent decisions about a key")
            .admin()
            .parameters(BLOCK_QUERY)
            .returns::<RecentResponse>("A sample of the decisions of this process"),
        Route::new("/v1/events", "get events", get(events::events))
            .summary("Returns recent events; with `Accept: text/event-stream`, streams new ones")
            .admin()
            .returns::<EventList>("Events of this process")
            .problem(503, "Too many streams are open"),
    ]
}

fn operations() -> Vec<Route> {
    const OPEN_METRICS: &str = "application/openmetrics-text";
    vec![
        Route::new("/v1/reload", "post reload", post(report::reload))
            .summary("Reloads the configuration")
            .admin()
            .returns::<Reloaded>("Configuration reloaded")
            .problem(422, "Reload failed; the current configuration stays"),
        Route::new("/healthz", "get healthz", get(report::healthz))
            .summary("Liveness check")
            .without_key()
            .returns::<Health>("The process is alive"),
        Route::new("/readyz", "get readyz", get(report::readyz))
            .summary("Readiness check")
            .without_key()
            .returns::<Health>("Ready; `degraded` if the store is unreachable")
            .problem(503, "Shutting down"),
        Route::new("/healthcheck", "get healthcheck", get(report::readyz))
            .summary("Readiness check at the path of envoyproxy/ratelimit")
            .without_key()
            .returns::<Health>("Ready; `degraded` if the store is unreachable")
            .problem(503, "Shutting down"),
        Route::new("/metrics", "get metrics", get(report::metrics))
            .summary("Prometheus metrics")
            .response(
                200,
                "Metrics in the OpenMetrics format",
                &[(OPEN_METRICS, schema::<String>)],
            ),
        Route::new("/openapi.json", "get openapi", get(report::openapi))
            .summary("Returns this document")
            .returns::<serde_json::Map<String, serde_json::Value>>("OpenAPI 3.1 document"),
    ]
}

fn proxies() -> Vec<Route> {
    let seed = &[(JSON, schema::<SeedResponse> as SchemaOf), (TEXT, schema::<String>)];
    vec![
        Route::new("/v1/auth", "get auth, post authPost", any(authorized))
            .summary("Checks the request that a proxy describes in headers")
            .parameters(AUTH_PARAMETERS)
            .decision(&[], &[])
            .response(403, "Denied if `deny` is 403; or the API key does not permit this", &[])
            .limit_headers(),
        Route::new("/check", "get seedCheck", get(proxy::seed))
            .summary("Checks a user as RLaaS does")
            .parameters(USER_ID)
            .decision(seed, seed),
        Route::new("/json", "post descriptors", post(descriptors::json))
            .summary("Checks descriptors as envoyproxy/ratelimit does")
            .body::<RateLimitRequest>("RateLimitRequest in its JSON form")
            .returns::<RateLimitResponse>("Allowed")
            .response(429, "Denied", &[(JSON, schema::<RateLimitResponse>)]),
    ]
}

pub(super) fn router(shared: Arc<Shared>) -> Router {
    let router = routes()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(route.path, route.handler));
    page::add(router)
        .fallback(async || ProblemDetails::not_found())
        .method_not_allowed_fallback(async || ProblemDetails::method())
        .with_state(shared)
}

/// Reached through the router only for other methods: `dispatch` handles POST.
async fn checked(shared: Context, request: Request) -> HttpResult {
    let (head, body) = request.into_parts();
    check::check(&shared, &head, body).await
}

async fn authorized(shared: Context, request: Request) -> HttpResult {
    proxy::auth(&shared, &request.into_parts().0).await
}
