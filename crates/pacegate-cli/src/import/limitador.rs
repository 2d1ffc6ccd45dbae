//! Converts the limits file of limitador.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt::Write as _,
    time::Duration,
};

use pacegate::{Limit, PolicyName};
use serde::Deserialize;

/// A limit of limitador.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitadorLimit {
    id: Option<String>,
    name: Option<String>,
    namespace: String,
    max_value: u64,
    seconds: u64,
    conditions: Option<Vec<String>>,
    variables: Option<Vec<String>>,
}

/// The reason why a file cannot be converted.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImportError {
    #[error("expected a list of limits: {0}")]
    Yaml(#[from] serde_saphyr::Error),
    #[error("{}", .0.join("\n"))]
    Limits(Vec<String>),
}

/// A problem of one limit.
type Problem = String;

/// A condition on the value of an attribute.
#[derive(Debug, PartialEq, Eq)]
enum Condition {
    Equal(String),
    OneOf(Vec<String>),
    StartsWith(String),
    Differs(String),
}

/// The matching part of a policy.
#[derive(Debug, Default)]
struct Matching {
    /// The condition on each attribute, in our notation.
    conditions: BTreeMap<String, String>,
    /// Values that are not limited.
    exempt: Vec<(String, String)>,
}

const EXPECTED: &str = "expected `descriptors[0]['method'] == 'POST'`, or `!=`, `in ['GET', 'HEAD']` or \
                        `.startsWith('/api')`, and `&&` between several";

/// Returns a configuration file with one policy for each limit.
pub(super) fn convert(text: &str) -> Result<String, ImportError> {
    let limits = serde_saphyr::from_str::<Option<Vec<LimitadorLimit>>>(text)?.unwrap_or_default();
    let mut converted = "# Converted from a limits file of limitador.\npolicies:".to_owned();
    if limits.is_empty() {
        converted.push_str(" []\n");
        return Ok(converted);
    }
    converted.push('\n');
    let (mut names, mut seen) = (HashSet::new(), HashMap::new());
    let mut problems = Vec::new();
    for (number, limit) in (1..).zip(&limits) {
        let found = match seen.insert(limit.identity(), number) {
            Some(other) => Err(format!(
                "equals limit {other} in all but its amount and name, so that limitador uses only one of them: \
                 remove the other"
            )),
            None => limit.policy(&limit.unique_name(&mut names)),
        };
        match found {
            Ok(policy) => converted.push_str(&policy),
            Err(problem) => {
                problems.push(format!("limit {number} ({}): {problem}", limit.label()));
            }
        }
    }
    if problems.is_empty() { Ok(converted) } else { Err(ImportError::Limits(problems)) }
}

impl LimitadorLimit {
    fn conditions(&self) -> &[String] {
        self.conditions.as_deref().unwrap_or_default()
    }

    fn variables(&self) -> &[String] {
        self.variables.as_deref().unwrap_or_default()
    }

    /// Returns the fields that identify a limit of limitador.
    fn identity(&self) -> (&str, u64, BTreeSet<&String>, BTreeSet<&String>) {
        let (conditions, variables) = (self.conditions().iter(), self.variables().iter());
        (&self.namespace, self.seconds, conditions.collect(), variables.collect())
    }

    fn label(&self) -> &str {
        self.name.as_deref().or(self.id.as_deref()).unwrap_or(&self.namespace)
    }

    /// Returns its name, or its namespace, as the name of a policy that no other limit has.
    fn unique_name(&self, names: &mut HashSet<String>) -> String {
        let allowed = |char: char| char.is_ascii_alphanumeric() || "_.-".contains(char);
        let clean = self.label().chars().map(|char| if allowed(char) { char } else { '-' });
        let clean: String = clean.take(50).collect();
        let clean = if clean.is_empty() { "limit".to_owned() } else { clean };
        let numbered = (2_u32..).map(|number| format!("{clean}-{number}"));
        let mut candidates = std::iter::once(clean.clone()).chain(numbered);
        let reserved = PolicyName::INLINE.as_str();
        let free = candidates.find(|name| name != reserved && !names.contains(name));
        let name = free.unwrap_or(clean);
        names.insert(name.clone());
        name
    }

    /// Returns the policy as YAML.
    fn policy(&self, name: &str) -> Result<String, Problem> {
        let limit = Limit::new(self.max_value, Duration::from_secs(self.seconds));
        let limit = limit.map_err(|error| error.to_string())?;
        let mut matching = Matching::default();
        for text in self.conditions() {
            matching.add(text).map_err(|problem| format!("condition `{text}`: {problem}"))?;
        }
        let mut per: Vec<String> = Vec::new();
        for text in self.variables() {
            let variable = attribute(text.trim()).filter(|(_, rest)| rest.is_empty());
            let (variable, _) = variable.ok_or_else(|| {
                format!(
                    "variable `{text}`: expected an attribute, such as `descriptors[0]['user']`"
                )
            })?;
            if !per.contains(&variable) {
                per.push(variable);
            }
        }
        Ok(self.write(name, &limit, &matching, &per))
    }

    fn write(&self, name: &str, limit: &Limit, matching: &Matching, per: &[String]) -> String {
        let mut text = format!("  - name: {}\n", scalar(name));
        let mut line = |field: &str, value: &str| {
            // A `String` accepts all text.
            let _ = writeln!(text, "    {field}: {value}");
        };
        if !self.namespace.is_empty() {
            line("domain", &scalar(&self.namespace));
        }
        let conditions: Vec<_> = matching
            .conditions
            .iter()
            .map(|(name, value)| format!("{}: {value}", scalar(name)))
            .collect();
        if !conditions.is_empty() {
            line("match", &format!("{{ {} }}", conditions.join(", ")));
        }
        if !per.is_empty() {
            let per: Vec<_> = per.iter().map(|name| scalar(name)).collect();
            line("per", &format!("[{}]", per.join(", ")));
            line("missing", "skip");
        }
        if matching.conditions.contains_key("path") || per.iter().any(|name| name == "path") {
            line("paths", "exact");
        }
        line("limit", &scalar(&limit.to_string()));
        if !matching.exempt.is_empty() {
            text.push_str("    overrides:\n");
            for (name, value) in &matching.exempt {
                let condition = format!("{}: {}", scalar(name), equal(value));
                let _ = writeln!(text, "      - {{ match: {{ {condition} }}, limit: unlimited }}");
            }
        }
        text
    }
}

impl Matching {
    /// Adds a condition in CEL.
    fn add(&mut self, text: &str) -> Result<(), Problem> {
        for part in split_and(text) {
            let (name, condition) = condition(part.trim())?;
            let written = match condition {
                Condition::Equal(value) => equal(&value),
                Condition::OneOf(values) => {
                    let values: Vec<_> = values.iter().map(|value| scalar(value)).collect();
                    format!("[{}]", values.join(", "))
                }
                Condition::StartsWith(value) if value.contains(['*', '?']) => {
                    return Err("a prefix with `*` or `?` cannot be converted".to_owned());
                }
                Condition::StartsWith(value) => format!("{{ glob: {} }}", scalar(&(value + "**"))),
                Condition::Differs(value) => {
                    self.exempt.push((name.clone(), value));
                    "{ present: true }".to_owned()
                }
            };
            match self.conditions.insert(name.clone(), written.clone()) {
                Some(other) if other != written => {
                    return Err(format!("the limit has another condition on `{name}`"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Splits a condition at `&&` outside of texts.
fn split_and(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut quote) = (Vec::new(), 0, None);
    for (place, char) in text.char_indices() {
        match (char, quote) {
            ('\'' | '"', None) => quote = Some(char),
            (_, Some(open)) if open == char => quote = None,
            ('&', None) if place >= start && text[place..].starts_with("&&") => {
                parts.push(&text[start..place]);
                start = place + 2;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Parses one comparison.
fn condition(text: &str) -> Result<(String, Condition), Problem> {
    let unknown = || EXPECTED.to_owned();
    if let Some((value, rest)) = literal(text) {
        // The value is on the left.
        let other = rest.strip_prefix("==").map(str::trim_start).and_then(attribute);
        return match other {
            Some((name, "")) => Ok((name, Condition::Equal(value))),
            _ => Err(unknown()),
        };
    }
    if text.starts_with("descriptors[") && !text.starts_with("descriptors[0]") {
        return Err(
            "only `descriptors[0]` can be converted: a policy matches one descriptor".to_owned()
        );
    }
    let (name, rest) = attribute(text).ok_or_else(unknown)?;
    let value = |rest: &str| match literal(rest.trim_start()) {
        Some((value, "")) => Some(value),
        _ => None,
    };
    let found = if let Some(rest) = rest.strip_prefix("==") {
        value(rest).map(Condition::Equal)
    } else if let Some(rest) = rest.strip_prefix("!=") {
        value(rest).map(Condition::Differs)
    } else if let Some(rest) = rest.strip_prefix(".startsWith(") {
        rest.strip_suffix(')').and_then(value).map(Condition::StartsWith)
    } else {
        rest.strip_prefix("in").and_then(list).map(Condition::OneOf)
    };
    Ok((name, found.ok_or_else(unknown)?))
}

/// Parses an attribute: `descriptors[0]['name']`, `descriptors[0].name`, or `name` as in older versions. Returns the
/// text after it.
fn attribute(text: &str) -> Option<(String, &str)> {
    let identifier = |text: &'_ str| -> usize {
        let end = |char: char| !char.is_ascii_alphanumeric() && char != '_';
        text.find(end).unwrap_or(text.len())
    };
    let Some(rest) = text.strip_prefix("descriptors[0]") else {
        let (name, rest) = text.split_at(identifier(text));
        let is_name = !name.is_empty() && !name.starts_with(|char: char| char.is_ascii_digit());
        let is_name = is_name && !["descriptors", "limit", "true", "false", "null"].contains(&name);
        return is_name.then(|| (name.to_owned(), rest.trim_start()));
    };
    if let Some(rest) = rest.strip_prefix('[') {
        let (name, rest) = literal(rest.trim_start())?;
        return Some((name, rest.strip_prefix(']')?.trim_start()));
    }
    let rest = rest.strip_prefix('.')?;
    let (name, rest) = rest.split_at(identifier(rest));
    (!name.is_empty()).then(|| (name.to_owned(), rest.trim_start()))
}

/// Parses a text in quotes, without escapes. Returns the text after it.
fn literal(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next().filter(|char| ['\'', '"'].contains(char))?;
    let (value, rest) = text[1..].split_once(quote)?;
    (!value.contains('\\')).then(|| (value.to_owned(), rest.trim_start()))
}

/// Parses a list of texts.
fn list(text: &str) -> Option<Vec<String>> {
    let mut rest = text.trim_start().strip_prefix('[')?.strip_suffix(']')?.trim();
    let mut values = Vec::new();
    loop {
        let (value, after) = literal(rest)?;
        values.push(value);
        if after.is_empty() {
            return Some(values);
        }
        rest = after.strip_prefix(',')?.trim_start();
    }
}

/// Returns the condition for one value, which is not a pattern.
fn equal(value: &str) -> String {
    let written = scalar(value);
    if value.contains(['*', '?']) { format!("{{ equal: {written} }}") } else { written }
}

/// Returns a text as YAML: in quotes, unless it is certain to be read as text.
fn scalar(text: &str) -> String {
    let first = text.starts_with(|char: char| char.is_ascii_alphabetic() || char == '/');
    let simple = |char: char| char.is_ascii_alphanumeric() || "_./-".contains(char);
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = words.contains(&&*text.to_ascii_lowercase());
    let is_limit = text.parse::<Limit>().is_ok();
    match is_limit || (first && text.chars().all(simple) && !is_word) {
        true => text.to_owned(),
        // A string of JSON is one of YAML.
        false => serde_json::Value::from(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        convert(text).unwrap_err().to_string()
    }

    #[test]
    fn every_kind_of_condition_is_converted() {
        let text = r#"
- namespace: shop
  name: posts per user
  max_value: 3
  seconds: 60
  conditions: ["descriptors[0]['method'] == 'POST'"]
  variables: ["descriptors[0]['user']"]
- namespace: shop
  max_value: 100
  seconds: 90
  conditions:
    - "descriptors[0].plan != 'gold*' && descriptors[0].plan != \"a && b\""
    - "descriptors[0].method in ['GET', 'no']"
    - "descriptors[0]['path'].startsWith('/api')"
  variables: []
- namespace: shop
  id: old
  max_value: 0
  seconds: 86400
  conditions: ["method == 'a?b'", "'x y' == host"]
  variables: [user, user]
"#;
        let expected = r#"# Converted from a limits file of limitador.
policies:
  - name: posts-per-user
    domain: shop
    match: { method: POST }
    per: [user]
    missing: skip
    limit: 3/minute
  - name: shop
    domain: shop
    match: { method: [GET, "no"], path: { glob: "/api**" }, plan: { present: true } }
    paths: exact
    limit: 100/90s
    overrides:
      - { match: { plan: { equal: "gold*" } }, limit: unlimited }
      - { match: { plan: "a && b" }, limit: unlimited }
  - name: old
    domain: shop
    match: { host: "x y", method: { equal: "a?b" } }
    per: [user]
    missing: skip
    limit: 0/day
"#;
        assert_eq!(convert(text).unwrap(), expected);
    }

    #[test]
    fn a_file_without_limits_has_no_policies() {
        for text in ["", "[]", "~", "# none"] {
            assert!(convert(text).unwrap().ends_with("\npolicies: []\n"), "{text:?}");
        }
    }

    #[test]
    fn names_are_unique_and_valid() {
        let limit = |name, seconds| {
            format!("- {{ namespace: n, name: {name:?}, max_value: 1, seconds: {seconds} }}\n")
        };
        let text = [limit("a b", 1), limit("a-b", 2), limit("", 3), limit("inline", 4)].concat();
        let converted = convert(&text).unwrap();
        let names: Vec<_> =
            converted.lines().filter_map(|line| line.strip_prefix("  - name: ")).collect();
        assert_eq!(names, ["a-b", "a-b-2", "limit", "inline-2"]);
    }

    #[test]
    fn limits_that_cannot_be_converted_are_reported_together() {
        let limit = |fields: &str| format!("- {{ namespace: n, max_value: 1, {fields} }}\n");
        let conditions = [
            "descriptors[1].a == 'b'",
            "descriptors[0].a.size() > 3",
            "descriptors[0].a == 'b' || descriptors[0].c == 'd'",
            "descriptors[0].a.startsWith('x*')",
            "descriptors[0].a == 'it\\\\'s'",
            "a == b",
            "",
        ];
        for condition in conditions {
            let fields = format!("seconds: 1, conditions: [\"{condition}\"]");
            let problem = problem(&limit(&fields));
            assert!(problem.starts_with("limit 1 (n): condition `"), "{condition}: {problem}");
        }
        let text = [
            limit("seconds: 0"),
            limit("seconds: 5, variables: [\"descriptors[0].a + 'x'\"]"),
            limit("seconds: 6, conditions: [\"a == 'b'\", \"a == 'c'\"]"),
            limit("seconds: 7, name: x, variables: [a, a]"),
            limit("seconds: 7, name: y, variables: [a]"),
        ];
        let problem = problem(&text.concat());
        let lines: Vec<_> = problem.lines().collect();
        let starts = [
            "limit 1 (n): ",
            "limit 2 (n): variable `descriptors[0].a + 'x'`: expected an attribute",
            "limit 3 (n): condition `a == 'c'`: the limit has another condition on `a`",
            "limit 5 (y): equals limit 4 in all but its amount and name",
        ];
        assert_eq!(lines.len(), starts.len(), "{problem}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
    }

    #[test]
    fn unknown_fields_are_rejected() {
        let text = "- { namespace: n, max_value: 1, seconds: 1, policy: token }\n";
        assert!(problem(text).contains("policy"), "{}", problem(text));
        assert!(convert("limits: []").is_err());
    }
}
