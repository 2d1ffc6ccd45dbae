//! Compiles files to rules, and validates them.

use std::collections::HashMap;

use bytes::Bytes;
use pacegate::{PolicyName, PolicySet, policy::FailureMode};
use serde_saphyr::Spanned;

use super::{
    file::{FileError, RuleDescriptor, RuleDocument, RuleFile, RuleLimit, shorten},
    limits::{self, Bound},
    metadata, name,
    options::EnvoyOptions,
    rules::{Level, Node, Place, Rule, Rules, WrittenRule},
    stats::{HitLevel, RuleHits},
};

/// Adds the descriptor to an error without a line.
fn located(error: FileError, descriptor: &RuleDescriptor) -> FileError {
    if error.line > 0 {
        return error;
    }
    let part = |text: &Option<Spanned<String>>| text.as_ref().map(|text| shorten(&text.value, 40));
    let key = part(&descriptor.key).unwrap_or_default();
    let value = part(&descriptor.value).map(|value| format!("={value}")).unwrap_or_default();
    FileError { message: format!("descriptor `{key}{value}`: {}", error.message), ..error }
}

/// Compiles the descriptors of one document.
struct Compiler<'a> {
    source: &'a RuleFile,
    domain: &'a str,
    rules: &'a mut Rules,
    /// Keys and values of the enclosing descriptors.
    path: Vec<(String, Option<String>)>,
    /// Indexes of the enclosing descriptors whose values are part of the key.
    varying: Vec<usize>,
    /// The enclosing descriptors in the names of statistics.
    levels: Vec<HitLevel>,
    /// The number of enclosing descriptors with `share_threshold`.
    shared: usize,
    naming: Naming,
}

/// The names of the policies. A name is never freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    /// Creates them.
    Create,
    /// Creates none: the rules are only validated.
    Skip,
}

/// Compiles the documents of files.
pub(super) fn files(sources: &[RuleFile], options: &EnvoyOptions) -> Result<Rules, FileError> {
    let mut parsed = Vec::new();
    for source in sources {
        parsed.extend(source.parse()?.into_iter().map(|root| (source, root)));
    }
    documents(parsed.iter().map(|(source, root)| (*source, root)), options)
}

/// Compiles documents. The source of each is for errors. Documents that are invalid leave no names of policies behind,
/// so that a config server cannot fill the memory with them.
pub(super) fn documents<'a>(
    roots: impl Iterator<Item = (&'a RuleFile, &'a RuleDocument)> + Clone,
    options: &EnvoyOptions,
) -> Result<Rules, FileError> {
    compile(roots.clone(), options, Naming::Skip)?;
    compile(roots, options, Naming::Create)
}

fn compile<'a>(
    roots: impl Iterator<Item = (&'a RuleFile, &'a RuleDocument)>,
    options: &EnvoyOptions,
    naming: Naming,
) -> Result<Rules, FileError> {
    let mut rules = Rules::default();
    let mut seen: HashMap<&str, Place> = HashMap::new();
    let mut first = None;
    for (source, root) in roots {
        let at = root.domain.referenced;
        let known = seen.insert(&root.domain.value, (source.file.clone(), at.line()));
        if let Some(known) = known.filter(|_| !options.merge_domains) {
            let (domain, known) = (shorten(&root.domain.value, 80), display(&known));
            let message = format!("duplicate domain `{domain}`: already in {known}");
            return Err(source.error(at, message));
        }
        domain(&mut rules, source, root, naming)?;
        first = first.or(Some(source));
    }
    if naming == Naming::Skip {
        return Ok(rules);
    }
    // Only hashes in policy names could still collide.
    match (PolicySet::new(rules.policies.iter().cloned()), first) {
        (Err(error), Some(source)) => Err(source.error(None, error)),
        _ => Ok(rules),
    }
}

/// Returns the file, and the line if the place has one: a resource of a config server has none.
fn display((file, line): &Place) -> String {
    match line {
        0 => file.display().to_string(),
        _ => format!("{}:{line}", file.display()),
    }
}

fn domain(
    rules: &mut Rules,
    source: &RuleFile,
    root: &RuleDocument,
    naming: Naming,
) -> Result<(), FileError> {
    let domain = &root.domain.value;
    if domain.is_empty() {
        let message = "the domain is empty: expected a name, such as `domain: edge`";
        return Err(source.error(root.domain.referenced, message));
    }
    let mut level = rules.domains.remove(domain.as_bytes()).unwrap_or_default();
    let (path, varying, levels) = (Vec::new(), Vec::new(), Vec::new());
    let mut compiler = Compiler { source, domain, rules, path, varying, levels, shared: 0, naming };
    compiler.descriptors(&mut level, root.descriptors.as_deref().unwrap_or_default())?;
    rules.domains.insert(domain.as_bytes().into(), level);
    Ok(())
}

impl Compiler<'_> {
    fn descriptors(
        &mut self,
        level: &mut Level,
        descriptors: &[Spanned<RuleDescriptor>],
    ) -> Result<(), FileError> {
        for descriptor in descriptors {
            self.descriptor(level, descriptor)
                .map_err(|error| located(error, &descriptor.value))?;
        }
        Ok(())
    }

    fn descriptor(
        &mut self,
        level: &mut Level,
        item: &Spanned<RuleDescriptor>,
    ) -> Result<(), FileError> {
        let descriptor = &item.value;
        let key = descriptor.key.as_ref().filter(|key| !key.value.is_empty()).ok_or_else(|| {
            let at = descriptor.key.as_ref().map_or(item.referenced, |key| key.referenced);
            let message = "missing key of a descriptor: expected one, such as `key: user`";
            self.source.error(at, message)
        })?;
        let value =
            descriptor.value.as_ref().map(|value| &*value.value).filter(|it| !it.is_empty());
        let (key, at) = (&*key.value, key.referenced);
        if key.contains('*') {
            let message = "`*` in a key matches nothing: use it in the value";
            return Err(self.source.error(at, message));
        }
        let varies = self.varies(descriptor, value)?;
        if varies {
            self.varying.push(self.path.len());
        }
        let shares = usize::from(descriptor.share_threshold.as_ref().is_some_and(|it| it.value));
        self.shared += shares;
        let is_detailed = varies && descriptor.value_to_metric.unwrap_or_default();
        self.levels.push(HitLevel::new(key, value, is_detailed, shares > 0));
        self.path.push((key.to_owned(), value.map(str::to_owned)));
        let rule = self.rule(item)?;
        let place = (self.source.file.clone(), at.line());
        let mut node = Node { place, rule, below: Level::default() };
        self.descriptors(&mut node.below, descriptor.descriptors.as_deref().unwrap_or_default())?;
        self.path.pop();
        if varies {
            self.varying.pop();
        }
        self.shared -= shares;
        self.levels.pop();
        level.insert(key, value, node).map_err(|(file, line)| {
            let key = shorten(key, 40);
            let value = value.map_or_else(
                || "without a value".to_owned(),
                |value| format!("with value `{}`", shorten(value, 40)),
            );
            let known = match file == self.source.file && line > 0 {
                true => format!("line {line}"),
                false => display(&(file, line)),
            };
            let message = format!(
                "duplicate descriptor `{key}` {value}: already in {known}; \
                 use `rate_limits` there for several limits"
            );
            self.source.error(at, message)
        })
    }

    /// Returns whether each value has its own counter.
    fn varies(&self, descriptor: &RuleDescriptor, value: Option<&str>) -> Result<bool, FileError> {
        let is_open = value.is_none_or(|value| value.contains('*'));
        match &descriptor.share_threshold {
            Some(share) if share.value && !is_open => {
                let message = "`share_threshold` requires a value with a `*`";
                Err(self.source.error(share.referenced, message))
            }
            Some(share) if share.value => Ok(false),
            _ => Ok(is_open),
        }
    }

    /// Compiles the rule of a descriptor, if it has limits.
    fn rule(&mut self, item: &Spanned<RuleDescriptor>) -> Result<Option<Rule>, FileError> {
        let descriptor = &item.value;
        let limits = self.limits(descriptor)?;
        let failure = self.failure(descriptor)?;
        let Some((first, more)) = limits.split_first() else { return Ok(None) };
        let is_unlimited = first.value.unlimited.as_ref().is_some_and(|it| it.value);
        let mut bounds = Vec::new();
        if is_unlimited {
            limits::check_unlimited(self.source, &first.value)?;
        } else {
            bounds = self.bounds(&limits)?;
        }
        let policy = match self.naming {
            Naming::Skip => PolicyName::DEFAULT,
            Naming::Create => name::parse(&name::of(self.domain, &self.path))
                .map_err(|error| self.source.error(item.referenced, error))?,
        };
        let named = std::iter::once(first).chain(more).find_map(|item| item.value.name.as_ref());
        let rule = Rule {
            policy,
            name: named.map_or_else(Bytes::new, |name| name.value.clone().into()),
            bounds,
            varying: self.varying.clone(),
            hits: RuleHits::new(&self.levels, descriptor.detailed_metric.unwrap_or_default()),
            is_shared: self.shared > 0,
            replaces: self.replaces(&limits)?,
            shadow: descriptor.shadow_mode.unwrap_or_default(),
            quota: descriptor.quota_mode.unwrap_or_default(),
            record_in_full: descriptor.record_in_full.unwrap_or_default(),
            metadata: descriptor.metadata.as_ref().map(metadata::from_json),
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
            path: self.path.clone(),
            per: rule.varying.iter().map(|&place| self.path[place].0.clone()).collect(),
            limits: rule.bounds.iter().map(|bound| bound.limit).collect(),
            shadow: rule.shadow,
            quota: rule.quota,
        }
    }

    /// Returns the limits of a descriptor, which may be empty.
    fn limits<'s>(
        &self,
        descriptor: &'s RuleDescriptor,
    ) -> Result<Vec<&'s Spanned<RuleLimit>>, FileError> {
        let Some(list) = &descriptor.rate_limits else {
            return Ok(descriptor.rate_limit.iter().collect());
        };
        let failed = |message| Err(self.source.error(list.referenced, message));
        if descriptor.rate_limit.is_some() {
            return failed("`rate_limit` and `rate_limits` exclude each other");
        }
        if list.value.is_empty() {
            return failed("`rate_limits` is empty");
        }
        let unlimited = |item: &&Spanned<RuleLimit>| {
            item.value.unlimited.as_ref().is_some_and(|unlimited| unlimited.value)
        };
        match list.value.iter().find(unlimited) {
            Some(item) => {
                let message = "`unlimited` is not allowed in `rate_limits`";
                Err(self.source.error(item.referenced, message))
            }
            None => Ok(list.value.iter().collect()),
        }
    }

    fn bounds(&self, limits: &[&Spanned<RuleLimit>]) -> Result<Vec<Bound>, FileError> {
        let mut bounds: Vec<Bound> = Vec::new();
        for item in limits {
            let bound = Bound::read(self.source, item)?;
            let same = bounds.iter().find(|other| other.limit.counts_like(&bound.limit));
            if let Some(same) = same {
                let message = format!(
                    "`{}` and `{}` share a counter: remove the larger",
                    same.limit, bound.limit
                );
                return Err(self.source.error(item.referenced, message));
            }
            bounds.push(bound);
        }
        Ok(bounds)
    }

    fn replaces(&self, limits: &[&Spanned<RuleLimit>]) -> Result<Vec<Box<str>>, FileError> {
        let mut names = Vec::new();
        for item in limits {
            let own = item.value.name.as_ref().map(|name| &*name.value);
            for replaced in item.value.replaces.as_deref().unwrap_or_default() {
                let name = replaced.value.name.as_deref().filter(|name| !name.is_empty());
                let failed = |message| self.source.error(replaced.referenced, message);
                let name = name.ok_or_else(|| {
                    failed("`replaces` requires the name of a rule: expected `- name: other`")
                })?;
                if own == Some(name) {
                    return Err(failed("a rule cannot replace itself"));
                }
                names.push(name.into());
            }
        }
        Ok(names)
    }

    fn failure(&self, descriptor: &RuleDescriptor) -> Result<FailureMode, FileError> {
        let Some(failure) = &descriptor.failure else { return Ok(FailureMode::default()) };
        match &*failure.value {
            "open" => Ok(FailureMode::Open),
            "closed" => Ok(FailureMode::Closed),
            "local" => Ok(FailureMode::default()),
            other => {
                let other = shorten(other, 40);
                let message =
                    format!("unknown failure mode `{other}`: expected open, closed or local");
                Err(self.source.error(failure.referenced, message))
            }
        }
    }
}
