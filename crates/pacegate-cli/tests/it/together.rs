//! Several services and all their listeners share the same counters.

use std::{
    sync::{Arc, Barrier},
    thread,
};

use pacegate_testkit::servers::{Client, Flavor, Server};

use crate::{
    clients::{Folder, Grpc, Http},
    service::Service,
};

const AMOUNT: usize = 400;
/// Three services with two clients per listener; together they send more requests than the amount.
const TIMES: usize = 40;

const LIMITS: [(&str, &str); 3] = [
    ("window", "400/week fixed-window"),
    ("bucket", "400/week token-bucket"),
    ("log", "400/week sliding-log"),
];

/// A client of one listener. Returns the number of allowed requests.
type Asker = Box<dyn FnOnce(&Barrier) -> usize + Send>;

fn config(server: &Server) -> Folder {
    let mut text = format!("store: {{ url: '{}', deadline: 10s }}\npolicies:\n", server.url());
    for (name, limit) in LIMITS {
        let fields = format!("domain: {name}, per: [user], limit: {limit}, failure: closed");
        text.push_str(&format!("  - {{ name: {name}, {fields} }}\n"));
    }
    Folder::with_config(&text)
}

fn by_http(service: &Service, domain: &'static str, user: String) -> Asker {
    let mut client = Http::connect(service.address("http")).unwrap();
    let body = format!(r#"{{"domain": "{domain}", "attributes": {{"user": "{user}"}}}}"#);
    Box::new(move |start| {
        start.wait();
        let ask = |_: &usize| {
            let answer = client.check(None, &body).unwrap();
            let decision = answer.json();
            assert_eq!(decision["degraded"], false, "{answer:?}");
            assert_eq!(decision["allowed"] == true, answer.status == 200, "{answer:?}");
            answer.status == 200
        };
        (0..TIMES).filter(ask).count()
    })
}

fn by_grpc(service: &Service, domain: &'static str, user: String) -> Asker {
    let mut client = Grpc::connect(service.address("grpc")).unwrap();
    Box::new(move |start| {
        start.wait();
        let ask = |_: &usize| {
            let told = client.ask(None, domain, &[("user", &user)]).unwrap();
            assert_eq!(told.status, 0);
            told.allowed
        };
        (0..TIMES).filter(ask).count()
    })
}

fn by_resp(service: &Service, domain: &'static str, user: String) -> Asker {
    let mut client = Client::connect(&service.address("resp").to_string()).unwrap();
    Box::new(move |start| {
        start.wait();
        let ask = |_: &usize| {
            let words = ["PACEGATE.CHECK", "DOMAIN", domain, "ATTR", "user", &user];
            let reply = client.command(&words).unwrap();
            assert_eq!(reply.items()[17].int(), 0, "not degraded: {reply:?}");
            reply.items()[1].int() == 1
        };
        (0..TIMES).filter(ask).count()
    })
}

/// All clients run at the same time, and exactly the amount is admitted.
fn round(services: &[Service], domain: &'static str, user: &str) {
    let makers = [by_http, by_grpc, by_resp];
    let askers: Vec<Asker> = services
        .iter()
        .flat_map(|service| makers.iter().cycle().take(6).map(move |make| (service, make)))
        .map(|(service, make)| make(service, domain, user.to_owned()))
        .collect();
    assert!(askers.len() * TIMES > AMOUNT);
    let start = Arc::new(Barrier::new(askers.len()));
    let ask = |asker: Asker| {
        let start = start.clone();
        thread::spawn(move || asker(&start))
    };
    let threads: Vec<_> = askers.into_iter().map(ask).collect();
    let admitted: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(admitted.iter().sum::<usize>(), AMOUNT, "{domain} {user}: {admitted:?}");
}

fn counters_are_one(flavor: Flavor) {
    let server = Server::start(flavor);
    let folder = config(&server);
    let services = [0; 3].map(|_| Service::start(&["--config", &folder.config()]));
    for number in 0..3 {
        for (domain, _) in LIMITS {
            round(&services, domain, &format!("user-{number}"));
        }
    }
}

#[test]
fn three_services_and_all_listeners_admit_exactly_the_amount_on_redis() {
    counters_are_one(Flavor::Redis);
}

#[test]
fn three_services_and_all_listeners_admit_exactly_the_amount_on_valkey() {
    counters_are_one(Flavor::Valkey);
}
