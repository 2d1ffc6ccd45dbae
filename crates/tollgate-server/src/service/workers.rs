use std::{
    future::Future,
    io,
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
    /// Starts so many threads.
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        let (mut handles, mut ends) = (Vec::new(), Vec::new());
        for number in 0..count.max(1) {
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
