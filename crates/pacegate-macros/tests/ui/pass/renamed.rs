//! The library under another name, as a program sees it that has it from somebody else.

mod shop {
    pub mod limits {
        pub use pacegate::{Denied, attribute, policy, registry};
    }
}

use shop::limits::Denied;
use pacegate_macros::rate_limit;

#[rate_limit("1/day", failure = "local", cost = 1, crate = shop::limits)]
fn greet() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/day", failure = "open", crate = crate::shop::limits, on_denied = |_| false)]
async fn later() -> bool {
    true
}

#[rate_limit("1/day", limiter = "bulk", crate = self::shop::limits)]
async fn named() -> Result<(), Denied> {
    Ok(())
}

fn main() {
    assert!(greet().is_ok() && greet().is_err());
    assert_eq!([(); 2].map(|()| pollster::block_on(later())), [true, false]);
    assert!(pollster::block_on(named()).is_ok() && pollster::block_on(named()).is_err());
}
