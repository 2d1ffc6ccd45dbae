//! The limiter over a store that a test has in its hands.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tollgate::{
    Answer, Charge, KeyBuf, ManualClock, MemoryStore, Policy, PolicySet, Request, SharedLimiter,
    Store, StoreError, algorithm::Outcome, policy::Lease,
};

use crate::limit;

/// A memory store that remembers what it was asked, and answers only as long as the test lets it.
#[derive(Clone, Debug)]
pub(crate) struct Double {
    store: MemoryStore,
    asked: Arc<Mutex<Vec<Asked>>>,
    failing: Arc<Mutex<Option<StoreError>>>,
    /// What was answered to the requests with these ids.
    once: Arc<Mutex<HashMap<Vec<u8>, Vec<Outcome>>>>,
}

/// One charge of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) policy: String,
    pub(crate) key: KeyBuf,
    pub(crate) tag: KeyBuf,
    pub(crate) lease: u64,
}

impl Double {
    pub(crate) fn new(clock: &ManualClock) -> Self {
        let store = MemoryStore::new(1_000, clock.clone());
        Self { store, asked: Arc::default(), failing: Arc::default(), once: Arc::default() }
    }

    /// From now on every call fails.
    pub(crate) fn fail(&self, error: StoreError) {
        *self.failing.lock().unwrap() = Some(error);
    }

    /// From now on calls are answered again.
    pub(crate) fn recover(&self) {
        *self.failing.lock().unwrap() = None;
    }

    /// What was asked since the last time.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn answer<'a, T: Send + 'a>(
        &'a self,
        charges: &[Charge<'_>],
        answer: impl FnOnce() -> Answer<'a, T> + Send + 'a,
    ) -> Answer<'a, T> {
        self.asked.lock().unwrap().extend(charges.iter().map(|charge| Asked {
            policy: charge.policy.to_string(),
            key: charge.key.to_buf(),
            tag: charge.tag.to_buf(),
            lease: charge.lease,
        }));
        match self.failing.lock().unwrap().clone() {
            Some(error) => Box::pin(async move { Err(error) }),
            None => answer(),
        }
    }
}

impl Store for Double {
    fn charge<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, Vec<Outcome>> {
        self.answer(charges, || self.store.charge(charges))
    }

    fn charge_once<'a>(
        &'a self,
        id: &'a [u8],
        charges: &'a [Charge<'a>],
    ) -> Answer<'a, Vec<Outcome>> {
        self.answer(charges, || {
            Box::pin(async {
                let known = self.once.lock().unwrap().get(id).cloned();
                let Some(outcomes) = known else {
                    let outcomes = self.store.charge(charges).await?;
                    self.once.lock().unwrap().insert(id.to_vec(), outcomes.clone());
                    return Ok(outcomes);
                };
                Ok(outcomes)
            })
        })
    }

    fn refund<'a>(&'a self, charge: &'a Charge<'a>) -> Answer<'a, ()> {
        self.answer(&[*charge], || Store::refund(&self.store, charge))
    }

    fn reset<'a>(&'a self, charge: &'a Charge<'a>) -> Answer<'a, ()> {
        self.answer(&[*charge], || Store::reset(&self.store, charge))
    }

    fn release<'a>(&'a self, charge: &'a Charge<'a>) -> Answer<'a, ()> {
        self.answer(&[*charge], || Store::release(&self.store, charge))
    }

    fn renew<'a>(&'a self, charge: &'a Charge<'a>) -> Answer<'a, bool> {
        self.answer(&[*charge], || Store::renew(&self.store, charge))
    }
}

pub(crate) fn policy(name: &str, text: &str) -> Policy {
    Policy::new(name.parse().unwrap(), [limit(text)])
}

#[test]
fn charges_carry_the_tag_and_the_lease_of_their_policy() {
    let store = Double::new(&ManualClock::new());
    let policies = PolicySet::new([
        policy("key", "100/hour").per(["key"]).leased(Lease::Percent(5)),
        policy("part", "100/hour").per(["path", "key"]).tagged_by("key"),
        policy("name", "100/hour").per(["path"]).tagged("all"),
    ]);
    let limiter = SharedLimiter::new(store.clone(), policies.unwrap());
    let tags = || -> Vec<_> { store.asked().iter().map(|asked| asked.tag.clone()).collect() };
    let one = |text: &str| tollgate::KeyRef::new(text.as_bytes()).to_buf();

    let request = Request::new().with("key", "alice").with("path", "/x");
    let _ = pollster::block_on(limiter.check_request(&request)).unwrap();
    let asked = store.asked();
    let tags_of_request: Vec<_> = asked.iter().map(|asked| asked.tag.clone()).collect();
    assert_eq!(tags_of_request, [one("alice"), one("alice"), one("all")]);
    assert_eq!(asked.iter().map(|asked| asked.lease).collect::<Vec<_>>(), [5, 0, 0]);

    // Where the attribute is missing, the key is the tag.
    let anonymous = Request::new().with("path", "/x");
    let _ = pollster::block_on(limiter.check_request(&anonymous)).unwrap();
    assert!(store.asked()[..2].iter().all(|asked| asked.tag == asked.key));

    // What is given back has to find what was charged.
    let _ = pollster::block_on(limiter.check("alice")).unwrap();
    let charged = tags();
    pollster::block_on(limiter.refund("alice", 1)).unwrap();
    assert_eq!(tags(), charged);
    pollster::block_on(limiter.reset("alice")).unwrap();
    assert_eq!(tags(), charged);
}

#[test]
fn a_request_with_an_id_counts_once() {
    let limiter = SharedLimiter::new(
        Double::new(&ManualClock::new()),
        PolicySet::new([policy("api", "9/hour")]).unwrap(),
    );
    let ask = |request: &Request<'_>| pollster::block_on(limiter.check_request(request));
    let first = Request::new().id("first").unwrap();
    assert_eq!(ask(&first).unwrap().remaining(), 8);
    assert_eq!(ask(&first).unwrap().remaining(), 8, "the same answer");
    assert_eq!(ask(&Request::new().id(b"second").unwrap()).unwrap().remaining(), 7);
    assert_eq!(ask(&Request::new()).unwrap().remaining(), 6);
    let peek = first.clone().cost(0);
    assert_eq!(ask(&peek).unwrap().remaining(), 6, "a peek tells what is");

    let memory = MemoryStore::default();
    let limiter = SharedLimiter::builder(memory).limit("9/hour").build().unwrap();
    let error = pollster::block_on(limiter.check_request(&first)).unwrap_err();
    assert!(matches!(error, tollgate::CheckError::Store(StoreError::Unsupported(_))), "{error}");
}

#[test]
fn an_id_is_neither_empty_nor_long() {
    let error = Request::new().id("").unwrap_err().to_string();
    assert_eq!(error, "the id of a request has from 1 to 128 bytes, not 0");
    assert!(Request::new().id(&[7; 129]).is_err());
    assert_eq!(Request::new().id(&[7; 128]).unwrap().id_bytes(), Some(&[7; 128][..]));
}
