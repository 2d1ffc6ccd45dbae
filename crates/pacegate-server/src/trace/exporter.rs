//! The exporter, built with the feature `otlp`.

use std::{fmt, sync::atomic::Ordering};

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
use tokio::runtime::Handle;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use super::{IS_ON, TARGET};
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

impl TraceError {
    /// A remedy, for people.
    pub fn hint(&self) -> &'static str {
        "expected a URL such as http://127.0.0.1:4318"
    }
}

/// Sends exports on a given runtime, because the exporter calls it from a thread without one.
struct Sender {
    client: Client,
    runtime: Handle,
}

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

/// Makes the span a child of the caller's span. If the caller is not traced, a new trace starts here.
pub(super) fn continue_trace(span: &Span, headers: &HeaderMap) {
    let caller = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    let _ = span.set_parent(caller);
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
