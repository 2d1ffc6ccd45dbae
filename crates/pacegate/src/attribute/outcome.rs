use super::CallCharges;
use crate::{Denied, SharedLimiter};

/// The permit that a call holds while it runs. Empty if no limit is a concurrency limit.
#[derive(Debug, Default)]
#[must_use = "dropping it says that the call has ended"]
pub struct Pass(Option<Box<Held>>);

#[derive(Debug)]
struct Held {
    limiter: SharedLimiter,
    charges: CallCharges,
}

/// A return type that can represent a denial.
#[diagnostic::on_unimplemented(
    message = "a denied call cannot return `{Self}`",
    label = "cannot represent a denial",
    note = "return a `Result<_, E>` with `E: From<pacegate::Denied>`, or add `on_denied = |denied| ..`"
)]
pub trait FromDenied {
    /// Converts a denial to the return value of the function.
    fn from_denied(denied: Denied) -> Self;
}

/// An integer that can be used as a cost.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a cost",
    label = "not an unsigned integer",
    note = "a cost is an unsigned integer of up to 64 bits; `0` checks without charging"
)]
pub trait Units {
    /// Converts the cost to units.
    fn units(self) -> u64;
}

/// Calls [`FromDenied::from_denied`]. A separate function, so that compiler errors point at its argument.
pub fn deny<R: FromDenied>(denied: Denied) -> R {
    R::from_denied(denied)
}

/// Calls the closure of `on_denied`. The signature fixes the type of its argument, so users need not write it.
pub fn answer<R>(denied: Denied, on_denied: impl FnOnce(Denied) -> R) -> R {
    on_denied(denied)
}

/// Calls [`Units::units`]. A separate function, so that compiler errors point at its argument.
pub fn units(cost: impl Units) -> u64 {
    cost.units()
}

impl<T, E: From<Denied>> FromDenied for Result<T, E> {
    fn from_denied(denied: Denied) -> Self {
        Err(denied.into())
    }
}

macro_rules! units {
    ($($integer:ty),*) => {$(
        impl Units for $integer {
            fn units(self) -> u64 {
                self as u64
            }
        }
    )*};
}

units!(u8, u16, u32, u64, usize);

impl Pass {
    /// Creates the pass of a call that a limiter has admitted.
    pub(super) fn of(limiter: SharedLimiter, charges: CallCharges) -> Self {
        let holds = charges.permit != 0;
        Self(holds.then(|| Box::new(Held { limiter, charges })))
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some(held) = self.0.take() else { return };
        let Held { limiter, charges } = *held;
        limiter.clone().spawn(Box::pin(async move {
            // A failure is counted, and the store retries.
            let _ = limiter.charges().release(&charges.to_charges()).await;
        }));
    }
}
