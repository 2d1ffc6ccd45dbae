//! OpenTelemetry traces: one span for each request, a child of the caller's span.
//!
//! Only the exporter uses these spans. Without an exporter, a request costs one read of an atomic flag. The feature
//! `otlp` decides whether the exporter is built.

use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use pacegate::Decision;
use tracing::{Span, field::Empty};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use crate::client::ClientError;

#[cfg_attr(not(feature = "otlp"), path = "trace/no_otlp.rs")]
mod otlp;

/// Exports spans to a collector.
#[derive(Debug)]
pub struct Exporter(otlp::Provider);

/// The reason why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum TraceError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Exporter(Box<dyn std::error::Error + Send + Sync>),
    #[error("this build has no exporter")]
    NotBuilt,
}

/// The `tracing` target of request spans. They contain no events, so logs do not show them.
const TARGET: &str = "pacegate::request";

static IS_ON: AtomicBool = AtomicBool::new(false);

impl Exporter {
    /// Creates an exporter for an OTLP collector over HTTP, such as `http://127.0.0.1:4318`. Of the requests without a
    /// traced caller, one in `one_in` is traced. Must be called within the runtime that sends the spans. Fails in a
    /// build without the feature `otlp`.
    pub fn new(collector: &str, one_in: u32) -> Result<Self, TraceError> {
        otlp::provider(collector, one_in).map(Self)
    }

    /// Returns the layer that passes request spans to the exporter.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    {
        IS_ON.store(true, Ordering::Relaxed);
        let only_requests = Targets::new().with_target(TARGET, tracing::Level::INFO);
        otlp::layer(&self.0).with_filter(only_requests)
    }

    /// Sends the remaining spans. Blocks until they have been sent, or for some seconds.
    pub fn finish(&self) {
        otlp::shutdown(&self.0);
    }
}

impl TraceError {
    /// A remedy, for people.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Client(_) | Self::Exporter(_) => "expected a URL such as http://127.0.0.1:4318",
            Self::NotBuilt => "use a release of pacegate, or build it with `--features otlp`",
        }
    }
}

/// Creates the span of a request. It is disabled if there is no exporter.
#[inline]
pub(crate) fn request(listener: &'static str, headers: &HeaderMap) -> Span {
    if !IS_ON.load(Ordering::Relaxed) {
        return Span::none();
    }
    let span = tracing::info_span!(
        target: TARGET,
        "check",
        otel.kind = "server",
        listener,
        allowed = Empty,
        policy = Empty,
        source = Empty,
    );
    otlp::continue_trace(&span, headers);
    span
}

/// Records the decision in the span of the current request.
#[inline]
pub(crate) fn decided(decision: &Decision) {
    if !IS_ON.load(Ordering::Relaxed) {
        return;
    }
    let span = Span::current();
    span.record("allowed", decision.is_allowed());
    span.record("source", decision.source().as_str());
    if let Some(policy) = decision.policy() {
        span.record("policy", policy.as_str());
    }
}
