//! All shapes of functions, with the lints that users may have turned on.
#![warn(clippy::pedantic, clippy::nursery, missing_docs, unused, let_underscore_drop)]
use std::{
    fmt::Display,
    future::Future,
    rc::Rc,
    sync::{Arc, LazyLock},
};

use pacegate::{Denied, Limit, Limiter, SharedLimiter};
use pacegate_macros::rate_limit;

use crate::{admitted, limiter};

static GATE: LazyLock<Limiter> = LazyLock::new(|| limiter().0);

struct Service<T> {
    limiter: Limiter,
    shared: Arc<SharedLimiter>,
    name: T,
}

/// A point.
struct Point {
    x: i32,
    y: i32,
}

trait Call {
    const RATE: Limit;

    async fn call(&self, user: &str) -> Result<String, Denied>;

    /// A method that has a body.
    #[rate_limit(limit = Self::RATE, limiter = GATE, name = "provided")]
    fn provided(&self) -> Result<(), Denied> {
        Ok(())
    }
}

impl<T: Display + Clone + Send + Sync> Service<T> {
    #[rate_limit("1/minute", limiter = self.limiter)]
    fn by_ref(&self) -> Result<T, Denied> {
        Ok(self.name.clone())
    }

    #[rate_limit("1/minute", limiter = self.limiter)]
    fn by_mut(&mut self, name: T) -> Result<&mut T, Denied> {
        self.name = name;
        Ok(&mut self.name)
    }

    #[rate_limit("1/minute", limiter = self.limiter)]
    async fn waits(&self) -> Result<&T, Denied> {
        std::future::ready(()).await;
        Ok(&self.name)
    }

    #[rate_limit("1/minute", limiter = self.shared, key = self.name.to_string())]
    async fn shared(self: Arc<Self>) -> Result<T, Denied> {
        Ok(self.name.clone())
    }

    #[rate_limit("1/minute", limiter = self.limiter)]
    fn by_value(self) -> Result<T, Denied> {
        Ok(self.name)
    }
}

impl<T: Display + Sync> Call for Service<T> {
    const RATE: Limit = Limit::per_minute(2);

    #[rate_limit("1/minute", key = (user, self.name.to_string()), limiter = self.limiter)]
    async fn call(&self, user: &str) -> Result<String, Denied> {
        Ok(format!("{user} at {}", self.name))
    }
}

fn service(name: &str) -> Service<String> {
    let (limiter, _) = limiter();
    let shared = Arc::new(SharedLimiter::from(limiter.clone()));
    Service { limiter, shared, name: name.to_owned() }
}

#[test]
fn methods() {
    let mut service = service("a");
    assert_eq!(service.by_ref().as_deref(), Ok("a"));
    assert!(service.by_ref().is_err());
    assert_eq!(service.by_mut("b".to_owned()).unwrap(), "b");
    assert!(service.by_mut("c".to_owned()).is_err());
    assert_eq!(service.name, "b", "denied calls did not run");
    assert!(service.provided().is_ok());
    pollster::block_on(async {
        assert_eq!(service.waits().await.unwrap(), "b");
        assert!(service.waits().await.is_err());
        assert_eq!(service.call("u").await.unwrap(), "u at b");
        assert!(service.call("u").await.is_err());
        assert!(service.call("v").await.is_ok());
        let Service { limiter, shared, .. } = service;
        let shared = Arc::new(Service { limiter, shared, name: "s" });
        assert_eq!(shared.clone().shared().await, Ok("s"));
        assert!(shared.clone().shared().await.is_err());
        let service = Arc::into_inner(shared).unwrap();
        assert_eq!(service.by_value(), Ok("s"));
    });
}

#[test]
fn arguments() {
    #[rate_limit("1/minute", key = (x, y, *z), limiter = *GATE)]
    fn patterns(Point { x, y }: Point, (z, _): (&u8, u8), mut more: Vec<u8>) -> Result<u8, Denied> {
        more.push(1);
        Ok(*z + more[0])
    }

    #[rate_limit("1/minute", key = name.to_string(), cost = names.into_iter().count(), limiter = GATE)]
    fn hidden(
        name: impl Display,
        names: impl IntoIterator<Item = u8> + Copy,
    ) -> Result<impl Iterator<Item = u8>, Denied> {
        Ok(names.into_iter().take(name.to_string().len()))
    }

    // Names that the expansion might use itself.
    #[rate_limit("1/minute", key = (pass, denied, here), limiter = GATE, enabled = enabled)]
    fn names(pass: u8, denied: u8, here: u8, enabled: bool) -> Result<u8, Denied> {
        Ok(pass + denied + here + u8::from(enabled))
    }

    assert_eq!(patterns(Point { x: 1, y: 2 }, (&3, 4), vec![5]), Ok(8));
    assert!(patterns(Point { x: 1, y: 2 }, (&3, 4), vec![5]).is_err());
    assert!(patterns(Point { x: 1, y: 3 }, (&3, 4), vec![5]).is_ok());
    assert_eq!(hidden("a", [9]).unwrap().collect::<Vec<_>>(), [9]);
    assert!(hidden("a", [9]).is_err());
    assert_eq!(names(1, 2, 3, true), Ok(7));
}

#[test]
fn lifetimes_and_bounds() {
    #[rate_limit("5/minute", key = key, limiter = GATE)]
    fn longest<'a, 'b: 'a, K, const N: usize>(
        key: &K,
        one: &'a [u8; N],
        _other: &'b str,
    ) -> Result<&'a [u8; N], Denied>
    where
        K: pacegate::Key + ?Sized,
    {
        Ok(one)
    }

    assert_eq!(longest("k", &[1, 2], "o"), Ok(&[1, 2]));
    assert_eq!(admitted(9, || longest("k", &[1], "o")), 4);
}

#[test]
fn bodies() {
    #[rate_limit("9/minute", limiter = GATE)]
    fn early(n: u32) -> Result<u32, Denied> {
        #![allow(clippy::needless_return, reason = "an attribute inside")]
        fn inner(n: u32) -> u32 {
            n + 1
        }
        if n == 0 {
            return Ok(0);
        }
        let n = early(n - 1)?;
        return Ok(inner(n));
    }

    assert_eq!(early(3), Ok(3));
    assert_eq!(admitted(9, || early(0)), 5, "calls of itself are calls");
}

#[test]
fn futures_stay_send() {
    const fn sends<T: Send>(of: T) -> T {
        of
    }

    #[rate_limit("1/minute", key = *key, cost = Rc::new(1_u8).count_ones(), limiter = *GATE)]
    async fn local_key(key: Box<u8>) -> Result<u8, Denied> {
        Ok(*key)
    }

    // Never run here: another test installs the limiters of this process.
    #[rate_limit("1/minute", key = Rc::<str>::from("a").len())]
    async fn anywhere() -> Result<(), Denied> {
        Ok(())
    }

    fn desugared() -> impl Future<Output = Result<u8, Denied>> + Send {
        local_key(Box::new(7))
    }

    drop(sends(anywhere()));
    assert_eq!(pollster::block_on(sends(desugared())), Ok(7));
}

/// Documented, public, and not to be ignored.
#[rate_limit("1/minute", limiter = GATE)]
#[must_use = "or do not call it"]
#[inline]
pub(crate) extern "Rust" fn decorated() -> Result<u8, Denied> {
    Ok(1)
}

#[test]
fn attributes_stay() {
    let called: fn() -> Result<u8, Denied> = decorated;
    assert_eq!(called(), Ok(1));
}

#[test]
fn macro_fragments_work_as_arguments() {
    macro_rules! limited {
        ($name:ident, $limit:literal, $policy:literal, $key:expr, $cost:literal) => {
            #[rate_limit($limit, name = $policy, key = $key, cost = $cost, limiter = GATE)]
            fn $name(of: u8) -> Result<u8, Denied> {
                Ok(of)
            }
        };
    }
    limited!(handed, "4/minute", "handed-on", 1_u8 | 2, 2);
    assert_eq!(handed(7), Ok(7));
    assert_eq!(admitted(3, || handed(8)), 1);
}
