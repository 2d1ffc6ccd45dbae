//! Requests of reqwest.

use std::{
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use http_body::{Body, Frame, SizeHint};
use reqwest::{Error, RequestBuilder, Response, ResponseBuilderExt};

use super::{super::OutgoingError, BudgetLayer, Wait};
use crate::MeteredBody;

impl<L: Wait> BudgetLayer<L> {
    /// Sends a request of reqwest, as [`StayWithinLayer::send`](super::StayWithinLayer::send), and corrects its charge
    /// when the body of the response has been read.
    ///
    /// A denied attempt that is sent again is not charged.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response, OutgoingError<Error>> {
        let (response, settlement) = self.layer.send_unsettled(request).await?;
        if settlement.is_none() {
            return Ok(response);
        }
        let with_url = http::Response::builder().url(response.url().clone()).body(());
        let mut response = http::Response::<reqwest::Body>::from(response);
        if let Ok(with_url) = with_url {
            response.extensions_mut().extend(with_url.into_parts().0.extensions);
        }
        let response = MeteredBody::wrap(response, settlement, &self.usage);
        let shared = |body| reqwest::Body::wrap(SharedBody { body: Mutex::new(body) });
        Ok(response.map(shared).into())
    }
}

/// A body that is `Sync`, as reqwest requires.
struct SharedBody<B> {
    /// Read through `&mut` by its reader. The lock is only for the hints.
    body: Mutex<B>,
}

impl<B> SharedBody<B> {
    fn lock(&self) -> MutexGuard<'_, B> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Body + Unpin> Body for SharedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let body = self.get_mut().body.get_mut().unwrap_or_else(PoisonError::into_inner);
        Pin::new(body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().size_hint()
    }
}
