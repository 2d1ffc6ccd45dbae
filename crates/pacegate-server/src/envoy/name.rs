//! What the policies are called that descriptors lead to.

use pacegate::PolicyName;
use sha2::{Digest, Sha256};

/// The way from a domain to a descriptor: keys, each with the value that the file gives it.
pub(super) type Way = [(String, Option<String>)];

/// The longest name of a policy.
const MAX: usize = 64;

/// A name that tells which rule it is, and is that of no other.
///
/// It is the domain and the keys, `edge.user` or `edge.plan-gold.user`, where that is a name and can be meant in one
/// way only. Otherwise what does not fit is left out, and after `..` comes a digest: `edge.path-_api_..9f2b34c01d7e`.
pub(super) fn of(domain: &str, way: &Way) -> String {
    let mut plain = domain.to_owned();
    let mut clear = is_clear(domain, true);
    for (key, value) in way {
        plain.push('.');
        plain.push_str(key);
        clear &= is_clear(key, false);
        if let Some(value) = value {
            plain.push('-');
            plain.push_str(value);
            clear &= is_clear(value, true);
        }
    }
    if clear && plain.len() <= MAX {
        plain
    } else {
        format!("{}..{}", slug(&plain), digest(domain, way))
    }
}

pub(super) fn parse(name: &str) -> Result<PolicyName, pacegate::policy::PolicyNameError> {
    name.parse()
}

/// Whether a part can stand as it is. A `-` is what ends a key, so a key has none.
fn is_clear(part: &str, dash: bool) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || (dash && byte == b'-');
    !part.is_empty() && part.bytes().all(fits)
}

fn slug(plain: &str) -> String {
    let fits = |char: char| char.is_ascii_alphanumeric() || "_-.".contains(char);
    plain.chars().take(MAX - 14).map(|char| if fits(char) { char } else { '_' }).collect()
}

/// Twelve digits of a hash of all parts with their lengths.
fn digest(domain: &str, way: &Way) -> String {
    let mut hash = Sha256::new();
    let mut feed = |part: Option<&str>| {
        let length = part.map_or(u64::MAX, |part| part.len() as u64);
        hash.update(length.to_le_bytes());
        hash.update(part.unwrap_or_default());
    };
    feed(Some(domain));
    for (key, value) in way {
        feed(Some(key));
        feed(value.as_deref());
    }
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn name(domain: &str, way: &[(&str, Option<&str>)]) -> String {
        let way: Vec<_> =
            way.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect();
        let name = of(domain, &way);
        assert_eq!(parse(&name).unwrap().as_str(), name);
        name
    }

    #[test]
    fn plain_parts_stay_as_they_are() {
        assert_eq!(name("edge", &[("user", None)]), "edge.user");
        assert_eq!(name("my-edge", &[("remote_address", None)]), "my-edge.remote_address");
        assert_eq!(name("e", &[("plan", Some("gold-1")), ("user", None)]), "e.plan-gold-1.user");
    }

    #[test]
    fn other_parts_get_a_digest_that_stays() {
        assert_eq!(name("e", &[("path", Some("/a/*"))]), "e.path-_a__..c1985d8321a3");
        let long = "x".repeat(80);
        assert_eq!(name("e", &[(&long, None)]).len(), 64);
    }

    #[test]
    fn no_two_ways_have_one_name() {
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
