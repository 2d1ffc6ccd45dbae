//! The limiters of this process, for functions with `#[rate_limit]` that are not passed a limiter.
//!
//! Setup is optional. By default, all functions share one [`Limiter`] in memory. A program that shares counters with
//! other processes installs a [`SharedLimiter`] when it starts:
//!
//! ```
//! use pacegate::{MemoryStore, SharedLimiter, registry};
//!
//! let store = MemoryStore::default(); // or a `RedisStore`
//! let limiter = SharedLimiter::builder(store).limit("100/minute").build()?;
//! registry::install_shared(limiter.clone())?;
//! assert!(registry::install_shared(limiter).is_err(), "once");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An installed limiter cannot be replaced. It must be installed before the first call that would use it. After such a
//! call, installing fails with [`InUse`]: otherwise earlier calls would have been counted in another limiter.

use std::{collections::HashMap, sync::OnceLock};

use parking_lot::RwLock;

use crate::{Key, Limit, Limiter, SharedLimiter, StoreError, attribute};

static MEMORY: OnceLock<Limiter> = OnceLock::new();
/// `None` if it was read before a limiter was installed; then none can be installed.
static SHARED: OnceLock<Option<SharedLimiter>> = OnceLock::new();
static NAMED: RwLock<Option<HashMap<String, Option<SharedLimiter>>>> = RwLock::new(None);

/// A limiter cannot be installed, because another one is already in use in its place.
///
/// Install limiters at the start of `main`, before any function with `#[rate_limit]` can run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is in use already: install it once, before the first call that needs it")]
pub struct InUse {
    what: String,
}

/// Installs the limiter in memory, for example one with another clock or another maximum number of keys.
///
/// Synchronous functions use it. Async functions use it only if no shared limiter is installed. The limits of its
/// policies are not used: each function is charged under the limits of its attribute.
///
/// ```
/// use pacegate::{Limiter, registry};
///
/// registry::install(Limiter::builder().limit("1/second").max_keys(50_000).build()?)?;
/// assert_eq!(registry::memory().store().usage().max_keys, 50_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn install(limiter: Limiter) -> Result<(), InUse> {
    MEMORY.set(limiter).map_err(|_| InUse { what: "the limiter in memory".to_owned() })
}

/// Installs the limiter of async functions whose attribute does not name a limiter.
///
/// The limits of its policies are not used: each function is charged under the limits of its attribute.
pub fn install_shared(limiter: SharedLimiter) -> Result<(), InUse> {
    SHARED.set(Some(limiter)).map_err(|_| InUse { what: "the shared limiter".to_owned() })
}

/// Installs the limiter of async functions whose attribute names it. Convert a [`Limiter`] with `into()`.
///
/// Fails if a limiter of this name is installed, or if a function has already used the name without one.
///
/// ```
/// use pacegate::{Limit, Limiter, registry};
///
/// // For #[rate_limit("5/minute", limiter = "mail")]
/// registry::install_named("mail", Limiter::memory(Limit::per_second(1)).into())?;
/// assert!(registry::named("mail").is_some());
/// # Ok::<(), registry::InUse>(())
/// ```
pub fn install_named(name: impl Into<String>, limiter: SharedLimiter) -> Result<(), InUse> {
    let name = name.into();
    let mut named = NAMED.write();
    let named = named.get_or_insert_default();
    if named.contains_key(&name) {
        return Err(InUse { what: format!("the limiter `{}`", name.escape_debug()) });
    }
    named.insert(name, Some(limiter));
    Ok(())
}

/// Returns the limiter in memory. If none is installed, installs one with the defaults: at most a million keys, the
/// system's clock.
pub fn memory() -> &'static Limiter {
    // Every charge brings its limit, so this one is never used.
    MEMORY.get_or_init(|| Limiter::memory(Limit::per_second(0)))
}

/// Returns the shared limiter, if one is installed. After this call, none can be installed.
pub fn shared() -> Option<&'static SharedLimiter> {
    SHARED.get_or_init(|| None).as_ref()
}

/// Returns the limiter of this name, if one is installed. After this call, none can be installed under the name.
pub fn named(name: &str) -> Option<SharedLimiter> {
    if let Some(known) = NAMED.read().as_ref().and_then(|named| named.get(name)) {
        return known.clone();
    }
    let mut named = NAMED.write();
    named.get_or_insert_default().entry(name.to_owned()).or_default().clone()
}

/// Removes the counters of a key that functions with `#[rate_limit]` have charged, in the limiter in
/// [memory](memory()). Use it in tests, so that each starts with unused limits.
///
/// `policy` is the `name` of the attribute, or the path of the function with dots: `shop.Mailer.send`. A function
/// without a `key` counts under `()`. Nothing happens if no function of this policy was called yet.
///
/// ```
/// // After #[rate_limit("10/minute", name = "mail", key = user)] fn send(user: &str) ...
/// pacegate::registry::reset("mail", "alice");
/// ```
pub fn reset(policy: &str, key: impl Key) {
    reset_in(memory(), policy, key);
}

/// [`reset`] for functions whose attribute has a `limiter`.
pub fn reset_in(limiter: &Limiter, policy: &str, key: impl Key) {
    key.with(|key| limiter.charges().reset(&attribute::used(policy, key)));
}

/// [`reset`] for functions that use a shared limiter, either [installed](shared()) or passed by the attribute.
///
/// If the store fails, the counters in this process are removed nevertheless, and the error is returned.
pub async fn reset_shared(
    limiter: &SharedLimiter,
    policy: &str,
    key: impl Key,
) -> Result<(), StoreError> {
    let key = key.with(|key| key.to_buf());
    limiter.charges().reset(&attribute::used(policy, key.as_ref())).await
}
