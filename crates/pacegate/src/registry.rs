//! The limiters of this process, for code that is handed none: functions with `#[rate_limit]`, above all.
//!
//! There is nothing to set up. Until something is installed, everybody counts in one [`Limiter`] in memory. A program
//! that shares budgets with other processes installs a [`SharedLimiter`] where it starts:
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
//! What is installed stays. It has to be installed before it is first used: otherwise some calls would have been
//! counted in one place and some in another, and nobody would know.

use std::{collections::HashMap, sync::OnceLock};

use parking_lot::RwLock;

use crate::{Key, Limit, Limiter, SharedLimiter, StoreError, attribute};

static MEMORY: OnceLock<Limiter> = OnceLock::new();
/// `None` once somebody has done without.
static SHARED: OnceLock<Option<SharedLimiter>> = OnceLock::new();
static NAMED: RwLock<Option<HashMap<String, Option<SharedLimiter>>>> = RwLock::new(None);

/// Why a limiter cannot be installed: another one is in use in its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is in use already: install it once, before the first call that needs it")]
pub struct InUse {
    what: String,
}

/// Installs the limiter that counts in memory: for functions that are not async, and for async ones unless there is a
/// shared one. With a clock or a bound of your own, say.
pub fn install(limiter: Limiter) -> Result<(), InUse> {
    MEMORY.set(limiter).map_err(|_| InUse { what: "the limiter in memory".to_owned() })
}

/// Installs the limiter of async functions that name none.
pub fn install_shared(limiter: SharedLimiter) -> Result<(), InUse> {
    SHARED.set(Some(limiter)).map_err(|_| InUse { what: "the shared limiter".to_owned() })
}

/// Installs the limiter of async functions that ask for it by this name. A [`Limiter`] becomes a shared one by
/// `into()`.
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

/// The limiter in memory. Where none was installed, one of the defaults.
pub fn memory() -> &'static Limiter {
    // Whoever charges it says by how much it limits; its own limit is for nobody.
    MEMORY.get_or_init(|| Limiter::memory(Limit::per_second(0)))
}

/// The shared limiter, if one is installed. From now on, none can be.
pub fn shared() -> Option<&'static SharedLimiter> {
    SHARED.get_or_init(|| None).as_ref()
}

/// The limiter of this name, if one is installed. From now on, none can be.
pub fn named(name: &str) -> Option<SharedLimiter> {
    if let Some(known) = NAMED.read().as_ref().and_then(|named| named.get(name)) {
        return known.clone();
    }
    let mut named = NAMED.write();
    named.get_or_insert_default().entry(name.to_owned()).or_default().clone()
}

/// Forgets what functions with `#[rate_limit]` were charged for a key, in the limiter in [memory](memory()). For tests:
/// each can start from nothing.
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

/// [`reset`] for functions that are given a `limiter`.
pub fn reset_in(limiter: &Limiter, policy: &str, key: impl Key) {
    key.with(|key| limiter.charges().reset(&attribute::used(policy, key)));
}

/// [`reset`] for functions that count in a shared limiter, which is [installed](shared()) or given.
pub async fn reset_shared(
    limiter: &SharedLimiter,
    policy: &str,
    key: impl Key,
) -> Result<(), StoreError> {
    let key = key.with(|key| key.to_buf());
    limiter.charges().reset(&attribute::used(policy, key.as_ref())).await
}
