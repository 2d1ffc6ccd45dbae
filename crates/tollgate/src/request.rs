//! What is asked: a domain, attributes and a cost.

use smallvec::SmallVec;

/// A request as policies see it: a domain, some attributes, and what it costs.
///
/// Borrows everything, so building one allocates nothing for up to eight attributes.
///
/// ```
/// use tollgate::Request;
///
/// let request = Request::new().with("user", "alice").with("path", "/api/export").cost(5);
/// assert_eq!(request.attribute("user"), Some(&b"alice"[..]));
/// ```
#[derive(Clone, Debug)]
pub struct Request<'a> {
    domain: &'a str,
    attributes: SmallVec<[(&'a str, &'a [u8]); 8]>,
    cost: u64,
}

impl<'a> Request<'a> {
    /// The attribute that stands for the key of a request that has nothing else.
    pub const KEY: &'static str = "key";

    /// A request of the default domain, without attributes, at a cost of 1.
    pub fn new() -> Self {
        Self { domain: "", attributes: SmallVec::new(), cost: 1 }
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

    /// The domain.
    pub fn domain(&self) -> &'a str {
        self.domain
    }

    /// The units it takes.
    pub fn units(&self) -> u64 {
        self.cost
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
