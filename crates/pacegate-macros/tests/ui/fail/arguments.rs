use pacegate::Denied;
use pacegate_macros::rate_limit;

#[rate_limit("1/minute", kee = user)]
fn unknown(user: &str) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", key = user, key = user)]
fn twice(user: &str) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", key = user.name)]
fn field(user: &str) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", key = 1.5)]
fn float() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", cost = -1)]
fn negative() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", cost = user)]
fn text(user: &str) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", scope = "user")]
fn scope() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", scope = "global", key = user)]
fn global(user: &str) -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", scope = "key")]
fn nobody() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", name = "not a name")]
fn name() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", name = "inline")]
fn reserved() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", failure = "ajar")]
fn failure() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("1/minute", enabled = 1)]
fn enabled() -> Result<(), Denied> {
    Ok(())
}

fn main() {}
