//! Which path leads where.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    routing::{MethodRouter, any, delete, get, post},
};

use super::{
    Answer, Problem, Shared, block, budget, check, clear, descriptors, live, page, proxy, report,
};

/// Every path there is but for those of the dashboard. `/openapi.json` describes them all, which a test sees to.
pub(super) fn routes() -> Vec<(&'static str, MethodRouter<Arc<Shared>>)> {
    vec![
        ("/v1/check", post(checked)),
        ("/v1/check/batch", post(check::batch)),
        ("/v1/state", get(budget::peek).merge(delete(budget::reset))),
        ("/v1/refund", post(budget::refund)),
        ("/v1/acquire", post(budget::acquire)),
        ("/v1/release", post(budget::release)),
        ("/v1/renew", post(budget::renew)),
        ("/v1/explain", get(report::explain_query).merge(post(report::explain_body))),
        ("/v1/policies", get(report::policies)),
        ("/v1/stats", get(report::stats)),
        ("/v1/live", get(live::live)),
        ("/v1/block", post(block::block).merge(delete(block::unblock))),
        ("/v1/clear", post(clear::clear)),
        ("/v1/reload", post(report::reload)),
        ("/v1/auth", any(authorized)),
        ("/check", get(proxy::seed)),
        ("/json", post(descriptors::json)),
        ("/healthz", get(report::healthz)),
        ("/readyz", get(report::readyz)),
        // Where deployments of envoyproxy/ratelimit ask.
        ("/healthcheck", get(report::readyz)),
        ("/metrics", get(report::metrics)),
        ("/openapi.json", get(report::openapi)),
    ]
}

pub(super) fn router(shared: Arc<Shared>) -> Router {
    let add = |router: Router<_>, (path, methods)| router.route(path, methods);
    let router = page::add(routes().into_iter().fold(Router::new(), add));
    router
        .fallback(async || Problem::not_found())
        .method_not_allowed_fallback(async || Problem::method())
        .with_state(shared)
}

/// For those methods only that are not answered before the router.
async fn checked(State(shared): State<Arc<Shared>>, request: Request) -> Result<Answer, Problem> {
    let (head, body) = request.into_parts();
    check::check(&shared, &head, body).await
}

async fn authorized(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    proxy::auth(&shared, &request.into_parts().0).await
}
