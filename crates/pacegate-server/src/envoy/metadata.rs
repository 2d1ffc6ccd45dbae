//! JSON as a message, for what Envoy passes on.

use serde_json::Value as Json;

use super::proto::{Kind, List, Struct, Value};

/// An object as a message.
pub(super) fn from_json(object: &serde_json::Map<String, Json>) -> Struct {
    let fields = object.iter().map(|(name, value)| (name.clone(), value_of(value)));
    Struct { fields: fields.collect() }
}

fn value_of(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::Null(0),
        Json::Bool(value) => Kind::Bool(*value),
        Json::Number(number) => Kind::Number(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::Text(text.clone()),
        Json::Array(values) => Kind::List(List { values: values.iter().map(value_of).collect() }),
        Json::Object(object) => Kind::Struct(from_json(object)),
    };
    kind.into()
}

/// A message as an object.
pub(super) fn to_json(message: &Struct) -> Json {
    Json::Object(
        message.fields.iter().map(|(name, value)| (name.clone(), json_of(value))).collect(),
    )
}

fn json_of(value: &Value) -> Json {
    match &value.kind {
        None | Some(Kind::Null(_)) => Json::Null,
        Some(Kind::Bool(value)) => Json::Bool(*value),
        Some(Kind::Number(number)) => Json::from(*number),
        Some(Kind::Text(text)) => Json::from(&**text),
        Some(Kind::List(list)) => list.values.iter().map(json_of).collect(),
        Some(Kind::Struct(message)) => to_json(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_comes_back_as_it_was() {
        let json = serde_json::json!({"a": [1.0, "x", null, true], "b": {"c": {}}});
        let message = from_json(json.as_object().unwrap());
        assert_eq!(to_json(&message), json);
    }
}
