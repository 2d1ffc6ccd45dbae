use bytes::Bytes;

/// Creates the body of a refusal: a closure, or [`IntoBody`].
///
/// The layer answers refused requests itself, so it must create a body of the type that the service uses.
pub trait MakeBody<B>: Clone {
    /// Returns a body of these bytes, which are empty for a gRPC refusal.
    fn make(&self, bytes: Bytes) -> B;
}

/// Creates bodies by `From<Bytes>`, which the bodies of axum and hyper implement. The default of the layer.
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
