//! Limits that come along with a request, instead of from a policy. The same wherever they are read.

use pacegate::{Limit, ParseLimitError};
use smallvec::SmallVec;

/// The limits of one key, no two of which count in one place.
pub(crate) type Limits = SmallVec<[Limit; 2]>;

/// Why a limit cannot be one of [`Limits`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AdHocError {
    #[error("no more than {MOST_LIMITS} limits at once")]
    TooMany,
    #[error(transparent)]
    NoLimit(#[from] ParseLimitError),
    /// A request would be charged twice in one place.
    #[error("`{0}` and `{1}` have one algorithm and period")]
    Alike(Limit, Limit),
}

/// The most limits that come along with a request.
pub(crate) const MOST_LIMITS: usize = 16;

/// Adds the limit that a text says.
pub(crate) fn add(limits: &mut Limits, text: &str) -> Result<(), AdHocError> {
    if limits.len() == MOST_LIMITS {
        return Err(AdHocError::TooMany);
    }
    let limit: Limit = text.parse()?;
    let place = |limit: &Limit| (limit.algorithm(), limit.period());
    if let Some(&other) = limits.iter().find(|other| place(other) == place(&limit)) {
        return Err(AdHocError::Alike(other, limit));
    }
    limits.push(limit);
    Ok(())
}
