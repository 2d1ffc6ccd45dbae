use pacegate::Denied;
use pacegate_macros::rate_limit;

struct Service;

// The key has to be known in every method that uses it.
#[rate_limit("1/minute", key = user)]
impl Service {
    fn list(&self, user: &str) -> Result<usize, Denied> {
        Ok(user.len())
    }

    fn count(&self) -> Result<usize, Denied> {
        Ok(1)
    }
}

fn main() {
    let _ = (Service.list("a"), Service.count());
}
