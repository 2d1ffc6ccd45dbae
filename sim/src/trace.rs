//! The trace of a simulation: a hash of everything that happened and, on request, readable lines.

use std::{
    fmt,
    hash::{DefaultHasher, Hasher},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::clock::VirtualTime;

/// Records events. Clones share one trace.
#[derive(Clone, Debug)]
pub struct Trace {
    time: VirtualTime,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    hasher: DefaultHasher,
    lines: Option<Vec<String>>,
    events: u64,
}

impl Trace {
    /// Creates a trace, with readable lines if `with_lines`.
    pub fn new(time: VirtualTime, with_lines: bool) -> Self {
        let lines = with_lines.then(Vec::new);
        let state = State { hasher: DefaultHasher::new(), lines, events: 0 };
        Self { time, state: Arc::new(Mutex::new(state)) }
    }

    /// Records an event.
    pub fn event(&self, text: fmt::Arguments<'_>) {
        let now = self.time.now();
        let line = format!("{:>10}.{:03} ms  {text}", now / 1_000, now % 1_000);
        let mut state = self.state.lock();
        state.hasher.write(line.as_bytes());
        state.events += 1;
        if let Some(lines) = &mut state.lines {
            lines.push(line);
        }
    }

    /// Adds bytes to the hash only.
    pub fn bytes(&self, bytes: &[u8]) {
        self.state.lock().hasher.write(bytes);
    }

    /// Returns the hash of all events so far.
    pub fn hash(&self) -> u64 {
        self.state.lock().hasher.finish()
    }

    /// Returns the readable lines.
    pub fn take_lines(&self) -> Vec<String> {
        self.state.lock().lines.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
