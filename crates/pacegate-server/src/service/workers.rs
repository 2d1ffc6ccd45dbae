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

/// Threads that serve connections, each with a runtime of its own: a connection stays on one thread, and nothing is
/// stolen or woken across processors.
#[derive(Debug)]
pub(crate) struct Workers {
    handles: Vec<Handle>,
    next: AtomicUsize,
    /// Dropped to end the threads.
    _ends: Vec<oneshot::Sender<()>>,
}

impl Workers {
    /// Starts so many threads, or one for each processor.
    pub(crate) fn start(count: Option<NonZeroUsize>) -> io::Result<Self> {
        let count = count.or(thread::available_parallelism().ok()).map_or(1, usize::from);
        let (mut handles, mut ends) = (Vec::new(), Vec::new());
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (end, ended) = oneshot::channel::<()>();
            handles.push(runtime.handle().clone());
            ends.push(end);
            thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                // An error is the sender's end, which is what is waited for.
                let _ = runtime.block_on(ended);
            })?;
        }
        Ok(Self { handles, next: AtomicUsize::new(0), _ends: ends })
    }

    /// Runs `task` on one of the threads, each in turn.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len();
        self.handles[next].spawn(task);
    }
}
