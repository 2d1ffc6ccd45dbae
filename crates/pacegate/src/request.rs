//! What is asked: a domain, attributes and a cost.

use smallvec::SmallVec;

/// A request as policies see it: a domain, some attributes, and what it costs.
///
/// Borrows everything, so building one allocates nothing for up to eight attributes.
///
/// ```
/// use pacegate::Request;
///
/// let request = Request::new().with("user", "alice").with("path", "/api/export").cost(5);
/// assert_eq!(request.attribute("user"), Some(&b"alice"[..]));
/// ```
#[derive(Clone, Debug)]
pub struct Request<'a> {
    domain: &'a str,
    attributes: SmallVec<[(&'a str, &'a [u8]); 8]>,
    cost: u64,
    id: Option<&'a [u8]>,
}

/// An id that is empty or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a request has from 1 to {max} bytes, not {0}", max = Request::MAX_ID)]
pub struct RequestIdError(usize);

impl<'a> Request<'a> {
    /// The attribute that stands for the key of a request that has nothing else.
    pub const KEY: &'static str = "key";

    /// The attribute that is a path. Policies compare it and count by it in a normal form, see
    /// [`Paths`](crate::policy::Paths).
    pub const PATH: &'static str = "path";

    /// The longest id, in bytes.
    pub const MAX_ID: usize = 128;

    /// A request of the default domain, without attributes, at a cost of 1.
    pub fn new() -> Self {
        Self { domain: "", attributes: SmallVec::new(), cost: 1, id: None }
    }

    /// Adds an attribute. Of several with one name, the first counts.
    #[must_use]
    pub fn with(mut self, name: &'a str, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.attributes.push((name, value.as_ref()));
        self
    }

    /// Sets the domain.
    #[must_use]
    pub fn in_domain(self, domain: &'a str) -> Self {
        Self { domain, ..self }
    }

    /// Sets the cost: units taken from every limit that applies. 0 asks without taking.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// Gives the request an id, by which [`SharedLimiter::check_request`](crate::SharedLimiter::check_request) can be
    /// asked again when the answer was lost: the same request with the same id within a short time gets the same
    /// answer and counts once.
    ///
    /// A request of other keys, under other limits or at another cost is another one, and counts. The store bounds how
    /// often and for how long an answer is repeated: on Redis four times, within 10 s by default. A caller that reuses
    /// ids can pass five requests for the price of one, so accept ids only from callers that you trust. A
    /// [`Limiter`](crate::Limiter) always answers, and ignores them.
    pub fn id(self, id: &'a (impl AsRef<[u8]> + ?Sized)) -> Result<Self, RequestIdError> {
        let id = id.as_ref();
        match id.len() {
            1..=Self::MAX_ID => Ok(Self { id: Some(id), ..self }),
            length => Err(RequestIdError(length)),
        }
    }

    /// The domain.
    pub fn domain(&self) -> &'a str {
        self.domain
    }

    /// The units it takes.
    pub fn units(&self) -> u64 {
        self.cost
    }

    /// The id, if it has one.
    pub fn id_bytes(&self) -> Option<&'a [u8]> {
        self.id
    }

    /// The value of an attribute, if the request has it.
    pub fn attribute(&self, name: &str) -> Option<&'a [u8]> {
        self.attributes.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    /// The attributes, in the order they were added.
    pub fn attributes(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.attributes.iter().copied()
    }
}

impl Default for Request<'_> {
    fn default() -> Self {
        Self::new()
    }
}
