use pacegate::Denied;
use pacegate_macros::rate_limit;

struct MyError;

#[rate_limit("1/minute")]
fn nothing() {}

#[rate_limit("1/minute")]
async fn number() -> u32 {
    1
}

#[rate_limit("1/minute")]
fn error() -> Result<u32, MyError> {
    Ok(1)
}

#[rate_limit("1/minute")]
fn hidden() -> impl std::future::Future<Output = Result<u32, Denied>> {
    std::future::ready(Ok(1))
}

#[rate_limit("1/minute", on_denied = |denied| denied)]
fn answer() -> Option<u32> {
    None
}

fn main() {}
