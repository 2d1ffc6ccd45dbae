//! Parses conditions.

use pacegate::policy::{Condition, Match};

use super::{
    file,
    hint::shorten,
    place::{At, Entries, Form, NoMap, Scalar},
    problem::Problems,
    written::{scalar_text, texts},
};

/// Reads the conditions of a policy or override.
pub(super) fn matching(
    Entries(entries): &Entries<Form<file::Condition>>,
    problems: &mut Problems<'_>,
) -> Option<Match> {
    let read: Vec<_> = entries
        .iter()
        .map(|(attribute, written)| {
            if attribute.value.is_empty() {
                problems.add(attribute.place, "empty attribute name: write one, such as `path`");
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
    written: &At<Form<file::Condition>>,
    problems: &mut Problems<'_>,
) -> Option<Condition> {
    match &written.value {
        Form::One(Scalar::Nothing) => {
            let message = format!(
                "`{0}` has no value: write `{{absent: true}}` for requests without `{0}`, or \
                 `{{present: true}}` for all that have it",
                shorten(attribute)
            );
            problems.add(written.place, message);
            None
        }
        Form::One(scalar) => {
            let text = scalar_text(scalar, written.origin, problems);
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
fn parted(written: &At<&file::Condition>, problems: &mut Problems<'_>) -> Option<Condition> {
    let file::Condition { equal, one_of: values, glob: pattern, cidr, present, absent } =
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
            problems.add(written.place, message);
            None
        }
    }
}

fn one_of(values: &At<&Vec<At<String>>>, problems: &mut Problems<'_>) -> Option<Condition> {
    if values.value.is_empty() {
        problems.add(values.place, "an empty list matches no request: write at least one value");
        return None;
    }
    Some(Condition::OneOf(values.value.iter().map(|value| value.value.clone()).collect()))
}

fn glob(text: &At<String>, problems: &mut Problems<'_>) -> Option<Condition> {
    problems.take(text.place, text.value.parse()).map(Condition::Glob)
}

fn networks(written: &At<Form<NoMap>>, problems: &mut Problems<'_>) -> Option<Condition> {
    let texts = texts(written, problems)?;
    if texts.is_empty() {
        problems.add(
            written.place,
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
    problems.take(text.place, net.map_err(|_| message()))
}

fn if_true(
    said: &At<bool>,
    condition: Condition,
    opposite: &str,
    problems: &mut Problems<'_>,
) -> Option<Condition> {
    if !said.value {
        problems.add(said.place, format!("write `{opposite}: true` instead"));
        return None;
    }
    Some(condition)
}
