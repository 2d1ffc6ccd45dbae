//! Which format a log has, and which of its fields are which attributes.

use std::str::FromStr;

use memchr::memchr;

use super::{
    Malformed,
    combined::Combined,
    csv::Csv,
    json::JsonLines,
    row::{Attributes, Values},
};

/// What the lines of a log look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Whatever the first line looks like
    #[default]
    Auto,
    /// The common log format of web servers
    Common,
    /// The common format with referer and user agent
    Combined,
    /// A JSON object on each line
    Json,
    /// Comma-separated values, with names in the first line
    Csv,
}

/// Fields that attributes are taken from, where the names differ: `ip=client.addr,time=ts`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map(Vec<(String, String)>);

/// A reader of lines.
#[derive(Debug)]
pub(super) enum Reader {
    Combined(Combined),
    Json(JsonLines),
    Csv(Csv),
}

/// Where an entry ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// At this line break.
    At(usize),
    /// No line break is there that ends it.
    Missing,
    /// A quoted value goes on to the end of the text.
    Quoted,
}

/// The name by which the map speaks of the instant.
pub(super) const TIME: &str = "time";

impl Map {
    pub(super) fn get(&self, attribute: &str) -> Option<&String> {
        self.0.iter().find(|(name, _)| name == attribute).map(|(_, field)| field)
    }

    /// Puts other fields in the place of those that are named, and adds the rest.
    pub(crate) fn extend(&mut self, other: Self) {
        self.0.splice(0..0, other.0);
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(_, field)| field)
    }

    /// The attributes that are named here and that nobody looks at, each once.
    pub(crate) fn unused(&self, attributes: &Attributes) -> Vec<String> {
        let mut unused: Vec<String> = Vec::new();
        for (name, _) in &self.0 {
            if name != TIME && !attributes.0.contains(name) && !unused.contains(name) {
                unused.push(name.clone());
            }
        }
        unused
    }

    /// The fields that an attribute may be in, likeliest first.
    pub(super) fn candidates(&self, attribute: &str) -> Vec<String> {
        match self.get(attribute) {
            Some(field) => vec![field.clone()],
            None => {
                let usual = USUAL.iter().find(|(name, _)| *name == attribute);
                let usual = usual.map_or(&[][..], |(_, fields)| fields);
                let own = std::iter::once(attribute).chain(usual.iter().copied());
                own.map(str::to_owned).collect()
            }
        }
    }
}

/// What servers and proxies call these.
const USUAL: [(&str, &[&str]); 10] = [
    (
        TIME,
        &[
            "timestamp",
            "ts",
            "@timestamp",
            "time_iso8601",
            "time_local",
            "msec",
            "date",
            "datetime",
        ],
    ),
    (
        "ip",
        &[
            "remote_addr",
            "client_ip",
            "clientip",
            "remote_ip",
            "request.client_ip",
            "request.remote_ip",
            "client.ip",
            "client.address",
            "ClientHost",
            "addr",
        ],
    ),
    ("user", &["remote_user", "user_id", "userid", "username", "user.id", "user.name"]),
    ("method", &["request_method", "http_method", "request.method", "RequestMethod", "verb"]),
    ("path", &["uri", "request_uri", "url", "request.uri", "RequestPath", "url.path"]),
    ("host", &["http_host", "request.host", "RequestHost", "server_name", "vhost"]),
    ("status", &["status_code", "response.status", "DownstreamStatus", "code"]),
    ("referer", &["http_referer", "referrer", "http_referrer"]),
    ("user_agent", &["http_user_agent", "agent", "useragent"]),
    ("bytes", &["body_bytes_sent", "bytes_sent", "size"]),
];

impl FromStr for Map {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pairs = text.split(',').map(|pair| match pair.split_once('=') {
            Some((name, field)) if !name.is_empty() && !field.is_empty() => {
                Ok((name.trim().to_owned(), field.trim().to_owned()))
            }
            _ => Err(format!("`{pair}` does not map: write ATTRIBUTE=FIELD, as in ip=client.addr")),
        });
        pairs.collect::<Result<_, _>>().map(Self)
    }
}

impl Format {
    /// The format that the first lines of a log have.
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

    pub(super) fn reader(self, attributes: &Attributes, map: &Map) -> Reader {
        match self {
            Self::Auto | Self::Common | Self::Combined => {
                Reader::Combined(Combined::new(attributes, map))
            }
            Self::Json => Reader::Json(JsonLines::new(attributes, map)),
            Self::Csv => Reader::Csv(Csv::new(attributes, map)),
        }
    }
}

impl Reader {
    /// Whether a line break may be within what is one entry.
    pub(super) fn spans_lines(&self) -> bool {
        matches!(self, Self::Csv(_))
    }

    /// Where the entry ends that the text begins with.
    #[inline]
    pub(super) fn end(&self, text: &[u8]) -> End {
        match self {
            Self::Csv(csv) => csv.end(text),
            Self::Combined(_) | Self::Json(_) => memchr(b'\n', text).map_or(End::Missing, End::At),
        }
    }

    /// Takes a line that says what the others mean, if this is one.
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
