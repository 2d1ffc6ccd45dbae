//! Stands in for the exporter in a build without the feature `otlp`.

use http::HeaderMap;
use tracing::Span;
use tracing_subscriber::layer::Identity;

use super::TraceError;

pub(super) type Provider = std::convert::Infallible;

pub(super) fn provider(_collector: &str, _one_in: u32) -> Result<Provider, TraceError> {
    Err(TraceError::NotBuilt)
}

pub(super) fn layer(_provider: &Provider) -> Identity {
    Identity::new()
}

pub(super) fn shutdown(_provider: &Provider) {}

pub(super) fn continue_trace(_span: &Span, _headers: &HeaderMap) {}
