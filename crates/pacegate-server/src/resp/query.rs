//! What follows `PACEGATE.CHECK` and its like.

use pacegate::{Charge, Decision, KeyRef, Limit, PolicyName, Request};
use smallvec::SmallVec;

use super::reply::Replies;
use crate::{
    ad_hoc::{self, Limits},
    config::Bounds,
};

/// A request, or a key with limits of its own.
#[derive(Debug)]
pub(super) struct Query<'a> {
    domain: &'a str,
    pub(super) cost: u64,
    pub(super) id: Option<&'a [u8]>,
    attributes: SmallVec<[(&'a str, &'a [u8]); 8]>,
    own: Option<(&'a [u8], Limits)>,
}

const USAGE: &str = "write: [COST n] [DOMAIN name] [ID text] ATTR name value [name value ...], \
                     or: [COST n] [ID text] KEY key LIMIT limit [LIMIT limit ...]";

impl<'a> Query<'a> {
    /// Reads the words after the command's name.
    pub(super) fn read(words: &[&'a [u8]], bounds: &Bounds) -> Result<Self, String> {
        let mut query =
            Self { domain: "", cost: 1, id: None, attributes: SmallVec::new(), own: None };
        let mut rest = words;
        while let [option, value, after @ ..] = rest {
            if option.eq_ignore_ascii_case(b"ATTR") {
                query.read_attributes(&rest[1..], bounds)?;
                return query.whole();
            }
            let mut before = words[..words.len() - rest.len()].chunks(2);
            let is_again = before.any(|pair| pair[0].eq_ignore_ascii_case(option));
            if is_again && !option.eq_ignore_ascii_case(b"LIMIT") {
                return Err(USAGE.to_owned());
            }
            query.read_option(option, value, bounds)?;
            rest = after;
        }
        match rest {
            [] => query.whole(),
            _ => Err(USAGE.to_owned()),
        }
    }

    fn read_option(
        &mut self,
        option: &[u8],
        value: &'a [u8],
        bounds: &Bounds,
    ) -> Result<(), String> {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        if is("COST") {
            self.cost = cost(value)?;
        } else if is("DOMAIN") {
            self.domain = text("the domain", value, bounds)?;
        } else if is("ID") {
            self.id = Some(value).filter(|id| (1..=Request::MAX_ID).contains(&id.len()));
            self.id.ok_or_else(|| format!("an id has from 1 to {} bytes", Request::MAX_ID))?;
        } else if is("KEY") {
            within("the key", value, bounds)?;
            self.own = Some((value, self.own.take().map_or_else(Limits::new, |own| own.1)));
        } else if is("LIMIT") {
            let text = text("the limit", value, bounds)?;
            let (_, limits) = self.own.as_mut().ok_or("KEY comes before LIMIT")?;
            ad_hoc::add(limits, text).map_err(|error| error.to_string())?;
        } else {
            return Err(USAGE.to_owned());
        }
        Ok(())
    }

    fn read_attributes(&mut self, words: &[&'a [u8]], bounds: &Bounds) -> Result<(), String> {
        let (pairs, []) = words.as_chunks::<2>() else {
            return Err("ATTR takes names and values in pairs".to_owned());
        };
        if pairs.len() > bounds.attributes {
            return Err(format!("a request has at most {} attributes", bounds.attributes));
        }
        for [name, value] in pairs {
            within("the value of an attribute", value, bounds)?;
            let name = text("the name of an attribute", name, bounds)?;
            if self.attributes.iter().any(|(other, _)| *other == name) {
                return Err(format!("the attribute '{}' is there twice", name.escape_debug()));
            }
            self.attributes.push((name, value));
        }
        Ok(())
    }

    fn whole(self) -> Result<Self, String> {
        let has_limits = self.own.as_ref().is_none_or(|(_, limits)| !limits.is_empty());
        let is_one_thing = self.own.is_some() == self.attributes.is_empty();
        let own_domain = self.own.is_some() && !self.domain.is_empty();
        if is_one_thing && has_limits && !own_domain { Ok(self) } else { Err(USAGE.to_owned()) }
    }

    /// The same, asking without taking.
    pub(super) fn peeking(self) -> Self {
        Self { cost: 0, id: None, ..self }
    }

    /// Whether the command brings its own limits.
    pub(super) fn is_inline(&self) -> bool {
        self.own.is_some()
    }

    pub(super) fn domain(&self) -> &'a str {
        self.domain
    }

    /// The request, unless it is a key with limits of its own.
    pub(super) fn request(&self) -> Option<Request<'a>> {
        if self.own.is_some() {
            return None;
        }
        let mut request = Request::new().in_domain(self.domain).cost(self.cost);
        for (name, value) in &self.attributes {
            request = request.with(name, *value);
        }
        match self.id {
            // Its length was looked at when it was read.
            Some(id) => request.id(id).ok(),
            None => Some(request),
        }
    }

    /// What a key with limits of its own is charged.
    pub(super) fn own_charges(&self) -> SmallVec<[Charge<'a>; 2]> {
        let Some((key, limits)) = &self.own else { return SmallVec::new() };
        let charge = |&limit: &Limit| {
            Charge::new(PolicyName::AD_HOC, KeyRef::new(key), limit).cost(self.cost)
        };
        limits.iter().map(charge).collect()
    }
}

/// Writes a decision by its names.
pub(super) fn write(decision: &Decision, to: &mut Replies) {
    let millis = |micros: u128| i64::try_from(micros.div_ceil(1000)).unwrap_or(i64::MAX);
    to.map(9);
    to.bulk("allowed");
    to.boolean(decision.is_allowed());
    to.bulk("policy");
    match decision.policy() {
        Some(policy) => to.bulk(policy.as_str()),
        None => to.null(),
    }
    to.bulk("limit");
    match decision.limit() {
        Some(limit) => to.bulk(limit.to_string()),
        None => to.null(),
    }
    to.bulk("remaining");
    match decision.limit() {
        Some(_) => to.integer(i64::try_from(decision.remaining()).unwrap_or(i64::MAX)),
        None => to.null(),
    }
    to.bulk("retry_after_ms");
    match decision.retry_after() {
        Some(wait) => to.integer(millis(wait.as_micros())),
        None => to.null(),
    }
    to.bulk("reset_after_ms");
    to.integer(millis(decision.reset_after().as_micros()));
    to.bulk("source");
    to.bulk(decision.source().as_str());
    to.bulk("shadow_denied");
    to.boolean(decision.is_shadow_denied());
    to.bulk("degraded");
    to.boolean(decision.is_degraded());
}

fn cost(word: &[u8]) -> Result<u64, String> {
    let digits =
        std::str::from_utf8(word).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    let cost = digits.and_then(|text| text.parse().ok());
    cost.ok_or_else(|| "the cost is not a whole number".to_owned())
}

fn text<'a>(what: &str, word: &'a [u8], bounds: &Bounds) -> Result<&'a str, String> {
    within(what, word, bounds)?;
    std::str::from_utf8(word).map_err(|_| format!("{what} is not UTF-8"))
}

fn within(what: &str, word: &[u8], bounds: &Bounds) -> Result<(), String> {
    if word.len() > bounds.key_bytes {
        return Err(format!("{what} has more than {} bytes", bounds.key_bytes));
    }
    Ok(())
}
