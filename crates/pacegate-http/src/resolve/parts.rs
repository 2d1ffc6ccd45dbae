//! Values that are simply there in a request.

use std::{fmt, marker::PhantomData};

use http::{HeaderName, header};
use pacegate::{Key, policy::Paths};

use super::{KeyParts, Missing, OrDefault, Resolve, text::plain_host};
use crate::head::{Head, only};

/// One budget for all requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Everyone;

/// The value of a header. A header that is empty or there more than once is missing: of two lines, the client may have
/// written one.
///
/// Whoever can choose the value has as many budgets as there are values. Use it for what your own proxy sets, or
/// together with an address.
#[derive(Clone, Debug)]
pub struct Header(pub HeaderName);

/// The value of a cookie, without the quotes around it. One that is empty, or there with different values, is missing.
/// What is said of [`Header`] holds for it as well.
#[derive(Clone, Debug)]
pub struct Cookie(pub String);

/// The path in its normal form, in lower case, see [`Paths::Normalized`]. Clients can make up as many paths as they
/// like, so as a key use [`MatchedRoute`] instead, or add an address.
#[derive(Clone, Copy, Debug, Default)]
pub struct Path;

/// The path as the client sent it, without the query. For an attribute `path` of policies that compare
/// [exactly](Paths::Exact) or by [case](Paths::CaseSensitive); other policies normalize it themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExactPath;

/// The pattern of the route that was found, such as `/users/{id}`: with axum, and its feature here. Missing where no
/// route was found, and in a layer that runs before routing. Without the feature, requests are answered with 500.
#[derive(Clone, Copy, Debug, Default)]
pub struct MatchedRoute;

/// The method.
#[derive(Clone, Copy, Debug, Default)]
pub struct Method;

/// The host that is asked for, in its one plain spelling, see [`plain_host`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

/// Something of a type that the program itself has put into the request's extensions, such as who has logged in.
pub struct Extension<T, F> {
    read: F,
    kind: PhantomData<fn(&T)>,
}

const NO_ROUTES: &str = "routes are unknown: enable the feature `axum` of pacegate-http";

impl Header {
    /// The header of a name in small letters that is known when the program is written. Panics if it is no such name.
    pub const fn from_static(name: &'static str) -> Self {
        Self(HeaderName::from_static(name))
    }
}

impl Cookie {
    /// The cookie of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }
}

impl<T, F> Extension<T, F> {
    /// What `read` makes of the extension: any [`Key`].
    pub fn new<K: Key>(read: F) -> Self
    where
        F: Fn(&T) -> K,
    {
        Self { read, kind: PhantomData }
    }
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension({})", std::any::type_name::<T>())
    }
}

impl<T, F: Clone> Clone for Extension<T, F> {
    fn clone(&self) -> Self {
        Self { read: self.read.clone(), kind: PhantomData }
    }
}

impl<H> Resolve<H> for Everyone {
    fn resolve(&self, _: &H, _: &mut KeyParts) -> Result<(), Missing> {
        Ok(())
    }
}

impl<H: Head> Resolve<H> for Header {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        let value = only(head.lines(&self.0)).filter(|value| !value.is_empty());
        key.push(value.ok_or_default()?);
        Ok(())
    }
}

impl<H: Head> Resolve<H> for Cookie {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        let pairs = head.lines(&header::COOKIE).flat_map(|line| line.split(|&byte| byte == b';'));
        let mut values = pairs.filter_map(|pair| {
            let value = pair.trim_ascii().strip_prefix(self.0.as_bytes())?.strip_prefix(b"=")?;
            let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
            Some(quoted.unwrap_or(value))
        });
        let value = values.next().filter(|value| !value.is_empty()).ok_or_default()?;
        if values.any(|other| other != value) {
            return Err(Missing::default());
        }
        key.push(value);
        Ok(())
    }
}

impl<H: Head> Resolve<H> for Path {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        key.push(&Paths::Normalized.normalize(head.path().as_bytes()));
        Ok(())
    }
}

impl<H: Head> Resolve<H> for ExactPath {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        key.push(head.path().as_bytes());
        Ok(())
    }
}

impl<H: Head> Resolve<H> for MatchedRoute {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        if !head.knows_routes() {
            return Err(Missing::Misconfigured(NO_ROUTES));
        }
        key.push(head.route().ok_or_default()?.as_bytes());
        Ok(())
    }
}

impl<H: Head> Resolve<H> for Method {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        key.push(head.method().as_bytes());
        Ok(())
    }
}

impl<H: Head> Resolve<H> for Host {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        let host = head.host().filter(|host| !host.is_empty()).ok_or_default()?;
        key.push(&plain_host(host));
        Ok(())
    }
}

impl<H, T, K, F> Resolve<H> for Extension<T, F>
where
    H: Head,
    T: Clone + Send + Sync + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        head.extension(|value: &T| key.push_found((self.read)(value))).ok_or_default()?
    }
}
