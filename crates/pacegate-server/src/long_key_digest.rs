//! Digests that replace values that are too long to be part of a key.
//!
//! A proxy that gets an error allows the request or fails it, so its requests must not be rejected for a long value.
//! Policies match the original value; the key contains its SHA-256 if it exceeds the maximum length.

use pacegate::{Charge, CheckError, CostError, Decision, KeyBuf, KeyRef, Plan, Request};
use sha2::{Digest, Sha256};

use crate::engine::Engine;

/// The limits that apply to a request, with keys of bounded length.
#[derive(Debug)]
pub(crate) struct BoundedPlan<'a> {
    plan: Plan<'a>,
    /// The replacement key of each charge; `None` to keep the key. Empty if no key is replaced.
    keys: Vec<Option<KeyBuf>>,
}

/// The prefix of every digest in a key.
const PREFIX: &str = "long:sha256:";

impl<'a> BoundedPlan<'a> {
    /// Selects the limits of a request and replaces key parts of more than `most` bytes.
    pub(crate) fn new(engine: &'a Engine, request: &Request<'_>, most: usize) -> Self {
        let plan = engine.plan(request);
        let mut keys = Vec::new();
        if needs_one(request, most) {
            // A cost of 0 is never too large.
            let charges = plan.charges(0).unwrap_or_default();
            keys.extend(charges.iter().map(|charge| key(charge.key, most)));
        }
        Self { plan, keys }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.plan.is_empty()
    }

    /// Returns the charges of the request at this cost. Fails if the cost can never be admitted.
    pub(crate) fn charges(&self, cost: u64) -> Result<Vec<Charge<'_>>, CostError> {
        let mut charges = self.plan.charges(cost)?;
        for (charge, key) in charges.iter_mut().zip(&self.keys) {
            charge.key = key.as_ref().map_or(charge.key, KeyBuf::as_ref);
        }
        Ok(charges)
    }
}

/// Calls [`Engine::check`] for a request whose values may have any length.
pub(crate) async fn check(
    engine: &Engine,
    request: &Request<'_>,
    most: usize,
) -> Result<Decision, CheckError> {
    if !needs_one(request, most) {
        return engine.check(request).await;
    }
    let plan = BoundedPlan::new(engine, request, most);
    Ok(engine.check_batch(&plan.charges(request.units())?, None).await?.decision)
}

/// Replaces the parts of a key of more than `most` bytes; `None` if there are none.
pub(crate) fn key(key: KeyRef<'_>, most: usize) -> Option<KeyBuf> {
    if !key.parts().flatten().any(|part| is_needed(part, most)) {
        return None;
    }
    let mut parts = key.parts();
    if let (Some(Some(part)), None) = (parts.next(), parts.next()) {
        return Some(KeyRef::new(of(part).as_bytes()).to_buf());
    }
    let mut bounded = KeyBuf::empty();
    for part in key.parts() {
        match part.filter(|part| is_needed(part, most)) {
            Some(long) => bounded.push(Some(of(long).as_bytes())),
            None => bounded.push(part),
        }
    }
    Some(bounded)
}

fn needs_one(request: &Request<'_>, most: usize) -> bool {
    request.attributes().any(|(name, value)| match name {
        // The normalized path may be longer, see `Paths::normalize`.
        Request::PATH => is_needed(value, most.saturating_sub(1) / 3),
        _ => is_needed(value, most),
    })
}

/// Returns true for long values, and for values that look like a digest, so that no client can imitate another value.
fn is_needed(value: &[u8], most: usize) -> bool {
    value.len() > most || value.starts_with(PREFIX.as_bytes())
}

fn of(value: &[u8]) -> String {
    let digest = Sha256::digest(value);
    let digits = digest.iter().map(|byte| format!("{byte:02x}"));
    std::iter::once(PREFIX.to_owned()).chain(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH_OF_AAAAA: &[u8] =
        b"long:sha256:ed968e840d10d2d313a870bc131a4e2c311d7ad09bdf32b3418147221f51a6e2";

    #[test]
    fn only_long_parts_are_replaced() {
        assert_eq!(key(KeyRef::new(b"aaaa"), 4), None);
        assert_eq!(key(KeyRef::new(b"aaaaa"), 4), Some(KeyRef::new(HASH_OF_AAAAA).to_buf()));
        let tuple = |parts: &[Option<&[u8]>]| {
            let mut key = KeyBuf::empty();
            parts.iter().for_each(|part| key.push(*part));
            key
        };
        let written = tuple(&[Some(b"a"), None, Some(b"aaaaa"), Some(b"")]);
        let counted = tuple(&[Some(b"a"), None, Some(HASH_OF_AAAAA), Some(b"")]);
        assert_eq!(key(written.as_ref(), 4), Some(counted));
        assert_eq!(key(written.as_ref(), 5), None);
    }

    #[test]
    fn a_value_cannot_imitate_the_digest_of_another() {
        let imitated = key(KeyRef::new(HASH_OF_AAAAA), 1024).unwrap();
        assert_ne!(imitated.as_ref(), KeyRef::new(HASH_OF_AAAAA));
        assert_eq!(imitated.as_ref().parts().flatten().map(<[u8]>::len).sum::<usize>(), 76);
    }
}
