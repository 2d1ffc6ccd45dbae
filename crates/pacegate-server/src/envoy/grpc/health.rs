//! Health checks.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, Version, header};
use hyper::body::Incoming;
use prost::Message;

use super::{
    super::proto::{HealthCheckRequest, HealthCheckResponse, ServingStatus},
    GRPC,
    message::{framed, receive},
    reply::{CallResult, Failure, GrpcCode, Reply},
};
use crate::{
    active_config::ActiveConfig,
    service::{Drain, Watch},
};

/// Service names for health checks.
const SERVICES: [&str; 3] = ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"];
/// Maximum size of a health check, which needs no API key.
const MAX_HEALTH_BYTES: usize = 256;

/// Returns the service of a health check.
pub(super) async fn asked_service(
    active: &ActiveConfig,
    watch: &Watch,
    request: Request<Incoming>,
) -> Result<String, Failure> {
    let bounds = active.revision().settings.bounds;
    let max = MAX_HEALTH_BYTES.min(bounds.request_bytes);
    let message = receive(request.into_body(), &bounds, max, watch.share()).await?;
    let question = HealthCheckRequest::decode(message)
        .map_err(|_| Failure::new(GrpcCode::InvalidArgument, "invalid HealthCheckRequest"))?;
    Ok(question.service)
}

pub(super) async fn check(
    active: &ActiveConfig,
    watch: &Watch,
    request: Request<Incoming>,
) -> CallResult {
    let service = asked_service(active, watch, request).await?;
    if !SERVICES.contains(&&*service) {
        return Err(Failure::new(GrpcCode::NotFound, "unknown service"));
    }
    let health = match active.is_draining() || active.lacks_rules() {
        true => ServingStatus::NotServing,
        false => ServingStatus::Serving,
    };
    Ok((framed_status(health), false))
}

/// Sends the health now, and again when the server shuts down. Until then the connection is not idle, unless its client
/// needs an API key and has none.
pub(super) fn watch(service: &str, watch: &Arc<Watch>, drain: &Drain) -> Response<Reply> {
    let health = match SERVICES.contains(&service) {
        true => ServingStatus::Serving,
        false => ServingStatus::ServiceUnknown,
    };
    let mut drain = drain.clone();
    let open = watch.is_authenticated().then(|| watch.begin(Version::HTTP_2));
    let begun = Box::pin(async move {
        drain.begun().await;
        drop(open);
    });
    let message = framed_status(health);
    let unread = watch.share().map(|share| share.answer(message.len()));
    let mut reply = Reply::message(match unread {
        None => message,
        Some(unread) => unread.keep(message),
    });
    reply.later = Some((begun, framed_status(ServingStatus::NotServing)));
    let mut response = Response::new(reply);
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

fn framed_status(status: ServingStatus) -> Bytes {
    framed(&HealthCheckResponse { status: status.into() })
}
