//! Options and error messages of the YAML parser.

use serde_saphyr::{Error, MergeKeyPolicy, Options, UserMessageFormatter};

use super::{
    ConfigError,
    hint::{among, shorten},
};

/// Maximum size of a file.
pub(crate) const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Rejects a file that is too long to parse.
pub(crate) fn check_length(text: &str, file: &str) -> Result<(), ConfigError> {
    let length = text.len();
    if length <= MAX_BYTES {
        return Ok(());
    }
    let message = format!("the file has {length} bytes: write at most {MAX_BYTES}");
    Err(ConfigError::whole(file, message))
}

/// Returns limits for the parser that allow 100,000 policies, but few aliases, whose expansion could use much memory.
pub(super) fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 8_000_000,
            max_nodes: 4_000_000,
            max_depth: 16,
            max_documents: 2,
            max_aliases: 64,
            max_anchors: 64,
            max_recorded_anchor_events: 10_000,
            max_recorded_anchor_bytes: 1024 * 1024,
            max_merge_keys: 64,
            max_total_scalar_bytes: MAX_BYTES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
            max_replay_stack_depth: 4,
        },
        merge_keys: MergeKeyPolicy::Merge,
        strict_booleans: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

/// Returns the message for an error of the parser.
pub(crate) fn message(error: &Error) -> String {
    match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            format!("unknown field `{}`: {}", shorten(field), among(field, expected))
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            format!("invalid value `{}`: {}", shorten(variant), among(variant, expected))
        }
        Error::SerdeMissingField { field, .. } => {
            format!("the field `{field}` is missing: add it")
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("duplicate field `{}`: remove one of them", shorten(key))
        }
        Error::Unexpected { expected, .. } => format!("expected {}", plain(expected)),
        Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. } => {
            "expected one word, or one with a value, as in `{name: a}`".to_owned()
        }
        Error::NullIntoString { .. } => {
            "missing value: write one, or remove the field".to_owned()
        }
        Error::InvalidBooleanStrict { .. } | Error::InvalidScalar { ty: "boolean", .. } => {
            "expected `true` or `false`".to_owned()
        }
        Error::InvalidScalar { ty, .. } if ty.starts_with('u') => {
            "expected a whole number from 0".to_owned()
        }
        Error::SerdeInvalidType { unexpected, expected, .. } => {
            format!("expected {expected}, found {}", shorten(unexpected))
        }
        Error::MultipleDocuments { .. } => {
            "a second document starts here: use one file per document".to_owned()
        }
        Error::Budget { .. } => {
            "the file is too large, too deeply nested, or has too many aliases: shorten it, or replace \
             the aliases by their values"
                .to_owned()
        }
        Error::Message { msg, .. } => msg.clone(),
        Error::UnsupportedTag { .. } => "YAML tags are not supported: remove the tag".to_owned(),
        other => parser_message(other),
    }
}

fn plain(expected: &str) -> &str {
    match expected {
        "string scalar" | "scalar" => "one text, neither a list nor a map",
        "sequence start" => "a list, such as `[a, b]`",
        "mapping start" => "fields with values, such as `name: value`",
        other => other,
    }
}

fn parser_message(error: &Error) -> String {
    let message = error.render_with_formatter(&UserMessageFormatter);
    let end = message.find(" at line ").unwrap_or(message.len());
    let message: String =
        message[..end].chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    format!("invalid YAML: {}", message.trim())
}
