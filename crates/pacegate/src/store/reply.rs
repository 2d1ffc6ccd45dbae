use std::{
    fmt,
    future::Future,
    ops::Deref,
    pin::Pin,
    task::{Context, Poll},
};

use smallvec::SmallVec;

use super::StoreError;
use crate::algorithm::Outcome;

/// The answer of a store, or a future for it. Await it, or match to avoid a future for an answer that is ready.
///
/// The call has started, whether or not the reply is awaited.
///
/// ```
/// use pacegate::{Reply, StoreError};
///
/// let known: Reply<'_, u64> = Reply::Ready(Ok(7));
/// let later: Reply<'_, u64> = Reply::pending(async { Err(StoreError::TimedOut) });
/// # pollster::block_on(async {
/// assert_eq!(known.await, Ok(7));
/// assert_eq!(later.await, Err(StoreError::TimedOut));
/// # });
/// ```
pub enum Reply<'a, T> {
    /// The answer.
    Ready(Result<T, StoreError>),
    /// A future for the answer. It may borrow the store.
    Pending(PendingReply<'a, T>),
}

/// The future of a [`Reply`].
pub type PendingReply<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// One outcome for each charge of a request. Up to four need no heap allocation.
///
/// ```
/// use std::time::Duration;
/// use pacegate::{Outcomes, algorithm::Outcome};
///
/// let outcomes: Outcomes = [Outcome::admitted(4, Duration::from_secs(1))].into_iter().collect();
/// assert_eq!(outcomes[0].remaining(), 4);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes(SmallVec<[Outcome; 4]>);

impl<'a, T> Reply<'a, T> {
    /// Creates a reply that waits for a future, which is boxed. Use [`Reply::Ready`] if the answer is known.
    pub fn pending(future: impl Future<Output = Result<T, StoreError>> + Send + 'a) -> Self {
        Self::Pending(Box::pin(future))
    }
}

impl<'a, T: Unpin + 'a> Future for Reply<'a, T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Self::Pending(pending) = &mut *self {
            return pending.as_mut().poll(cx);
        }
        let answered = Self::Pending(Box::pin(std::future::pending()));
        match std::mem::replace(&mut *self, answered) {
            Self::Ready(answer) => Poll::Ready(answer),
            Self::Pending(_) => Poll::Pending,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Reply<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

impl Outcomes {
    /// Creates an empty list with room for this many outcomes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self(SmallVec::with_capacity(capacity))
    }

    /// Appends an outcome. Outcomes are in the order of the charges.
    pub fn push(&mut self, outcome: Outcome) {
        self.0.push(outcome);
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [Outcome] {
        &mut self.0
    }
}

impl Deref for Outcomes {
    type Target = [Outcome];

    fn deref(&self) -> &[Outcome] {
        &self.0
    }
}

impl FromIterator<Outcome> for Outcomes {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        Self(outcomes.into_iter().collect())
    }
}

impl From<Vec<Outcome>> for Outcomes {
    fn from(outcomes: Vec<Outcome>) -> Self {
        Self(outcomes.into())
    }
}

impl<'a> IntoIterator for &'a Outcomes {
    type Item = &'a Outcome;
    type IntoIter = std::slice::Iter<'a, Outcome>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl IntoIterator for Outcomes {
    type Item = Outcome;
    type IntoIter = smallvec::IntoIter<[Outcome; 4]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
