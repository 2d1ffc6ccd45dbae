//! Limiters that a function finds by itself. One test, for there is one registry in a process.

use pacegate::{Denied, Limiter, ManualClock, SharedLimiter, registry};
use pacegate_macros::rate_limit;

use crate::admitted;

#[rate_limit("2/minute")]
fn sync() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("2/minute")]
async fn waits() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("2/minute", limiter = "bulk")]
async fn bulk() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("2/minute", limiter = "nobody")]
async fn unknown() -> Result<(), Denied> {
    Ok(())
}

fn limiter() -> Limiter {
    Limiter::builder().limit("0/second").clock(ManualClock::new()).build().unwrap()
}

#[test]
fn functions_use_the_installed_limiter() {
    let [memory, shared, named] = [limiter(), limiter(), limiter()];
    let share = |limiter: &Limiter| SharedLimiter::from(limiter.clone());
    registry::install(memory.clone()).unwrap();
    registry::install_shared(share(&shared)).unwrap();
    registry::install_named("bulk", share(&named)).unwrap();

    assert_eq!(admitted(3, sync), 2);
    registry::reset("it.installed.sync", ());
    assert_eq!(admitted(3, sync), 2);
    assert_eq!(admitted(3, || pollster::block_on(waits())), 2);
    assert_eq!(admitted(3, || pollster::block_on(bulk())), 2);
    let keys = [&memory, &shared, &named].map(|limiter| limiter.store().usage().keys);
    assert_eq!(keys, [1, 1, 1]);

    assert_eq!(admitted(3, || pollster::block_on(unknown())), 2);
    assert_eq!(memory.store().usage().keys, 2, "limiters that are not installed count in memory");

    for (error, what) in [
        (registry::install(memory.clone()), "the limiter in memory"),
        (registry::install_shared(share(&shared)), "the shared limiter"),
        (registry::install_named("bulk", share(&named)), "the limiter `bulk`"),
        (registry::install_named("nobody", share(&named)), "the limiter `nobody`"),
    ] {
        let told = "is in use already: install it once, before the first call that needs it";
        assert_eq!(error.unwrap_err().to_string(), format!("{what} {told}"));
    }
}
