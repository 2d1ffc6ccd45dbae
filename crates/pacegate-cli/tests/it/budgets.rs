//! Reservations of many clients, over three servers on one Redis.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use pacegate_testkit::{
    Random,
    servers::{Flavor, Server, eventually},
};
use serde_json::{Value, json};

use crate::{
    clients::{Folder, Http},
    service::Service,
};

const CLIENTS: u64 = 1_000;
const AMOUNT: u64 = 4_000;
/// Seconds after which the reservations of clients that vanished end.
const SHORT_TTL: u64 = 3;

/// The results of all clients.
#[derive(Default)]
struct Totals {
    admitted: AtomicU64,
    vanished: AtomicU64,
    settled: AtomicU64,
    used: AtomicU64,
}

fn post(http: &mut Http, path: &str, body: &Value) -> Value {
    http.request("POST", path, None, &body.to_string()).unwrap().json()
}

/// A client reserves at one server, and settles at the two others. One in ten vanishes before. Clients that use more
/// than they reserved settle after all have reserved: then the excess is certain to exceed the limit.
fn client(services: &[Service], seed: u64, excess: u64, start: &Barrier, totals: &Totals) {
    let random = &mut Random::new(seed);
    let place = random.below(3) as usize;
    let connect = |place: usize| Http::connect(services[place % 3].address("http")).unwrap();
    let mut http = connect(place);
    let vanishes = seed.is_multiple_of(10);
    let estimate = random.between(1, 20);
    let ttl = if vanishes { SHORT_TTL } else { 600 };
    let body = json!({ "attributes": { "user": "shared" }, "cost": estimate, "ttl": ttl });
    start.wait();
    let reserved = http.request("POST", "/v1/reserve", None, &body.to_string());
    if excess > 0 {
        start.wait();
    }
    let reserved = reserved.unwrap().json();
    assert_eq!(reserved["degraded"], false, "{reserved}");
    let Some(reservation) = reserved["reservation"].as_str() else { return };
    totals.admitted.fetch_add(1, Ordering::SeqCst);
    if vanishes {
        totals.vanished.fetch_add(1, Ordering::SeqCst);
        return;
    }
    let actual = random.below(estimate + 1) + random.below(excess + 1);
    totals.used.fetch_add(actual, Ordering::SeqCst);
    let body = json!({ "reservation": reservation, "used": actual });
    for other in [place + 1, place + 2] {
        let answer = post(&mut connect(other), "/v1/settle", &body);
        totals.settled.fetch_add(u64::from(answer["settled"] == true), Ordering::SeqCst);
    }
}

/// Returns the remaining units and the debt.
fn state(services: &[Service]) -> [u64; 2] {
    let mut http = Http::connect(services[0].address("http")).unwrap();
    let state = http.get("/v1/state?attribute=user:shared").unwrap().json();
    ["remaining", "debt"].map(|name| state["limits"][0][name].as_u64().unwrap_or(0))
}

/// With estimates that are never too low, the limit is kept; otherwise exactly the excess is debt. The units of clients
/// that vanished are returned after the ttl, and a repeated settlement counts once.
#[test]
fn a_thousand_clients_of_three_servers_use_exactly_what_they_settle() {
    let server = Server::start(Flavor::Redis);
    for (name, excess) in [("exact", 0), ("over", 20)] {
        let folder = Folder::with_config(&format!(
            "store: {{ url: '{}', deadline: 10s, prefix: '{name}:' }}\n\
             policies:\n  \
             - {{ name: tokens, per: [user], limit: {AMOUNT}/365d, unsettled: return, max_debt: 100000 }}\n",
            server.url(),
        ));
        let config = folder.config();
        let services = Arc::new([(); 3].map(|()| Service::start(&["--config", &config])));
        let (totals, start) =
            (Arc::new(Totals::default()), Arc::new(Barrier::new(CLIENTS as usize)));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|seed| {
                let (services, totals, start) = (services.clone(), totals.clone(), start.clone());
                let run = move || client(&*services, seed, excess, &start, &totals);
                thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap()
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        let total = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        let (admitted, vanished) = (total(&totals.admitted), total(&totals.vanished));
        assert_eq!(total(&totals.settled), admitted - vanished, "{name}: each counts once");
        assert!(vanished > 10 && admitted > CLIENTS / 4, "{name}: {admitted}, {vanished}");
        let used = total(&totals.used);
        assert!(excess > 0 || used <= AMOUNT, "overshoot: {used}");
        let expected = [AMOUNT.saturating_sub(used), used.saturating_sub(AMOUNT)];
        let within = Duration::from_secs(SHORT_TTL + 10);
        let what = format!("{name}: {expected:?} units remain and are owed after the ttl");
        eventually(within, &what, || state(&*services) == expected);
        assert!(excess == 0 || expected[1] > 0, "{name}: {used} units are too few for debt");
    }
}

/// A server that is killed cannot return the units of its reservations: the script of the next decision does.
#[test]
fn units_of_a_killed_server_are_returned_at_another_one() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let folder = Folder::with_config(&format!(
            "store: {{ url: '{}', deadline: 10s }}\n\
             policies:\n  \
             - {{ name: tokens, per: [user], limit: {AMOUNT}/365d, unsettled: return }}\n",
            server.url(),
        ));
        let config = folder.config();
        let [killed, other] = [(); 2].map(|()| Service::start(&["--config", &config]));
        let mut http = Http::connect(killed.address("http")).unwrap();
        let body = json!({ "attributes": { "user": "shared" }, "cost": AMOUNT, "ttl": SHORT_TTL });
        let reserved = post(&mut http, "/v1/reserve", &body);
        let id = reserved["reservation"].as_str().unwrap();
        killed.signal("KILL");
        killed.wait();
        let services = [other];
        assert_eq!(state(&services), [0, 0], "{flavor}");
        let within = Duration::from_secs(SHORT_TTL + 10);
        eventually(within, "the units are returned", || state(&services) == [AMOUNT, 0]);
        let mut http = Http::connect(services[0].address("http")).unwrap();
        let late = post(&mut http, "/v1/settle", &json!({ "reservation": id, "used": 1 }));
        assert_eq!((late["settled"].as_bool(), state(&services)), (Some(false), [AMOUNT, 0]));
    }
}
