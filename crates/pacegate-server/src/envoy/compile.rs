//! From files to rules, with everything checked that one file, or several together, can say wrong.

use std::collections::HashMap;

use bytes::Bytes;
use pacegate::{PolicySet, policy::FailureMode};
use serde_saphyr::Spanned;

use super::{
    file::{Descriptor, FileError, RateLimit, Root, Source, shorten},
    limits::{self, Bound},
    metadata, name,
    rules::{Level, Node, Options, Rule, Rules, WrittenRule},
};

/// One level of one document.
struct Compiler<'a> {
    source: &'a Source,
    domain: &'a str,
    rules: &'a mut Rules,
    /// How the descriptors above are called, and whether the budget depends on their values.
    way: Vec<(String, Option<String>)>,
    varying: Vec<usize>,
}

pub(super) fn rules(sources: &[Source], options: Options) -> Result<Rules, FileError> {
    let merge = options.merge_domains;
    let mut rules = Rules { options, ..Rules::default() };
    let mut seen: HashMap<String, String> = HashMap::new();
    for source in sources {
        for root in source.parse()? {
            let place = format!("{}:{}", source.file.display(), root.domain.referenced.line());
            let known = seen.insert(root.domain.value.clone(), place);
            if let Some(known) = known.filter(|_| !merge) {
                let domain = shorten(&root.domain.value, 80);
                let message = format!("domain `{domain}` is already in {known}: write it once");
                return Err(source.error(root.domain.referenced, message));
            }
            domain(&mut rules, source, &root)?;
        }
    }
    // Names are hashes where they are not plain, so they could be equal; nothing else is left to go wrong.
    match (PolicySet::new(rules.policies.iter().cloned()), sources.first()) {
        (Err(error), Some(source)) => Err(source.error(None, error)),
        _ => Ok(rules),
    }
}

fn domain(rules: &mut Rules, source: &Source, root: &Root) -> Result<(), FileError> {
    let domain = &root.domain.value;
    if domain.is_empty() {
        let message = "the domain is empty: write a name, such as `domain: edge`";
        return Err(source.error(root.domain.referenced, message));
    }
    let mut level = rules.domains.remove(domain.as_bytes()).unwrap_or_default();
    let mut compiler = Compiler { source, domain, rules, way: Vec::new(), varying: Vec::new() };
    compiler.descriptors(&mut level, root.descriptors.as_deref().unwrap_or_default())?;
    rules.domains.insert(domain.as_bytes().into(), level);
    Ok(())
}

impl Compiler<'_> {
    fn descriptors(
        &mut self,
        level: &mut Level,
        descriptors: &[Spanned<Descriptor>],
    ) -> Result<(), FileError> {
        for descriptor in descriptors {
            self.descriptor(level, descriptor)?;
        }
        Ok(())
    }

    fn descriptor(
        &mut self,
        level: &mut Level,
        item: &Spanned<Descriptor>,
    ) -> Result<(), FileError> {
        let said = &item.value;
        let key = said.key.as_ref().filter(|key| !key.value.is_empty()).ok_or_else(|| {
            let at = said.key.as_ref().map_or(item.referenced, |key| key.referenced);
            let message = "the key of a descriptor is missing: write one, such as `key: user`";
            self.source.error(at, message)
        })?;
        let value = said.value.as_ref().map(|value| &*value.value).filter(|it| !it.is_empty());
        let (key, at) = (&*key.value, key.referenced);
        let varies = self.varies(said, value)?;
        if varies {
            self.varying.push(self.way.len());
        }
        self.way.push((key.to_owned(), value.map(str::to_owned)));
        let rule = self.rule(item)?;
        let place = (self.source.file.clone(), at.line());
        let mut node = Node { place, rule, below: Level::default() };
        self.descriptors(&mut node.below, said.descriptors.as_deref().unwrap_or_default())?;
        self.way.pop();
        if varies {
            self.varying.pop();
        }
        level.insert(key, value, node).map_err(|(file, line)| {
            let key = shorten(key, 40);
            let value = value.map_or_else(
                || "without a value".to_owned(),
                |value| format!("with value `{}`", shorten(value, 40)),
            );
            let known = match file == self.source.file {
                true => format!("line {line}"),
                false => format!("{}:{line}", file.display()),
            };
            let message = format!(
                "descriptor `{key}` {value} is already in {known}: \
                 write its limits there, as `rate_limits`"
            );
            self.source.error(at, message)
        })
    }

    /// Whether each value that is met has a budget of its own.
    fn varies(&self, said: &Descriptor, value: Option<&str>) -> Result<bool, FileError> {
        let is_open = value.is_none_or(|value| value.contains('*'));
        match &said.share_threshold {
            Some(share) if share.value && !is_open => {
                let message = "`share_threshold` is for values with a `*`: leave it out";
                Err(self.source.error(share.referenced, message))
            }
            Some(share) if share.value => Ok(false),
            _ => Ok(is_open),
        }
    }

    /// What a descriptor says for those that end with it.
    fn rule(&mut self, item: &Spanned<Descriptor>) -> Result<Option<Rule>, FileError> {
        let said = &item.value;
        let limits = self.limits(said)?;
        let failure = self.failure(said)?;
        let Some((first, more)) = limits.split_first() else { return Ok(None) };
        let is_unlimited = first.value.unlimited.as_ref().is_some_and(|it| it.value);
        let mut bounds = Vec::new();
        if is_unlimited {
            limits::check_unlimited(self.source, &first.value)?;
        } else {
            bounds = self.bounds(&limits)?;
        }
        let text = name::of(self.domain, &self.way);
        let policy =
            name::parse(&text).map_err(|error| self.source.error(item.referenced, error))?;
        let named = std::iter::once(first).chain(more).find_map(|item| item.value.name.as_ref());
        let rule = Rule {
            policy,
            name: named.map_or_else(Bytes::new, |name| name.value.clone().into()),
            bounds,
            varying: self.varying.clone(),
            replaces: self.replaces(&limits)?,
            shadow: said.shadow_mode.unwrap_or_default(),
            quota: said.quota_mode.unwrap_or_default() || self.rules.options.quota_mode,
            metadata: said.metadata.as_ref().map(metadata::from_json),
        };
        let written = self.written(&rule);
        if !rule.is_unlimited() {
            self.rules.policies.push(rule.to_policy(&written, failure));
        }
        self.rules.written.push(written);
        Ok(Some(rule))
    }

    fn written(&self, rule: &Rule) -> WrittenRule {
        WrittenRule {
            policy: rule.policy,
            domain: self.domain.to_owned(),
            way: self.way.clone(),
            per: rule.varying.iter().map(|&place| self.way[place].0.clone()).collect(),
            limits: rule.bounds.iter().map(|bound| bound.limit).collect(),
            shadow: rule.shadow,
            quota: rule.quota,
        }
    }

    /// The limits of a descriptor, of which there may be none.
    fn limits<'s>(&self, said: &'s Descriptor) -> Result<Vec<&'s Spanned<RateLimit>>, FileError> {
        let Some(list) = &said.rate_limits else {
            return Ok(said.rate_limit.iter().collect());
        };
        let failed = |message| Err(self.source.error(list.referenced, message));
        if said.rate_limit.is_some() {
            return failed("there is a `rate_limit` as well: write all of them in `rate_limits`");
        }
        if list.value.is_empty() {
            return failed("`rate_limits` is empty: write a limit, or leave it out");
        }
        let unlimited = |item: &&Spanned<RateLimit>| {
            item.value.unlimited.as_ref().is_some_and(|unlimited| unlimited.value)
        };
        match list.value.iter().find(unlimited) {
            Some(item) => {
                let message = "`unlimited` is for a `rate_limit` alone: leave it out";
                Err(self.source.error(item.referenced, message))
            }
            None => Ok(list.value.iter().collect()),
        }
    }

    fn bounds(&self, limits: &[&Spanned<RateLimit>]) -> Result<Vec<Bound>, FileError> {
        let mut bounds: Vec<Bound> = Vec::new();
        for item in limits {
            let bound = Bound::read(self.source, item)?;
            let same = bounds.iter().find(|other| {
                other.limit.period() == bound.limit.period()
                    && other.limit.algorithm() == bound.limit.algorithm()
            });
            if let Some(same) = same {
                let message = format!(
                    "`{}` and `{}` would count in one place: leave the larger out",
                    same.limit, bound.limit
                );
                return Err(self.source.error(item.referenced, message));
            }
            bounds.push(bound);
        }
        Ok(bounds)
    }

    fn replaces(&self, limits: &[&Spanned<RateLimit>]) -> Result<Vec<Box<str>>, FileError> {
        let mut names = Vec::new();
        for item in limits {
            let own = item.value.name.as_ref().map(|name| &*name.value);
            for replaced in item.value.replaces.as_deref().unwrap_or_default() {
                let name = replaced.value.name.as_deref().filter(|name| !name.is_empty());
                let failed = |message| self.source.error(replaced.referenced, message);
                let name = name.ok_or_else(|| {
                    failed("`replaces` needs the name of a rule: write `- name: other`")
                })?;
                if own == Some(name) {
                    return Err(failed("a rule cannot replace itself: write the name of another"));
                }
                names.push(name.into());
            }
        }
        Ok(names)
    }

    fn failure(&self, said: &Descriptor) -> Result<FailureMode, FileError> {
        let Some(failure) = &said.failure else { return Ok(FailureMode::default()) };
        match &*failure.value {
            "open" => Ok(FailureMode::Open),
            "closed" => Ok(FailureMode::Closed),
            "local" => Ok(FailureMode::default()),
            other => {
                let other = shorten(other, 40);
                let message = format!("`{other}` is no failure mode: write open, closed or local");
                Err(self.source.error(failure.referenced, message))
            }
        }
    }
}
