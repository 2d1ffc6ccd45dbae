//! Records panics of the tasks of a simulation, which Tokio would otherwise swallow.

use std::{
    cell::RefCell,
    panic,
    sync::{Arc, Once},
};

use parking_lot::Mutex;

/// The panics of one simulation. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Panics(Arc<Mutex<Vec<String>>>);

thread_local! {
    /// The simulation of this thread.
    static WATCHED: RefCell<Option<Panics>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

impl Panics {
    /// Records the panics of this thread from now on. Those of other threads are reported as before.
    pub(crate) fn watch(&self) {
        HOOK.call_once(|| {
            let report = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                let watched = WATCHED.with(|watched| watched.borrow().clone());
                match watched {
                    Some(panics) => panics.0.lock().push(format!("a task panicked: {info}")),
                    None => report(info),
                }
            }));
        });
        WATCHED.with(|watched| *watched.borrow_mut() = Some(self.clone()));
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}
