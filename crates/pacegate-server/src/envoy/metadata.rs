//! Metadata of responses, and the conversion between JSON and `google.protobuf.Struct`.

use std::collections::btree_map::Entry;

use serde_json::Value as Json;

use super::{
    decide::DescriptorResult,
    proto::{ListValue, RateLimitDescriptor, RateLimitRequest, Struct, Unit, Value, ValueKind},
    resolve::ResolvedDescriptor,
};

/// Returns the metadata that envoyproxy/ratelimit adds with `RESPONSE_DYNAMIC_METADATA`: the request, the quotas that
/// are exceeded, and the `metadata` of the rules that are not.
pub(super) fn of_request(
    request: &RateLimitRequest,
    resolved: &[ResolvedDescriptor<'_>],
    results: &[DescriptorResult],
) -> Struct {
    let mut message = Struct::default();
    let mut insert = |name: &str, kind: ValueKind| {
        message.fields.insert(name.to_owned(), kind.into());
    };
    insert("domain", text(&request.domain));
    insert("descriptors", list(request.descriptors.iter().map(descriptor)));
    if request.hits_addend != 0 {
        insert("hitsAddend", ValueKind::Number(f64::from(request.hits_addend)));
    }
    let both = || resolved.iter().zip(results);
    let exceeded = (0_u32..).zip(both()).filter(|(_, (resolved, result))| {
        resolved.is_quota && result.is_over && !resolved.is_shadow()
    });
    let exceeded: Vec<_> = exceeded.map(|(place, _)| ValueKind::Number(f64::from(place))).collect();
    if !exceeded.is_empty() {
        insert("quotaModeViolations", list(exceeded.into_iter()));
    }
    let is_quota = resolved.iter().any(|one| one.rule().is_some_and(|rule| rule.quota));
    insert("quotaModeEnabled", ValueKind::Bool(is_quota));
    let mut merged = Struct::default();
    for (resolved, _) in both().filter(|(resolved, one)| !one.is_over || resolved.is_shadow()) {
        if let Some(own) = resolved.rule().and_then(|rule| rule.metadata.as_ref()) {
            merge(&mut merged, own);
        }
    }
    if !merged.fields.is_empty() {
        insert("metadata", ValueKind::Struct(merged));
    }
    message
}

fn descriptor(descriptor: &RateLimitDescriptor) -> ValueKind {
    let entry = |key: &[u8], value: &[u8]| text(&[key, b"=", value].concat());
    let entries = descriptor.entries.iter().map(|it| entry(&it.key, &it.value));
    let mut message = Struct::default();
    message.fields.insert("entries".to_owned(), list(entries).into());
    if let Some(limit) = &descriptor.limit {
        let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown).word().to_uppercase();
        // The text form of Go leaves a zero out.
        let limit = match limit.requests_per_unit {
            0 => format!("unit:{unit}"),
            amount => format!("requests_per_unit:{amount} unit:{unit}"),
        };
        message.fields.insert("limit".to_owned(), ValueKind::Text(limit).into());
    }
    if let Some(hits) = descriptor.hits_addend {
        message.fields.insert("hitsAddend".to_owned(), ValueKind::Number(hits as f64).into());
    }
    ValueKind::Struct(message)
}

/// Adds the fields of `other`. Present values stay, and nested structures are merged.
fn merge(message: &mut Struct, other: &Struct) {
    for (name, value) in &other.fields {
        match message.fields.entry(name.clone()) {
            Entry::Vacant(free) => {
                free.insert(value.clone());
            }
            Entry::Occupied(mut known) => {
                if let (Some(ValueKind::Struct(known)), Some(ValueKind::Struct(other))) =
                    (&mut known.get_mut().kind, &value.kind)
                {
                    merge(known, other);
                }
            }
        }
    }
}

fn text(bytes: &[u8]) -> ValueKind {
    ValueKind::Text(String::from_utf8_lossy(bytes).into_owned())
}

fn list(values: impl Iterator<Item = ValueKind>) -> ValueKind {
    ValueKind::ListValue(ListValue { values: values.map(Value::from).collect() })
}

/// Converts an object to a message.
pub(super) fn from_json(object: &serde_json::Map<String, Json>) -> Struct {
    let fields = object.iter().map(|(name, value)| (name.clone(), value_of(value)));
    Struct { fields: fields.collect() }
}

fn value_of(json: &Json) -> Value {
    let kind = match json {
        Json::Null => ValueKind::Null(0),
        Json::Bool(value) => ValueKind::Bool(*value),
        Json::Number(number) => ValueKind::Number(number.as_f64().unwrap_or_default()),
        Json::String(text) => ValueKind::Text(text.clone()),
        Json::Array(values) => {
            ValueKind::ListValue(ListValue { values: values.iter().map(value_of).collect() })
        }
        Json::Object(object) => ValueKind::Struct(from_json(object)),
    };
    kind.into()
}

/// Converts a message to JSON.
pub(super) fn to_json(message: &Struct) -> Json {
    Json::Object(object(message))
}

/// Converts a message to an object.
pub(super) fn object(message: &Struct) -> serde_json::Map<String, Json> {
    message.fields.iter().map(|(name, value)| (name.clone(), json_of(value))).collect()
}

fn json_of(value: &Value) -> Json {
    match &value.kind {
        None | Some(ValueKind::Null(_)) => Json::Null,
        Some(ValueKind::Bool(value)) => Json::Bool(*value),
        Some(ValueKind::Number(number)) => Json::from(*number),
        Some(ValueKind::Text(text)) => Json::from(&**text),
        Some(ValueKind::ListValue(list)) => list.values.iter().map(json_of).collect(),
        Some(ValueKind::Struct(message)) => to_json(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_round_trips() {
        let json = serde_json::json!({"a": [1.0, "x", null, true], "b": {"c": {}}});
        let message = from_json(json.as_object().unwrap());
        assert_eq!(to_json(&message), json);
    }
}
