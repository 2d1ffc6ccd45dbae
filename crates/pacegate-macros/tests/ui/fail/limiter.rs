use pacegate::{Denied, Limiter, SharedLimiter};
use pacegate_macros::rate_limit;

struct Service {
    limiter: Limiter,
    shared: SharedLimiter,
    name: String,
}

impl Service {
    #[rate_limit("1/minute", limiter = self.shared)]
    fn sync(&self) -> Result<(), Denied> {
        Ok(())
    }

    #[rate_limit("1/minute", limiter = self.name)]
    async fn text(&self) -> Result<(), Denied> {
        Ok(())
    }

    #[rate_limit("1/minute", limiter = "named")]
    fn named(&self) -> Result<(), Denied> {
        Ok(())
    }

    #[rate_limit("1/minute", limiter = self.nowhere)]
    async fn missing(&self) -> Result<(), Denied> {
        Ok(())
    }
}

fn main() {}
