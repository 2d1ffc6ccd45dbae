//! [`Request`]: a domain, attributes, a cost and an optional id.

use smallvec::SmallVec;

/// A request to be checked by policies: a domain, attributes and a cost.
///
/// Borrows everything, so building one allocates nothing for up to eight attributes. Attribute names are yours;
/// policies refer to them in `matching` and `per`. Two names have a meaning: [`Request::KEY`] and [`Request::PATH`].
///
/// Pass values that you trust: an address from a header that a client can write lets the client choose its counter.
///
/// ```
/// use pacegate::Request;
///
/// let request = Request::new().with("user", "alice").with("path", "/api/export").cost(5);
/// assert_eq!(request.attribute("user"), Some(&b"alice"[..]));
/// ```
///
/// The calls for requests are [`check_request`](crate::Limiter::check_request),
/// [`peek_request`](crate::Limiter::peek_request), [`refund_request`](crate::Limiter::refund_request),
/// [`until_ready_request`](crate::Limiter::until_ready_request), [`acquire_request`](crate::Limiter::acquire_request)
/// and [`acquire_request_within`](crate::Limiter::acquire_request_within).
/// [`PolicySet::covering`](crate::PolicySet::covering) shows which policies apply.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    domain: &'a str,
    attributes: SmallVec<[(&'a str, &'a [u8]); 8]>,
    cost: u64,
    id: Option<&'a [u8]>,
    spent: bool,
}

/// Error of [`Request::id`]: the id is empty, or longer than [`Request::MAX_ID`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a request has from 1 to {max} bytes, not {0}", max = Request::MAX_ID)]
pub struct RequestIdError(usize);

impl<'a> Request<'a> {
    /// The attribute that holds the key when a limiter is called with a key instead of a request, as by
    /// [`Limiter::check`](crate::Limiter::check).
    pub const KEY: &'static str = "key";

    /// The attribute that is a path. Policies compare it and count by it in a normal form, see
    /// [`Paths`](crate::policy::Paths).
    pub const PATH: &'static str = "path";

    /// The maximum length of an id, in bytes.
    pub const MAX_ID: usize = 128;

    /// Creates a request in the default domain (the empty text), without attributes, with a cost of 1.
    #[inline]
    pub fn new() -> Self {
        Self { domain: "", attributes: SmallVec::new(), cost: 1, id: None, spent: false }
    }

    /// Adds an attribute. If several have the same name, policies use the first.
    ///
    /// Values are bytes, so they need not be valid UTF-8. More than eight attributes need a heap allocation.
    #[must_use]
    #[inline]
    pub fn with(mut self, name: &'a str, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.attributes.push((name, value.as_ref()));
        self
    }

    /// Sets the domain. Only policies of the same domain cover the request. Default: the empty text.
    ///
    /// An unknown domain is not an error: no policy covers the request, so it is allowed.
    #[must_use]
    #[inline]
    pub fn in_domain(self, domain: &'a str) -> Self {
        Self { domain, ..self }
    }

    /// Sets the cost: the units charged to every limit that applies. Default: 1.
    ///
    /// A cost of 0 charges nothing and returns the decision for one unit. A cost above the capacity of a limit is an
    /// error of the check, because it could never be admitted.
    #[must_use]
    #[inline]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// Marks the cost as already spent: it is recorded in full by every limit that applies, even if it exceeds the
    /// limit or another limit denies.
    ///
    /// Units beyond a limit become [debt](crate::Excess::Debt): later requests wait until it is paid back. The decision
    /// is a denial if a limit is exceeded. Concurrency limits do not apply.
    ///
    /// ```
    /// use pacegate::{Limiter, Request};
    ///
    /// let limiter = Limiter::memory("1000/hour".parse()?);
    /// let request = Request::new().with("key", "alice");
    /// assert!(limiter.peek_request(&request).is_allowed());
    /// // The answer took more tokens than were left.
    /// assert!(!limiter.check_request(&request.clone().cost(1_200).spent())?.is_allowed());
    /// assert!(!limiter.peek_request(&request).is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn spent(self) -> Self {
        Self { spent: true, ..self }
    }

    /// Sets an id, so that [`SharedLimiter::check_request`](crate::SharedLimiter::check_request) can be retried if its
    /// answer was lost: the same request with the same id within a short time gets the same answer and counts once.
    ///
    /// A request with the same id but other keys, limits or another cost is a different request, and counts. The store
    /// limits how often and for how long it repeats an answer: on Redis four times, within 10 s by default. A caller
    /// that reuses ids can pass five requests for the price of one, so accept ids only from callers that you trust. A
    /// [`Limiter`](crate::Limiter) ignores ids, because its answers cannot get lost.
    ///
    /// # Errors
    ///
    /// [`RequestIdError`] if the id is empty or longer than [`Request::MAX_ID`] bytes.
    ///
    /// ```
    /// use pacegate::Request;
    ///
    /// let request = Request::new().with("user", "alice").id("order-4711")?;
    /// assert_eq!(request.id_bytes(), Some(&b"order-4711"[..]));
    /// assert!(Request::new().id("").is_err());
    /// # Ok::<(), pacegate::RequestIdError>(())
    /// ```
    pub fn id(self, id: &'a (impl AsRef<[u8]> + ?Sized)) -> Result<Self, RequestIdError> {
        let id = id.as_ref();
        match id.len() {
            1..=Self::MAX_ID => Ok(Self { id: Some(id), ..self }),
            length => Err(RequestIdError(length)),
        }
    }

    /// Returns the domain; empty for the default domain.
    pub fn domain(&self) -> &'a str {
        self.domain
    }

    /// Returns the cost in units.
    pub fn units(&self) -> u64 {
        self.cost
    }

    /// Returns `true` if the cost is already [spent](Self::spent).
    pub fn is_spent(&self) -> bool {
        self.spent
    }

    /// Returns the id, if it was set.
    pub fn id_bytes(&self) -> Option<&'a [u8]> {
        self.id
    }

    /// Returns the value of an attribute, or `None` if the request lacks it. If several have the name, the first.
    pub fn attribute(&self, name: &str) -> Option<&'a [u8]> {
        self.attributes.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    /// Returns the attributes in the order they were added, including repeated names.
    pub fn attributes(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.attributes.iter().copied()
    }
}

impl Default for Request<'_> {
    fn default() -> Self {
        Self::new()
    }
}
