//! OpenTelemetry traces: one span for each request, a child of the caller's span.
//!
//! Only the exporter uses these spans. Without an exporter, a request costs one read of an atomic flag.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use opentelemetry::{KeyValue, propagation::TextMapPropagator, trace::TracerProvider};
use opentelemetry_http::{HeaderExtractor, HttpClient, HttpError};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracerProvider},
};
use pacegate::Decision;
use tokio::runtime::Handle;
use tracing::{Span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use crate::client::{Client, ClientError};

/// Exports spans to a collector.
#[derive(Debug)]
pub struct Exporter(SdkTracerProvider);

/// The reason why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum TraceError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}

/// Sends exports on a given runtime, because the exporter calls it from a thread without one.
struct Sender {
    client: Client,
    runtime: Handle,
}

/// The `tracing` target of request spans. They contain no events, so logs do not show them.
const TARGET: &str = "pacegate::request";

static IS_ON: AtomicBool = AtomicBool::new(false);

impl Exporter {
    /// Creates an exporter for an OTLP collector over HTTP, such as `http://127.0.0.1:4318`. Of the requests without a
    /// traced caller, one in `one_in` is traced. Must be called within the runtime that sends the spans.
    pub fn new(collector: &str, one_in: u32) -> Result<Self, TraceError> {
        let client = Client::new(collector, None, None)?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Sender { client, runtime: Handle::current() })
            .with_endpoint(format!("{}/v1/traces", collector.trim_end_matches('/')))
            .build()?;
        #[expect(clippy::float_arithmetic, reason = "the sampling rate does not affect decisions")]
        let share = Sampler::TraceIdRatioBased(1.0 / f64::from(one_in.max(1)));
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name("pacegate").with_attribute(version);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(share)))
            .with_resource(resource.build())
            .build();
        Ok(Self(provider))
    }

    /// Returns the layer that passes request spans to the exporter.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    {
        IS_ON.store(true, Ordering::Relaxed);
        let tracer = self.0.tracer("pacegate");
        let only_requests = Targets::new().with_target(TARGET, tracing::Level::INFO);
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_filter(only_requests)
    }

    /// Sends the remaining spans. Blocks until they have been sent, or for some seconds.
    pub fn finish(&self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "some traces were not sent");
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
    let caller = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    // If the caller is not traced, a new trace starts here.
    let _ = span.set_parent(caller);
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

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sending = self.runtime.spawn(async move { client.send_unchanged(request).await });
        Ok(sending.await??)
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client.fmt(f)
    }
}
