//! What a pattern is described by.

use std::str::FromStr;

use pacegate::Limit;

/// How clients behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Requests at one rate, by chance.
    Steady,
    /// Each client sends many requests at once, and then none for a while.
    Bursts,
    /// A rate that rises and falls with the day.
    Diurnal,
    /// Steady, and one client among them that asks for far more than the others.
    Greedy,
    /// All clients come at once, and those that are denied try again.
    RetryStorm,
}

/// Traffic as it is described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// As it was written.
    pub(crate) text: String,
    pub(crate) kind: Kind,
    pub(crate) clients: u64,
    /// Requests of all clients together, and in how many microseconds.
    pub(crate) rate: (u64, u64),
    /// How long after the start of all it begins, in microseconds.
    pub(crate) from: u64,
    /// How long it lasts, in microseconds.
    pub(crate) length: Option<u64>,
    /// The same for the greedy client.
    pub(crate) greedy: (u64, u64),
    /// How long from one burst of a client to the next, or until it wants something again.
    pub(crate) every: u64,
    /// Requests in a burst.
    pub(crate) size: u64,
    /// Whether clients wait as long as `Retry-After` says.
    pub(crate) obey: bool,
    /// How long those wait who do not.
    pub(crate) retry: u64,
}

const SECOND: u64 = 1_000_000;
/// Each client has an address of its own.
const MAX_CLIENTS: u64 = 900_000;
/// One request takes 20 milliseconds of a burst.
const MAX_SIZE: u64 = 1_000_000_000;

const KINDS: [(&str, Kind); 5] = [
    ("steady", Kind::Steady),
    ("bursts", Kind::Bursts),
    ("diurnal", Kind::Diurnal),
    ("greedy", Kind::Greedy),
    ("retry-storm", Kind::RetryStorm),
];

impl Pattern {
    /// A pattern with the defaults.
    pub(crate) fn new(kind: Kind) -> Self {
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

    /// How long it lasts unless it is said: an hour, or a day where it is about days.
    pub(crate) fn usual_length(&self) -> u64 {
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
                    _ => return Err(format!("`obey={value}` is neither yes nor no")),
                }
            }
            _ => {
                let known = "clients, rate, from, for, greedy, every, size, obey or retry";
                return Err(format!("nothing is called `{name}`: write {known}"));
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
        let mut pattern =
            Self::new(kind.ok_or_else(|| format!("`{name}` is no pattern: write one of {names}"))?);
        for word in words {
            let (name, value) = word
                .split_once('=')
                .ok_or_else(|| format!("`{word}` says nothing: write NAME=VALUE, as in for=1h"))?;
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
    number.ok_or_else(|| format!("`{text}` is no whole number"))
}

fn within(name: &str, text: &str, most: u64) -> Result<u64, String> {
    let number = whole(text)?;
    let is_within = (1..=most).contains(&number);
    is_within.then_some(number).ok_or_else(|| format!("`{name}={text}` is not from 1 to {most}"))
}

fn rate(text: &str) -> Result<(u64, u64), String> {
    let limit: Limit = text.parse().map_err(|error| format!("`{text}` is no rate: {error}"))?;
    let period = u64::try_from(limit.period().as_micros()).unwrap_or(u64::MAX);
    match limit.amount() {
        0 => Err(format!("`{text}` is no traffic at all")),
        amount => Ok((amount, period)),
    }
}

/// Microseconds of a text such as `90s` or `1h`.
pub(crate) fn span(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no time: write 500ms, 30s, 10m, 1h or 7d");
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
    // Ten years.
    number.filter(|micros| (1..=3_660 * 86_400 * SECOND).contains(micros)).ok_or_else(wrong)
}

/// A count such as `10M`.
pub(super) fn count(text: &str) -> Result<u64, String> {
    whole(text)
}
