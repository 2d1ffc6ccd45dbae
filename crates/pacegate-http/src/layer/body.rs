use bytes::Bytes;

/// Makes the body of a refusal: a closure, or [`IntoBody`].
pub trait MakeBody<B>: Clone {
    /// A body of these bytes, of which there may be none.
    fn make(&self, bytes: Bytes) -> B;
}

/// By `From<Bytes>`, which the bodies of axum and hyper have.
#[derive(Clone, Copy, Debug, Default)]
pub struct IntoBody;

impl<B: From<Bytes>> MakeBody<B> for IntoBody {
    fn make(&self, bytes: Bytes) -> B {
        bytes.into()
    }
}

impl<B, F: Fn(Bytes) -> B + Clone> MakeBody<B> for F {
    fn make(&self, bytes: Bytes) -> B {
        self(bytes)
    }
}
