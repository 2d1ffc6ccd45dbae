//! The correction of a charge whose cost was an estimate.

use std::{fmt, future::Future, pin::Pin};

use pacegate::{Reservation, SharedReservation};

use crate::{Adjustment, Reply};

/// Units that a limiter has charged in advance. If it is dropped, they stay charged.
pub trait Settle: fmt::Debug + Send + 'static {
    /// Corrects the charge to the units that were used. A correction that fails is skipped.
    fn settle(self: Box<Self>, used: u64) -> Reply<(), Settling>;
}

/// The future of a correction.
pub type Settling = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The charge of an admitted request, to be corrected once its response is known or has ended. If it is dropped, the
/// estimate stays charged.
#[derive(Debug)]
pub struct Settlement {
    pub(crate) reservation: Box<dyn Settle>,
    pub(crate) cost: u64,
}

impl Settlement {
    /// Corrects the charge to the units that the request has used: returns the rest, or charges more, which can become
    /// debt.
    ///
    /// If the store fails, the estimate stays charged, and units beyond it are not charged.
    pub fn settle(self, used: u64) -> Reply<(), Settling> {
        self.reservation.settle(used)
    }

    pub(crate) fn adjust(self, by: Adjustment) -> Reply<(), Settling> {
        let used = by.used(self.cost);
        self.settle(used)
    }
}

/// A reservation in this process. It is closed when it is dropped, so that it does not take memory until its ttl.
#[derive(Debug)]
pub(crate) struct InMemory {
    /// `None` after the settlement.
    reservation: Option<Reservation>,
    cost: u64,
}

impl InMemory {
    pub(crate) fn boxed(reservation: Reservation, cost: u64) -> Box<dyn Settle> {
        Box::new(Self { reservation: Some(reservation), cost })
    }

    fn close(&mut self, used: u64) {
        if let Some(reservation) = self.reservation.take() {
            reservation.settle(used);
        }
    }
}

impl Settle for InMemory {
    fn settle(mut self: Box<Self>, used: u64) -> Reply<(), Settling> {
        self.close(used);
        Reply::Now(())
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.close(self.cost);
    }
}

impl Settle for SharedReservation {
    fn settle(self: Box<Self>, used: u64) -> Reply<(), Settling> {
        Reply::Later(Box::pin(async move {
            // The limiter has recorded the failure of the store.
            let _ = Self::settle(&self, used).await;
        }))
    }
}
