use pacegate::Denied;
use pacegate_macros::rate_limit;

#[rate_limit("10/fortnight")]
fn unit() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10")]
fn period() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/second burst 20 sliding-log")]
fn burst() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/minute", "20/60s")]
fn same() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit]
fn none() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(10)]
fn number() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit("10/minute", limit = pacegate::Limit::per_second(1))]
fn both() -> Result<(), Denied> {
    Ok(())
}

#[rate_limit(limit = "10/minute".len())]
fn wrong() -> Result<(), Denied> {
    Ok(())
}

fn main() {
    // All of them are there, whatever is wrong with their limits.
    let _ = (unit, period, burst, same, none, number, both, wrong);
}
