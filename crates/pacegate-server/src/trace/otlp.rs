//! The exporter of the OpenTelemetry SDK.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use opentelemetry::{KeyValue, propagation::TextMapPropagator, trace::TracerProvider};
use opentelemetry_http::{HeaderExtractor, HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::Sampler};
use tokio::runtime::Handle;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{Layer, registry::LookupSpan};

pub(super) use opentelemetry_sdk::trace::SdkTracerProvider as Provider;

use super::TraceError;
use crate::client::Client;

/// Sends exports on a given runtime, because the exporter calls it from a thread without one.
struct Sender {
    client: Client,
    runtime: Handle,
}

pub(super) fn provider(collector: &str, one_in: u32) -> Result<Provider, TraceError> {
    let client = Client::new(collector, None, None)?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Sender { client, runtime: Handle::current() })
        .with_endpoint(format!("{}/v1/traces", collector.trim_end_matches('/')))
        .build()
        .map_err(|error| TraceError::Exporter(error.into()))?;
    #[expect(clippy::float_arithmetic, reason = "the sampling rate does not affect decisions")]
    let share = Sampler::TraceIdRatioBased(1.0 / f64::from(one_in.max(1)));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_service_name("pacegate").with_attribute(version);
    let provider = Provider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(share)))
        .with_resource(resource.build())
        .build();
    Ok(provider)
}

pub(super) fn layer<S>(provider: &Provider) -> impl Layer<S> + use<S>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    let tracer = provider.tracer("pacegate");
    tracing_opentelemetry::layer().with_tracer(tracer).with_location(false).with_threads(false)
}

pub(super) fn shutdown(provider: &Provider) {
    if let Err(error) = provider.shutdown() {
        tracing::warn!(%error, "some traces were not sent");
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
