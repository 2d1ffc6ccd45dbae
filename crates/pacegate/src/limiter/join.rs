//! Runs many futures concurrently.

use std::{
    future::{Future, poll_fn},
    task::Poll,
};

/// Returns the outputs of all futures, in their order. All are polled before any is waited for.
pub(super) async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut results: Vec<_> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (running, result) in running.iter_mut().zip(&mut results) {
            if let Some(future) = running
                && let Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *result = Some(value);
                *running = None;
            }
        }
        if running.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
