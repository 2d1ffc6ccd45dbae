//! Conversion between JSON and `google.protobuf.Struct`, for metadata.

use serde_json::Value as Json;

use super::proto::{ListValue, Struct, Value, ValueKind};

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

/// Converts a message to an object.
pub(super) fn to_json(message: &Struct) -> Json {
    Json::Object(
        message.fields.iter().map(|(name, value)| (name.clone(), json_of(value))).collect(),
    )
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
