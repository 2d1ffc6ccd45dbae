//! Takes screenshots of the dashboard for the documentation, after five minutes of traffic:
//! `cargo test -p pacegate-cli --test it pictures -- --ignored`.

use std::{fs, path::Path};

use pacegate_testkit::{
    Random,
    servers::{Chromium, Flavor, Page, Scheme, Server},
};
use serde_json::{Value, json};

use crate::{
    clients::{Folder, Http},
    dashboard::{has, shows},
    service::Service,
};

const SHOP: &str = "
policies:
  - name: login-per-ip
    match: { path: /login, method: POST }
    per: [ip]
    limit: 5/minute sliding-window
    failure: closed
  - name: api-per-user
    match: { path: /api/** }
    per: [user]
    limit: [40/second burst 60, 50000/hour]
    overrides:
      - { match: { plan: pro }, limit: 100/second }
  - name: search
    match: { path: /api/search }
    limit: 50/second token-bucket
    mode: shadow
  - name: exports-per-user
    match: { path: /exports }
    per: [user]
    limit: 15/hour
    notify: [50%, 80%]
";

#[test]
#[ignore = "takes five minutes and writes to docs/pictures"]
fn pictures() {
    let redis = Server::start(Flavor::Redis);
    let folder =
        Folder::with_config(&format!("store: {{ url: '{}', deadline: 2s }}\n{SHOP}", redis.url()));
    let service = Service::start(&["--config", &folder.config()]);
    let address = service.address("http");
    let mut http = Http::connect(address).unwrap();
    let page = Chromium::shared().page();
    page.resize(1200, 860);
    page.open(&format!("http://{address}/"));
    for tick in 0..1_500 {
        shop(&mut http, tick);
        page.evaluate("new Promise(done => setTimeout(done, 200 - Date.now() % 200))");
    }
    draw(&page, "dashboard-light", Scheme::Light, "body");
    let block = json!({ "policy": "login-per-ip", "key": "198.51.100.7" }).to_string();
    let kind = json!({ "content-type": "application/json" });
    page.evaluate(&format!(
        "fetch('v1/block', {{ method: 'POST', headers: {kind}, body: {} }}).then(() => 0)",
        Value::from(block)
    ));
    page.click("#top-denied .label");
    page.write("#try-attributes input[aria-label='Value of path']", "/login");
    page.write("#try-attributes input[aria-label='Value of method']", "POST");
    page.write("#try-attributes input[aria-label='Value of ip']", "203.0.113.9");
    page.press("Enter");
    page.wait_until(&has("#try-answer", "Denied"));
    page.wait_until(&shows("#blocked b", "198.51.100.7"));
    page.wait_until(&has("#reached", "80 % (12 of 15)"));
    page.wait_until(&has("#blocks-note", "all servers that use this store"));
    page.resize(1200, 860);
    draw(&page, "dashboard-dark", Scheme::Dark, "#lookup");
    page.resize(390, 844);
    draw(&page, "dashboard-phone", Scheme::Light, "body");
    page.resize(1920, 720);
    draw(&page, "dashboard-wide", Scheme::Light, "body");
    drop(redis);
    for tick in 0..50 {
        shop(&mut http, tick);
        page.evaluate("new Promise(done => setTimeout(done, 200 - Date.now() % 200))");
    }
    page.wait_until(&has("#alerts", "Store unreachable"));
    page.resize(1200, 640);
    draw(&page, "dashboard-outage", Scheme::Light, "body");
}

/// Simulates a fifth of a second of a shop: day and night, a client that guesses passwords, and searches.
fn shop(http: &mut Http, tick: u64) {
    let mut random = Random::new(tick);
    let mut requests = Vec::new();
    let mut ask = |attributes: Value| requests.push(json!({ "attributes": attributes }));
    let hour = (tick % 700).abs_diff(350) / 8;
    for _ in 0..20 + hour + random.below(6) {
        // A few users send most requests.
        let user = random.below(24).min(random.below(24)).min(random.below(24));
        let path = if random.below(5) == 0 { "/api/search" } else { "/api/items" };
        ask(json!({ "path": path, "user": format!("user-{user}") }));
    }
    if (560..800).contains(&tick) || tick > 1_240 {
        for _ in 0..14 + random.below(5) {
            ask(json!({ "path": "/login", "method": "POST", "ip": "203.0.113.9" }));
        }
    }
    if tick.is_multiple_of(60) {
        ask(json!({ "path": "/exports", "user": format!("user-{}", tick / 60 % 2) }));
    }
    let ip = format!("198.51.100.{}", random.below(12));
    ask(json!({ "path": "/login", "method": "POST", "ip": ip }));
    let body = json!({ "requests": requests }).to_string();
    let answer = http.request("POST", "/v1/check/batch", None, &body).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Takes a screenshot with an element at the top of the window.
fn draw(page: &Page, name: &str, scheme: Scheme, top: &str) {
    page.prefer(scheme);
    let place = format!("document.querySelector({}).offsetTop - 76", Value::from(top));
    page.evaluate(&format!("scrollTo({{ top: {place}, behavior: 'instant' }})"));
    page.evaluate("document.activeElement.blur()");
    let picture = page.picture();
    assert!(picture.len() < 150_000, "{name}: {} bytes", picture.len());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(format!("{name}.png")), picture).unwrap();
}
