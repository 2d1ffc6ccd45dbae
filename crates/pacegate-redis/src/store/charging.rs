//! The future of a charge.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::{Inner, RedisStore, gone};
use crate::{cell::CellCharges, responder::Reply};
use pacegate::{Answer, Charge, StoreError, algorithm::Outcome};

/// The future of a charge. Written by hand, because an `async` block would reserve room for the rare cases, which every
/// request would copy.
pub(super) enum Charging<'a> {
    Start { store: &'a RedisStore, charges: &'a [Charge<'a>], id: Option<&'a [u8]> },
    Sent(Reply),
    Compensating(Answer<'a, Vec<Outcome>>),
    Done,
}

impl Future for Charging<'_> {
    type Output = Result<Vec<Outcome>, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Self::Start { store, charges, id } = *self {
            match store.inner.start(charges, id) {
                Ok(Started::Answered(outcomes)) => {
                    *self = Self::Done;
                    return Poll::Ready(Ok(outcomes));
                }
                Ok(Started::Sent(answer)) => *self = Self::Sent(answer),
                Ok(Started::Opening) => {
                    *self = Self::Compensating(Box::pin(store.inner.charge_when_open(charges, id)));
                }
                Ok(Started::Compensating(cells)) => {
                    *self = Self::Compensating(Box::pin(
                        store.inner.clone().charge_compensating(cells),
                    ));
                }
                Err(error) => {
                    *self = Self::Done;
                    return Poll::Ready(Err(error));
                }
            }
        }
        match &mut *self {
            Self::Sent(answer) => Pin::new(answer)
                .poll(context)
                .map(|answer| answer.unwrap_or_else(|_| Err(gone())).map(|answer| answer.outcomes)),
            Self::Compensating(answer) => answer.as_mut().poll(context),
            Self::Start { .. } | Self::Done => Poll::Ready(Err(gone())),
        }
    }
}

/// The result of starting a charge.
pub(super) enum Started {
    Answered(Vec<Outcome>),
    Sent(Reply),
    /// The store is reconnecting on another runtime.
    Opening,
    /// Its cells are in several slots, or one cell has two limits.
    Compensating(CellCharges),
}

impl Inner {
    async fn charge_when_open(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<Vec<Outcome>, StoreError> {
        self.opened().await;
        match self.start(charges, id)? {
            Started::Answered(outcomes) => Ok(outcomes),
            Started::Sent(answer) => {
                answer.await.unwrap_or_else(|_| Err(gone())).map(|answer| answer.outcomes)
            }
            Started::Compensating(cells) => self.clone().charge_compensating(cells).await,
            Started::Opening => Err(gone()),
        }
    }
}
