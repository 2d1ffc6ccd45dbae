//! Health checks.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, Version, header};
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::watch::Receiver;

use super::{
    super::proto::{HealthCheckRequest, HealthCheckResponse, ServingStatus},
    GRPC,
    message::{framed, receive},
    reply::{CallResult, Failure, GrpcCode, Reply},
};
use crate::{
    active_config::ActiveConfig,
    service::{Drain, Open, Watch},
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
    Ok((framed_status(health(active)), false))
}

fn health(active: &ActiveConfig) -> ServingStatus {
    match active.is_draining() || active.lacks_rules() {
        true => ServingStatus::NotServing,
        false => ServingStatus::Serving,
    }
}

/// Sends the health now, and again when it changes, until the server shuts down. Until then the connection is not idle,
/// unless its client needs an API key and has none.
pub(super) fn watch(
    active: &Arc<ActiveConfig>,
    service: &str,
    watch: &Arc<Watch>,
    drain: &Drain,
) -> Response<Reply> {
    let reloads = active.reloads();
    let (first, active) = match SERVICES.contains(&service) {
        true => (health(active), Some(active.clone())),
        false => (ServingStatus::ServiceUnknown, None),
    };
    let open = watch.is_authenticated().then(|| watch.begin(Version::HTTP_2));
    let watched = Watched { active, sent: first, reloads, drain: drain.clone(), _open: open };
    let message = framed_status(first);
    let unread = watch.share().map(|share| share.answer(message.len()));
    let mut reply = Reply::message(match unread {
        None => message,
        Some(unread) => unread.keep(message),
    });
    reply.later = Some(Box::pin(stream::unfold(Some(watched), Watched::next)));
    let mut response = Response::new(reply);
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

/// The health of one service, as sent to a client.
struct Watched {
    /// `None` if the service is unknown.
    active: Option<Arc<ActiveConfig>>,
    sent: ServingStatus,
    reloads: Receiver<u64>,
    drain: Drain,
    /// Keeps the connection open.
    _open: Option<Open>,
}

impl Watched {
    /// Returns the next change. The last one is the shutdown.
    async fn next(watched: Option<Self>) -> Option<(Bytes, Option<Self>)> {
        let mut watched = watched?;
        loop {
            tokio::select! {
                () = watched.drain.begun() => {
                    return Some((framed_status(ServingStatus::NotServing), None));
                }
                Ok(()) = watched.reloads.changed() => {}
            }
            let health = watched.active.as_deref().map_or(watched.sent, health);
            if health != watched.sent {
                watched.sent = health;
                return Some((framed_status(health), Some(watched)));
            }
        }
    }
}

fn framed_status(status: ServingStatus) -> Bytes {
    framed(&HealthCheckResponse { status: status.into() })
}
