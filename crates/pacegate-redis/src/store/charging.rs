//! A charge from when it is asked to when it is answered.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use pacegate::{Answer, Charge, StoreError, algorithm::Outcome};
use tokio::sync::oneshot;

use super::{Inner, RedisStore, Wants, gone};
use crate::batch;

/// A charge on its way. By hand, because an `async` block would reserve room for the rare cases in the common one, and
/// every request would copy it.
pub(super) enum Charging<'a> {
    Start { store: &'a RedisStore, charges: &'a [Charge<'a>], id: Option<&'a [u8]> },
    Asked(oneshot::Receiver<batch::Answered>),
    Apart(Answer<'a, Vec<Outcome>>),
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
                Ok(Started::Asked(answer)) => *self = Self::Asked(answer),
                Ok(Started::Opening) => {
                    *self = Self::Apart(Box::pin(store.inner.charge_when_open(charges, id)));
                }
                Ok(Started::Apart(wants)) => {
                    *self = Self::Apart(Box::pin(store.inner.clone().charge_apart(wants)));
                }
                Err(error) => {
                    *self = Self::Done;
                    return Poll::Ready(Err(error));
                }
            }
        }
        match &mut *self {
            Self::Asked(answer) => Pin::new(answer)
                .poll(context)
                .map(|answer| answer.unwrap_or_else(|_| Err(gone())).map(|answer| answer.outcomes)),
            Self::Apart(answer) => answer.as_mut().poll(context),
            Self::Start { .. } | Self::Done => Poll::Ready(Err(gone())),
        }
    }
}

/// What became of a charge at once.
pub(super) enum Started {
    Answered(Vec<Outcome>),
    Asked(oneshot::Receiver<batch::Answered>),
    /// The store is connecting to its servers from another runtime than before.
    Opening,
    /// Its cells are on several servers, or one of them comes under two limits.
    Apart(Wants),
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
            Started::Asked(answer) => {
                answer.await.unwrap_or_else(|_| Err(gone())).map(|answer| answer.outcomes)
            }
            Started::Apart(wants) => self.clone().charge_apart(wants).await,
            Started::Opening => Err(gone()),
        }
    }
}
