use std::{
    future::Future,
    task::{Context, Waker},
};

use hyper::rt::Executor;

/// Runs the streams of an HTTP/2 connection.
///
/// A stream is polled at once, and becomes a task only if it has to wait. So a request that is answered without
/// waiting, such as one without an API key, frees its memory before the connection accepts the next one. Otherwise all
/// connections that are ready would decode their requests before any of these is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineExecutor;

impl<F> Executor<F> for InlineExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let mut stream = Box::pin(stream);
        // The task polls the stream again, with its own waker.
        let mut context = Context::from_waker(Waker::noop());
        if stream.as_mut().poll(&mut context).is_pending() {
            tokio::spawn(stream);
        }
    }
}
