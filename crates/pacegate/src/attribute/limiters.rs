use std::sync::{Arc, LazyLock};

use super::{CallCharges, Pass};
use crate::{Denied, Limiter, SharedLimiter, registry};

/// A limiter that decides synchronously, for functions that are not async.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot decide for a function that is not async",
    label = "not a `pacegate::Limiter`",
    note = "only a `Limiter` decides without waiting; use one, or make the function async"
)]
pub trait SyncLimiter {
    /// Charges the call, or returns the denial.
    fn decide(&self, charges: CallCharges) -> Result<Pass, Denied>;
}

/// A limiter that may have to wait for a store, for async functions.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    label = "neither a `pacegate::Limiter` nor a `pacegate::SharedLimiter`",
    note = "`limiter` takes either, a reference to one, or one in an `Arc`, a `Box` or a `LazyLock`"
)]
pub trait AsyncLimiter {
    /// Charges the call, or returns the denial.
    fn admit(&self, charges: CallCharges) -> impl Future<Output = Result<Pass, Denied>> + Send;
}

/// The [shared](registry::shared) limiter of this process, or the limiter in memory if none is installed.
#[derive(Clone, Copy, Debug)]
pub struct Installed;

/// The limiter that was [installed](registry::install_named) under this name, or the limiter in memory if none is.
#[derive(Clone, Copy, Debug)]
pub struct Named(pub &'static str);

/// Calls [`SyncLimiter::decide`]. A separate function, so that compiler errors point at its argument.
pub fn decide<L: SyncLimiter + ?Sized>(limiter: &L, charges: CallCharges) -> Result<Pass, Denied> {
    limiter.decide(charges)
}

/// Calls [`AsyncLimiter::admit`]. A separate function, so that compiler errors point at its argument.
pub async fn admit<L: AsyncLimiter + Sync + ?Sized>(
    limiter: &L,
    charges: CallCharges,
) -> Result<Pass, Denied> {
    limiter.admit(charges).await
}

impl SyncLimiter for Limiter {
    fn decide(&self, charges: CallCharges) -> Result<Pass, Denied> {
        let decision = self.charges().check(&charges.to_charges());
        charges.conclude(decision.map_err(Into::into))?;
        Ok(Pass::of(self.clone().into(), charges))
    }
}

impl AsyncLimiter for Limiter {
    fn admit(&self, charges: CallCharges) -> impl Future<Output = Result<Pass, Denied>> + Send {
        std::future::ready(self.decide(charges))
    }
}

impl AsyncLimiter for SharedLimiter {
    async fn admit(&self, charges: CallCharges) -> Result<Pass, Denied> {
        charges.conclude(self.charges().check(&charges.to_charges()).await)?;
        Ok(Pass::of(self.clone(), charges))
    }
}

impl AsyncLimiter for Installed {
    async fn admit(&self, charges: CallCharges) -> Result<Pass, Denied> {
        match registry::shared() {
            Some(shared) => shared.admit(charges).await,
            None => registry::memory().decide(charges),
        }
    }
}

impl AsyncLimiter for Named {
    async fn admit(&self, charges: CallCharges) -> Result<Pass, Denied> {
        match registry::named(self.0) {
            Some(shared) => shared.admit(charges).await,
            None => registry::memory().decide(charges),
        }
    }
}

macro_rules! pointers {
    ($([$($parameters:tt)*] $pointer:ty;)*) => {$(
        impl<$($parameters)*> SyncLimiter for $pointer
        where
            L: SyncLimiter,
        {
            fn decide(&self, charges: CallCharges) -> Result<Pass, Denied> {
                (**self).decide(charges)
            }
        }

        impl<$($parameters)*> AsyncLimiter for $pointer
        where
            L: AsyncLimiter,
        {
            fn admit(&self, charges: CallCharges) -> impl Future<Output = Result<Pass, Denied>> + Send {
                (**self).admit(charges)
            }
        }
    )*};
}

pointers! {
    [L: ?Sized] &L;
    [L: ?Sized] Arc<L>;
    [L: ?Sized] Box<L>;
    [L, F: FnOnce() -> L] LazyLock<L, F>;
}
