//! The arguments of `PACEGATE.CHECK` and similar commands.

use pacegate::{Decision, Request};
use smallvec::SmallVec;

use super::{error::CommandError, reply::Replies, throttle::number};
use crate::{
    check::Check,
    config::Bounds,
    inline_limits::{self, Limits},
};

/// A request, or a key with inline limits.
#[derive(Debug)]
pub(super) struct Query<'a> {
    domain: &'a str,
    cost: u64,
    /// `true` if the cost is already spent.
    spent: bool,
    /// `true` if fewer units than the cost may be taken.
    pub(super) up_to: bool,
    id: Option<&'a [u8]>,
    attributes: SmallVec<[(&'a str, &'a [u8]); 8]>,
    inline: Option<(&'a [u8], Limits)>,
}

const USAGE: &str = "[COST n | SPENT n | UPTO n] [DOMAIN name] [ID text] ATTR name value [name value ...], \
                     or [COST n | SPENT n | UPTO n] [ID text] KEY key LIMIT limit [LIMIT limit ...]";

impl<'a> Query<'a> {
    /// Parses the words after the command name.
    pub(super) fn read(args: &[&'a [u8]], bounds: &Bounds) -> Result<Self, CommandError> {
        let (attributes, inline) = (SmallVec::new(), None);
        let (spent, up_to) = (false, false);
        let mut query = Self { domain: "", cost: 1, spent, up_to, id: None, attributes, inline };
        let mut rest = args;
        while let [option, value, after @ ..] = rest {
            if option.eq_ignore_ascii_case(b"ATTR") {
                query.read_attributes(&rest[1..], bounds)?;
                return query.complete();
            }
            let mut before = args[..args.len() - rest.len()].chunks(2);
            let is_again = before.any(|pair| is_same_option(pair[0], option));
            if is_again && !option.eq_ignore_ascii_case(b"LIMIT") {
                return Err(CommandError::Usage(USAGE));
            }
            query.read_option(option, value, bounds)?;
            rest = after;
        }
        match rest {
            [] => query.complete(),
            _ => Err(CommandError::Usage(USAGE)),
        }
    }

    fn read_option(
        &mut self,
        option: &[u8],
        value: &'a [u8],
        bounds: &Bounds,
    ) -> Result<(), CommandError> {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        if is("COST") {
            self.cost = number("COST", value)?;
        } else if is("SPENT") {
            (self.cost, self.spent) = (number("SPENT", value)?, true);
        } else if is("UPTO") {
            (self.cost, self.up_to) = (number("UPTO", value)?, true);
        } else if is("DOMAIN") {
            self.domain = text("the domain", value, bounds)?;
        } else if is("ID") {
            self.id = Some(value).filter(|id| (1..=Request::MAX_ID).contains(&id.len()));
            self.id.ok_or(CommandError::InvalidId)?;
        } else if is("KEY") {
            check_length("the key", value, bounds)?;
            self.inline = Some((value, Limits::new()));
        } else if is("LIMIT") {
            let text = text("the limit", value, bounds)?;
            let (_, limits) = self.inline.as_mut().ok_or(CommandError::Usage(USAGE))?;
            inline_limits::add(limits, text)?;
        } else {
            return Err(CommandError::Usage(USAGE));
        }
        Ok(())
    }

    fn read_attributes(&mut self, args: &[&'a [u8]], bounds: &Bounds) -> Result<(), CommandError> {
        let (pairs, []) = args.as_chunks::<2>() else {
            return Err(CommandError::Usage("ATTR name value [name value ...]"));
        };
        if pairs.len() > bounds.attributes {
            return Err(CommandError::TooManyAttributes(bounds.attributes));
        }
        for [name, value] in pairs {
            check_length("the value of an attribute", value, bounds)?;
            let name = text("the name of an attribute", name, bounds)?;
            if self.attributes.iter().any(|(other, _)| *other == name) {
                return Err(CommandError::DuplicateAttribute(name.escape_debug().to_string()));
            }
            self.attributes.push((name, value));
        }
        Ok(())
    }

    fn complete(self) -> Result<Self, CommandError> {
        let is_complete = match &self.inline {
            None => !self.attributes.is_empty(),
            Some((_, limits)) => {
                !limits.is_empty() && self.attributes.is_empty() && self.domain.is_empty()
            }
        };
        if is_complete { Ok(self) } else { Err(CommandError::Usage(USAGE)) }
    }

    /// Turns the query into a peek.
    pub(super) fn peeking(self) -> Self {
        Self { cost: 0, spent: false, up_to: false, id: None, ..self }
    }

    /// Returns the check.
    pub(super) fn into_check(self) -> Result<Check<'a>, CommandError> {
        let Self { domain, cost, spent, id, attributes, inline, .. } = self;
        if let Some((key, limits)) = inline {
            return Ok(Check::Inline { key, limits, cost, id, spent });
        }
        let mut request = Request::new().in_domain(domain).cost(cost);
        if spent {
            request = request.spent();
        }
        for (name, value) in attributes {
            request = request.with(name, value);
        }
        match id {
            None => Ok(Check::Policies(request)),
            Some(id) => request.id(id).map(Check::Policies).map_err(|_| CommandError::InvalidId),
        }
    }
}

/// Writes a decision as a map.
pub(super) fn write(decision: &Decision, to: &mut Replies) {
    write_with(decision, 0, to);
}

/// Writes a decision as a map, to which the caller adds this number of entries.
pub(super) fn write_with(decision: &Decision, added: usize, to: &mut Replies) {
    let millis = |micros: u128| i64::try_from(micros.div_ceil(1000)).unwrap_or(i64::MAX);
    to.map(9 + added);
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

/// Returns `true` if two options cannot be given together. `COST`, `SPENT` and `UPTO` all set the cost.
fn is_same_option(one: &[u8], other: &[u8]) -> bool {
    let names = [&b"COST"[..], b"SPENT", b"UPTO"];
    let is_cost = |option: &[u8]| names.iter().any(|name| name.eq_ignore_ascii_case(option));
    one.eq_ignore_ascii_case(other) || (is_cost(one) && is_cost(other))
}

fn text<'a>(name: &'static str, word: &'a [u8], bounds: &Bounds) -> Result<&'a str, CommandError> {
    check_length(name, word, bounds)?;
    std::str::from_utf8(word).map_err(|_| CommandError::NotUtf8(name))
}

pub(super) fn check_length(
    name: &'static str,
    word: &[u8],
    bounds: &Bounds,
) -> Result<(), CommandError> {
    match bounds.key_bytes {
        max if word.len() > max => Err(CommandError::TooLong { name, max }),
        _ => Ok(()),
    }
}
