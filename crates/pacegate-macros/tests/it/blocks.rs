//! The attribute on an `impl` block.

use std::sync::LazyLock;

use pacegate::{Denied, Limiter};
use pacegate_macros::rate_limit;

/// Not the limiter of the process, which another test installs.
static LIMITER: LazyLock<Limiter> = LazyLock::new(|| crate::limiter().0);

struct Reports {
    tenant: &'static str,
}

#[rate_limit("1/day", key = self.tenant, limiter = LIMITER)]
impl Reports {
    const PAGES: u32 = 3;

    fn list(&self) -> Result<u32, Denied> {
        Ok(Self::PAGES)
    }

    async fn fetch(&self) -> Result<u32, Denied> {
        Ok(Self::PAGES)
    }

    #[rate_limit("2/day", key = self.tenant, limiter = LIMITER)]
    fn export(&self) -> Result<u32, Denied> {
        Ok(Self::PAGES)
    }
}

#[test]
fn every_method_is_limited_by_itself() {
    let reports = Reports { tenant: "every" };
    assert!(reports.list().is_ok() && reports.list().is_err());
    assert!(pollster::block_on(reports.fetch()).is_ok());
    assert!(pollster::block_on(reports.fetch()).is_err());
    assert!(Reports { tenant: "other" }.list().is_ok());
}

#[test]
fn the_attribute_of_a_method_replaces_that_of_the_block() {
    let reports = Reports { tenant: "replaces" };
    assert!(reports.export().is_ok() && reports.export().is_ok() && reports.export().is_err());
}

struct Shared;

#[rate_limit("2/day", name = "blocks-shared", limiter = LIMITER)]
impl Shared {
    fn one(&self) -> Result<(), Denied> {
        Ok(())
    }

    fn other(&self) -> Result<(), Denied> {
        Ok(())
    }
}

#[test]
fn methods_share_a_budget_by_name() {
    assert!(Shared.one().is_ok() && Shared.other().is_ok());
    assert!(Shared.one().is_err() && Shared.other().is_err());
}

trait Count {
    fn count(&self) -> Result<usize, Denied>;
}

struct List<T>(Vec<T>);

#[rate_limit("1/day", limiter = LIMITER)]
impl<T> Count for List<T> {
    fn count(&self) -> Result<usize, Denied> {
        Ok(self.0.len())
    }
}

#[test]
fn the_block_may_implement_a_trait() {
    let list = List(vec![1, 2]);
    assert!(matches!(list.count(), Ok(2)) && list.count().is_err());
}

#[async_trait::async_trait]
trait Send {
    async fn send(&self, to: String) -> Result<String, Denied>;
}

struct Before;
struct After;

#[rate_limit("1/day", key = to, limiter = LIMITER)]
#[async_trait::async_trait]
impl Send for Before {
    async fn send(&self, to: String) -> Result<String, Denied> {
        Ok(to)
    }
}

#[async_trait::async_trait]
#[rate_limit("1/day", key = to, limiter = LIMITER)]
impl Send for After {
    async fn send(&self, to: String) -> Result<String, Denied> {
        Ok(to)
    }
}

#[test]
fn the_block_may_be_one_of_async_trait() {
    for service in [&Before as &dyn Send, &After] {
        assert_eq!(pollster::block_on(service.send("bob".to_owned())), Ok("bob".to_owned()));
        assert!(pollster::block_on(service.send("bob".to_owned())).is_err());
        assert!(pollster::block_on(service.send("carol".to_owned())).is_ok());
    }
}
