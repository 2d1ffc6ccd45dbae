use std::{borrow::Cow, net::IpAddr};

use ipnet::IpNet;

use super::{Glob, GlobError, Paths};
use crate::Request;

/// Conditions on the attributes of a request. All of them must hold. The default is an empty list, which matches every
/// request.
///
/// ```
/// use pacegate::{Request, policy::{Condition, Match}};
///
/// let internal = Match::any().and("ip", Condition::Cidr(vec!["10.0.0.0/8".parse()?]));
/// assert!(internal.covers(&Request::new().with("ip", "10.1.2.3")));
/// assert!(!internal.covers(&Request::new().with("ip", "203.0.113.7")));
/// assert!(!internal.covers(&Request::new()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    conditions: Vec<(String, Condition)>,
}

/// A condition on the value of an attribute. If the request lacks the attribute, only [`Condition::Absent`] holds.
///
/// Values are bytes and compared as they are, with one exception: a policy compares `path` in the form of [`Paths`].
///
/// | condition | meets it | does not |
/// |---|---|---|
/// | `Condition::equal("GET")` | `GET` | `get`, no value |
/// | `Condition::Glob("/api/*".parse()?)` | `/api/users` | `/api/users/7` |
/// | `Condition::Cidr(vec!["10.0.0.0/8".parse()?])` | `10.1.2.3`, `::ffff:10.1.2.3` | `11.0.0.1`, `x` |
/// | `Condition::Present` | any value, also an empty one | no value |
/// | `Condition::Absent` | no value | any value |
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// Equal to one of these values, byte for byte. An empty list holds for no value.
    OneOf(Vec<String>),
    /// Matched by the pattern. See [`Glob`] for the syntax.
    Glob(Glob),
    /// An address in one of these networks. IPv4 addresses and networks in IPv6 form are treated as IPv4.
    Cidr(Vec<IpNet>),
    /// Any value: the request has the attribute.
    Present,
    /// The request does not have the attribute.
    Absent,
}

impl Match {
    /// Matches every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Matches no request, for a policy that is only charged by name.
    pub fn never() -> Self {
        Self::any().and("", Condition::OneOf(Vec::new()))
    }

    /// Adds a condition on `attribute`.
    #[must_use]
    pub fn and(mut self, attribute: impl Into<String>, condition: Condition) -> Self {
        self.conditions.push((attribute.into(), condition));
        self
    }

    /// Returns true if a request meets every condition, without normalizing its values. A policy also normalizes
    /// paths, see [`PolicySet::covers`](super::PolicySet::covers).
    pub fn covers(&self, request: &Request<'_>) -> bool {
        self.covers_values(|attribute| request.attribute(attribute))
    }

    /// Returns `true` if the values of attributes meet every condition.
    pub(super) fn covers_values<'v>(&self, value: impl Fn(&str) -> Option<&'v [u8]>) -> bool {
        self.conditions.iter().all(|(attribute, condition)| condition.holds(value(attribute)))
    }

    /// Like [`Match::covers_values`], but a value that is too long for a pattern meets it only if all values with the
    /// same prefix do.
    pub(super) fn surely_covers<'v>(&self, value: impl Fn(&str) -> Option<&'v [u8]>) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.all(|(attribute, condition)| condition.surely_holds(value(attribute)))
    }

    /// Returns the same conditions, those on paths in the form that is compared.
    pub(super) fn normalized(&self, paths: Paths) -> Result<Self, GlobError> {
        let conditions = self.conditions.iter().map(|(attribute, condition)| {
            let condition = match attribute == Request::PATH {
                true => condition.for_paths(paths)?,
                false => condition.clone(),
            };
            Ok((attribute.clone(), condition))
        });
        Ok(Self { conditions: conditions.collect::<Result<_, _>>()? })
    }

    /// Returns true if no request can meet both matches, because their conditions on one attribute contradict each
    /// other. Returns false if that is uncertain, for example for two patterns with wildcards.
    ///
    /// ```
    /// use pacegate::policy::{Condition, Match};
    ///
    /// let login = Match::any().and("path", Condition::equal("/login"));
    /// let api = Match::any().and("path", Condition::Glob("/api/**".parse()?));
    /// assert!(login.excludes(&api));
    /// # Ok::<(), pacegate::policy::GlobError>(())
    /// ```
    pub fn excludes(&self, other: &Self) -> bool {
        self.excludes_without(other, None)
    }

    /// [`Match::excludes`], without comparing conditions on the attribute `skipped`.
    pub(super) fn excludes_without(&self, other: &Self, skipped: Option<&str>) -> bool {
        let compared = self.conditions.iter().filter(|(name, _)| skipped != Some(&**name));
        compared.into_iter().any(|(attribute, condition)| {
            let mut same = other.conditions.iter().filter(|(name, _)| name == attribute);
            same.any(|(_, other)| condition.excludes(other))
        })
    }

    /// Returns a number that identifies this match. It is the same in every process, and does not depend on the order
    /// of conditions or of values in a list.
    pub fn digest(&self) -> u64 {
        let mut conditions: Vec<Vec<u8>> = self
            .conditions
            .iter()
            .map(|(attribute, condition)| encode([attribute.as_bytes(), &condition.encode()]))
            .collect();
        conditions.sort_unstable();
        conditions.dedup();
        fnv(conditions.concat())
    }

    /// Returns the conditions in their original order.
    pub fn conditions(&self) -> impl Iterator<Item = (&str, &Condition)> {
        self.conditions.iter().map(|(attribute, condition)| (attribute.as_str(), condition))
    }

    /// Returns true if the list of conditions is empty, so that every request matches.
    pub fn is_any(&self) -> bool {
        self.conditions.is_empty()
    }
}

impl Condition {
    /// Creates a condition that holds for exactly this value.
    pub fn equal(value: impl Into<String>) -> Self {
        Self::OneOf(vec![value.into()])
    }

    /// Returns true if a value, or its absence, meets the condition. For values that are too long for a pattern, see
    /// [`Glob::matches`].
    pub fn holds(&self, value: Option<&[u8]>) -> bool {
        match (self, value) {
            (Self::Absent, value) => value.is_none(),
            (_, None) => false,
            (Self::OneOf(values), Some(value)) => values.iter().any(|one| one.as_bytes() == value),
            (Self::Glob(glob), Some(value)) => glob.matches(value),
            (Self::Cidr(nets), Some(value)) => {
                address(value).is_some_and(|address| nets.iter().any(|net| is_in(address, net)))
            }
            (Self::Present, Some(_)) => true,
        }
    }
}

impl Condition {
    /// Returns `true` if a value meets the condition and, if it is too long for a pattern, all values with the same
    /// beginning do.
    fn surely_holds(&self, value: Option<&[u8]>) -> bool {
        match (self, value) {
            (Self::Glob(glob), Some(value)) => glob.surely_matches(value),
            _ => self.holds(value),
        }
    }

    /// Returns the condition on paths in the form that is compared.
    fn for_paths(&self, paths: Paths) -> Result<Self, GlobError> {
        Ok(match self {
            Self::OneOf(values) => {
                Self::OneOf(values.iter().map(|value| paths.normalize_text(value)).collect())
            }
            Self::Glob(glob) => Self::Glob(glob.for_paths(paths)?),
            other => other.clone(),
        })
    }

    /// Encodes the condition as bytes that no other condition has.
    fn encode(&self) -> Vec<u8> {
        let (kind, mut values) = match self {
            Self::OneOf(values) => ("one-of", values.clone()),
            Self::Glob(glob) => ("glob", vec![glob.to_string()]),
            Self::Cidr(nets) => ("cidr", nets.iter().map(IpNet::to_string).collect()),
            Self::Present => ("present", Vec::new()),
            Self::Absent => ("absent", Vec::new()),
        };
        values.sort_unstable();
        values.dedup();
        encode(std::iter::once(kind.to_owned()).chain(values))
    }

    fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Absent, other) | (other, Self::Absent) => *other != Self::Absent,
            (one, other) => [(one, other), (other, one)].into_iter().any(|(one, other)| {
                let holds = |value: &String| other.holds(Some(value.as_bytes()));
                one.values().is_some_and(|values| !values.iter().any(holds))
            }),
        }
    }

    /// Returns all values that meet the condition, if they can be listed.
    pub(super) fn values(&self) -> Option<Cow<'_, [String]>> {
        match self {
            Self::OneOf(values) => Some(Cow::Borrowed(values)),
            Self::Glob(glob) => glob.literal().map(|value| Cow::Owned(vec![value])),
            _ => None,
        }
    }
}

/// Concatenates texts, each after its length, so that different lists differ.
fn encode<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for text in texts {
        bytes.extend_from_slice(&(text.as_ref().len() as u64).to_le_bytes());
        bytes.extend_from_slice(text.as_ref());
    }
    bytes
}

/// FNV-1a: the configuration is not hostile, and the number must be the same in every process.
fn fnv(bytes: Vec<u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn address(value: &[u8]) -> Option<IpAddr> {
    if value.len() > MAX_ADDRESS {
        return None;
    }
    let address: IpAddr = std::str::from_utf8(value).ok()?.parse().ok()?;
    Some(address.to_canonical())
}

fn is_in(address: IpAddr, net: &IpNet) -> bool {
    match (address, net) {
        (IpAddr::V4(address), IpNet::V6(net)) if net.prefix_len() >= MAPPED => {
            net.contains(&address.to_ipv6_mapped())
        }
        _ => net.contains(&address),
    }
}

/// Maximum length of an address as text.
const MAX_ADDRESS: usize = 64;

/// Prefix length of IPv4 addresses mapped to IPv6. A network with a shorter prefix is an IPv6 network.
const MAPPED: u8 = 96;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_hold_as_documented() {
        let nets = vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
        let cidr = Condition::Cidr(nets);
        for (value, holds) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("11.1.2.3", false),
            ("2001:db8::1", true),
            ("2001:db9::1", false),
            ("10.1.2", false),
            ("10.1.2.3\n", false),
        ] {
            assert_eq!(cidr.holds(Some(value.as_bytes())), holds, "{value}");
        }
        for (net, value, holds) in [
            ("::ffff:10.0.0.0/104", "10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "::ffff:10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "11.1.2.3", false),
            ("::ffff:0:0/96", "203.0.113.7", true),
            ("::ffff:0:0/96", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "203.0.113.7", false),
            ("0.0.0.0/0", "::ffff:203.0.113.7", true),
        ] {
            let cidr = Condition::Cidr(vec![net.parse().unwrap()]);
            assert_eq!(cidr.holds(Some(value.as_bytes())), holds, "{net} {value}");
        }
        assert!(Condition::Absent.holds(None) && !Condition::Absent.holds(Some(b"")));
        assert!(Condition::Present.holds(Some(b"")) && !Condition::Present.holds(None));
        assert!(!Condition::equal("a").holds(None));
        assert!(Condition::OneOf(vec!["a".into(), "b".into()]).holds(Some(b"b")));
    }

    #[test]
    fn plain_contradictions_are_seen() {
        let one_of = |values: &[&str]| {
            Condition::OneOf(values.iter().map(|&value| value.to_owned()).collect())
        };
        let glob = |text: &str| Condition::Glob(text.parse().unwrap());
        let cidr = |text: &str| Condition::Cidr(vec![text.parse().unwrap()]);
        for (a, b, exclude) in [
            (one_of(&["a", "b"]), one_of(&["c"]), true),
            (one_of(&["a", "b"]), one_of(&["b", "c"]), false),
            (one_of(&["/login"]), glob("/api/**"), true),
            (one_of(&["/login", "/api/x"]), glob("/api/**"), false),
            (one_of(&["10.0.0.1"]), cidr("11.0.0.0/8"), true),
            (Condition::Absent, Condition::Present, true),
            (Condition::Absent, Condition::Absent, false),
            (Condition::Present, one_of(&["a"]), false),
            (glob("/a"), glob("/b"), true),
            (glob("/a/x"), glob("/a/*"), false),
            (glob("/a/**"), glob("/b/**"), false),
        ] {
            let [first, second] = [&a, &b].map(|one| Match::any().and("x", one.clone()));
            assert_eq!(first.excludes(&second), exclude, "{a:?} {b:?}");
            assert_eq!(second.excludes(&first), exclude, "{b:?} {a:?}");
            let elsewhere = Match::any().and("y", b);
            assert!(!first.excludes(&elsewhere));
        }
    }

    #[test]
    fn a_match_is_named_by_its_meaning_and_not_by_its_order() {
        let list = |values: &[&str]| {
            Condition::OneOf(values.iter().map(|&value| value.to_owned()).collect())
        };
        let glob = |text: &str| Condition::Glob(text.parse().unwrap());
        let one = Match::any().and("plan", list(&["pro", "gold"])).and("path", glob("/a/**"));
        let other = Match::any().and("path", glob("/a/**")).and("plan", list(&["gold", "pro"]));
        assert_eq!(one.digest(), other.digest());
        assert_eq!(
            Match::any().and("path", glob("/static/**")).digest(),
            5_617_164_335_851_501_792,
            "in every process"
        );
        let net = |text: &str| Condition::Cidr(vec![text.parse().unwrap()]);
        let all = [
            Match::any(),
            one,
            Match::any().and("plan", list(&["pro", "gold"])),
            Match::any().and("plan", list(&["pro"])).and("plan", list(&["gold"])),
            Match::any().and("plan", list(&["progold"])),
            Match::any().and("plan", list(&[])),
            Match::any().and("planpro", list(&[])),
            Match::any().and("plan", glob("pro")),
            Match::any().and("plan", Condition::Present),
            Match::any().and("plan", Condition::Absent),
            Match::any().and("plan", list(&["present"])),
            Match::any().and("ip", net("10.0.0.0/8")),
            Match::any().and("ip", list(&["10.0.0.0/8"])),
            Match::any().and("ip", net("10.0.0.0/9")),
        ];
        let digests: std::collections::HashSet<_> = all.iter().map(Match::digest).collect();
        assert_eq!(digests.len(), all.len());
    }
}
