//! Requests of reqwest.

use http::{StatusCode, request::Parts, response};
use reqwest::{Error, Method, Request, RequestBuilder, Response, Url};

use super::{OutgoingError, StayWithinLayer, Wait, service::not_made, settings::Settings};
use crate::{Adjustment, Reply, Settlement, Settling};

/// Default of [`StayWithinLayer::retries`].
pub(super) const DEFAULT_RETRIES: u32 = 3;

impl<L: Wait> StayWithinLayer<L> {
    /// Sends a request of reqwest as soon as the limiter admits it, and obeys the response like the tower layer.
    ///
    /// A request that the upstream service denied is sent again after the pause that the response asks for, for
    /// example with `Retry-After`. Denials are the status 429, and for [idempotent](Method::is_idempotent) methods also
    /// 503. The denial itself is returned if it asks for no pause, if the pause or the queue is longer than the rest of
    /// [`within`](Self::within), after the last [retry](Self::retries), if the body is a stream, or if the client
    /// followed a redirect: the first service has processed the request then.
    ///
    /// `within` bounds the time from the call to the last retry, transfers included. Transfers themselves have the
    /// timeouts of the client.
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// use pacegate::{Limit, Limiter};
    /// use pacegate_http::outgoing::StayWithinLayer;
    ///
    /// let api = StayWithinLayer::new(Limiter::memory(Limit::per_second(10)));
    /// let client = reqwest::Client::new();
    /// let response = api.send(client.get("https://api.example/items").query(&[("page", 2)])).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send(&self, request: RequestBuilder) -> Result<Response, OutgoingError<Error>> {
        self.send_unsettled(request).await.map(|(response, _)| response)
    }

    /// Sends a request. Returns its charge too if the body of the response corrects it.
    pub(super) async fn send_unsettled(
        &self,
        request: RequestBuilder,
    ) -> Result<(Response, Option<Settlement>), OutgoingError<Error>> {
        let (client, request) = request.build_split();
        let mut request = request.map_err(OutgoingError::Service)?;
        let settings = &*self.settings;
        let Some((key, cost)) = settings.resolve(&head(&request)).map_err(not_made)? else {
            let response = client.execute(request).await.map_err(OutgoingError::Service)?;
            return Ok((response, None));
        };
        let deadline = settings.deadline();
        let mut settlement = settings.turn(&key, cost, deadline).await.map_err(not_made)?;
        let mut retries = settings.retries;
        loop {
            let copy = if retries > 0 { request.try_clone() } else { None };
            let (method, url) = (request.method().clone(), request.url().clone());
            let response = client.execute(request).await.map_err(OutgoingError::Service)?;
            let unsettled = settle_by_head(settings, settlement, &response).await;
            // The denial is for another request, and this one was processed.
            if has_moved(&url, response.url()) {
                return Ok((response, unsettled));
            }
            let paused = settings.learn(&key, response.status(), response.headers());
            let Some(copy) = copy.filter(|_| paused && is_denial(&response, &method)) else {
                return Ok((response, unsettled));
            };
            let Ok(next) = settings.turn(&key, cost, deadline).await else {
                return Ok((response, unsettled));
            };
            // The upstream service did not process this attempt, and its body is not read.
            if let Some(unsettled) = unsettled {
                completed(unsettled.adjust(Adjustment::Refund)).await;
            }
            settlement = next;
            request = copy;
            retries -= 1;
        }
    }

    /// Sets how often [`send`](Self::send) sends a denied request again. Default: 3.
    #[must_use]
    pub fn retries(self, retries: u32) -> Self {
        self.set(|settings| settings.retries = retries)
    }
}

/// Corrects the charge of an attempt by the head of its response. Returns the charge if the body corrects it.
async fn settle_by_head<L: Wait>(
    settings: &Settings<L>,
    settlement: Option<Settlement>,
    response: &Response,
) -> Option<Settlement> {
    let settlement = settlement?;
    let (mut head, ()): (response::Parts, ()) = http::Response::new(()).into_parts();
    (head.status, head.version) = (response.status(), response.version());
    head.headers = response.headers().clone();
    let Some(adjustment) = settings.adjustment(&head) else { return Some(settlement) };
    completed(settlement.adjust(adjustment)).await;
    None
}

async fn completed(reply: Reply<(), Settling>) {
    if let Reply::Later(settling) = reply {
        settling.await;
    }
}

/// Returns `true` if the client followed a redirect.
fn has_moved(from: &Url, to: &Url) -> bool {
    let without_fragment = |url: &Url| {
        let mut url = url.clone();
        url.set_fragment(None);
        url
    };
    without_fragment(from) != without_fragment(to)
}

/// Returns `true` if the upstream service did not process the request, so that it can be sent again.
fn is_denial(response: &Response, method: &Method) -> bool {
    match response.status() {
        StatusCode::TOO_MANY_REQUESTS => true,
        StatusCode::SERVICE_UNAVAILABLE => method.is_idempotent(),
        _ => false,
    }
}

/// Returns the head of a request for resolvers. A URL that is not a URI has no host here, and is rejected by reqwest.
fn head(request: &Request) -> Parts {
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.method = request.method().clone();
    head.uri = request.url().as_str().parse().unwrap_or_default();
    head.headers = request.headers().clone();
    head
}
