use pacegate::Denied;
use pacegate_macros::rate_limit;

struct Service {
    tenant: String,
}

#[rate_limit("1/minute", key = user)]
impl Service {
    fn new() -> Self {
        Self { tenant: String::new() }
    }

    const fn constant(&self, user: &str) -> Result<usize, Denied> {
        Ok(user.len())
    }

    fn nothing(&self, user: &str) {
        let _ = user;
    }
}

#[rate_limit("1/minute")]
#[rate_limit("1/hour")]
impl Service {
    fn twice(&self) -> Result<(), Denied> {
        Ok(())
    }
}

#[rate_limit("1/minute")]
impl Service {
    const LIMIT: u32 = 1;
}

#[rate_limit("1/minute")]
trait Call {
    fn call(&self) -> Result<(), Denied>;
}

fn main() {
    let service = Service::new();
    let _ = (service.constant("a"), service.nothing("a"), service.twice(), Service::LIMIT);
    let _ = service.tenant;
}
