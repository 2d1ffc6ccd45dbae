//! Methods of `#[async_trait]`, which rewrites them before the attribute is expanded.
#![warn(clippy::pedantic, clippy::nursery, unused)]

use async_trait::async_trait;
use pacegate::{Denied, Limiter, SharedLimiter};
use pacegate_macros::rate_limit;

use crate::limiter;

#[async_trait]
trait Mail: Send + Sync {
    async fn send(&self, to: &str) -> Result<usize, Denied>;

    async fn pair(&mut self, pair: (u8, u8), count: usize) -> Result<usize, u64>;

    async fn close(self: Box<Self>) -> Result<(), Denied>;

    async fn note(&self, notes: &mut Vec<u8>);

    #[rate_limit("1/minute", key = who, limiter = self.limiter())]
    async fn provided(&self, who: String) -> Result<String, Denied> {
        Ok(who)
    }

    fn limiter(&self) -> &Limiter;
}

struct Mailer {
    memory: Limiter,
    shared: SharedLimiter,
}

#[async_trait]
impl Mail for Mailer {
    #[rate_limit("1/minute", key = to, limiter = self.shared)]
    async fn send(&self, to: &str) -> Result<usize, Denied> {
        std::future::ready(()).await;
        Ok(to.len())
    }

    #[rate_limit(
        "3/minute",
        key = (one, two),
        cost = count,
        limiter = self.memory,
        on_denied = |denied| Err(denied.decision().remaining())
    )]
    async fn pair(&mut self, (one, two): (u8, u8), mut count: usize) -> Result<usize, u64> {
        count += usize::from(one + two);
        Ok(count)
    }

    #[rate_limit("0/minute", limiter = self.memory)]
    async fn close(self: Box<Self>) -> Result<(), Denied> {
        Ok(())
    }

    #[rate_limit("1/minute", limiter = self.memory, on_denied = drop)]
    async fn note(&self, notes: &mut Vec<u8>) {
        notes.push(7);
    }

    fn limiter(&self) -> &Limiter {
        &self.memory
    }
}

#[test]
fn methods_behind_a_box_are_limited() {
    let memory = limiter().0;
    let mut mailer: Box<dyn Mail> =
        Box::new(Mailer { shared: SharedLimiter::from(memory.clone()), memory });
    pollster::block_on(async {
        drop(mailer.send("bob"));
        assert_eq!(mailer.send("bob").await, Ok(3), "a future that is not polled is not counted");
        assert!(mailer.send("bob").await.is_err());
        assert_eq!(mailer.send("carol").await, Ok(5));
        assert_eq!(mailer.pair((1, 2), 2).await, Ok(5));
        assert_eq!(mailer.pair((1, 2), 2).await, Err(1));
        assert_eq!(mailer.pair((2, 1), 2).await, Ok(5));
        let mut notes = Vec::new();
        for _ in 0..3 {
            mailer.note(&mut notes).await;
        }
        assert_eq!(notes, [7]);
        assert_eq!(mailer.provided("alice".to_owned()).await, Ok("alice".to_owned()));
        let denied = mailer.provided("alice".to_owned()).await.unwrap_err();
        assert_eq!(denied.decision().policy().unwrap().as_str(), "it.boxed.Mail.provided");
        assert!(mailer.close().await.is_err());
    });
}
