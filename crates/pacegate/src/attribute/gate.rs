use std::sync::{Arc, LazyLock};

use super::{Asked, Pass};
use crate::{Denied, Limiter, SharedLimiter, registry};

/// A limiter that decides synchronously, for functions that are not async.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot decide for a function that is not async",
    label = "not a `pacegate::Limiter`",
    note = "only a `Limiter` decides without waiting; use one, or make the function async"
)]
pub trait Gate {
    /// Charges the call, or returns the denial.
    fn decide(&self, asked: Asked) -> Result<Pass, Denied>;
}

/// A limiter that may have to wait for a store, for async functions.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "neither a `pacegate::Limiter` nor a `pacegate::SharedLimiter`",
    note = "`limiter` takes either, a reference to one, or one in an `Arc`, a `Box` or a `LazyLock`"
)]
pub trait WaitingGate {
    /// Charges the call, or returns the denial.
    fn admit(&self, asked: Asked) -> impl Future<Output = Result<Pass, Denied>> + Send;
}

/// The [shared](registry::shared) limiter of this process, or the limiter in memory if none is installed.
#[derive(Clone, Copy, Debug)]
pub struct Installed;

/// The limiter that was [installed](registry::install_named) under this name, or the limiter in memory if none is.
#[derive(Clone, Copy, Debug)]
pub struct Named(pub &'static str);

/// Calls [`Gate::decide`]. A separate function, so that compiler errors point at its argument.
pub fn decide<G: Gate + ?Sized>(gate: &G, asked: Asked) -> Result<Pass, Denied> {
    gate.decide(asked)
}

/// Calls [`WaitingGate::admit`]. A separate function, so that compiler errors point at its argument.
pub async fn admit<G: WaitingGate + Sync + ?Sized>(gate: &G, asked: Asked) -> Result<Pass, Denied> {
    gate.admit(asked).await
}

impl Gate for Limiter {
    fn decide(&self, asked: Asked) -> Result<Pass, Denied> {
        let decision = asked.with_charges(|charges| self.charges().check(charges));
        asked.conclude(decision.map_err(Into::into))?;
        Ok(Pass::of(self, asked))
    }
}

impl WaitingGate for Limiter {
    fn admit(&self, asked: Asked) -> impl Future<Output = Result<Pass, Denied>> + Send {
        std::future::ready(self.decide(asked))
    }
}

impl WaitingGate for SharedLimiter {
    async fn admit(&self, asked: Asked) -> Result<Pass, Denied> {
        asked.conclude(self.charges().check(&asked.charges()).await)?;
        Ok(Pass::of_shared(self, asked))
    }
}

impl WaitingGate for Installed {
    async fn admit(&self, asked: Asked) -> Result<Pass, Denied> {
        match registry::shared() {
            Some(shared) => shared.admit(asked).await,
            None => registry::memory().decide(asked),
        }
    }
}

impl WaitingGate for Named {
    async fn admit(&self, asked: Asked) -> Result<Pass, Denied> {
        match registry::named(self.0) {
            Some(shared) => shared.admit(asked).await,
            None => registry::memory().decide(asked),
        }
    }
}

macro_rules! pointers {
    ($([$($parameters:tt)*] $pointer:ty;)*) => {$(
        impl<$($parameters)*> Gate for $pointer
        where
            G: Gate,
        {
            fn decide(&self, asked: Asked) -> Result<Pass, Denied> {
                (**self).decide(asked)
            }
        }

        impl<$($parameters)*> WaitingGate for $pointer
        where
            G: WaitingGate,
        {
            fn admit(&self, asked: Asked) -> impl Future<Output = Result<Pass, Denied>> + Send {
                (**self).admit(asked)
            }
        }
    )*};
}

pointers! {
    [G: ?Sized] &G;
    [G: ?Sized] Arc<G>;
    [G: ?Sized] Box<G>;
    [G, F: FnOnce() -> G] LazyLock<G, F>;
}
