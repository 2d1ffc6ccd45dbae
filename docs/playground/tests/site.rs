//! Tests the built site in a browser, from the file system. `cargo xtask site` builds it and runs these tests.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test panics")]

use std::{path::Path, time::Duration};

use pacegate::{Clock, Limiter, ManualClock};
use pacegate_testkit::servers::{Chromium, Page};
use serde_json::Value;

fn open(path: &str) -> Page {
    let html = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/site/html");
    let file = html.join(path).canonicalize().expect("run `cargo xtask site` first");
    let page = Chromium::shared().page();
    page.open(&format!("file://{}", file.display()));
    page
}

#[test]
#[ignore = "needs the site: cargo xtask site"]
fn search_finds_a_page() {
    let page = open("index.html");
    page.click("#mdbook-search-toggle");
    page.wait_until("document.activeElement.id === 'mdbook-searchbar'");
    page.write("#mdbook-searchbar", "retry_after");
    // The page searches on each change of the text.
    page.evaluate("document.querySelector('#mdbook-searchbar').dispatchEvent(new Event('input'))");
    let results = "[...document.querySelectorAll('#mdbook-searchresults a')].map(a => a.href)";
    page.wait_until(&format!("{results}.some(link => link.includes('guide/http.html'))"));
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[test]
#[ignore = "needs the site: cargo xtask site"]
fn the_playground_admits_the_same_requests_as_the_library() {
    let page = open("playground/index.html");
    page.wait_until("globalThis.playground?.requests.length > 0");
    page.click("[data-pattern=none]");
    page.wait_until("playground.requests.length === 0");
    // A burst over the second half of the canvas, at 40 % of its height.
    for column in 50..60 {
        page.drag("#draw", (column, 60), (column, 60));
    }
    page.wait_until("playground.requests.length > 20");
    for limit in ["10/10s", "10/10s sliding-window", "10/10s sliding-log", "10/10s token-bucket"] {
        let algorithm = limit.split(' ').nth(1).unwrap_or("fixed-window");
        page.evaluate(&format!(
            "(() => {{ const select = document.querySelector('#algorithm'); \
             select.value = '{algorithm}'; \
             select.dispatchEvent(new Event('input', {{ bubbles: true }})); }})()"
        ));
        let requests = page.evaluate("playground.requests.map(({ at }) => at)");
        let admitted = page.evaluate("playground.admitted");
        let expected = admitted_by_library(limit, &requests);
        assert_eq!(admitted, expected, "{limit}");
        assert!(page.text("#policy").contains(&format!("limit: {limit}\n")), "{limit}");
    }
    assert_eq!(page.complaints(), Vec::<String>::new());
}

fn admitted_by_library(limit: &str, requests: &Value) -> Value {
    let clock = ManualClock::new();
    let start = clock.now();
    let limiter = Limiter::builder().limit(limit).clock(clock.clone()).build().unwrap();
    let admitted = requests.as_array().unwrap().iter().map(|at| {
        clock.set(start.after(Duration::from_micros(at.as_u64().unwrap())));
        limiter.check("alice").is_allowed()
    });
    admitted.collect::<Vec<bool>>().into()
}
