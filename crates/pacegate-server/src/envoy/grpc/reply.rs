//! Replies to calls: messages with trailers, and failures.

use std::{
    borrow::Cow,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use hyper::body::{Body, Frame};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tokio::{sync::mpsc::Receiver, time::Instant};

use super::super::{decide::EnvoyError, rlqs::SessionError};
use crate::service::TooMuch;

/// A failed call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: GrpcCode,
    pub(super) message: Cow<'static, str>,
}

/// Status codes of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrpcCode {
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// A message, and whether a failure mode decided.
pub(super) type CallResult = Result<(Bytes, bool), Failure>;

/// A message of a stream, which is dropped if it is not sent before the instant.
pub(super) type StreamMessage = (Bytes, Instant);

/// A message with trailers, a stream of messages, or an empty body.
pub(super) struct Reply {
    message: Option<Bytes>,
    /// Further messages.
    pub(super) later: Option<Pin<Box<dyn Stream<Item = Bytes> + Send>>>,
    /// Messages of a stream, until one is a failure.
    stream: Option<Receiver<Result<StreamMessage, Failure>>>,
    trailers: Option<HeaderMap>,
}

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Creates a trailers-only response.
pub(super) fn failed(failure: &Failure) -> Response<Reply> {
    let mut response = Response::new(Reply::EMPTY);
    *response.headers_mut() = failure.headers();
    response
}

/// The characters that gRPC requires to be percent-encoded in a message, besides those that are not ASCII.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

impl Failure {
    pub(super) const fn new(code: GrpcCode, message: &'static str) -> Self {
        Self { code, message: Cow::Borrowed(message) }
    }

    /// Returns the headers or trailers with the status.
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(2);
        headers.insert(STATUS, HeaderValue::from(self.code as u16));
        let message = utf8_percent_encode(&self.message, ESCAPED).to_string();
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert(MESSAGE, message);
        }
        headers
    }
}

impl From<TooMuch> for Failure {
    fn from(_: TooMuch) -> Self {
        Self::new(GrpcCode::ResourceExhausted, "too many requests in flight on this connection")
    }
}

impl From<EnvoyError> for Failure {
    fn from(error: EnvoyError) -> Self {
        let code = match &error {
            EnvoyError::Check(_) | EnvoyError::Store(_) | EnvoyError::NoConfiguration => {
                GrpcCode::Unavailable
            }
            EnvoyError::EmptyDomain
            | EnvoyError::NoDescriptors
            | EnvoyError::Unit
            | EnvoyError::NotText => GrpcCode::InvalidArgument,
        };
        Self { code, message: Cow::Owned(error.to_string()) }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        Self { code: GrpcCode::InvalidArgument, message: Cow::Owned(error.to_string()) }
    }
}

impl Reply {
    pub(super) const EMPTY: Self =
        Self { message: None, later: None, stream: None, trailers: None };

    pub(super) fn message(message: Bytes) -> Self {
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(STATUS, HeaderValue::from_static("0"));
        Self { message: Some(message), later: None, stream: None, trailers: Some(trailers) }
    }

    /// Creates a reply with the messages of a stream.
    pub(super) fn stream(messages: Receiver<Result<StreamMessage, Failure>>) -> Self {
        Self { stream: Some(messages), message: None, ..Self::message(Bytes::new()) }
    }

    pub(super) fn is_failure(&self) -> bool {
        self.message.is_none() && self.stream.is_none()
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.message.is_none()
            && let Some(later) = &mut self.later
        {
            self.message = std::task::ready!(later.as_mut().poll_next(context));
            if self.message.is_none() {
                self.later = None;
            }
        }
        let mut message = self.message.take();
        while message.is_none()
            && let Some(stream) = &mut self.stream
        {
            match std::task::ready!(stream.poll_recv(context)) {
                Some(Ok((_, deadline))) if deadline <= Instant::now() => {}
                Some(Ok((next, _))) => message = Some(next),
                Some(Err(failure)) => {
                    (self.stream, self.trailers) = (None, Some(failure.headers()));
                }
                None => self.stream = None,
            }
        }
        let frame = message.map(Frame::data).or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none() && self.stream.is_none() && self.trailers.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_failures_are_ascii() {
        assert_eq!(
            utf8_percent_encode("100% of ä\r\n", ESCAPED).to_string(),
            "100%25 of %C3%A4%0D%0A"
        );
    }
}
