use pacegate::Denied;
use pacegate_macros::rate_limit;

#[rate_limit("1/minute", crate = nowhere)]
fn missing() -> Result<(), Denied> {
    Ok(())
}

fn main() {}
