//! JSON lines: one object per line, with fields addressed by a path such as `client.addr`.

use std::borrow::Cow;

use serde_json::Value;

use super::{
    Malformed,
    format::{Map, TIME},
    instant::Instants,
    row::{Attributes, Values},
};

/// Parses one object per line.
#[derive(Debug)]
pub(super) struct JsonLines {
    instants: Instants,
    time: Field,
    fields: Vec<Field>,
}

/// Paths of a value, the most likely first.
#[derive(Debug)]
struct Field(Vec<String>);

impl JsonLines {
    pub(super) fn new(attributes: &Attributes, map: &Map) -> Self {
        let field = |name: &str| Field(map.candidates(name));
        let fields = attributes.0.iter().map(|name| field(name)).collect();
        Self { instants: Instants::default(), time: field(TIME), fields }
    }

    pub(super) fn read(&mut self, line: &[u8], values: &mut Values<'_>) -> Result<u64, Malformed> {
        let object: Value = serde_json::from_slice(line).map_err(|_| Malformed::NotJson)?;
        let time = self.time.of(&object).ok_or(Malformed::Time)?;
        let at = self.instants.any(time.as_bytes()).ok_or(Malformed::Time)?;
        for (attribute, field) in self.fields.iter().enumerate() {
            if let Some(value) = field.of(&object) {
                values.put_meant(attribute, value.as_bytes());
            }
        }
        Ok(at)
    }
}

impl Field {
    fn of<'a>(&self, object: &'a Value) -> Option<Cow<'a, str>> {
        self.0.iter().find_map(|path| find(object, path))
    }
}

/// Returns the value at a path as text. A field name that contains dots takes precedence over nested fields.
fn find<'a>(object: &'a Value, path: &str) -> Option<Cow<'a, str>> {
    let step = |value: Option<&'a Value>, name: &str| value.and_then(|value| value.get(name));
    let value = object.get(path).or_else(|| path.split('.').fold(Some(object), step))?;
    match value {
        Value::String(text) if text == "-" || text.is_empty() => None,
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
        // Caddy and others list the values of a header.
        Value::Array(values) => values.first()?.as_str().map(Cow::Borrowed),
        Value::Null | Value::Object(_) => None,
    }
}
