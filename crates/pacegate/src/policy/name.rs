use std::{collections::HashSet, fmt, str::FromStr};

use parking_lot::Mutex;

pub use crate::limit::PolicyNameError;
use crate::limit::{INLINE_NAME, check_name};

/// The name of a policy: 1 to 64 of `A-Z a-z 0-9 _ . -`, so that it needs no escaping in a header, a label or a key.
///
/// A name is a pointer to interned text, so copying it is cheap. The text stays in memory for as long as the process
/// runs. Create names from configuration, never from requests: otherwise a client could fill the memory.
///
/// ```
/// use pacegate::PolicyName;
///
/// let name: PolicyName = "login-per-ip".parse()?;
/// assert_eq!(name.as_str(), "login-per-ip");
/// assert!("login per ip".parse::<PolicyName>().is_err());
/// # Ok::<(), pacegate::policy::PolicyNameError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyName(&'static str);

/// Every name that was parsed.
static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);

impl PolicyName {
    /// The name of the policy of a limiter that was built from limits instead of policies, as by
    /// [`Limiter::memory`](crate::Limiter::memory).
    pub const DEFAULT: Self = Self("default");

    /// The name under which inline limits are counted, as by [`Limiter::check_with`](crate::Limiter::check_with).
    ///
    /// It is reserved: [`PolicySet::new`](super::PolicySet::new) rejects a policy with this name.
    pub const INLINE: Self = Self(INLINE_NAME);

    /// Returns a name that this process already uses, without storing a new one: for names from clients.
    #[doc(hidden)]
    pub fn known(name: &str) -> Option<Self> {
        let constant = [Self::DEFAULT, Self::INLINE].into_iter().find(|it| it.0 == name);
        constant.or_else(|| NAMES.lock().as_ref()?.get(name).copied().map(Self))
    }

    /// Returns the name as text, which lives as long as the process.
    #[inline]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl FromStr for PolicyName {
    type Err = PolicyNameError;

    fn from_str(name: &str) -> Result<Self, PolicyNameError> {
        check_name(name)?;
        Ok(Self(intern(name)))
    }
}

impl TryFrom<&str> for PolicyName {
    type Error = PolicyNameError;

    fn try_from(name: &str) -> Result<Self, PolicyNameError> {
        name.parse()
    }
}

impl TryFrom<String> for PolicyName {
    type Error = PolicyNameError;

    fn try_from(name: String) -> Result<Self, PolicyNameError> {
        name.parse()
    }
}

/// Returns the only copy of a name in this process, which is never freed.
fn intern(name: &str) -> &'static str {
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name) {
        return known;
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(kept);
    kept
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_can_stand_in_a_header() {
        for good in ["a", "login-per-ip", "v1.api_USER", &"x".repeat(64)] {
            assert_eq!(good.parse::<PolicyName>().unwrap().as_str(), good);
        }
        for bad in ["", " ", "a b", "a\"", "ä", "a\r\n", "a:b", &"x".repeat(65)] {
            assert!(bad.parse::<PolicyName>().is_err(), "{bad:?}");
        }
        let error = "a\nb".parse::<PolicyName>().unwrap_err().to_string();
        assert_eq!(error, "`a\\nb` is not a policy name: write 1 to 64 of A-Z a-z 0-9 _ . -");
    }

    #[test]
    fn one_name_is_kept_once() {
        let (a, b): (PolicyName, PolicyName) =
            ("kept-once".parse().unwrap(), "kept-once".parse().unwrap());
        assert!(std::ptr::eq(a.as_str(), b.as_str()));
    }
}
