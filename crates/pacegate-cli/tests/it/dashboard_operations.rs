//! Tests the parts of the dashboard for operators, in a real browser: ranges, recent decisions, blocks and outliers.

use pacegate_testkit::servers::{Flavor, Server};
use serde_json::json;

use crate::dashboard::{POLICIES, Shown, has, shows};

/// Selects an option as a user does.
fn select(shown: &Shown, id: &str, value: &str) {
    shown.page.evaluate(&format!(
        "(() => {{ const it = document.querySelector('{id}'); it.value = '{value}'; \
         it.dispatchEvent(new Event('change')); }})()"
    ));
}

#[test]
fn the_range_goes_up_to_a_day() {
    let mut shown = Shown::start("");
    for _ in 0..400 {
        shown.log_in("203.0.113.9");
    }
    shown.page.wait_until(&has("#timeline-note", "Last five minutes"));
    let steps = "performance.getEntriesByType('resource').map(({ name }) => name)\
                 .filter(name => name.includes('step=')).map(name => /step=(\\d+)/.exec(name)[1])";
    for (seconds, text, step) in [("3600", "Last hour", "15"), ("86400", "Last 24 hours", "300")] {
        select(&shown, "#range", seconds);
        shown.page.wait_until(&has("#timeline-note", text));
        shown.page.wait_until(&has("#latency-range", text));
        shown.page.wait_until(&format!("{steps}.includes('{step}')"));
        let label = "document.querySelector('#timeline .chart').getAttribute('aria-label')";
        shown.page.wait_until(&format!("/; denied: last .*, highest [1-9]/.test({label})"));
    }
    select(&shown, "#range", "300");
    shown.page.wait_until(&has("#timeline-note", "Last five minutes"));
    shown.assert_clean();
}

#[test]
fn a_key_leads_to_its_recent_decisions() {
    let mut shown = Shown::start("");
    for _ in 0..7 {
        shown.log_in("203.0.113.9");
    }
    shown.log_in("203.0.113.10");
    shown.page.wait_until(&shows("#top-denied .label", "203.0.113.9"));
    shown.page.click("#top-denied .label");
    shown.page.wait_until("document.querySelectorAll('.decisions tbody tr').length === 7");
    let first = shown.page.text(".decisions tbody tr");
    for part in ["denied, retry in", "login: 5/365d"] {
        assert!(first.contains(part), "{part} in {first}");
    }
    assert!(shown.page.text(".decisions tbody tr:last-child").contains("allowed"));
    // The list follows the traffic.
    shown.log_in("203.0.113.9");
    shown.page.wait_until("document.querySelectorAll('.decisions tbody tr').length === 8");
    shown.assert_clean();
}

#[test]
fn a_block_needs_a_confirmation() {
    let mut shown = Shown::start("");
    shown.page.wait_until("document.querySelectorAll('#lookup-policy option').length === 3");
    shown.page.write("#lookup-key", "203.0.113.9");
    shown.page.press("Enter");
    shown.page.wait_until(&has("#lookup-answer", "5 of 5 left"));
    shown.page.click("#lookup-answer button.danger");
    shown.page.wait_until(&has("#confirm-dialog", "Block “203.0.113.9” for 1 h?"));
    // The first choice is to do nothing.
    shown.page.press("Enter");
    shown.page.wait_until("!document.querySelector('#confirm-dialog').open");
    assert_eq!(shown.log_in("203.0.113.9"), 200);
    shown.block();
    shown.page.wait_until(&has("#said", "is blocked in login"));
    assert_eq!(shown.log_in("203.0.113.9"), 429);
    shown.page.wait_until(&has(".decisions", "login, blocked"));
    // The message covers no command that can be copied.
    shown.page.click("#try-form button.main");
    shown.page.wait_until("document.querySelector('#try-answer pre') !== null");
    shown.block_message_is_above("#try-answer pre");
    shown.assert_clean();
}

#[test]
fn a_block_needs_a_confirmation_and_holds_on_two_replicas() {
    let redis = Server::start(Flavor::Redis);
    let config = format!("store: {{ url: '{}', deadline: 5s }}\n{POLICIES}", redis.url());
    let [mut one, mut other] = [(), ()].map(|()| Shown::with_config(&config));
    one.page.wait_until("document.querySelectorAll('#lookup-policy option').length === 3");
    one.page.wait_until(&has("#blocks-note", "all servers that use this store"));
    one.page.write("#lookup-key", "203.0.113.9");
    one.page.press("Enter");
    one.page.wait_until(&has("#lookup-answer", "5 of 5 left"));
    one.block();
    one.page.wait_until(&has("#said", "is blocked in login"));
    assert_eq!(one.log_in("203.0.113.9"), 429);
    other.page.wait_until(&shows("#blocked b", "203.0.113.9"));
    assert_eq!(other.log_in("203.0.113.9"), 429);
    assert_eq!(other.log_in("203.0.113.10"), 200);
    other.page.click("#blocked button");
    for shown in [&mut one, &mut other] {
        shown.page.wait_until(&has("#blocked", "No blocked keys."));
        assert_eq!(shown.log_in("203.0.113.9"), 200);
        shown.assert_clean();
    }
}

#[test]
fn an_outlier_does_not_flatten_the_chart() {
    let shown = Shown::start("");
    shown.page.wait_until(&shows("#state", "live"));
    let drawn = shown.page.evaluate(
        "import('/assets/chart.js').then(({ timeline }) => { \
           const host = document.createElement('div'); document.querySelector('main').append(host); \
           const times = Array.from({ length: 100 }, (_, i) => 1000 + i); \
           const values = times.map((_, i) => i === 40 ? 5000 : 10); \
           timeline(host, { times, step: 1, series: [{ name: 'allowed', values }] }, \
                    { unit: '/s', cutOutliers: true }); \
           return [...host.querySelectorAll('text')].map(text => text.textContent); })",
    );
    let texts: Vec<_> = drawn.as_array().unwrap().iter().filter_map(|text| text.as_str()).collect();
    assert!(texts.contains(&"peak 5 k/s"), "{texts:?}");
    assert!(texts.contains(&"15") && !texts.contains(&"5 k"), "{texts:?}");
}

#[test]
fn degraded_decisions_have_their_own_series() {
    let redis = Server::start(Flavor::Redis);
    let config = format!("store: {{ url: '{}' }}\n{POLICIES}", redis.url());
    let mut shown = Shown::with_config(&config);
    assert_eq!(shown.check(&json!({ "path": "/api/x", "user": "alice" })), 200);
    shown.page.wait_until(&has("#timeline .chart-legend", "allowed"));
    assert!(!shown.page.text("#timeline .chart-legend").contains("degraded"));
    drop(redis);
    shown.page.wait_until(&has("#alerts", "Store unreachable"));
    assert_eq!(shown.check(&json!({ "path": "/api/x", "user": "alice" })), 200);
    shown.page.wait_until(&has("#timeline .chart-legend", "degraded (decided by failure modes)"));
    shown.page.wait_until(&shows("#top-traffic .label", "alice"));
    shown.page.click("#top-traffic .label");
    shown.page.wait_until(&has(".decisions", "allowed, degraded"));
}
