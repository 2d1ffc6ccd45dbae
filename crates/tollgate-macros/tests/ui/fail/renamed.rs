use tollgate::Denied;
use tollgate_macros::rate_limit;

#[rate_limit("1/minute", crate = "tollgate")]
fn text() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", crate = find())]
fn found() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", crate = ::tollgate, crate = tollgate)]
fn twice() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", self = tollgate)]
fn keyword() -> Result<(), Denied> {
    Ok(())
}

fn main() {}
