//! Tests the built site in a browser, from the file system. `cargo xtask site` builds it and runs these tests.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test panics")]

use std::{path::Path, time::Duration};

use pacegate::{Clock, Limiter, ManualClock};
use pacegate_testkit::servers::{Chromium, Page};
use serde_json::{Value, json};

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

#[test]
#[ignore = "needs the site: cargo xtask site"]
fn traffic_is_pasted_and_the_policy_is_copied() {
    let page = open("playground/index.html");
    page.wait_until("globalThis.playground?.requests.length > 0");
    let paste = |text: &str| {
        page.evaluate(&format!("document.querySelector('#paste').value = {}", Value::from(text)));
        page.evaluate("document.querySelector('#use-paste').click()");
        page.evaluate("playground.requests.map(({ at, cost }) => [at, cost])")
    };
    let seconds = paste("3 2\n\n0.5\nnot a request\n40,9\n");
    assert_eq!(seconds, json!([[500_000, 1], [3_000_000, 2], [40_000_000, 9]]));
    assert_eq!(page.evaluate("document.querySelector('#duration').value"), "60");
    assert!(page.text("#traffic-note").starts_with("Pasted. 3 requests in 1 min"));
    let log = "203.0.113.7 - - [18/Nov/2026:10:00:05 +0000] \"GET / HTTP/1.1\" 200 5\n\
               203.0.113.7 - - [18/Nov/2026:11:00:00 +0100] \"GET / HTTP/1.1\" 200 5\n\
               2026-11-18T10:00:01.5Z GET /";
    assert_eq!(paste(log), json!([[0, 1], [1_500_000, 1], [5_000_000, 1]]));

    let clipboard = |write: &str| {
        page.evaluate(&format!(
            "void Object.defineProperty(navigator, 'clipboard', \
             {{ configurable: true, value: {{ writeText: async text => {{ {write} }} }} }})"
        ));
    };
    let policy = page.text("#policy");
    clipboard("globalThis.copied = text");
    page.click("#copy");
    page.wait_until("document.querySelector('#copy').textContent === 'Copied'");
    assert_eq!(page.evaluate("copied"), policy.as_str());
    assert!(policy.contains("limit: 10/10s\n"), "{policy}");
    // Without access to the clipboard, the policy is selected.
    clipboard("throw new Error('denied')");
    page.click("#copy");
    page.wait_until("document.querySelector('#copy').textContent === 'Press Ctrl+C'");
    assert_eq!(page.evaluate("getSelection().toString().trim()"), policy.trim());
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
