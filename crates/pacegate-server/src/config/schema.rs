//! The JSON Schema of the file, generated from the types that parse it.

use serde_json::Value;

use super::settings::Config;

/// Returns the JSON Schema of the configuration, for completion and checks in editors.
pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(Config).to_value();
    remove_null(&mut schema);
    schema
}

/// Removes `null` from the types of optional fields: leaving a field out is the documented way.
fn remove_null(schema: &mut Value) {
    match schema {
        Value::Array(parts) => parts.iter_mut().for_each(remove_null),
        Value::Object(fields) => {
            fields.values_mut().for_each(remove_null);
            if let Some(Value::Array(types)) = fields.get_mut("type") {
                let only = types.swap_remove(0);
                fields.insert("type".to_owned(), only);
            }
            if let Some(Value::Array(choices)) = fields.get_mut("anyOf") {
                choices.retain(|choice| choice["type"] != "null");
                if let [Value::Object(only)] = &mut **choices {
                    let only = std::mem::take(only);
                    fields.remove("anyOf");
                    only.into_iter().for_each(|(name, value)| {
                        fields.entry(name).or_insert(value);
                    });
                }
            }
        }
        _ => {}
    }
}
