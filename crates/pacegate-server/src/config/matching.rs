//! The section `match` of policies and overrides.

use pacegate::policy::{Condition, Match};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    hint::shorten,
    problem::Problems,
    spanned::{At, Entries, Form, Forms, Scalar, Texts},
};

/// A condition on the value of an attribute: exactly one of these.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Condition")]
pub(crate) struct ConditionSection {
    /// This text, compared literally even if it has a `*` or a `?`.
    equal: Option<At<String>>,

    /// One of these texts, compared literally.
    one_of: Option<At<Vec<At<String>>>>,

    /// A pattern: `*` is any run of characters except `/`, `**` any run of characters, `?` any character except `/`. Of
    /// a value that is longer than 4 KiB, only the first 4 KiB are compared: the policy applies if a value with this
    /// beginning can match.
    #[schemars(example = "/api/**")]
    glob: Option<At<String>>,

    /// An address in this network, or in one of a list of networks.
    #[schemars(example = "10.0.0.0/8", example = ["10.0.0.0/8", "2001:db8::/32"])]
    cidr: Option<Texts>,

    /// `true`: the request must have the attribute, with any value.
    present: Option<At<bool>>,

    /// `true`: the request must not have the attribute.
    absent: Option<At<bool>>,
}

/// A condition on an attribute.
#[derive(JsonSchema)]
#[schemars(untagged, rename = "ConditionForm")]
#[expect(dead_code, reason = "only its schema is used; `Form` parses the value")]
pub(crate) enum ConditionForm {
    /// The value, or a pattern if it has a `*` or a `?`.
    Text(String),
    /// The value, as it is written here.
    Number(serde_json::Number),
    /// The value, as it is written here.
    Truth(bool),
    /// One of these values, compared literally.
    List(Vec<String>),
    /// A condition of another kind.
    Section(Box<ConditionSection>),
}

impl Forms for ConditionSection {
    const EXPECTED: &'static str = "a text, a list of texts, or one of `equal`, `one_of`, `glob`, `cidr`, \
                                    `present` and `absent` with its value";
    type AnyForm = ConditionForm;
}

/// Reads the conditions of a policy or override.
pub(super) fn matching(
    Entries(entries): &Entries<Form<ConditionSection>>,
    problems: &mut Problems<'_>,
) -> Option<Match> {
    let read: Vec<_> = entries
        .iter()
        .map(|(attribute, written)| {
            if attribute.value.is_empty() {
                problems.add(attribute.location, "empty attribute name: write one, such as `path`");
                return None;
            }
            let condition = condition(&attribute.value, written, problems)?;
            Some((attribute.value.as_str(), condition))
        })
        .collect();
    read.into_iter().try_fold(Match::any(), |matching, entry| {
        let (attribute, condition) = entry?;
        Some(matching.and(attribute, condition))
    })
}

fn condition(
    attribute: &str,
    written: &At<Form<ConditionSection>>,
    problems: &mut Problems<'_>,
) -> Option<Condition> {
    match &written.value {
        Form::One(Scalar::Nothing) => {
            let message = format!(
                "`{0}` has no value: write `{{absent: true}}` for requests without `{0}`, or \
                 `{{present: true}}` for all that have it",
                shorten(attribute)
            );
            problems.add(written.location, message);
            None
        }
        Form::One(scalar) => {
            let text = written.scalar_text(scalar, problems);
            match text.contains(['*', '?']) {
                true => glob(&written.with(text), problems),
                false => Some(Condition::equal(text)),
            }
        }
        Form::List(values) => one_of(&written.with(values), problems),
        Form::Map(parts) => parted(&written.with(&**parts), problems),
    }
}

/// Parses a condition that names its kind, as in `{glob: /api/**}`.
fn parted(written: &At<&ConditionSection>, problems: &mut Problems<'_>) -> Option<Condition> {
    let ConditionSection { equal, one_of: values, glob: pattern, cidr, present, absent } =
        written.value;
    match (equal, values, pattern, cidr, present, absent) {
        (Some(value), None, None, None, None, None) => Some(Condition::equal(&value.value)),
        (None, Some(values), None, None, None, None) => {
            one_of(&values.with(&values.value), problems)
        }
        (None, None, Some(text), None, None, None) => {
            glob(&text.with(text.value.clone()), problems)
        }
        (None, None, None, Some(nets), None, None) => networks(nets, problems),
        (None, None, None, None, Some(yes), None) => {
            if_true(yes, Condition::Present, "absent", problems)
        }
        (None, None, None, None, None, Some(yes)) => {
            if_true(yes, Condition::Absent, "present", problems)
        }
        _ => {
            let message = "a condition needs exactly one of `equal`, `one_of`, `glob`, `cidr`, \
                           `present` and `absent`";
            problems.add(written.location, message);
            None
        }
    }
}

fn one_of(values: &At<&Vec<At<String>>>, problems: &mut Problems<'_>) -> Option<Condition> {
    if values.value.is_empty() {
        problems.add(values.location, "an empty list matches no request: write at least one value");
        return None;
    }
    Some(Condition::OneOf(values.value.iter().map(|value| value.value.clone()).collect()))
}

fn glob(text: &At<String>, problems: &mut Problems<'_>) -> Option<Condition> {
    problems.take(text.location, text.value.parse()).map(Condition::Glob)
}

fn networks(written: &Texts, problems: &mut Problems<'_>) -> Option<Condition> {
    let texts = written.texts(problems)?;
    if texts.is_empty() {
        problems.add(
            written.location,
            "an empty list matches no address: write a network, such as `10.0.0.0/8`",
        );
        return None;
    }
    let nets: Vec<_> = texts.iter().map(|text| network(text, problems)).collect();
    nets.into_iter().collect::<Option<Vec<_>>>().map(Condition::Cidr)
}

fn network(text: &At<String>, problems: &mut Problems<'_>) -> Option<ipnet::IpNet> {
    let address = text.value.parse::<std::net::IpAddr>();
    let net = address.map(ipnet::IpNet::from).or_else(|_| text.value.parse());
    let message = || {
        format!(
            "invalid network `{}`: expected ADDRESS/BITS, such as `10.0.0.0/8` or `2001:db8::/32`",
            shorten(&text.value)
        )
    };
    problems.take(text.location, net.map_err(|_| message()))
}

fn if_true(
    said: &At<bool>,
    condition: Condition,
    opposite: &str,
    problems: &mut Problems<'_>,
) -> Option<Condition> {
    if !said.value {
        problems.add(said.location, format!("write `{opposite}: true` instead"));
        return None;
    }
    Some(condition)
}
