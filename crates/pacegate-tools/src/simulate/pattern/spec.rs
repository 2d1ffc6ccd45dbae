//! Parsing of traffic patterns.

use std::str::FromStr;

use clap::ValueEnum;
use pacegate::{Limit, ParseLimitError};

use crate::{DurationError, parse_period};

/// Behaviour of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Random requests at a constant rate.
    Steady,
    /// Each client sends many requests at once, then pauses.
    Bursts,
    /// Random requests at a rate that follows the time of day.
    Diurnal,
    /// Steady, plus one client that sends far more requests than the others.
    Greedy,
    /// All clients start at the same time and retry when denied.
    RetryStorm,
}

/// A traffic pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The original text.
    pub text: String,
    /// The shape of the traffic.
    pub kind: Kind,
    /// Number of clients.
    pub clients: u64,
    /// Requests of all clients together, and the time in microseconds that they are spread over.
    pub rate: (u64, u64),
    /// Delay after the start of the simulation, in microseconds.
    pub from: u64,
    /// Length in microseconds.
    pub length: Option<u64>,
    /// Rate of the greedy client, in the same form as `rate`.
    pub greedy: (u64, u64),
    /// Time between two bursts of a client, or until a successful client of a retry storm starts again, in
    /// microseconds.
    pub every: u64,
    /// Requests per burst.
    pub size: u64,
    /// True if clients wait as long as `Retry-After` says.
    pub obey: bool,
    /// Retry delay of clients that ignore `Retry-After`, in microseconds.
    pub retry: u64,
}

const SECOND: u64 = 1_000_000;
/// Maximum number of clients; each has a different address.
const MAX_CLIENTS: u64 = 900_000;
/// Maximum size of a burst; requests in a burst are 20 milliseconds apart.
const MAX_SIZE: u64 = 1_000_000_000;
/// Maximum time of a setting, in microseconds: ten years.
const MAX_TIME: u64 = 3_660 * 86_400 * SECOND;

/// A text that is not a pattern.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum PatternError {
    #[error("unknown pattern `{0}`: expected steady, diurnal, greedy, bursts or retry-storm")]
    Kind(String),
    #[error("invalid setting `{0}`: expected NAME=VALUE, such as for=1h")]
    NoValue(String),
    #[error(
        "unknown setting `{0}`: expected clients, rate, from, for, greedy, every, size, obey or retry"
    )]
    Setting(String),
    #[error("invalid `{name}={value}`: {error}")]
    Value { name: String, value: String, error: SettingError },
}

/// An invalid value of a setting.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum SettingError {
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error(transparent)]
    Rate(#[from] ParseLimitError),
    #[error("expected at least one request")]
    NoRequests,
    #[error("expected a time of at most ten years")]
    TooLong,
    #[error(transparent)]
    Count(#[from] CountError),
    #[error("expected yes or no")]
    YesOrNo,
}

/// A text that is not a number in the expected range.
#[derive(Debug, thiserror::Error)]
#[error("expected 1 to {most}")]
pub struct CountError {
    most: u64,
}

impl Pattern {
    /// Creates a pattern with default values.
    pub fn new(kind: Kind) -> Self {
        Self {
            text: String::new(),
            kind,
            clients: 100,
            rate: (10, SECOND),
            from: 0,
            length: None,
            greedy: (10, SECOND),
            every: 60 * SECOND,
            size: 20,
            obey: true,
            retry: SECOND,
        }
    }

    /// Returns the default length: a day for the diurnal pattern, otherwise an hour.
    pub fn usual_length(&self) -> u64 {
        let hours = if self.kind == Kind::Diurnal { 24 } else { 1 };
        self.length.unwrap_or(hours * 3_600 * SECOND)
    }

    /// Changes a setting. Returns false if there is no such setting.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, SettingError> {
        match name {
            "clients" => self.clients = count(value, MAX_CLIENTS)?,
            "rate" => self.rate = rate(value)?,
            "from" => self.from = micros(value)?,
            "for" => self.length = Some(micros(value)?),
            "greedy" => self.greedy = rate(value)?,
            "every" => self.every = micros(value)?,
            "size" => self.size = count(value, MAX_SIZE)?,
            "retry" => self.retry = micros(value)?,
            "obey" if value == "yes" || value == "no" => self.obey = value == "yes",
            "obey" => return Err(SettingError::YesOrNo),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default();
        let kind = <Kind as ValueEnum>::from_str(name, false);
        let mut pattern = Self::new(kind.map_err(|_| PatternError::Kind(name.to_owned()))?);
        for word in words {
            let setting = word.split_once('=');
            let (name, value) = setting.ok_or_else(|| PatternError::NoValue(word.to_owned()))?;
            let is_known = pattern.set(name, value).map_err(|error| {
                let (name, value) = (name.to_owned(), value.to_owned());
                PatternError::Value { name, value, error }
            })?;
            if !is_known {
                return Err(PatternError::Setting(name.to_owned()));
            }
        }
        text.clone_into(&mut pattern.text);
        Ok(pattern)
    }
}

/// Parses a number from 1 to `most`, such as `500` or `10M`.
pub(super) fn count(text: &str, most: u64) -> Result<u64, CountError> {
    let digits = text.replace('_', "");
    let (digits, scale) = match digits.strip_suffix(['k', 'K', 'M']) {
        Some(rest) if digits.ends_with('M') => (rest, 1_000_000),
        Some(rest) => (rest, 1_000),
        None => (&*digits, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
    number.filter(|number| (1..=most).contains(number)).ok_or(CountError { most })
}

fn rate(text: &str) -> Result<(u64, u64), SettingError> {
    let limit: Limit = text.parse()?;
    let period = u64::try_from(limit.period().as_micros()).unwrap_or(u64::MAX);
    match limit.amount() {
        0 => Err(SettingError::NoRequests),
        amount => Ok((amount, period)),
    }
}

/// Parses a time above zero into microseconds, rounded up.
fn micros(text: &str) -> Result<u64, SettingError> {
    let micros = u64::try_from(parse_period(text)?.as_nanos().div_ceil(1_000)).ok();
    micros.filter(|micros| *micros <= MAX_TIME).ok_or(SettingError::TooLong)
}
