use std::{fmt, str::FromStr};

use super::Limit;
use crate::algorithm::Custom;

/// The algorithm of a limit. Parses from and prints as its [name](Algorithm::name).
///
/// Use the default, `fixed-window`, if a burst at a boundary is acceptable. Use `token-bucket` for a steady rate with a
/// burst, `sliding-log` for small limits that must hold in every period, such as login attempts, and `concurrency` for
/// work that runs for some time.
///
/// | algorithm | admits in any period | state |
/// |---|---|---|
/// | fixed-window | at most twice the amount, across a boundary | 16 bytes |
/// | sliding-window | less than twice the amount, and never a burst at a boundary | 16 bytes |
/// | sliding-log | at most the amount | 32 bytes per admitted instant |
/// | token-bucket | at most the burst plus the refill of the period | 16 bytes |
/// | concurrency | any number, if permits are released | 32 bytes per permit |
///
/// The text form is that of limits:
///
/// ```
/// use pacegate::{Algorithm, Limit};
///
/// let limit: Limit = "5/minute sliding-log".parse()?;
/// assert_eq!(limit.algorithm(), Algorithm::SlidingLog);
/// assert_eq!("token-bucket".parse(), Ok(Algorithm::TokenBucket));
/// # Ok::<(), pacegate::ParseLimitError>(())
/// ```
///
/// The page `docs/algorithms.md` of the repository compares them with pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts in windows aligned to the Unix epoch. The cheapest algorithm, and the default.
    FixedWindow,
    /// Counts in two windows; the previous one is weighted by its overlap with the period that ends now.
    SlidingWindow,
    /// Stores the time of every admission: exact in every window. At most 10,000 units.
    SlidingLog,
    /// Refills at a constant rate up to the burst: exact at any rate, without drift.
    TokenBucket,
    /// Limits the permits held at the same time. The period is the lifetime of a permit that is neither
    /// released nor renewed.
    Concurrency,
    /// A custom algorithm.
    Custom(Custom),
}

impl Algorithm {
    /// All algorithms except custom ones.
    pub const BUILT_IN: [Self; 5] = [
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::TokenBucket,
        Self::Concurrency,
    ];

    /// The names of [`Algorithm::BUILT_IN`].
    pub const NAMES: [&'static str; Self::BUILT_IN.len()] = {
        let mut names = [""; Self::BUILT_IN.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = Self::BUILT_IN[index].facts().name;
            index += 1;
        }
        names
    };

    /// Returns the name used in limits, policies and documentation, such as `sliding-window`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Custom(custom) => custom.name(),
            built_in => built_in.facts().name,
        }
    }

    /// Returns all names, for error messages.
    pub(crate) fn names() -> String {
        Self::NAMES.join(", ")
    }

    /// Returns a description of one line, for schemas and help texts. Empty for a custom algorithm.
    pub const fn summary(self) -> &'static str {
        self.facts().summary
    }

    /// Returns the number that stands for the algorithm in scripts and stored data. Numbers are never reused.
    /// `None` for a custom algorithm, which runs in this process only.
    ///
    /// ```
    /// use pacegate::Algorithm;
    ///
    /// let ids: Vec<_> = Algorithm::BUILT_IN.iter().filter_map(|algorithm| algorithm.id()).collect();
    /// assert_eq!(ids, [0, 1, 3, 2, 4]);
    /// ```
    pub const fn id(self) -> Option<u64> {
        self.facts().id
    }

    /// Returns the largest amount that a limit with this algorithm can have. [`Limit::with_algorithm`] rejects more.
    pub const fn max_amount(self) -> u64 {
        self.facts().max_amount
    }

    /// Returns true if the state is a list that grows with the amount, instead of a
    /// [`State`](crate::algorithm::State) of 16 bytes.
    #[inline]
    pub const fn keeps_log(self) -> bool {
        self.facts().keeps_log
    }

    /// Returns true if units are permits: the holder releases them, and they expire if it does not.
    #[inline]
    pub const fn holds_permits(self) -> bool {
        self.facts().holds_permits
    }

    /// Returns true if a limit can have a burst that differs from its amount.
    pub const fn has_burst(self) -> bool {
        self.facts().has_burst
    }

    /// Returns the number of windows in which a charge counts, or 0 if it does not count in windows. A window is
    /// one period long and aligned to the Unix epoch.
    pub const fn windows(self) -> u64 {
        self.facts().windows
    }

    /// Returns true if units can be charged before the request that spends them. All instants of a window are
    /// equivalent. In the other algorithms they are not: a token bucket refills from the charge on, whether or not
    /// the units have been spent.
    pub const fn can_be_leased(self) -> bool {
        self.facts().windows > 0
    }

    /// The table of facts. By value, so that a caller which needs one fact does not read memory.
    #[inline]
    const fn facts(self) -> Facts {
        match self {
            Self::FixedWindow => Facts {
                name: "fixed-window",
                summary: "Counts in windows aligned to the Unix epoch. The cheapest algorithm; admits up to twice \
                          the amount across a boundary.",
                id: Some(0),
                windows: 1,
                ..Facts::DEFAULT
            },
            Self::SlidingWindow => Facts {
                name: "sliding-window",
                summary: "Counts in two windows; the previous one is weighted by its overlap with the period that \
                          ends now.",
                id: Some(1),
                // Both counts fit into the payload of a state.
                max_amount: 10_000_000_000,
                windows: 2,
                ..Facts::DEFAULT
            },
            Self::SlidingLog => Facts {
                name: "sliding-log",
                summary: "Stores the time of every admission: exact in every window. At most 10,000 units.",
                id: Some(3),
                max_amount: MAX_LOG_AMOUNT,
                keeps_log: true,
                ..Facts::DEFAULT
            },
            Self::TokenBucket => Facts {
                name: "token-bucket",
                summary: "Refills at a constant rate, up to the burst.",
                id: Some(2),
                has_burst: true,
                ..Facts::DEFAULT
            },
            Self::Concurrency => Facts {
                name: "concurrency",
                summary: "Limits the permits held at the same time. The period is the lifetime of a permit that is \
                          neither released nor renewed.",
                id: Some(4),
                max_amount: MAX_LOG_AMOUNT,
                keeps_log: true,
                holds_permits: true,
                ..Facts::DEFAULT
            },
            Self::Custom(_) => Facts { name: "custom", ..Facts::DEFAULT },
        }
    }
}

/// Maximum number of entries in the log of one key.
const MAX_LOG_AMOUNT: u64 = 10_000;

/// Facts about one algorithm. Other crates read them through methods of [`Algorithm`], so that a new algorithm needs no
/// change there.
struct Facts {
    name: &'static str,
    summary: &'static str,
    id: Option<u64>,
    max_amount: u64,
    keeps_log: bool,
    holds_permits: bool,
    has_burst: bool,
    windows: u64,
}

impl Facts {
    const DEFAULT: Self = Self {
        name: "",
        summary: "",
        id: None,
        max_amount: Limit::MAX_AMOUNT,
        keeps_log: false,
        holds_permits: false,
        has_burst: false,
        windows: 0,
    };
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error of parsing an [`Algorithm`]: the name is unknown. The message lists the built-in names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such algorithm: write {}", Algorithm::names())]
pub struct UnknownAlgorithm;

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let named = |algorithm: &Self| algorithm.name() == name;
        Self::BUILT_IN.into_iter().find(named).ok_or(UnknownAlgorithm)
    }
}
