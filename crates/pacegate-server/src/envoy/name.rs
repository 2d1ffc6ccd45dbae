//! Names of the policies of rules.

use pacegate::PolicyName;
use sha2::{Digest, Sha256};

/// The path from a domain to a descriptor: keys, with the values that the file gives.
pub(super) type DescriptorPath = [(String, Option<String>)];

/// Maximum length of a policy name.
const MAX_BYTES: usize = 64;

/// Returns the unique name of a rule.
///
/// The name is the domain and the keys, `edge.user` or `edge.plan-gold.user`, if that is a valid and unambiguous policy
/// name. Otherwise invalid characters are replaced and a digest is added: `edge.path-_api_..9f2b34c01d7e`.
pub(super) fn of(domain: &str, path: &DescriptorPath) -> String {
    let mut plain = domain.to_owned();
    let mut clear = is_clear(domain, true);
    for (key, value) in path {
        plain.push('.');
        plain.push_str(key);
        clear &= is_clear(key, false);
        if let Some(value) = value {
            plain.push('-');
            plain.push_str(value);
            clear &= is_clear(value, true);
        }
    }
    if clear && plain.len() <= MAX_BYTES {
        plain
    } else {
        format!("{}..{}", slug(&plain), digest(domain, path))
    }
}

pub(super) fn parse(name: &str) -> Result<PolicyName, pacegate::policy::PolicyNameError> {
    name.parse()
}

/// Returns whether a part needs no escape. Keys must not contain `-`, which separates them from values.
fn is_clear(part: &str, dash: bool) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || (dash && byte == b'-');
    !part.is_empty() && part.bytes().all(fits)
}

fn slug(plain: &str) -> String {
    let fits = |char: char| char.is_ascii_alphanumeric() || "_-.".contains(char);
    plain.chars().take(MAX_BYTES - 14).map(|char| if fits(char) { char } else { '_' }).collect()
}

/// Returns twelve digits of a hash of all parts with their lengths.
fn digest(domain: &str, path: &DescriptorPath) -> String {
    let mut hash = Sha256::new();
    let mut feed = |part: Option<&str>| {
        let length = part.map_or(u64::MAX, |part| part.len() as u64);
        hash.update(length.to_le_bytes());
        hash.update(part.unwrap_or_default());
    };
    feed(Some(domain));
    for (key, value) in path {
        feed(Some(key));
        feed(value.as_deref());
    }
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn name(domain: &str, path: &[(&str, Option<&str>)]) -> String {
        let path: Vec<_> =
            path.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect();
        let name = of(domain, &path);
        assert_eq!(parse(&name).unwrap().as_str(), name);
        name
    }

    #[test]
    fn plain_parts_are_unchanged() {
        assert_eq!(name("edge", &[("user", None)]), "edge.user");
        assert_eq!(name("my-edge", &[("remote_address", None)]), "my-edge.remote_address");
        assert_eq!(name("e", &[("plan", Some("gold-1")), ("user", None)]), "e.plan-gold-1.user");
    }

    #[test]
    fn other_parts_get_a_stable_digest() {
        assert_eq!(name("e", &[("path", Some("/a/*"))]), "e.path-_a__..c1985d8321a3");
        let long = "x".repeat(80);
        assert_eq!(name("e", &[(&long, None)]).len(), 64);
    }

    #[test]
    fn names_are_unique() {
        let long = "ä".repeat(50);
        let names = [
            name("a", &[("b", None)]),
            name("a.b", &[("c", None)]),
            name("a", &[("b", None), ("c", None)]),
            name("a", &[("b.c", None)]),
            name("a", &[("b", Some("c"))]),
            name("a", &[("b-c", None)]),
            name("a", &[("b-c", Some("d"))]),
            name("a", &[("b", Some("c-d"))]),
            name("a", &[("b_c", None)]),
            name("a", &[("b", Some("c.d"))]),
            name("a", &[("b", Some("c")), ("d", None)]),
            name("a", &[("b c", None)]),
            name("a", &[("b/c", None)]),
            name(&long, &[("b", None)]),
            name(&long, &[("c", None)]),
        ];
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    }
}
