//! Placeholders of Spring: `${WINDOW:60}` is the variable `WINDOW`, or 60 if that is not set.

use super::{Environment, hint::shorten};

/// The maximum depth of nested placeholders, as in `${A:${B:60}}`.
const MAX_DEPTH: usize = 8;

/// The reason why a placeholder cannot be replaced.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PlaceholderError {
    #[error("placeholders are nested more than {MAX_DEPTH} deep")]
    TooDeep,
    #[error("`{0}` has a `${{` without its `}}`")]
    Unclosed(String),
    #[error(
        "the environment variable `{0}` is not set: set it, or write a default, as in `${{{0}:60}}`"
    )]
    Unset(String),
}

/// Replaces the placeholders of a text. Fails if one is not set and has no default.
pub(super) fn resolve(
    text: &str,
    environment: &Environment<'_>,
) -> Result<String, PlaceholderError> {
    resolve_at(text, environment, 0)
}

fn resolve_at(
    text: &str,
    environment: &Environment<'_>,
    depth: usize,
) -> Result<String, PlaceholderError> {
    if depth > MAX_DEPTH {
        return Err(PlaceholderError::TooDeep);
    }
    let mut resolved = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        resolved.push_str(&rest[..start]);
        let inside = &rest[start + 2..];
        let end = closing(inside).ok_or_else(|| PlaceholderError::Unclosed(shorten(text)))?;
        let (name, default) = match inside[..end].split_once(':') {
            Some((name, default)) => (name, Some(default)),
            None => (&inside[..end], None),
        };
        match (variable(name, environment), default) {
            (Some(value), _) => resolved.push_str(&value),
            (None, Some(default)) => {
                resolved.push_str(&resolve_at(default, environment, depth + 1)?);
            }
            (None, None) => return Err(PlaceholderError::Unset(shorten(name))),
        }
        rest = &inside[end + 1..];
    }
    resolved.push_str(rest);
    Ok(resolved)
}

/// Returns the position of the closing brace, given the text after `${`.
fn closing(inside: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (place, byte) in inside.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(place),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Looks up a variable by its name or by Spring's spelling of it: `rate.window-size` is `RATE_WINDOW_SIZE`.
fn variable(name: &str, environment: &Environment<'_>) -> Option<String> {
    let spelled = || name.to_ascii_uppercase().replace(['.', '-'], "_");
    environment.get(name).or_else(|| environment.get(&spelled()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Result<String, PlaceholderError> {
        let environment = Environment::of(|name| match name {
            "WINDOW" => Some("30".to_owned()),
            "RATE_MAX_REQUESTS" => Some("7".to_owned()),
            _ => None,
        });
        resolve(text, &environment)
    }

    #[test]
    fn variables_come_before_defaults() {
        for (text, expected) in [
            ("60", "60"),
            ("${WINDOW:60}", "30"),
            ("${WINDOW}", "30"),
            ("${OTHER:60}", "60"),
            ("${OTHER:}", ""),
            ("1${OTHER:2}3", "123"),
            ("${rate.max-requests:5}", "7"),
            ("${A:${B:${WINDOW:1}}}", "30"),
            ("${A:${B:8}}0", "80"),
        ] {
            assert_eq!(resolved(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_unset_variable_without_default_is_an_error() {
        let error = resolved("${OTHER}").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the environment variable `OTHER` is not set: set it, or write a default, as in `${OTHER:60}`"
        );
        let unclosed = PlaceholderError::Unclosed("${OTHER:5".to_owned());
        assert_eq!(resolved("${OTHER:5"), Err(unclosed));
        let deep = format!("{}1{}", "${A:".repeat(20), "}".repeat(20));
        assert_eq!(resolved(&deep), Err(PlaceholderError::TooDeep));
    }
}
