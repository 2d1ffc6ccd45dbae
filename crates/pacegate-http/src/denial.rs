//! The responses that [`Rules::deny_with`](crate::Rules::deny_with) accepts.

use http::{Response, request::Parts};

use crate::Refusal;

/// A response to a request that is not served, for [`Rules::deny_with`](crate::Rules::deny_with). `Q` is the head of a
/// request, which identifies the framework.
///
/// - Any tower service: `http::Response<B>`, where `B` converts to the body of the service.
/// - axum (feature `axum`): also `StatusCode`, `(StatusCode, impl IntoResponse)`, and a tuple with headers between the
///   two. For other types, call `into_response()`.
/// - tonic (feature `tonic`): also `tonic::Status`.
/// - actix-web (`pacegate-actix`): `HttpResponse`, or `http::Response<Bytes>`.
pub trait IntoDenial<Q> {
    /// The response type of the framework.
    type Response: 'static;

    /// Converts the value to a response. `refusal` is the reason that the request is not served.
    fn into_denial(self, refusal: &Refusal) -> Self::Response;
}

impl<B: 'static> IntoDenial<Parts> for Response<B> {
    type Response = Self;

    fn into_denial(self, _: &Refusal) -> Self {
        self
    }
}

#[cfg(feature = "axum")]
mod axum_types {
    use axum::response::{IntoResponse, IntoResponseParts, Response};
    use http::{StatusCode, request::Parts};

    use super::{IntoDenial, Refusal};

    impl IntoDenial<Parts> for StatusCode {
        type Response = Response;

        fn into_denial(self, _: &Refusal) -> Response {
            self.into_response()
        }
    }

    impl<T: IntoResponse> IntoDenial<Parts> for (StatusCode, T) {
        type Response = Response;

        fn into_denial(self, _: &Refusal) -> Response {
            self.into_response()
        }
    }

    impl<P: IntoResponseParts, T: IntoResponse> IntoDenial<Parts> for (StatusCode, P, T) {
        type Response = Response;

        fn into_denial(self, _: &Refusal) -> Response {
            self.into_response()
        }
    }
}

/// A denial with `RESOURCE_EXHAUSTED` gets `grpc-retry-pushback-ms`, and if the status has no details, `RetryInfo` and
/// `QuotaFailure`.
#[cfg(feature = "tonic")]
impl IntoDenial<Parts> for tonic::Status {
    type Response = Response<tonic::body::Body>;

    fn into_denial(self, refusal: &Refusal) -> Self::Response {
        let (code, message) = (self.code(), self.message().to_owned());
        let mut response = self.into_http();
        if let (tonic::Code::ResourceExhausted, Refusal::Denied(decision)) = (code, refusal) {
            crate::grpc::add_retry(response.headers_mut(), decision, &message);
        }
        response
    }
}
