use std::{
    future::Future,
    io,
    num::NonZeroUsize,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// Threads that serve connections. Each has a single-threaded runtime, so a connection stays on one thread and needs no
/// work stealing or wake-ups across CPUs.
#[derive(Debug)]
pub(crate) struct Workers {
    handles: Vec<Handle>,
    next: AtomicUsize,
    /// Dropped to end the threads.
    _ends: Vec<oneshot::Sender<()>>,
}

impl Workers {
    /// Starts `count` threads. Default: one per CPU.
    pub(crate) fn start(count: Option<NonZeroUsize>) -> io::Result<Self> {
        let count = count.or(thread::available_parallelism().ok()).map_or(1, usize::from);
        let (mut handles, mut ends) = (Vec::new(), Vec::new());
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (end, ended) = oneshot::channel::<()>();
            handles.push(runtime.handle().clone());
            ends.push(end);
            thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                // Returns an error when the sender is dropped, which ends the thread.
                let _ = runtime.block_on(ended);
            })?;
        }
        Ok(Self { handles, next: AtomicUsize::new(0), _ends: ends })
    }

    /// Returns the runtime for the connections of the store, or `None` for that of the caller. A single worker thread
    /// runs them itself: requests and replies then need no wake-ups of another thread, and all requests that arrive
    /// together leave together. With several, that thread would have more work than the others.
    pub(crate) fn store_runtime(&self) -> Option<&Handle> {
        match &*self.handles {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Runs `task` on the next thread, round robin.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len();
        self.handles[next].spawn(task);
    }
}
