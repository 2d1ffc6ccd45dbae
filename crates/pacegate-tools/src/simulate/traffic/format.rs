//! Log formats and the assignment of fields to attributes.

use std::str::FromStr;

use memchr::memchr;

use super::{
    Malformed,
    combined::Combined,
    csv::Csv,
    json::JsonLines,
    row::{Attributes, Values},
};

/// Log format. The descriptions of the variants are shown in the help.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Detect the format from the first lines
    #[default]
    Auto,
    /// Common log format of web servers
    Common,
    /// Common format plus referer and user agent
    Combined,
    /// One JSON object per line
    Json,
    /// Comma-separated values with column names in the first line
    Csv,
}

/// Assignment of fields to attributes whose names differ: `ip=client.addr,time=ts`.
#[derive(Clone, Debug, Default)]
pub struct Map(Vec<(String, String)>);

/// A parser for log lines.
#[derive(Debug)]
pub(super) enum LineParser {
    Combined(Combined),
    Json(JsonLines),
    Csv(Csv),
}

/// The end of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The entry ends at this line break.
    At(usize),
    /// The text ends before the entry's line break.
    Missing,
    /// A quoted value continues to the end of the text.
    Quoted,
}

/// Name of the timestamp in the map.
pub(super) const TIME: &str = "time";
/// Name of the cost of a request in the map.
pub(crate) const COST: &str = "cost";

impl Map {
    pub(super) fn get(&self, attribute: &str) -> Option<&String> {
        self.0.iter().find(|(name, _)| name == attribute).map(|(_, field)| field)
    }

    /// Overrides existing assignments and adds new ones.
    pub fn extend(&mut self, other: Self) {
        self.0.splice(0..0, other.0);
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(_, field)| field)
    }

    /// Returns the mapped attributes that no policy uses, without duplicates.
    pub(crate) fn unused(&self, attributes: &Attributes) -> Vec<String> {
        let mut unused: Vec<String> = Vec::new();
        for (name, _) in &self.0 {
            if name != TIME && !attributes.0.contains(name) && !unused.contains(name) {
                unused.push(name.clone());
            }
        }
        unused
    }

    /// Returns the field names that may hold an attribute, the most likely first.
    pub(super) fn candidates(&self, attribute: &str) -> Vec<String> {
        match self.get(attribute) {
            Some(field) => vec![field.clone()],
            None => {
                let usual = USUAL.iter().find(|(name, _)| *name == attribute);
                let usual = usual.map_or("", |(_, fields)| fields).split(' ');
                let fields =
                    std::iter::once(attribute).chain(usual.filter(|name| !name.is_empty()));
                fields.map(str::to_owned).collect()
            }
        }
    }
}

/// Common field names of servers and proxies, separated by spaces.
const USUAL: [(&str, &str); 10] = [
    (TIME, "timestamp ts @timestamp time_iso8601 time_local msec date datetime"),
    (
        "ip",
        "remote_addr client_ip clientip remote_ip request.client_ip request.remote_ip client.ip client.address \
         ClientHost addr",
    ),
    ("user", "remote_user user_id userid username user.id user.name"),
    ("method", "request_method http_method request.method RequestMethod verb"),
    ("path", "uri request_uri url request.uri RequestPath url.path"),
    ("host", "http_host request.host RequestHost server_name vhost"),
    ("status", "status_code response.status DownstreamStatus code"),
    ("referer", "http_referer referrer http_referrer"),
    ("user_agent", "http_user_agent agent useragent"),
    ("bytes", "body_bytes_sent bytes_sent size"),
];

/// A part of a map that assigns no field.
#[derive(Debug, thiserror::Error)]
#[error("invalid mapping `{0}`: expected ATTRIBUTE=FIELD, such as ip=client.addr")]
pub struct MapError(String);

impl FromStr for Map {
    type Err = MapError;

    fn from_str(text: &str) -> Result<Self, MapError> {
        let pairs = text.split(',').map(|pair| match pair.split_once('=') {
            Some((name, field)) if !name.is_empty() && !field.is_empty() => {
                Ok((name.trim().to_owned(), field.trim().to_owned()))
            }
            _ => Err(MapError(pair.to_owned())),
        });
        pairs.collect::<Result<_, _>>().map(Self)
    }
}

impl Format {
    /// Detects the format from the first lines of a log.
    pub(super) fn of(text: &[u8], map: &Map) -> Option<Self> {
        let mut lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
        let mut known = lines.by_ref().take(20).filter(|line| !line.is_empty());
        known.find_map(|line| match line {
            [b'{', ..] => Some(Self::Json),
            line if Combined::fits(line) => Some(Self::Combined),
            line if Csv::fits(line, map) => Some(Self::Csv),
            _ => None,
        })
    }

    pub(super) fn reader(self, attributes: &Attributes, map: &Map) -> LineParser {
        match self {
            Self::Auto | Self::Common | Self::Combined => {
                LineParser::Combined(Combined::new(attributes, map))
            }
            Self::Json => LineParser::Json(JsonLines::new(attributes, map)),
            Self::Csv => LineParser::Csv(Csv::new(attributes, map)),
        }
    }
}

impl LineParser {
    /// Returns true if an entry may contain line breaks.
    pub(super) fn spans_lines(&self) -> bool {
        matches!(self, Self::Csv(_))
    }

    /// Finds the end of the entry at the start of the text.
    #[inline]
    pub(super) fn end(&self, text: &[u8]) -> End {
        match self {
            Self::Csv(csv) => csv.end(text),
            Self::Combined(_) | Self::Json(_) => memchr(b'\n', text).map_or(End::Missing, End::At),
        }
    }

    /// Parses the heading, if the line is one.
    pub(super) fn is_heading(&mut self, line: &[u8]) -> bool {
        match self {
            Self::Csv(csv) => csv.is_heading(line),
            _ => false,
        }
    }

    #[inline]
    pub(super) fn read(&mut self, line: &[u8], values: &mut Values<'_>) -> Result<u64, Malformed> {
        match self {
            Self::Combined(combined) => combined.read(line, values),
            Self::Json(json) => json.read(line, values),
            Self::Csv(csv) => csv.read(line, values),
        }
    }
}
