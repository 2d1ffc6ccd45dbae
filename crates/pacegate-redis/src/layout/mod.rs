//! Layouts: the keys, lifetimes and counting rules of other limiters.

mod counter;
mod counter_batch;
mod pair;
mod template;

use std::{sync::Arc, time::Duration};

use pacegate::{Algorithm, Charge, Limit, StoreError};

pub(crate) use counter::{CounterKey, CounterOp, CounterRequest, LayoutState};
pub(crate) use counter_batch::{CounterBatch, pack};
use template::{KeyTemplate, Piece};
pub use template::{LayoutError, Template};

/// Key names and counting rules on the server.
///
/// Default: [`Layout::native`]. The other layouts are those of limiters that are already running: Pacegate and that
/// limiter then share the same live counters.
///
/// ```
/// use std::time::Duration;
/// use pacegate_redis::{Layout, RedisStore};
///
/// let builder = RedisStore::builder("redis://127.0.0.1:6379")?.layout(Layout::rlaas());
/// let custom = Layout::template("myapp:{key}:{window}")?.ttl_slack(Duration::from_secs(5));
/// let builder = RedisStore::builder("redis://127.0.0.1:6379")?.layout(custom);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Rules for all layouts of other limiters
///
/// - `{key}` is the key of the other limiter: the parts of the key joined by `:`, an absent part as an empty one.
/// - **The name contains nothing else.** Two policies with the same key and period share one counter; in a log, with
///   any periods. Give each policy a store with a separate layout, or make the keys different.
/// - **Keys are not hashed.** A client that chooses a key with a `:` may construct the name of another counter, and
///   with braces its slot in a cluster. Validate keys before.
/// - Each layout supports one algorithm, `fixed-window`, `sliding-window` or `sliding-log`, and most of them only
///   periods of whole seconds. A limiter with any other limit, or with a lease, [fails to build](Layout::supports).
///   Requests with an id are [unsupported](StoreError::Unsupported).
/// - A fixed window counts denied requests too, as the other limiter does, unless the deny cache answers them. A log
///   does not.
/// - The limits of one request are charged one after the other, in one round trip per server. If one denies, the
///   others stay charged: there is no all or nothing.
/// - Time is the server's. A script changes the counter and its expiry in one step, so no key lives for ever. If the
///   other limiter left a key without an expiry, the next charge sets one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout(Option<Arc<Rules>>);

/// The rules of a layout of another limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    name: KeyTemplate,
    counting: Counting,
    life: Life,
    /// Whether periods have to be whole seconds.
    whole_seconds: bool,
}

/// A way to count requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// A counter of all requests for each window.
    Window,
    /// The same, plus a part of the previous window's counter: see [`pair`].
    Pair,
    /// A sorted set of admitted requests by time, in ticks of this many microseconds.
    Log { tick: u64 },
}

/// The lifetime of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    periods: u32,
    slack: Duration,
    /// Whether every charge, even a denied one, restarts it. Otherwise the first charge sets it in a window, and every
    /// admitted one in a log.
    refreshed: bool,
}

const SECOND: Duration = Duration::from_secs(1);
const SECOND_MICROS: u64 = 1_000_000;
const MILLI_MICROS: u64 = 1_000;

impl Layout {
    /// The default prefix of [`Layout::spring`].
    pub const SPRING_PREFIX: &'static str = "ratelimiter";

    /// Pacegate's layout: every algorithm, all or nothing, hashed key names.
    pub fn native() -> Self {
        Self(None)
    }

    /// The fixed window of RLaaS: `rlaas:rate_limit:{key}:{window}`, with a lifetime of one window from the first
    /// request.
    pub fn rlaas() -> Self {
        Self::seconds("rlaas:rate_limit:", Piece::Window, Life::ONCE)
    }

    /// The sliding log of RLaaS: `rlaas:rate_limit:{key}`, a sorted set with one member for each admitted unit, scores
    /// in milliseconds of Unix time, and a lifetime of two windows from the latest request, even a denied one.
    ///
    /// RLaaS takes the milliseconds from the wall clock of its process, this layout from the server's. If those clocks
    /// differ by `s`, each side drops the other's entries `s` early or late: together they admit at most the limit in
    /// any span of one window less `s`.
    pub fn rlaas_log() -> Self {
        Self::log(
            "rlaas:rate_limit:",
            MILLI_MICROS,
            Life { periods: 2, refreshed: true, ..Life::ONCE },
        )
    }

    /// The Spring starter: `{prefix}:{key}:{window_start_ms}`, with a lifetime of one window and a second from the
    /// first request. Its default prefix is [`Layout::SPRING_PREFIX`]. Periods may be milliseconds.
    pub fn spring(prefix: &str) -> Self {
        let name = KeyTemplate::new(&format!("{prefix}:"), Piece::WindowStartMillis);
        let life = Life { slack: SECOND, ..Life::ONCE };
        Self::of(Rules { name, counting: Counting::Window, life, whole_seconds: false })
    }

    /// The Valkey API server: `rate_limit:{key}:{window}`, with a lifetime of one window and ten seconds from the
    /// latest request.
    pub fn valkey_api() -> Self {
        let life = Life { slack: 10 * SECOND, refreshed: true, ..Life::ONCE };
        Self::seconds("rate_limit:", Piece::Window, life)
    }

    /// The fixed window of the Unix-time reference: `rl:{key}:{window}`.
    ///
    /// The reference asks for a lifetime of one window and an unspecified slack; this layout uses one second, from the
    /// first request.
    pub fn unix_time() -> Self {
        let life = Life { slack: SECOND, ..Life::ONCE };
        Self::seconds("rl:", Piece::Window, life)
    }

    /// The sliding log of the Unix-time reference: `sw:{key}`, a sorted set with one member for each admitted unit,
    /// scores in whole seconds, and a lifetime of two periods from the last admitted request.
    ///
    /// An entry expires one period after the start of the second in which it was added.
    pub fn unix_time_log() -> Self {
        Self::log("sw:", SECOND_MICROS, Life { periods: 2, ..Life::ONCE })
    }

    /// The TypeScript limiter: `{window}:{key}`, with a lifetime of one window, set if there is none.
    pub fn typescript() -> Self {
        let name = KeyTemplate::leading(Piece::Window);
        let (counting, life) = (Counting::Window, Life::ONCE);
        Self::of(Rules { name, counting, life, whole_seconds: true })
    }

    /// The sliding window of the TypeScript limiter's repository: `{window}:{key}` for the current and the previous
    /// window, with a lifetime of two windows and a second, set if there is none. Limits are `sliding-window`.
    ///
    /// The estimate is `floor(previous * (1 - weight)) + current`, in the double arithmetic of JavaScript. Its `weight`
    /// is `(now % window) / window` with `now` in milliseconds and `window` in seconds, as in the repository: it runs
    /// from 0 to 1 once per `window` milliseconds, not once per window. Denied requests are counted.
    ///
    /// Not for a cluster: the two windows of a key are in different slots.
    pub fn typescript_sliding() -> Self {
        let name = KeyTemplate::leading(Piece::Window);
        let life = Life { periods: 2, slack: SECOND, ..Life::ONCE };
        Self::of(Rules { name, counting: Counting::Pair, life, whole_seconds: true })
    }

    /// Replaces the text before the first placeholder with `prefix` and a colon: `shop:{key}:{window}` instead of
    /// `rl:{key}:{window}`. Has no effect on the native layout, whose prefix is set by
    /// [`RedisStoreBuilder::prefix`](crate::RedisStoreBuilder::prefix).
    ///
    /// ```
    /// use pacegate_redis::Layout;
    ///
    /// // Counts in `shop:alice:{window}` instead of `rl:alice:{window}`.
    /// let layout = Layout::unix_time().with_prefix("shop");
    /// assert_ne!(layout, Layout::unix_time());
    /// ```
    #[must_use]
    pub fn with_prefix(&self, prefix: &str) -> Self {
        let prefixed =
            |rules: &Arc<Rules>| Rules { name: rules.name.prefixed(prefix), ..(**rules).clone() };
        Self(self.0.as_ref().map(|rules| Arc::new(prefixed(rules))))
    }

    /// Returns whether the layout works on a Redis or Valkey cluster.
    ///
    /// Check it when your program reads its configuration. Only [`Layout::typescript_sliding`] does not: it reads two
    /// keys in one script, and they are in different slots.
    pub fn works_on_cluster(&self) -> bool {
        self.rules().is_none_or(|rules| rules.counting != Counting::Pair)
    }

    /// Creates a layout with fixed windows and custom keys, such as `myapp:{key}:{window}`.
    ///
    /// | placeholder | value |
    /// |---|---|
    /// | `{key}` | the key, as above |
    /// | `{window}` | the number of periods since the Unix epoch |
    /// | `{window_start}` | the start of the window in Unix seconds; periods have to be whole seconds |
    /// | `{window_start_ms}` | the same in milliseconds |
    ///
    /// Double a brace that is part of the name: `rl:{{{key}}}:{window}` keeps all windows of a key in one
    /// slot of a cluster.
    ///
    /// # Errors
    ///
    /// If `{key}` or a window is missing, or a placeholder is unknown.
    pub fn template(text: &str) -> Result<Template, LayoutError> {
        let name: KeyTemplate = text.parse()?;
        let whole_seconds = name.has(&Piece::WindowStart);
        let (counting, life) = (Counting::Window, Life::ONCE);
        Ok(Template(Rules { name, counting, life, whole_seconds }))
    }

    /// Returns an error if a store with this layout can never count these limits of one policy. `leased` means that the
    /// policy has a lease.
    ///
    /// ```
    /// use pacegate_redis::Layout;
    ///
    /// let error = Layout::typescript().supports(&["5/1500ms".parse()?], false).unwrap_err();
    /// assert!(error.to_string().contains("use a period such as 2s"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`], with advice.
    pub fn supports(&self, limits: &[Limit], leased: bool) -> Result<(), StoreError> {
        self.rules().map_or(Ok(()), |rules| rules.supports(limits, leased))
    }

    pub(crate) fn rules(&self) -> Option<&Arc<Rules>> {
        self.0.as_ref()
    }

    fn seconds(prefix: &str, window: Piece, life: Life) -> Self {
        let name = KeyTemplate::new(prefix, window);
        Self::of(Rules { name, counting: Counting::Window, life, whole_seconds: true })
    }

    fn log(prefix: &str, tick: u64, life: Life) -> Self {
        let name = KeyTemplate::without_window(prefix);
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

    /// Returns the lifetime in milliseconds.
    pub(crate) fn life(&self, limit: &Limit) -> u64 {
        let life = limit.period() * self.life.periods + self.life.slack;
        u64::try_from(life.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
    }

    /// Returns the name of the counter of a key in the window that starts at `start`.
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
                Some("does not support leases: remove the policy's lease".to_owned())
            } else if limits.len() > 1 && matches!(self.counting, Counting::Log { .. }) {
                let limits: Vec<_> = limits.iter().map(|limit| format!("`{limit}`")).collect();
                Some(format!(
                    "has one log for all periods of a key, so {} would share it: use one limit",
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

    /// Returns the reason why the layout cannot count a limit.
    fn problem(&self, limit: &Limit) -> Option<String> {
        let wanted = match self.counting {
            Counting::Window => Algorithm::FixedWindow,
            Counting::Pair => Algorithm::SlidingWindow,
            Counting::Log { .. } => Algorithm::SlidingLog,
        };
        if limit.algorithm() != wanted {
            return Some(format!(
                "counts by {wanted}, and `{limit}` does not: use the algorithm {wanted}"
            ));
        }
        if limit.calendar().is_some() {
            return Some(format!(
                "cannot count calendar periods: use a fixed length, such as `30d`, instead of `{limit}`"
            ));
        }
        if self.whole_seconds && limit.period().subsec_nanos() != 0 {
            let next = limit.period().as_secs() + 1;
            return Some(format!(
                "supports whole seconds only: use a period such as {next}s instead of `{limit}`"
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
