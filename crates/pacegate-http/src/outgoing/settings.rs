use std::{convert::Infallible, future::poll_fn, sync::Arc, task::Poll, time::Duration};

use http::{HeaderMap, StatusCode, request::Parts, response};
use pacegate::Clock;

use super::{OutgoingError, Wait, Waiting, pauses::Pauses, requested_pause};
use crate::{Adjustment, KeyParts, Missing, Resolve, Settlement, rules::Choice};

/// The limiter and the options of outgoing calls.
pub(super) struct Settings<L> {
    pub(super) limiter: L,
    pub(super) by: Arc<dyn Resolve>,
    pub(super) cost: Option<Choice<Parts, u64>>,
    pub(super) within: Duration,
    pub(super) clock: Arc<dyn Clock>,
    /// `None` if responses are not obeyed.
    pub(super) pauses: Option<Arc<Pauses>>,
    pub(super) settle: Option<Choice<response::Parts, Adjustment>>,
    /// True if charges are corrected at the end of responses.
    pub(super) defers: bool,
    pub(super) settle_within: Duration,
    #[cfg(feature = "reqwest")]
    pub(super) retries: u32,
}

/// The error of a call that was not made, which cannot be an error of the service.
pub(super) type NotMade = OutgoingError<Infallible>;

impl<L: Wait> Settings<L> {
    /// Returns the key and the cost of a call, or `None` if it is not limited.
    pub(super) fn resolve(&self, head: &Parts) -> Result<Option<(KeyParts, u64)>, NotMade> {
        let mut key = KeyParts::new();
        // All calls are made by this program, so calls without a key may share a counter.
        key.set_lenient(true);
        match self.by.resolve(head, &mut key) {
            Ok(()) => {}
            Err(Missing::Share | Missing::Unspecified) => {
                key = KeyParts::new();
                key.push_missing();
            }
            Err(Missing::Skip) => return Ok(None),
            Err(Missing::Reject | Missing::Misconfigured(_)) => return Err(OutgoingError::Missing),
        }
        Ok(Some((key, self.cost.as_ref().map_or(1, |cost| cost(head)))))
    }

    /// Returns the end of the wait of a call that starts now, by elapsed time, because the wall clock may be set back.
    pub(super) fn deadline(&self) -> Duration {
        self.clock.elapsed().saturating_add(self.within)
    }

    /// Waits until a pause has ended and the limiter admits the call. Returns its charge if it can be corrected.
    pub(super) async fn turn(
        &self,
        key: &KeyParts,
        cost: u64,
        deadline: Duration,
    ) -> Result<Option<Settlement>, NotMade> {
        self.pause(key, deadline).await?;
        let left = deadline.saturating_sub(self.clock.elapsed());
        if self.settle.is_none() && !self.defers {
            let room = self.limiter.wait(key.clone(), cost, left);
            return self.admitted(key, deadline, room).await.map(|_| None);
        }
        let room = self.limiter.reserve(key.clone(), cost, self.settle_within, left);
        let reservation = self.admitted(key, deadline, room).await?;
        Ok(reservation.map(|reservation| Settlement { reservation, cost }))
    }

    /// Waits for the limiter. If a pause starts meanwhile, the call keeps its place in the queue but is not charged:
    /// otherwise all calls that were charged during a pause would be made at its end.
    async fn admitted<T>(
        &self,
        key: &KeyParts,
        deadline: Duration,
        mut room: Waiting<T>,
    ) -> Result<T, NotMade> {
        loop {
            let waited = poll_fn(|cx| match self.pause_left(key) {
                Some(_) => Poll::Ready(None),
                None => room.as_mut().poll(cx).map(Some),
            });
            let waited = waited.await.transpose().map_err(OutgoingError::Wait)?;
            // A pause that started during a request to the store: the call is already charged, and waits.
            self.pause(key, deadline).await?;
            if let Some(admitted) = waited {
                return Ok(admitted);
            }
        }
    }

    /// Waits until the pause of a key has ended. Fails at once if that is after `deadline`.
    async fn pause(&self, key: &KeyParts, deadline: Duration) -> Result<(), NotMade> {
        while let Some(pause) = self.pause_left(key) {
            if pause > deadline.saturating_sub(self.clock.elapsed()) {
                return Err(OutgoingError::Paused(pause));
            }
            self.clock.sleep_until(self.clock.now().after(pause)).await;
        }
        Ok(())
    }

    /// Returns the correction of a charge by the head of a response. `None`: the body decides.
    pub(super) fn adjustment(&self, head: &response::Parts) -> Option<Adjustment> {
        let adjustment = self.settle.as_ref().map(|settle| settle(head)).unwrap_or_default();
        (adjustment != Adjustment::Keep || !self.defers).then_some(adjustment)
    }

    fn pause_left(&self, key: &KeyParts) -> Option<Duration> {
        self.pauses.as_ref()?.left(key, self.clock.elapsed())
    }

    /// Starts the pause that a response asks for. Returns `true` if there is one.
    pub(super) fn learn(&self, key: &KeyParts, status: StatusCode, headers: &HeaderMap) -> bool {
        let Some(pauses) = &self.pauses else { return false };
        let pause = requested_pause(status, headers, self.clock.now());
        if let Some(wait) = pause {
            pauses.pause(key, wait, self.clock.elapsed());
        }
        pause.is_some()
    }
}

impl<L: Clone> Clone for Settings<L> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            by: self.by.clone(),
            cost: self.cost.clone(),
            within: self.within,
            clock: self.clock.clone(),
            pauses: self.pauses.clone(),
            settle: self.settle.clone(),
            defers: self.defers,
            settle_within: self.settle_within,
            #[cfg(feature = "reqwest")]
            retries: self.retries,
        }
    }
}
