use std::cell::RefCell;

use smallvec::SmallVec;

use super::{
    Limiter,
    core::Core,
    path::{Item, Items},
};
use crate::{
    Algorithm, CostError, Decision, Denied, Key, KeyBuf, Request, store::memory::identity::Identity,
};

/// Units of a concurrency limit, held until this is dropped.
///
/// A permit also ends by itself when it is older than the limit's period, so that a holder that hangs cannot keep its
/// place for ever; whoever needs longer [renews](Self::renew) it in time.
#[derive(Debug)]
#[must_use = "dropping a permit returns it"]
pub struct Permit {
    limiter: Limiter,
    held: Held,
}

/// A decision, with a permit if it was allowed.
#[derive(Debug)]
#[must_use = "dropping an admission returns its permit"]
pub struct Admission<P = Permit> {
    /// What was decided.
    pub decision: Decision,
    /// What is now held, if allowed.
    pub permit: Option<P>,
}

/// What a permit is a permit of.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// The concurrency limits, by their places in the policy set, each with the key.
    limits: SmallVec<[(usize, KeyBuf); 1]>,
    /// Where somebody may wait for it.
    pub(super) queue: Option<Identity>,
    pub(super) id: u128,
}

impl Limiter {
    /// Takes a permit for `key` under a [concurrency](crate::Algorithm::Concurrency) limit.
    ///
    /// Other limits of the same key are charged as [`Limiter::check`] would, all or nothing.
    ///
    /// ```
    /// use pacegate::Limiter;
    ///
    /// let limiter = Limiter::builder().limit("1/30s concurrency").build()?;
    /// let first = limiter.acquire("alice");
    /// assert!(first.permit.is_some());
    /// assert!(limiter.acquire("alice").permit.is_none());
    /// drop(first);
    /// assert!(limiter.acquire("alice").permit.is_some());
    /// # Ok::<(), pacegate::BuildError>(())
    /// ```
    pub fn acquire(&self, key: impl Key) -> Admission {
        key.with(|key| {
            self.inner.with_items(key, |items| self.admit(items, 1)).unwrap_or_else(|error| {
                unreachable!("one unit fits every limit: {error}");
            })
        })
    }

    /// [`Limiter::acquire`] for a request and the policies that cover it.
    pub fn acquire_request(&self, request: &Request<'_>) -> Result<Admission, CostError> {
        let plan = self.inner.core.path.policies.plan(request);
        self.admit(super::items(&plan), request.units())
    }

    fn admit(&self, items: Items<'_>, cost: u64) -> Result<Admission, CostError> {
        let id = next_id();
        let decision = self.inner.charge(items.clone(), cost, id)?;
        let permit = decision.is_allowed().then(|| self.permit(&items, id));
        Ok(Admission { decision, permit })
    }

    /// Permit `id`, which has been taken.
    pub(super) fn permit(&self, items: &[Item<'_>], id: u128) -> Permit {
        Permit { limiter: self.clone(), held: self.inner.core.hold(items, id) }
    }
}

impl<P> Admission<P> {
    /// The permit, or the denial as an error.
    pub fn into_result(self) -> Result<P, Denied> {
        let decision = self.decision.into_result();
        match (decision, self.permit) {
            (Ok(_), Some(permit)) => Ok(permit),
            (Err(denied), _) => Err(denied),
            (Ok(_), None) => unreachable!("what is allowed comes with a permit"),
        }
    }
}

impl Permit {
    /// Returns a new id for a [charge](crate::Charge::permit) to a concurrency limit, for callers that keep permits
    /// themselves, as a server does for its clients.
    ///
    /// The id is 128 bits from the operating system's random number generator, so knowing other ids does not help to
    /// guess it. It is never 0, which means no permit.
    ///
    /// # Panics
    ///
    /// If the operating system returns no random bytes.
    pub fn new_id() -> u128 {
        next_id()
    }

    /// Starts the permit's life anew. `false` if it had already ended: then somebody else may hold its place.
    #[must_use = "a lost permit means that somebody else may run"]
    pub fn renew(&self) -> bool {
        self.limiter.inner.core.renew(&self.held)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limiter.inner.core.release(&self.held);
    }
}

impl Held {
    pub(super) fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.limits.iter().map(|(target, key)| (*target, key.as_ref()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }
}

impl Core {
    /// What permit `id` of a request is a permit of.
    pub(super) fn hold(&self, items: &[Item<'_>], id: u128) -> Held {
        let concurrent =
            |item: &&Item<'_>| self.path.target(**item).limit.algorithm() == Algorithm::Concurrency;
        let limits = items.iter().filter(concurrent);
        let limits = limits.map(|(target, key)| (*target, key.to_buf())).collect();
        Held { limits, queue: self.queue_of(items), id }
    }

    /// Returns a permit that is held in memory.
    pub(super) fn release(&self, held: &Held) {
        held.items().for_each(|item| self.memory.release(&self.slot(item, 0, held.id)));
        self.nudge(held.queue);
    }

    /// Renews a permit that is held in memory. `false` if it is gone.
    pub(super) fn renew(&self, held: &Held) -> bool {
        self.renew_items(held.items(), held.id)
    }

    /// Renews permit `id` of these limits in memory. One in shadow mode may never have held it.
    pub(super) fn renew_items<'a>(&self, items: impl Iterator<Item = Item<'a>>, id: u128) -> bool {
        let lost = |item: &Item<'_>| {
            !self.memory.renew(&self.slot(*item, 0, id)) && self.path.target(*item).enforced
        };
        // All of them, also after one is lost.
        items.filter(lost).count() == 0
    }
}

/// Random bytes for the next ids of a thread. One system call fills it for [`IDS_PER_CALL`] ids.
struct RandomIds {
    bytes: [u8; ID_BYTES * IDS_PER_CALL],
    used: usize,
}

const ID_BYTES: usize = size_of::<u128>();
const IDS_PER_CALL: usize = 16;

impl RandomIds {
    const fn empty() -> Self {
        Self { bytes: [0; ID_BYTES * IDS_PER_CALL], used: ID_BYTES * IDS_PER_CALL }
    }

    fn next(&mut self) -> u128 {
        if self.used == self.bytes.len() {
            if let Err(error) = getrandom::fill(&mut self.bytes) {
                panic!("the operating system returned no random bytes: {error}");
            }
            self.used = 0;
        }
        let mut id = [0; ID_BYTES];
        let next = self.used + ID_BYTES;
        id.copy_from_slice(&self.bytes[self.used..next]);
        // An id that was returned does not stay in memory.
        self.bytes[self.used..next].fill(0);
        self.used = next;
        u128::from_le_bytes(id).max(1)
    }
}

/// Returns an id for [`Permit::new_id`].
pub(super) fn next_id() -> u128 {
    thread_local! {
        static IDS: RefCell<RandomIds> = const { RefCell::new(RandomIds::empty()) };
    }
    IDS.with_borrow_mut(RandomIds::next)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::next_id;

    #[test]
    fn ids_use_all_128_bits_and_do_not_follow_from_each_other() {
        let mut ids: Vec<u128> = (0..1_000).map(|_| next_id()).collect();
        ids.extend(std::thread::spawn(|| [(); 1_000].map(|()| next_id())).join().unwrap());
        let differences: HashSet<u128> =
            ids.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert_eq!(differences.len(), ids.len() - 1, "no two steps are alike");
        for bit in 0..128 {
            let set = ids.iter().filter(|id| (*id >> bit) & 1 == 1).count();
            // 1,000 of 2,000 are expected; the standard deviation is 22.
            assert!((800..1_200).contains(&set), "bit {bit} is set in {set} of 2,000 ids");
        }
        assert!(!ids.contains(&0));
    }
}
