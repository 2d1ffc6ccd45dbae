use std::net::IpAddr;

use ipnet::IpNet;

use super::Glob;
use crate::Request;

/// What a request must look like: a condition for each of some attributes, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    conditions: Vec<(String, Condition)>,
}

/// What the value of an attribute must be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// One of these, to the letter.
    OneOf(Vec<String>),
    /// Anything the pattern matches.
    Glob(Glob),
    /// An address in one of these networks. An IPv4 address in IPv6 form counts as the IPv4 address it is.
    Cidr(Vec<IpNet>),
    /// Anything, as long as the request has the attribute.
    Present,
    /// The request must not have the attribute.
    Absent,
}

impl Match {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// This, and `attribute` must meet `condition`.
    #[must_use]
    pub fn and(mut self, attribute: impl Into<String>, condition: Condition) -> Self {
        self.conditions.push((attribute.into(), condition));
        self
    }

    /// Whether a request meets every condition.
    pub fn covers(&self, request: &Request<'_>) -> bool {
        self.conditions
            .iter()
            .all(|(attribute, condition)| condition.holds(request.attribute(attribute)))
    }

    /// The conditions, in the order they were given.
    pub fn conditions(&self) -> impl Iterator<Item = (&str, &Condition)> {
        self.conditions.iter().map(|(attribute, condition)| (attribute.as_str(), condition))
    }

    /// Whether there are no conditions.
    pub fn is_any(&self) -> bool {
        self.conditions.is_empty()
    }
}

impl Condition {
    /// Exactly this value.
    pub fn equal(value: impl Into<String>) -> Self {
        Self::OneOf(vec![value.into()])
    }

    /// Whether a value, or its absence, meets the condition.
    pub fn holds(&self, value: Option<&[u8]>) -> bool {
        match (self, value) {
            (Self::Absent, value) => value.is_none(),
            (_, None) => false,
            (Self::OneOf(values), Some(value)) => values.iter().any(|one| one.as_bytes() == value),
            (Self::Glob(glob), Some(value)) => glob.matches(value),
            (Self::Cidr(nets), Some(value)) => {
                address(value).is_some_and(|address| nets.iter().any(|net| net.contains(&address)))
            }
            (Self::Present, Some(_)) => true,
        }
    }
}

fn address(value: &[u8]) -> Option<IpAddr> {
    let address: IpAddr = std::str::from_utf8(value).ok()?.parse().ok()?;
    Some(address.to_canonical())
}

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
        assert!(Condition::Absent.holds(None) && !Condition::Absent.holds(Some(b"")));
        assert!(Condition::Present.holds(Some(b"")) && !Condition::Present.holds(None));
        assert!(!Condition::equal("a").holds(None));
        assert!(Condition::OneOf(vec!["a".into(), "b".into()]).holds(Some(b"b")));
    }
}
