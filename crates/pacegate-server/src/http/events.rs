//! `GET /v1/events`: keys that reached a threshold, as a list or as a stream.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::Request,
    response::{IntoResponse, Response, Sse, sse},
};
use futures_util::stream::{self, Stream};
use http::{HeaderMap, header};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::{sync::broadcast::error::RecvError, time::timeout};

use super::{Context, ProblemDetails, response::json};
use crate::{
    active_config::ActiveConfig,
    config::Scope,
    thresholds::{EventStream, ThresholdModel},
};

/// Recent events of this process, newest first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Events")]
pub(super) struct EventList {
    /// At most 100.
    events: Vec<ThresholdModel>,
}

/// Time after which a stream without events gets a comment, so that neither side takes it for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The longest time until a stream ends after the start of the shutdown.
const DRAIN_CHECK: Duration = Duration::from_millis(200);

/// Returns keys, and so requires the scope `admin`.
pub(super) async fn events(shared: Context, request: Request) -> Result<Response, ProblemDetails> {
    shared.active.revision().access_everywhere(request.headers(), Scope::Admin)?;
    if !wants_stream(request.headers()) {
        let list = EventList { events: shared.active.thresholds.recent() };
        return Ok(json(&list)?.map(axum::body::Body::new));
    }
    let Some(subscription) = shared.active.thresholds.subscribe() else {
        return Err(ProblemDetails::unavailable("too many event streams are open".to_owned()));
    };
    let events = new_events(shared.active.clone(), subscription);
    let keep_alive = sse::KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(events).keep_alive(keep_alive).into_response())
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/event-stream"))
}

/// Returns the events from now on, until the server shuts down.
fn new_events(
    active: Arc<ActiveConfig>,
    subscription: EventStream,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    stream::unfold((active, subscription), async |(active, (mut receiver, permit))| {
        let event = loop {
            if active.is_draining() {
                return None;
            }
            match timeout(DRAIN_CHECK, receiver.recv()).await {
                Ok(Ok(event)) => break event,
                Ok(Err(RecvError::Closed)) => return None,
                // A slow client has missed events: GET /v1/events returns the last ones.
                Ok(Err(RecvError::Lagged(_))) | Err(_) => {}
            }
        };
        let message = sse::Event::default().event("threshold").id(&event.id);
        let message = message.data(serde_json::to_string(&*event).unwrap_or_default());
        Some((Ok(message), (active, (receiver, permit))))
    })
}
