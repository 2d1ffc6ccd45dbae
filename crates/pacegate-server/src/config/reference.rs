//! Generates the reference page of the configuration from its JSON Schema.

use serde_json::{Map, Value};

/// Returns a Markdown page with the type, default and meaning of every field of the configuration.
pub fn reference() -> String {
    let schema = super::schema();
    let mut page = INTRODUCTION.to_owned();
    let mut names = Vec::new();
    section(&mut page, &schema, &mut names);
    let mut next = 0;
    while let Some(name) = names.get(next).cloned() {
        next += 1;
        let definition = &schema["$defs"][&name];
        heading(&mut page, &name, definition);
        section(&mut page, definition, &mut names);
    }
    page
}

const INTRODUCTION: &str = "\
# Configuration

<!-- Generated from crates/pacegate-server/src/config: PACEGATE_BLESS=1 cargo test -p pacegate-server config -->

`pacegate serve --config pacegate.yaml` reads one YAML file. Without a file, the server uses the settings of
[deploy/pacegate.yaml](../deploy/pacegate.yaml); copy it to start your own. `pacegate validate FILE` checks a file: it
reports each mistake with its line and a suggestion.

**In editors.** `pacegate schema > pacegate.schema.json` writes the JSON Schema of the file; it is also in
[crates/pacegate-server/schema](../crates/pacegate-server/schema/pacegate.schema.json). Editors that support YAML
schemas complete and check the file if its first line is:

```yaml
# yaml-language-server: $schema=pacegate.schema.json
```

**Files of other systems** are detected by their top-level fields: a file with `rate-limiter` is read as RLaaS, a file
with `domain` and without `policies` as envoyproxy/ratelimit.

**Syntax.** Unknown and duplicate fields are errors. A field with an empty value has its default. Durations are whole
numbers with a unit: `250ms`, `5s`, `1m`, `2h`, `1d`. A file can have up to 64 aliases and
64 merge keys. Its maximum size is 16 MiB, enough for 100,000 policies. Relative paths start at the directory of the
file.

**Secrets** do not belong in the file. For an API key, give its hash, or the file or environment variable that contains
it. The address of a store can also be in a file or a variable. If this file contains an address with a password, logs
and error messages do not show the password.

## The file

";

fn heading(page: &mut String, name: &str, definition: &Value) {
    page.push_str("\n## ");
    page.push_str(name);
    page.push_str("\n\n");
    page.push_str(&prose(definition));
    page.push_str("\n\n");
}

/// Adds a table of fields or choices.
fn section(page: &mut String, schema: &Value, names: &mut Vec<String>) {
    match schema["properties"].as_object() {
        Some(fields) => table_of_fields(page, schema, fields, names),
        None => table_of_choices(page, schema, names),
    }
}

fn table_of_fields(
    page: &mut String,
    schema: &Value,
    fields: &Map<String, Value>,
    names: &mut Vec<String>,
) {
    let required: Vec<_> = schema["required"].as_array().into_iter().flatten().collect();
    let is_required = |name: &String| required.iter().any(|other| *other == name);
    let (first, rest): (Vec<_>, Vec<_>) = fields.iter().partition(|(name, _)| is_required(name));
    page.push_str("| field | type | default | meaning |\n|---|---|---|---|\n");
    for (name, field) in first.into_iter().chain(rest) {
        let default = match &field["default"] {
            Value::Null if is_required(name) => "required".to_owned(),
            Value::Null => String::new(),
            Value::String(text) if text.is_empty() => String::new(),
            value => code(value),
        };
        row(page, &[format!("`{name}`"), form(field, names), default, prose(field)]);
    }
}

fn table_of_choices(page: &mut String, schema: &Value, names: &mut Vec<String>) {
    let choices = ["oneOf", "anyOf"].iter().find_map(|kind| schema[kind].as_array());
    let Some(choices) = choices else { return };
    page.push_str("| value | meaning |\n|---|---|\n");
    for choice in choices {
        row(page, &[form(choice, names), prose(choice)]);
    }
}

fn row(page: &mut String, cells: &[String]) {
    for cell in cells {
        page.push_str("| ");
        page.push_str(&cell.replace('|', "\\|"));
        page.push_str(if cell.is_empty() { "" } else { " " });
    }
    page.push_str("|\n");
}

/// Describes the type of a value. Adds the names of new types to `names`, for later sections.
fn form(schema: &Value, names: &mut Vec<String>) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        if !names.iter().any(|other| other == name) {
            names.push(name.to_owned());
        }
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(forms) = ["oneOf", "anyOf"].iter().find_map(|kind| schema[kind].as_array()) {
        let forms: Vec<_> = forms.iter().map(|schema| form(schema, names)).collect();
        return forms.join(" or ");
    }
    if let value @ Value::String(_) = &schema["const"] {
        return code(value);
    }
    match schema["type"].as_str() {
        Some("string") => "text".to_owned(),
        Some("integer") => "whole number".to_owned(),
        Some("number") => "number".to_owned(),
        Some("boolean") => "`true` or `false`".to_owned(),
        Some("array") => format!("list of {}", form(&schema["items"], names)),
        Some("object") => object(schema, names),
        _ => String::new(),
    }
}

fn object(schema: &Value, names: &mut Vec<String>) -> String {
    match schema["properties"].as_object() {
        Some(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .map(|(name, field)| format!("`{name}:` {}", form(field, names)))
                .collect();
            fields.join(", ")
        }
        None => format!("map of names to {}", form(&schema["additionalProperties"], names)),
    }
}

/// Returns the description in one line, with the examples.
fn prose(schema: &Value) -> String {
    let mut prose = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
    let examples: Vec<_> = schema["examples"].as_array().into_iter().flatten().map(code).collect();
    if !examples.is_empty() {
        prose = format!("{prose} Examples: {}.", examples.join(", "));
    }
    prose
}

/// Formats a value as it is written in the file.
fn code(value: &Value) -> String {
    format!("`{}`", flow(value))
}

fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(flow).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| format!("{name}: {}", flow(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        other => other.to_string(),
    }
}
