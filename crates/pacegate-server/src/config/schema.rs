//! The JSON Schema of the file, generated from the types that parse it.

use serde_json::Value;

use super::file::Config;

/// Returns the JSON Schema of the configuration, for completion and checks in editors.
pub fn schema() -> Value {
    schemars::schema_for!(Config).to_value()
}
