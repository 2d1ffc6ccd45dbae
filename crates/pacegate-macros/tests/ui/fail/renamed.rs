use pacegate::Denied;
use pacegate_macros::rate_limit;

#[rate_limit("1/minute", crate = "pacegate")]
fn text() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", crate = find())]
fn found() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", crate = ::pacegate, crate = pacegate)]
fn twice() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", self = pacegate)]
fn keyword() -> Result<(), Denied> {
    Ok(())
}

fn main() {}
