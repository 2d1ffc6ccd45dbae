//! A server that is lost, hangs or is slow.

use std::{cell::RefCell, time::Duration};

use pacegate::{Charge, KeyRef, Limit, Store, StoreError};
use pacegate_redis::RedisStore;
use pacegate_testkit::servers::{Flavor, Proxy, Server, eventually};

use super::{DEADLINE, Limiters, RETURN, now};
use crate::kit::{PATIENT, runtime};

/// Injects a fault and checks decisions before, during and after it.
pub(super) fn outage(
    limiters: &Limiters,
    what: &str,
    time: Duration,
    [begin, end]: [&mut dyn FnMut(); 2],
) {
    assert!(!limiters.is_degraded());
    let load = limiters.load();
    load.run_for(Duration::from_millis(200));
    let begun = now();
    begin();
    limiters.wait_until_degraded();
    let known = now();
    load.run_for(time);
    let ending = now();
    end();
    let back = limiters.wait_until_back();
    println!("{what}: missed after {:?}, back after {back:?}", known - begun);
    load.run_for(Duration::from_millis(200));
    let log = load.end(limiters);
    log.assert_timely(what);
    log.assert_modes_hold();
    log.assert_nobody_waits(known + DEADLINE, ending);
    limiters.assert_exact();
}

#[test]
fn killed_and_restarted() {
    for flavor in Flavor::ALL {
        let server = RefCell::new(Server::start(flavor));
        let limiters = Limiters::connect(&server.borrow().url());
        let (kill, restart) =
            (&mut || server.borrow_mut().kill(), &mut || server.borrow_mut().restart());
        outage(&limiters, "killed", Duration::from_secs(1), [kill, restart]);
        limiters.assert_window_exact(&server.borrow());
    }
}

#[test]
fn hangs_for_ten_seconds() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let limiters = Limiters::connect(&server.url());
        let (pause, resume) = (&mut || server.pause(), &mut || server.resume());
        outage(&limiters, "stopped", Duration::from_secs(10), [pause, resume]);
        limiters.assert_window_exact(&server);
    }
}

#[test]
fn slow_by_five_deadlines() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let proxy = Proxy::start(server.address());
        let limiters = Limiters::connect(&proxy.url());
        let delay = |delay| proxy.set_delay(delay);
        let slow = &mut || delay(5 * DEADLINE);
        outage(&limiters, "slow", Duration::from_secs(1), [slow, &mut || delay(Duration::ZERO)]);
        limiters.assert_window_exact(&server);
    }
}

/// A server whose replies take most of the deadline serves the requests that did not wait for another round trip
/// before, and the circuit breaker stays closed.
#[test]
fn slow_by_more_than_half_a_deadline() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let proxy = Proxy::start(server.address());
        let limiters = Limiters::connect(&proxy.url());
        proxy.set_delay(DEADLINE * 6 / 10);
        let (load, closed) = (limiters.load(), limiters.store.stats().closed);
        load.run_for(Duration::from_secs(2));
        let log = load.end(&limiters);
        log.assert_timely("slow by more than half");
        let closed = limiters.store.stats().closed - closed;
        let degraded = log.seen.iter().filter(|seen| seen.degraded).count();
        println!("{flavor}: {degraded} of {} degraded, closed {closed} times", log.seen.len());
        assert!(degraded * 5 < log.seen.len() * 4, "{degraded} of {}", log.seen.len());
        assert!(closed < 20, "closed {closed} times in two seconds");
    }
}

#[test]
fn connection_refused() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let proxy = Proxy::start(server.address());
        let limiters = Limiters::connect(&proxy.url());
        let refuse = |refuse| proxy.refuse(refuse);
        outage(
            &limiters,
            "refused",
            Duration::from_secs(1),
            [&mut || refuse(true), &mut || refuse(false)],
        );
        limiters.assert_window_exact(&server);
    }
}

/// The connection closes but the server is up: few requests are affected.
#[test]
fn killed_connections_are_replaced() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let limiters = Limiters::connect(&server.url());
        let load = limiters.load();
        for _ in 0..20 {
            load.run_for(Duration::from_millis(50));
            let killed = server.command(&["CLIENT", "KILL", "TYPE", "normal"]).int();
            assert!(killed >= 1, "{killed} connections");
            limiters.wait_until_back();
        }
        let log = load.end(&limiters);
        log.assert_timely("connections killed");
        let degraded = log.seen.iter().filter(|seen| seen.degraded).count();
        println!("{degraded} of {} degraded by 20 lost connections", log.seen.len());
        assert!(degraded * 5 < log.seen.len(), "{degraded} of {}", log.seen.len());
        limiters.assert_exact();
        limiters.assert_window_exact(&server);
    }
}

/// A closed idle connection is replaced before the next request.
#[test]
fn a_killed_idle_connection_is_replaced() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let limiters = Limiters::connect(&server.url());
        for _ in 0..20 {
            assert!(limiters.check(&limiters.closed, "idle").is_allowed());
            let closed = limiters.store.stats().closed;
            server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
            let noticed = || limiters.store.stats().closed > closed;
            eventually(RETURN, "it is noticed", noticed);
            let connected = || limiters.store.is_connected();
            eventually(RETURN, "it is back", connected);
        }
    }
}

/// A command whose reply is cut off has run, and is never sent again.
#[test]
fn commands_with_a_lost_reply_run_once() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let proxy = Proxy::start(server.address());
        let runtime = runtime();
        let builder = RedisStore::builder(&proxy.url()).unwrap().deadline(PATIENT);
        let store = runtime.block_on(builder.connect()).unwrap();
        // The server has to know the script; otherwise the reply NOSCRIPT would be cut off.
        runtime.block_on(store.charge(&[unit()], None)).unwrap();
        let (mut answered, mut unknown) = (1, 0);
        for bytes in 0..200 {
            // Reconnects are delayed more and more if no connection ever answers.
            runtime.block_on(left(&store));
            proxy.cut_replies_after(bytes);
            // All five are sent together: either all replies are lost, or none.
            while runtime.block_on(five(&store)) {
                answered += 5;
            }
            unknown += 5;
        }
        let used = 1_000_000 - runtime.block_on(left(&store));
        println!("{flavor}: {answered} answered, {unknown} unknown, {used} counted");
        assert!(answered > 1);
        assert_eq!(used, answered + unknown, "each once");
    }
}

/// Charges one unit five times at once; returns whether there was an answer.
async fn five(store: &RedisStore) -> bool {
    let calls = store.stats().calls;
    let charges = [unit()];
    let charge = || store.charge(&charges, None);
    let (a, b, c, d, e) = tokio::join!(charge(), charge(), charge(), charge(), charge());
    let answers = [a, b, c, d, e];
    for answer in &answers {
        let lost = |why: &str| why.contains(": the connection broke before the reply: ");
        assert!(answer.is_ok() || matches!(answer, Err(StoreError::Interrupted(why)) if lost(why)));
    }
    let answered = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(answered == 0 || answered == 5);
    let together = store.stats().calls - calls;
    assert_eq!(together, u64::from(answered > 0), "decided once, together");
    answered > 0
}

/// Returns the units left, as soon as there is an answer.
async fn left(store: &RedisStore) -> u64 {
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    loop {
        ticks.tick().await;
        if let Ok(outcomes) = store.charge(&[unit().cost(0)], None).await {
            return outcomes[0].remaining();
        }
    }
}

fn unit() -> Charge<'static> {
    let limit = Limit::new(1_000_000, Duration::from_secs(1_000 * 3_600)).unwrap();
    Charge::new("cut".parse().unwrap(), KeyRef::new(b"cut"), limit)
}
