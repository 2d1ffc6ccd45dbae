//! One connection: HTTP/1.1 or HTTP/2, as the client chooses.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::Router;
use bytes::Bytes;
use http::Response;
use hyper::{
    body::{Body, Frame, SizeHint},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::{Builder, Connection},
};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Shared, permit::UnsentPermit};
use crate::{
    config::Bounds,
    service::{
        Drain, InlineExecutor, Peer, Share, Unread, Watch, describe, is_violation, run_connection,
    },
};

/// A response body that counts as unread until the client has received it.
#[derive(Debug)]
pub(super) struct CountedBody<B> {
    body: B,
    unread: Option<Unread>,
    /// The permit in this response, until the body is read.
    unsent: Option<Arc<UnsentPermit>>,
}

/// Concurrent HTTP/2 streams of a connection.
const MAX_STREAMS: u32 = 100;

/// HTTP/2 flow-control window: the minimum of the protocol.
const WINDOW_BYTES: u32 = 65_535;

/// HTTP/2 send buffer of a stream.
const SEND_BYTES: usize = 16 << 10;

/// The smallest buffer that hyper accepts.
const MIN_HEADER_BYTES: usize = 8_192;

/// Serves a connection to its end.
pub(super) async fn serve<I>(shared: Arc<Shared>, router: Router, io: I, peer: Peer, drain: Drain)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let bounds = shared.active.revision().settings.bounds;
    let watch = Watch::new(peer, shared.in_flight.share(), false);
    let io = TokioIo::new(watch.watched(io));
    let service = service_fn(|request| {
        // On the heap, and freed before the response is read: HTTP/2 keeps the stream until then.
        let handled = super::handle(shared.clone(), router.clone(), watch.clone(), request);
        let handled = Box::pin(handled);
        async move { Ok::<_, Infallible>(handled.await) }
    });
    let builder = builder(&bounds);
    let connection = builder.serve_connection(io, service);
    let ended =
        run_connection(connection, Connection::graceful_shutdown, &watch, bounds, drain).await;
    if let Err(error) = ended {
        let (peer, is_violation) = (&watch.peer, watch.is_http2() && is_violation(&*error));
        let error = describe(&*error);
        tracing::debug!(%peer, %error, "an HTTP connection ended early");
        if let Some(events) = is_violation.then(|| shared.violations.events()).flatten() {
            tracing::warn!(%peer, %error, events, "closed an HTTP/2 connection that broke the protocol");
        }
    }
}

fn builder(bounds: &Bounds) -> Builder<InlineExecutor> {
    let mut builder = Builder::new(InlineExecutor);
    // The watch enforces the timeout for request heads.
    builder
        .http1()
        .keep_alive(true)
        .header_read_timeout(None)
        .max_buf_size(bounds.header_bytes.max(MIN_HEADER_BYTES));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(SEND_BYTES)
        .max_header_list_size(u32::try_from(bounds.header_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(bounds.idle_timeout)
        .keep_alive_timeout(bounds.read_timeout);
    builder
}

impl<B: Body> CountedBody<B> {
    /// Wraps the body of a response, which then counts towards `share`, if there is one.
    pub(super) fn wrap(mut response: Response<B>, share: Option<&Arc<Share>>) -> Response<Self> {
        let unsent = response.extensions_mut().remove();
        response.map(|body| {
            let bytes = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
            let unread = share.filter(|_| bytes > 0).map(|share| share.answer(bytes));
            Self { body, unread, unsent }
        })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(unsent) = self.unsent.take().and_then(Arc::into_inner) {
            unsent.sent();
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        // Every body is one frame.
        match self.unread.take_if(|_| polled.is_ready()) {
            None => polled,
            Some(unread) => polled.map_ok(|frame| frame.map_data(|bytes| unread.keep(bytes))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
