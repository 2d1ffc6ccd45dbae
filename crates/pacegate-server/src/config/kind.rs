//! Whose configuration a file is.

/// Which system a file was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// This one.
    Pacegate,
    /// RLaaS: it has a `rate-limiter` at the top.
    Rlaas,
    /// envoyproxy/ratelimit: it has a `domain` at the top.
    Envoy,
}

/// Which system a file was written for, by the names at its top. Looks at nothing else, so a file of the right kind may
/// still be a bad one.
pub fn kind_of(text: &str) -> Kind {
    let mut kind = Kind::Pacegate;
    for name in top_level(text) {
        match name {
            "policies" => return Kind::Pacegate,
            "rate-limiter" => kind = Kind::Rlaas,
            "domain" if kind == Kind::Pacegate => kind = Kind::Envoy,
            _ => {}
        }
    }
    kind
}

/// The names before a colon that are not indented, and those of a document in one pair of braces.
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
    fn files_are_known_by_their_top() {
        for (text, kind) in [
            ("", Kind::Pacegate),
            ("policies: []\n", Kind::Pacegate),
            ("shadow: true\n", Kind::Pacegate),
            ("descriptors: apart\n", Kind::Pacegate),
            ("domain: shop\npolicies: []\n", Kind::Pacegate),
            ("policies:\n  - domain: shop\n", Kind::Pacegate),
            ("# domain: shop\n", Kind::Pacegate),
            ("rate-limiter:\n  use-algo: fixed-window-algo\n", Kind::Rlaas),
            ("server:\n  port: 8080\nrate-limiter :\n", Kind::Rlaas),
            ("{\"rate-limiter\": {\"window-size\": 5}}", Kind::Rlaas),
            ("---\ndomain: shop\ndescriptors:\n  - key: a\n", Kind::Envoy),
            ("\"domain\": shop\r\n'descriptors': []\r\n", Kind::Envoy),
            ("# a\n{\n  \"domain\": \"shop\",\n  \"descriptors\": []\n}", Kind::Envoy),
        ] {
            assert_eq!(kind_of(text), kind, "{text}");
        }
    }
}
