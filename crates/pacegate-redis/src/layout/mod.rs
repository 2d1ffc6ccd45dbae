//! Layouts: counters whose keys, lives and rules are those of another limiter.

mod counter;
mod pair;
mod tally;
mod template;

use std::{sync::Arc, time::Duration};

use pacegate::{Algorithm, Charge, Limit, StoreError};

pub(crate) use counter::{Act, Counters, Note, Spot};
pub(crate) use tally::{Tally, Told, gather};
pub use template::{LayoutError, Template};
use template::{Name, Piece};

/// Where counters are in the server, and how they count.
///
/// [`Layout::native`] is Pacegate's own and the default. All others are those of limiters that are already running:
/// with one of them Pacegate and that limiter charge the same counters at the same time, and see one count.
///
/// ```
/// use std::time::Duration;
/// use pacegate_redis::{Layout, RedisStore};
///
/// let builder = RedisStore::builder("redis://127.0.0.1:6379")?.layout(Layout::rlaas());
/// let own = Layout::template("myapp:{key}:{window}")?.ttl_slack(Duration::from_secs(5));
/// let builder = RedisStore::builder("redis://127.0.0.1:6379")?.layout(own);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What all of them have in common
///
/// - `{key}` is the key as the other limiter knows it: one part as it is, several joined by `:`, an absent one as if it
///   were empty.
/// - **Nothing else is in the name.** Two policies with the same key and period meet in one counter; in a log, whatever
///   their periods. Give each policy a store with a layout of its own, or have the key tell them apart.
/// - **Keys are not hashed.** Whoever chooses a key with a `:` in it may spell the name of another's counter, and with
///   braces he chooses its slot in a cluster. Let keys be checked before they come here.
/// - Each layout fits one algorithm, `fixed-window`, `sliding-window` or `sliding-log`, and most of them only periods
///   of whole seconds.
///   A limiter with any other limit, or with a lease, [fails to build](Layout::supports). Requests with an id are
///   [unsupported](StoreError::Unsupported).
/// - In a fixed window a denied request is counted too, as the other limiter does, unless the deny cache answers it.
///   In a log it is not.
/// - The limits of one request are charged one after the other, in one trip where they are on one server. What one of
///   them denies, the others have counted: there is no all or nothing.
/// - Time is the server's. A counter and its life are changed in one step, so none stays for ever; one that the other
///   limiter left without a life is given one by the next charge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout(Option<Arc<Rules>>);

/// A layout other than our own, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    name: Name,
    counting: Counting,
    life: Life,
    /// Whether the other limiter knows whole seconds only.
    whole_seconds: bool,
}

/// How requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// A number for each window, of all requests.
    Window,
    /// The same, and a part of the previous window's number is added: see [`pair`].
    Pair,
    /// A sorted set of admitted requests, by the time of each in ticks of so many microseconds.
    Log { tick: u64 },
}

/// How long a key lives from when its life is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    periods: u32,
    slack: Duration,
    /// Whether every charge sets it anew, denied ones too. Otherwise, in a window a charge that finds none does; in a
    /// log every admitted one.
    refreshed: bool,
}

const SECOND: Duration = Duration::from_secs(1);
const SECOND_MICROS: u64 = 1_000_000;
const MILLI_MICROS: u64 = 1_000;

impl Layout {
    /// The prefix of [`Layout::spring`] where nothing else was configured.
    pub const SPRING_PREFIX: &'static str = "ratelimiter";

    /// Pacegate's own: every algorithm, all or nothing, names that nobody can spell.
    pub fn native() -> Self {
        Self(None)
    }

    /// The fixed window of RLaaS: `rlaas:rate_limit:{key}:{window}`, with a life of one window from the first request.
    pub fn rlaas() -> Self {
        Self::seconds("rlaas:rate_limit:", Piece::Window, Life::ONCE)
    }

    /// The sliding log of RLaaS: `rlaas:rate_limit:{key}`, a sorted set with one member for each admitted unit, scores
    /// in milliseconds of Unix time, and a life of two windows from the latest request, denied ones too.
    ///
    /// RLaaS takes the milliseconds from the wall clock of its process, this layout from the server's. If those clocks
    /// differ by `s`, each side drops or keeps the other's entries `s` early or late: together they admit at most the
    /// limit in any span of one window less `s`.
    pub fn rlaas_log() -> Self {
        Self::log(
            "rlaas:rate_limit:",
            MILLI_MICROS,
            Life { periods: 2, refreshed: true, ..Life::ONCE },
        )
    }

    /// The Spring starter: `{prefix}:{key}:{window_start_ms}`, with a life of one window and a second from the first
    /// request. Its prefix is [`Layout::SPRING_PREFIX`] unless configured. Periods may be milliseconds.
    pub fn spring(prefix: &str) -> Self {
        let name = Name::new(&format!("{prefix}:"), Piece::WindowStartMillis);
        let life = Life { slack: SECOND, ..Life::ONCE };
        Self::of(Rules { name, counting: Counting::Window, life, whole_seconds: false })
    }

    /// The Valkey API server: `rate_limit:{key}:{window}`, with a life of one window and ten seconds from the latest
    /// request.
    pub fn valkey_api() -> Self {
        let life = Life { slack: 10 * SECOND, refreshed: true, ..Life::ONCE };
        Self::seconds("rate_limit:", Piece::Window, life)
    }

    /// The fixed window of the Unix-time reference: `rl:{key}:{window}`.
    ///
    /// It asks for a life of one window and a small slack without saying how much: assumed is one second, from the
    /// first request.
    pub fn unix_time() -> Self {
        let life = Life { slack: SECOND, ..Life::ONCE };
        Self::seconds("rl:", Piece::Window, life)
    }

    /// The sliding log of the Unix-time reference: `sw:{key}`, a sorted set with one member for each admitted unit,
    /// scores in whole seconds, and a life of two periods from the last admitted request.
    ///
    /// An entry leaves when the whole second in which it was made is one period ago.
    pub fn unix_time_log() -> Self {
        Self::log("sw:", SECOND_MICROS, Life { periods: 2, ..Life::ONCE })
    }

    /// The TypeScript limiter: `{window}:{key}`, with a life of one window that is set where there is none.
    pub fn typescript() -> Self {
        let name = Name::leading(Piece::Window);
        let (counting, life) = (Counting::Window, Life::ONCE);
        Self::of(Rules { name, counting, life, whole_seconds: true })
    }

    /// The sliding window of the TypeScript limiter's repository: `{window}:{key}` for the current and the previous
    /// window, with a life of two windows and a second that is set where there is none. Limits are `sliding-window`.
    ///
    /// The estimate is `floor(previous * (1 - weight)) + current`, in the double arithmetic of JavaScript. Its `weight`
    /// is `(now % window) / window` with `now` in milliseconds and `window` in seconds, as in the repository: it runs
    /// from 0 to 1 once per `window` milliseconds, not once per window. Denied requests are counted.
    ///
    /// Not for a cluster: the two windows of a key are in different slots.
    pub fn typescript_sliding() -> Self {
        let name = Name::leading(Piece::Window);
        let life = Life { periods: 2, slack: SECOND, ..Life::ONCE };
        Self::of(Rules { name, counting: Counting::Pair, life, whole_seconds: true })
    }

    /// Replaces the text before the first placeholder with `prefix` and a colon: `shop:{key}:{window}` instead of
    /// `rl:{key}:{window}`. The native layout stays as it is: its prefix is set by
    /// [`RedisStoreBuilder::prefix`](crate::RedisStoreBuilder::prefix).
    #[must_use]
    pub fn with_prefix(&self, prefix: &str) -> Self {
        let prefixed =
            |rules: &Arc<Rules>| Rules { name: rules.name.prefixed(prefix), ..(**rules).clone() };
        Self(self.0.as_ref().map(|rules| Arc::new(prefixed(rules))))
    }

    /// Whether a Redis or Valkey cluster can hold its counters.
    pub fn works_on_cluster(&self) -> bool {
        self.rules().is_none_or(|rules| rules.counting != Counting::Pair)
    }

    /// Fixed windows with keys of your own, such as `myapp:{key}:{window}`.
    ///
    /// | placeholder | stands for |
    /// |---|---|
    /// | `{key}` | the key, as above |
    /// | `{window}` | how many periods there were since the Unix epoch |
    /// | `{window_start}` | the start of the window in Unix seconds; periods have to be whole seconds |
    /// | `{window_start_ms}` | the same in milliseconds |
    ///
    /// A brace that is part of the name is written twice: `rl:{{{key}}}:{window}` keeps all windows of a key in one
    /// slot of a cluster.
    ///
    /// # Errors
    ///
    /// Without `{key}`, without any window, or with something else in braces.
    pub fn template(text: &str) -> Result<Template, LayoutError> {
        let name: Name = text.parse()?;
        let whole_seconds = name.has(&Piece::WindowStart);
        let (counting, life) = (Counting::Window, Life::ONCE);
        Ok(Template(Rules { name, counting, life, whole_seconds }))
    }

    /// Returns an error if a store with this layout can never count these limits of one policy. `leased` is whether the
    /// policy has a lease.
    ///
    /// ```
    /// use pacegate_redis::Layout;
    ///
    /// let error = Layout::typescript().supports(&["5/1500ms".parse()?], false).unwrap_err();
    /// assert!(error.to_string().contains("write a period such as 2s"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`], with what to write instead.
    pub fn supports(&self, limits: &[Limit], leased: bool) -> Result<(), StoreError> {
        self.rules().map_or(Ok(()), |rules| rules.supports(limits, leased))
    }

    pub(crate) fn rules(&self) -> Option<&Arc<Rules>> {
        self.0.as_ref()
    }

    fn seconds(prefix: &str, window: Piece, life: Life) -> Self {
        let name = Name::new(prefix, window);
        Self::of(Rules { name, counting: Counting::Window, life, whole_seconds: true })
    }

    fn log(prefix: &str, tick: u64, life: Life) -> Self {
        let name = Name::without_window(prefix);
        Self::of(Rules { name, counting: Counting::Log { tick }, life, whole_seconds: true })
    }

    fn of(rules: Rules) -> Self {
        Self(Some(Arc::new(rules)))
    }
}

impl From<Template> for Layout {
    fn from(template: Template) -> Self {
        Self::of(template.0)
    }
}

impl Life {
    /// One period, from the first request.
    const ONCE: Self = Self { periods: 1, slack: Duration::ZERO, refreshed: false };
}

impl Rules {
    pub(crate) fn counting(&self) -> Counting {
        self.counting
    }

    pub(crate) fn is_refreshed(&self) -> bool {
        self.life.refreshed
    }

    /// In milliseconds.
    pub(crate) fn life(&self, limit: &Limit) -> u64 {
        let life = limit.period() * self.life.periods + self.life.slack;
        u64::try_from(life.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
    }

    /// The name of the counter of a key in the window that starts then.
    pub(crate) fn name(&self, key: &[u8], start: u64, period: u64) -> Vec<u8> {
        self.name.write(key, start, period)
    }

    /// Returns an error if the layout cannot count the charge.
    pub(crate) fn check(&self, charge: &Charge<'_>) -> Result<(), StoreError> {
        self.supports(std::slice::from_ref(&charge.limit), charge.lease > 0)
    }

    /// Returns an error if the layout cannot count these limits of a policy.
    pub(crate) fn supports(&self, limits: &[Limit], leased: bool) -> Result<(), StoreError> {
        let problem = limits.iter().find_map(|limit| self.problem(limit)).or_else(|| {
            if leased {
                Some("cannot draw units ahead: remove the policy's lease".to_owned())
            } else if limits.len() > 1 && matches!(self.counting, Counting::Log { .. }) {
                let limits: Vec<_> = limits.iter().map(|limit| format!("`{limit}`")).collect();
                Some(format!(
                    "has one log for all periods of a key, so {} would share it: write one limit",
                    limits.join(" and ")
                ))
            } else {
                None
            }
        });
        let error =
            |problem| StoreError::Unsupported(format!("the layout `{}` {problem}", self.name));
        problem.map_or(Ok(()), |problem| Err(error(problem)))
    }

    /// Why the layout cannot count a limit.
    fn problem(&self, limit: &Limit) -> Option<String> {
        let wanted = match self.counting {
            Counting::Window => Algorithm::FixedWindow,
            Counting::Pair => Algorithm::SlidingWindow,
            Counting::Log { .. } => Algorithm::SlidingLog,
        };
        if limit.algorithm() != wanted {
            return Some(format!(
                "counts by {wanted}, and `{limit}` does not: write {wanted} as its algorithm"
            ));
        }
        if self.whole_seconds && limit.period().subsec_nanos() != 0 {
            let next = limit.period().as_secs() + 1;
            return Some(format!(
                "knows whole seconds only: write a period such as {next}s instead of `{limit}`"
            ));
        }
        if !limit.period().subsec_nanos().is_multiple_of(1_000_000) {
            return Some(format!(
                "knows whole milliseconds only, and `{limit}` has a finer period"
            ));
        }
        None
    }
}
