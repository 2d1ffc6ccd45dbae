//! Limiters that take their time.

use std::{
    cell::Cell,
    pin::pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use actix_web::{App, HttpResponse, dev::Service as _, test::init_service, web};
use pacegate::{
    Charge, Limit, Outcomes, PolicySet, Reply, SettledCharges, SharedLimiter, Store, StoreError,
    Update,
};
use pacegate_actix::{Adjustment, RateLimit, Rules};

use crate::kit::{get, limiter, send, statuses};

#[actix_web::test]
async fn decisions_and_corrections_may_wait() {
    let limiter = SharedLimiter::from(limiter("2/minute").0);
    let rules = Rules::new(limiter).settle_with(|response| match response.status.as_u16() {
        404 => Adjustment::Refund,
        _ => Adjustment::Keep,
    });
    let of = |status: &'static str| get("/").insert_header(("x-status", status)).set_payload("p");
    let answers = send(rules, ["404", "200", "404", "200", "200"].map(of)).await;
    assert_eq!(statuses(&answers), [404, 200, 404, 200, 429]);
    assert_eq!(answers[3].body, "Some(0) p");
}

#[actix_web::test]
async fn a_future_that_is_dropped_runs_nothing() {
    let runs = Rc::new(Cell::new(0));
    let counted = Rc::clone(&runs);
    let handler = move || {
        counted.set(counted.get() + 1);
        async { HttpResponse::Ok().finish() }
    };
    let limiter = SharedLimiter::from(limiter("1/minute").0);
    let app =
        App::new().default_service(web::to(handler)).wrap(RateLimit::new(Rules::new(limiter)));
    let service = init_service(app).await;
    drop(service.call(get("/").to_request()));
    assert_eq!(runs.get(), 0, "a dropped call");
    let mut call = pin!(service.call(get("/").to_request()));
    let response = std::future::poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(response) => Poll::Ready(response.unwrap().status().as_u16()),
        Poll::Pending => Poll::Pending,
    });
    assert_eq!(response.await, 200, "and which charged nothing");
    assert_eq!(runs.get(), 1);
}

/// A store that fails every charge and counts settlements.
#[derive(Debug, Default)]
struct Away {
    settled: Arc<AtomicU64>,
}

impl Store for Away {
    fn charge(&self, _: &[Charge<'_>], _: Option<&[u8]>) -> Reply<'_, Outcomes> {
        Reply::Ready(Err(StoreError::TimedOut))
    }

    fn update(&self, _: &Charge<'_>, _: Update) -> Reply<'_, bool> {
        Reply::Ready(Err(StoreError::TimedOut))
    }

    fn reserve(&self, _: &[Charge<'_>], _: u128, _: Duration) -> Reply<'_, Outcomes> {
        Reply::Ready(Err(StoreError::TimedOut))
    }

    fn settle(&self, _: &[Charge<'_>], _: u128, _: u64) -> Reply<'_, Option<SettledCharges>> {
        self.settled.fetch_add(1, Relaxed);
        Reply::Ready(Ok(Some(Vec::new())))
    }
}

/// A request that was decided without the store is corrected in this process, and not in the store.
#[actix_web::test]
async fn degraded_decisions_are_corrected_in_this_process() {
    let store = Away::default();
    let settled = Arc::clone(&store.settled);
    let policies = PolicySet::of_limits([Limit::per_minute(2)]).unwrap();
    let rules = Rules::new(SharedLimiter::new(store, policies)).settle_with(|_| Adjustment::Refund);
    let answers = send(rules, [get("/"), get("/"), get("/")]).await;
    assert_eq!(statuses(&answers), [200, 200, 200]);
    assert_eq!(settled.load(Relaxed), 0);
}
