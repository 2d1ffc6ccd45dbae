//! Charges that are corrected by the body of the response, such as the tokens that a language model reports.

mod body;
mod layer;
mod meter;

use std::sync::Arc;

use crate::{Decide, RateLimitLayer};

pub use body::MeteredBody;
pub use layer::{Metered, MeteredExchange, MeteredFuture, MeteredLayer};

/// The location of the units that a request has used in the body of its response.
///
/// Reads JSON, server-sent events (`text/event-stream`) whose data is JSON, and JSON lines (`application/x-ndjson`).
/// Of a stream, the last value counts.
///
/// ```
/// use pacegate_http::Usage;
///
/// let openai = Usage::json("/usage/total_tokens");
/// let anthropic = Usage::json("/usage/input_tokens").and("/usage/output_tokens");
/// # let _ = (openai, anthropic);
/// ```
#[derive(Clone, Debug)]
pub struct Usage {
    pointers: Vec<String>,
    max_bytes: usize,
}

impl Usage {
    /// Reads the number at a JSON pointer (RFC 6901), such as `/usage/total_tokens`.
    pub fn json(pointer: impl Into<String>) -> Self {
        Self { pointers: vec![pointer.into()], max_bytes: 1 << 20 }
    }

    /// Adds the number at another pointer, if the body has it.
    #[must_use]
    pub fn and(mut self, pointer: impl Into<String>) -> Self {
        self.pointers.push(pointer.into());
        self
    }

    /// Sets the maximum size of a JSON body, or of a line of a stream. Default: 1 MiB. A larger one is passed on, but
    /// not read: its charge stays.
    #[must_use]
    pub fn max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }
}

impl<L: Decide, B: 'static> RateLimitLayer<L, B> {
    /// Corrects the charge at the end of the response by the units that its body reports: refunds the rest, or records
    /// more as [debt](pacegate::Excess::Debt), which later requests wait for.
    ///
    /// Estimate the cost with [`cost`](crate::Rules::cost), as high as it may become: then the limit is never exceeded.
    /// The body is passed on unchanged, each part as it arrives. A response that reports nothing, is compressed, or is
    /// not read to its end keeps the charge. To correct these by their head, use
    /// [`settle_with`](crate::Rules::settle_with): its adjustment applies unless it is
    /// [`Adjustment::Keep`](crate::Adjustment::Keep).
    ///
    /// ```
    /// use axum::{Router, routing::post};
    /// use http::header::{CONTENT_TYPE, HeaderName};
    /// use pacegate::{Limit, Limiter};
    /// use pacegate_http::{RateLimitLayer, Usage, resolve::Header};
    /// use tower::ServiceExt;
    ///
    /// async fn chat() -> ([(HeaderName, &'static str); 1], &'static str) {
    ///     ([(CONTENT_TYPE, "application/json")], r#"{"usage": {"total_tokens": 300}}"#)
    /// }
    ///
    /// # pollster::block_on(async {
    /// let limiter = Limiter::memory(Limit::per_minute(10_000));
    /// let layer = RateLimitLayer::new(limiter.clone())
    ///     .by(Header::from_static("x-user"))
    ///     .cost(|_| 4_000)
    ///     .settle_by(Usage::json("/usage/total_tokens"));
    /// let app = Router::new().route("/chat", post(chat)).layer(layer);
    /// let request = http::Request::post("/chat").header("x-user", "alice").body(axum::body::Body::empty())?;
    /// let response = app.oneshot(request).await?;
    /// axum::body::to_bytes(response.into_body(), 1 << 20).await?;
    /// assert_eq!(limiter.peek("alice").remaining(), 9_700);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn settle_by(self, usage: Usage) -> MeteredLayer<L, B> {
        MeteredLayer { rules: Arc::new(self.deferring()), usage: Arc::new(usage) }
    }
}
