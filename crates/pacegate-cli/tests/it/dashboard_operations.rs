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
fn outliers_do_not_flatten_the_charts() {
    let shown = Shown::start("");
    shown.page.wait_until(&shows("#state", "live"));
    let texts = |chart: &str, values: &str| -> Vec<String> {
        let drawn = shown.page.evaluate(&format!(
            "Promise.all([import('/assets/chart.js'), import('/assets/live.js')])\
               .then(([{{ timeline }}, charts]) => {{ \
               const host = document.createElement('div'); document.querySelector('main').append(host); \
               const times = Array.from({{ length: 100 }}, (_, i) => 1000 + i); \
               const values = times.map((_, i) => {values}); \
               timeline(host, {{ times, step: 1, series: [{{ name: 'one', values, kind: 'line' }}] }}, \
                        charts.{chart}); \
               return [...host.querySelectorAll('text')].map(text => text.textContent); }})"
        ));
        serde_json::from_value(drawn).unwrap()
    };
    let has = |texts: &[String], text: &str| texts.iter().any(|one| one == text);
    let rates = texts("RATE_CHART", "i === 40 ? 5000 : 10");
    assert!(has(&rates, "peak 5 k/s") && has(&rates, "15") && !has(&rates, "5 k"), "{rates:?}");
    // Four of a hundred samples are four times as slow as the others.
    let times = texts("LATENCY_CHART", "i % 25 === 7 ? 0.004 : 0.001");
    assert!(has(&times, "peak 4 ms") && !has(&times, "4 ms"), "{times:?}");
    // A burst of this height is part of the traffic.
    let burst = texts("RATE_CHART", "i % 25 === 7 ? 40 : 10");
    assert!(has(&burst, "40") && !burst.iter().any(|text| text.starts_with("peak")), "{burst:?}");
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
    shown.page.wait_until(
        "document.querySelector('#timeline path.line[style*=\"--chart-degraded\"]') !== null",
    );
    let colours = "['degraded', 'allowed', 'denied', 'shadow'].map(name => \
                   getComputedStyle(document.querySelector('.chart')).getPropertyValue(`--chart-${name}`))";
    assert_eq!(shown.page.evaluate(&format!("new Set({colours}).size")), 4, "different colours");
    shown.page.wait_until(&shows("#top-traffic .label", "alice"));
    shown.page.click("#top-traffic .label");
    shown.page.wait_until(&has(".decisions", "allowed, degraded"));
}

#[test]
fn a_wide_window_is_used_and_a_phone_shows_no_gaps() {
    let mut shown = Shown::start("");
    for _ in 0..6 {
        shown.log_in("203.0.113.9");
    }
    shown.page.wait_until(&shows("#top-denied .label", "203.0.113.9"));
    shown.page.click("#top-denied .label");
    shown.page.wait_until("document.querySelectorAll('.decisions tbody tr').length === 6");
    let bounds =
        |selector: &str| format!("document.querySelector('{selector}').getBoundingClientRect()");
    let one_line = "[...document.querySelectorAll('.decisions td:first-child, .decisions .badge')]\
                    .every(it => { const range = document.createRange(); range.selectNodeContents(it); \
                    return range.getClientRects().length === 1; })";
    let (chart, latency) = (bounds("#traffic .card"), bounds("#latency"));
    for width in [1920, 1200, 360] {
        shown.page.resize(width, 900);
        shown.page.wait_until(&format!("document.documentElement.scrollWidth === {width}"));
        let side_by_side =
            format!("{chart}.top === {latency}.top && {chart}.right < {latency}.left");
        shown.page.wait_until(&format!("({side_by_side}) === {}", width == 1920));
        let (tiles, last) = (bounds("#tiles"), bounds("#tiles > :last-child"));
        let tiles = format!("Math.abs({tiles}.right - {last}.right) < 1");
        assert_eq!(shown.page.evaluate(&tiles), true, "tiles fill the row at {width}");
        assert_eq!(shown.page.evaluate(one_line), true, "times and badges at {width}");
    }
    assert_eq!(shown.page.evaluate(&format!("{}.width > 330", bounds("main"))), true);
    shown.assert_clean();
}
