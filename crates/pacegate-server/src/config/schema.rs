//! The form of the file for editors and for people, both made of the types that read it.

use serde_json::Value;

use super::file::Config;

/// The JSON Schema of the configuration, from which editors complete and check it.
pub fn schema() -> Value {
    schemars::schema_for!(Config).to_value()
}
