//! Parsing of traffic patterns.

use std::str::FromStr;

use pacegate::Limit;

/// Behaviour of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

const KINDS: [(&str, Kind); 5] = [
    ("steady", Kind::Steady),
    ("bursts", Kind::Bursts),
    ("diurnal", Kind::Diurnal),
    ("greedy", Kind::Greedy),
    ("retry-storm", Kind::RetryStorm),
];

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

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "clients" => self.clients = within(name, value, MAX_CLIENTS)?,
            "rate" => self.rate = rate(value)?,
            "from" => self.from = span(value)?,
            "for" => self.length = Some(span(value)?),
            "greedy" => self.greedy = rate(value)?,
            "every" => self.every = span(value)?,
            "size" => self.size = within(name, value, MAX_SIZE)?,
            "retry" => self.retry = span(value)?,
            "obey" => {
                self.obey = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(format!("invalid `obey={value}`: expected yes or no")),
                }
            }
            _ => {
                let known = "clients, rate, from, for, greedy, every, size, obey or retry";
                return Err(format!("unknown setting `{name}`: expected {known}"));
            }
        }
        Ok(())
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default();
        let kind = KINDS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        let names = KINDS.map(|(name, _)| name).join(", ");
        let mut pattern = Self::new(
            kind.ok_or_else(|| format!("unknown pattern `{name}`: expected one of {names}"))?,
        );
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| {
                format!("invalid setting `{word}`: expected NAME=VALUE, such as for=1h")
            })?;
            pattern.set(name, value)?;
        }
        text.clone_into(&mut pattern.text);
        Ok(pattern)
    }
}

fn whole(text: &str) -> Result<u64, String> {
    let digits: String = text.chars().filter(|char| *char != '_').collect();
    let (digits, scale) = match digits.strip_suffix(['k', 'K', 'M']) {
        Some(rest) if digits.ends_with('M') => (rest, 1_000_000),
        Some(rest) => (rest, 1_000),
        None => (&*digits, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
    number.ok_or_else(|| format!("invalid number `{text}`: expected a whole number"))
}

fn within(name: &str, text: &str, most: u64) -> Result<u64, String> {
    let number = whole(text)?;
    let is_within = (1..=most).contains(&number);
    is_within
        .then_some(number)
        .ok_or_else(|| format!("invalid `{name}={text}`: expected 1 to {most}"))
}

fn rate(text: &str) -> Result<(u64, u64), String> {
    let limit: Limit = text.parse().map_err(|error| format!("invalid rate `{text}`: {error}"))?;
    let period = u64::try_from(limit.period().as_micros()).unwrap_or(u64::MAX);
    match limit.amount() {
        0 => Err(format!("invalid rate `{text}`: expected at least one request")),
        amount => Ok((amount, period)),
    }
}

/// Parses a time such as `90s` or `1h` into microseconds.
pub fn span(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("invalid time `{text}`: expected a time such as 500ms, 30s, 10m, 1h or 7d");
    let unit = text.find(|char: char| !char.is_ascii_digit()).ok_or_else(wrong)?;
    let scale = match &text[unit..] {
        "ms" => 1_000,
        "s" => SECOND,
        "m" | "min" => 60 * SECOND,
        "h" => 3_600 * SECOND,
        "d" => 86_400 * SECOND,
        _ => return Err(wrong()),
    };
    let number = text[..unit].parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
    // At most ten years.
    number.filter(|micros| (1..=3_660 * 86_400 * SECOND).contains(micros)).ok_or_else(wrong)
}

/// Parses a count such as `10M`.
pub(super) fn count(text: &str) -> Result<u64, String> {
    whole(text)
}
