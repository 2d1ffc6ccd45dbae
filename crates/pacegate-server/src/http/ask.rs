//! What a request asks: a body of JSON or query parameters, read without copying, and held to the bounds.

use std::{borrow::Cow, fmt};

use pacegate::{Charge, CostError, KeyRef, Limit, Plan, PolicyName, Request};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};
use smallvec::SmallVec;

use super::Problem;
use crate::{
    ad_hoc::{self, AdHocError, Limits, MOST_LIMITS},
    config::Bounds,
    engine::Engine,
};

/// What was said about whose budget and how much, as it was written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asked<'a> {
    pub(super) domain: Option<Cow<'a, str>>,
    pub(super) attributes: Option<Pairs<'a>>,
    pub(super) key: Option<Cow<'a, str>>,
    pub(super) limits: SmallVec<[Cow<'a, str>; 2]>,
    pub(super) cost: Option<u64>,
    pub(super) id: Option<Cow<'a, str>>,
    pub(super) permit: Option<Cow<'a, str>>,
}

/// Names and values of attributes.
type Pairs<'a> = SmallVec<[(Cow<'a, str>, Cow<'a, str>); 8]>;

/// Whose budget and how much, checked.
#[derive(Clone, Debug)]
pub(super) enum Subject<'a> {
    /// What the policies say about these attributes.
    Policies(Request<'a>),
    /// Limits that came along, for one key.
    AdHoc { key: &'a str, limits: Limits, cost: u64, id: Option<&'a [u8]> },
}

/// What is charged for a [`Subject`].
#[expect(clippy::large_enum_variant, reason = "it lives on the stack, for as long as one request")]
pub(super) enum Budgets<'e, 's> {
    Policies(Plan<'e>),
    AdHoc(&'s str, &'s [Limit]),
}

/// Which members a body may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Those of a check.
    Check,
    /// Those and the permit that is held.
    Held,
}

/// The members of a check, and last that of a permit.
pub(super) const FIELDS: [&str; 7] =
    ["domain", "attributes", "key", "limit", "cost", "id", "permit"];

/// The most bytes of a limit's text.
const MOST_LIMIT_BYTES: usize = 64;

/// Reads a body.
pub(super) fn parse(body: &[u8], form: Form) -> Result<Asked<'_>, Problem> {
    parse_seed(body, form)
}

/// Reads the body of a batch, of which at most `most` requests are taken.
pub(super) fn parse_batch(body: &[u8], most: usize) -> Result<Vec<Asked<'_>>, Problem> {
    parse_seed(body, Batch { most })
}

fn parse_seed<'a, S: DeserializeSeed<'a>>(body: &'a [u8], seed: S) -> Result<S::Value, Problem> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let parsed = seed.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    parsed.map_err(|error| Problem::request(error.to_string()))
}

impl Asked<'_> {
    /// Reads query parameters: `domain`, `attribute=NAME:VALUE` any number of times, or `key` and `limit`.
    pub(super) fn from_query(pairs: Vec<(String, String)>) -> Result<Self, Problem> {
        let mut asked = Self::default();
        for (name, value) in pairs {
            let twice = match &*name {
                "domain" => asked.domain.replace(value.into()).is_some(),
                "key" => asked.key.replace(value.into()).is_some(),
                "limit" => {
                    asked.limits.push(value.into());
                    false
                }
                "attribute" => {
                    let (name, value) =
                        value.split_once(':').ok_or_else(|| Problem::request(NO_PAIR))?;
                    let pair = (name.to_owned().into(), value.to_owned().into());
                    asked.attributes.get_or_insert_default().push(pair);
                    false
                }
                other => {
                    return Err(Problem::request(format!("unknown parameter `{other}`, {HINT}")));
                }
            };
            if twice {
                return Err(Problem::request(format!("`{name}` is there twice")));
            }
        }
        Ok(asked)
    }
}

impl Asked<'_> {
    /// Checks it against the bounds, and tells what it is about.
    pub(super) fn subject(&self, bounds: &Bounds) -> Result<Subject<'_>, Problem> {
        let cost = self.cost.unwrap_or(1);
        let id = self.id.as_deref().map(str::as_bytes);
        match (&self.key, self.limits.is_empty()) {
            (None, true) => {
                let request = self.request(bounds)?.cost(cost);
                match id {
                    None => Ok(Subject::Policies(request)),
                    Some(id) => {
                        let request = request.id(id);
                        Ok(Subject::Policies(request.map_err(|e| Problem::request(e.to_string()))?))
                    }
                }
            }
            (Some(_), true) => Err(Problem::request(
                "a `key` needs a `limit`, such as \"100/minute\"; for policies, write `attributes`",
            )),
            (None, false) => Err(Problem::request("a `limit` needs a `key`: whose budget it is")),
            (Some(key), false) => {
                if self.domain.is_some() || self.attributes.is_some() {
                    let detail = "write either `key` and `limit`, or `attributes` and `domain`";
                    return Err(Problem::request(detail));
                }
                is_short("the key", key, bounds)?;
                if id.is_some_and(|id| !(1..=Request::MAX_ID).contains(&id.len())) {
                    let most = Request::MAX_ID;
                    return Err(Problem::request(format!("an id has from 1 to {most} bytes")));
                }
                Ok(Subject::AdHoc { key, limits: self.parsed_limits()?, cost, id })
            }
        }
    }

    fn request(&self, bounds: &Bounds) -> Result<Request<'_>, Problem> {
        let mut request = Request::new();
        if let Some(domain) = &self.domain {
            is_short("the domain", domain, bounds)?;
            request = request.in_domain(domain);
        }
        let attributes = self.attributes.as_deref().unwrap_or_default();
        if attributes.len() > bounds.attributes {
            let most = bounds.attributes;
            return Err(Problem::bounds(format!("a request has at most {most} attributes")));
        }
        for (place, (name, value)) in attributes.iter().enumerate() {
            is_short("the name of an attribute", name, bounds)?;
            is_short("the value of an attribute", value, bounds)?;
            if attributes[..place].iter().any(|(other, _)| other == name) {
                return Err(Problem::request(format!("the attribute `{name}` is there twice")));
            }
            request = request.with(name, &**value);
        }
        Ok(request)
    }

    fn parsed_limits(&self) -> Result<Limits, Problem> {
        let too_much = || {
            let most = format!("at most {MOST_LIMITS}, of {MOST_LIMIT_BYTES} bytes each");
            Problem::bounds(format!("too many limits, or too long: {most}"))
        };
        let mut limits = Limits::new();
        for text in &self.limits {
            if text.len() > MOST_LIMIT_BYTES {
                return Err(too_much());
            }
            ad_hoc::add(&mut limits, text).map_err(|error| match error {
                AdHocError::TooMany => too_much(),
                error => Problem::limit(error.to_string()),
            })?;
        }
        Ok(limits)
    }
}

const NO_PAIR: &str = "an `attribute` is a name, a colon and a value, such as user:alice";
const HINT: &str =
    "expected `domain` and `attribute` (any number of times), or `key` and `limit` (the same)";

fn is_short(what: &str, text: &str, bounds: &Bounds) -> Result<(), Problem> {
    if text.len() > bounds.key_bytes {
        let most = bounds.key_bytes;
        return Err(Problem::bounds(format!("{what} is longer than {most} bytes")));
    }
    Ok(())
}

impl Subject<'_> {
    /// The domain that whoever asks must have access to.
    pub(super) fn domain(&self) -> &str {
        match self {
            Self::Policies(request) => request.domain(),
            Self::AdHoc { .. } => "",
        }
    }

    /// Whether the request brings its own limits.
    pub(super) fn is_inline(&self) -> bool {
        matches!(self, Self::AdHoc { .. })
    }

    pub(super) fn cost(&self) -> u64 {
        match self {
            Self::Policies(request) => request.units(),
            Self::AdHoc { cost, .. } => *cost,
        }
    }

    pub(super) fn id(&self) -> Option<&[u8]> {
        match self {
            Self::Policies(request) => request.id_bytes(),
            Self::AdHoc { id, .. } => *id,
        }
    }

    /// The limits that apply, each with its key, to be decided.
    pub(super) fn budgets<'e>(&self, engine: &'e Engine) -> Budgets<'e, '_> {
        match self {
            Self::Policies(request) => Budgets::Policies(engine.plan(request)),
            Self::AdHoc { key, limits, .. } => Budgets::AdHoc(key, limits),
        }
    }

    /// The limits that were counted, each with its key, for giving back.
    pub(super) fn counted<'e>(&self, engine: &'e Engine) -> Budgets<'e, '_> {
        match self {
            Self::Policies(request) => Budgets::Policies(engine.plan_counted(request)),
            Self::AdHoc { key, limits, .. } => Budgets::AdHoc(key, limits),
        }
    }
}

impl Budgets<'_, '_> {
    /// What is charged at this cost.
    pub(super) fn charges(&self, cost: u64) -> Result<Vec<Charge<'_>>, CostError> {
        match self {
            Self::Policies(plan) => plan.charges(cost),
            Self::AdHoc(key, limits) => {
                let key = KeyRef::new(key.as_bytes());
                let charge =
                    |&limit: &Limit| Charge::new(PolicyName::AD_HOC, key, limit).cost(cost);
                Ok(limits.iter().map(charge).collect())
            }
        }
    }
}

/// A string, borrowed unless it has escapes.
struct Text<'a>(Cow<'a, str>);

/// One limit or a list of them.
struct LimitTexts<'a>(SmallVec<[Cow<'a, str>; 2]>);

struct Attributes<'a>(Pairs<'a>);

struct Batch {
    most: usize,
}

/// The list of requests in a batch.
struct Requests {
    most: usize,
}

struct TextVisitor;
struct LimitsVisitor;
struct AttributesVisitor;

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

impl<'de> Deserialize<'de> for LimitTexts<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LimitsVisitor)
    }
}

impl<'de> Visitor<'de> for LimitsVisitor {
    type Value = LimitTexts<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a limit, such as \"100/minute\", or a list of limits")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<LimitTexts<'de>, E> {
        Ok(LimitTexts(SmallVec::from_iter([Cow::Borrowed(text)])))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<LimitTexts<'de>, E> {
        Ok(LimitTexts(SmallVec::from_iter([Cow::Owned(text.to_owned())])))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<LimitTexts<'de>, A::Error> {
        let mut limits = SmallVec::new();
        while let Some(Text(limit)) = list.next_element()? {
            limits.push(limit);
        }
        match limits.is_empty() {
            true => Err(A::Error::invalid_length(0, &"at least one limit")),
            false => Ok(LimitTexts(limits)),
        }
    }
}

impl<'de> Deserialize<'de> for Attributes<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AttributesVisitor)
    }
}

impl<'de> Visitor<'de> for AttributesVisitor {
    type Value = Attributes<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object whose values are strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Attributes<'de>, A::Error> {
        let mut pairs = Pairs::new();
        while let Some((Text(name), Text(value))) = map.next_entry()? {
            pairs.push((name, value));
        }
        Ok(Attributes(pairs))
    }
}

impl<'de> DeserializeSeed<'de> for Form {
    type Value = Asked<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Asked<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl Form {
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Check => &FIELDS[..6],
            Self::Held => &FIELDS,
        }
    }
}

/// Sets a member that was not there before.
fn set<E: Error, T>(place: &mut Option<T>, name: &'static str, value: Option<T>) -> Result<(), E> {
    match place {
        Some(_) => Err(E::duplicate_field(name)),
        None => {
            *place = value;
            Ok(())
        }
    }
}

/// An object only: what derives would also take a list.
impl<'de> Visitor<'de> for Form {
    type Value = Asked<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Asked<'de>, A::Error> {
        let mut asked = Asked::default();
        let text = |map: &mut A| -> Result<_, A::Error> {
            Ok(map.next_value::<Option<Text<'de>>>()?.map(|Text(text)| text))
        };
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                "domain" => set(&mut asked.domain, "domain", text(&mut map)?)?,
                "key" => set(&mut asked.key, "key", text(&mut map)?)?,
                "id" => set(&mut asked.id, "id", text(&mut map)?)?,
                "cost" => set(&mut asked.cost, "cost", map.next_value()?)?,
                "attributes" => {
                    let attributes = map.next_value::<Option<Attributes<'de>>>()?;
                    let pairs = attributes.map(|Attributes(pairs)| pairs);
                    set(&mut asked.attributes, "attributes", pairs)?;
                }
                "limit" => {
                    let limits = map.next_value::<Option<LimitTexts<'de>>>()?;
                    if !asked.limits.is_empty() {
                        return Err(A::Error::duplicate_field("limit"));
                    }
                    asked.limits = limits.map(|LimitTexts(limits)| limits).unwrap_or_default();
                }
                "permit" if self == Self::Held => {
                    set(&mut asked.permit, "permit", text(&mut map)?)?;
                }
                other => return Err(A::Error::unknown_field(other, self.fields())),
            }
        }
        Ok(asked)
    }
}

impl<'de> DeserializeSeed<'de> for Batch {
    type Value = Vec<Asked<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Batch {
    type Value = Vec<Asked<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a list of `requests`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut requests = None;
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                "requests" => {
                    let list = map.next_value_seed(Requests { most: self.most })?;
                    set(&mut requests, "requests", Some(list))?;
                }
                other => return Err(A::Error::unknown_field(other, &["requests"])),
            }
        }
        requests.ok_or_else(|| A::Error::missing_field("requests"))
    }
}

impl<'de> DeserializeSeed<'de> for Requests {
    type Value = Vec<Asked<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Requests {
    type Value = Vec<Asked<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {} requests", self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut requests = Vec::new();
        while let Some(request) = list.next_element_seed(Form::Check)? {
            if requests.len() == self.most {
                return Err(A::Error::invalid_length(self.most + 1, &self));
            }
            requests.push(request);
        }
        Ok(requests)
    }
}
