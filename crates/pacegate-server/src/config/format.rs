//! Detects the format of a configuration file.

/// The format of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    /// Pacegate's own.
    Pacegate,
    /// RLaaS: it has a `rate-limiter` at the top.
    Rlaas,
    /// envoyproxy/ratelimit: it has a `domain` at the top.
    Envoy,
}

/// Returns the format of a file by the names at its top level. The file may still be invalid.
pub(crate) fn format_of(text: &str) -> FileFormat {
    let mut format = FileFormat::Pacegate;
    for name in top_level(text) {
        match name {
            "policies" => return FileFormat::Pacegate,
            "rate-limiter" => format = FileFormat::Rlaas,
            "domain" if format == FileFormat::Pacegate => format = FileFormat::Envoy,
            _ => {}
        }
    }
    format
}

/// Returns the names before a colon that are not indented, and those of a document in one pair of braces.
fn top_level(text: &str) -> impl Iterator<Item = &str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let is_in_braces = text
        .lines()
        .map(str::trim)
        .find(|line| !(line.is_empty() || line.starts_with(['#', '%']) || line.starts_with("---")))
        .is_some_and(|line| line.starts_with('{'));
    let names = if is_in_braces { text.split(['{', ',', '\n']) } else { text.split(['\n'; 3]) };
    names.filter_map(move |line| {
        let line = if is_in_braces { line.trim_start() } else { line };
        let (name, _) = line.split_once(':')?;
        Some(name.trim_end().trim_matches(['"', '\'']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_at_the_top_level_tell_the_format() {
        for (text, format) in [
            ("", FileFormat::Pacegate),
            ("policies: []\n", FileFormat::Pacegate),
            ("shadow: true\n", FileFormat::Pacegate),
            ("descriptors: independent\n", FileFormat::Pacegate),
            ("domain: shop\npolicies: []\n", FileFormat::Pacegate),
            ("policies:\n  - domain: shop\n", FileFormat::Pacegate),
            ("# domain: shop\n", FileFormat::Pacegate),
            ("rate-limiter:\n  use-algo: fixed-window-algo\n", FileFormat::Rlaas),
            ("server:\n  port: 8080\nrate-limiter :\n", FileFormat::Rlaas),
            ("{\"rate-limiter\": {\"window-size\": 5}}", FileFormat::Rlaas),
            ("---\ndomain: shop\ndescriptors:\n  - key: a\n", FileFormat::Envoy),
            ("\"domain\": shop\r\n'descriptors': []\r\n", FileFormat::Envoy),
            ("# a\n{\n  \"domain\": \"shop\",\n  \"descriptors\": []\n}", FileFormat::Envoy),
        ] {
            assert_eq!(format_of(text), format, "{text}");
        }
    }
}
