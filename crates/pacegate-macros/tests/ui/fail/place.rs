use pacegate::Denied;
use pacegate_macros::rate_limit;

#[rate_limit("1/minute")]
struct Service;

trait Call {
    #[rate_limit("1/minute")]
    fn call(&self) -> Result<(), Denied>;
}

#[rate_limit("1/minute")]
const fn constant() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute")]
#[rate_limit("1/hour")]
fn twice() -> Result<(), Denied> {
    Ok(())
}

// What is there stays there: nothing is said of those who use it.
fn main() {
    let _ = Service;
    let _ = |call: &dyn Call| call.call();
    let _ = (constant(), twice());
}
