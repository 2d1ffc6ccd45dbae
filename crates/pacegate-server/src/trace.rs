//! OpenTelemetry traces: one span for each request, a child of the caller's span.
//!
//! Only the exporter uses these spans. Without an exporter, a request costs one read of an atomic flag. The feature
//! `otlp` decides whether the exporter is built.

use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use pacegate::Decision;
use tracing::{Span, field::Empty};

#[cfg_attr(not(feature = "otlp"), path = "trace/no_exporter.rs")]
mod exporter;

pub use exporter::{Exporter, TraceError};

/// The `tracing` target of request spans. They contain no events, so logs do not show them.
const TARGET: &str = "pacegate::request";

static IS_ON: AtomicBool = AtomicBool::new(false);

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
    exporter::continue_trace(&span, headers);
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
