//! Stands in for the exporter in a build without the feature `otlp`.

use std::convert::Infallible;

use http::HeaderMap;
use tracing::Span;
use tracing_subscriber::layer::Identity;

/// Exports spans to a collector. Cannot be created, because this build lacks the feature `otlp`.
#[derive(Debug)]
pub struct Exporter(Infallible);

/// The reason why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
#[error("this build has no exporter")]
pub struct TraceError;

impl TraceError {
    /// A remedy, for people.
    pub fn hint(&self) -> &'static str {
        "use a release of pacegate, or build it with `--features otlp`"
    }
}

impl Exporter {
    /// Fails, because this build lacks the feature `otlp`.
    pub fn new(_collector: &str, _one_in: u32) -> Result<Self, TraceError> {
        Err(TraceError)
    }

    /// Returns a layer that does nothing.
    pub fn layer(&self) -> Identity {
        Identity::new()
    }

    /// Does nothing.
    pub fn finish(&self) {
        match self.0 {}
    }
}

pub(super) fn continue_trace(_span: &Span, _headers: &HeaderMap) {}
