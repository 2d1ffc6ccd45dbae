//! Tests the dashboard in a real browser.

use pacegate_testkit::servers::{Chromium, Page, Port, Scheme};
use serde_json::{Value, json};

use crate::{
    clients::{Folder, Http},
    service::Service,
};

/// Policies with windows that do not end during a test.
pub(crate) const POLICIES: &str = "
policies:
  - { name: login, match: { path: /login }, per: [ip], limit: 5/365d }
  - { name: api, match: { path: /api/** }, per: [user], limit: 1000/365d }
  - { name: watched, match: { path: /api/** }, per: [user], limit: 3/365d, mode: shadow }
";
const KEYS: &str = "
keys:
  - { name: boss, file: boss.key, scope: admin }
  - { name: checker, file: checker.key }
";
const BOSS: &str = "the-key-of-the-boss";
const CHECKER: &str = "the-key-that-checks";
const HOSTILE: &str = r"<img src=x onerror=window.hit=1>";

/// A server and a page with its dashboard.
pub(crate) struct Shown {
    pub(crate) page: Page,
    service: Service,
    http: Http,
    folder: Folder,
}

impl Shown {
    pub(crate) fn start(keys: &str) -> Self {
        Self::with_config(&format!("{POLICIES}{keys}"))
    }

    pub(crate) fn with_config(config: &str) -> Self {
        let folder = Folder::with_config(config);
        folder.replace("boss.key", BOSS);
        folder.replace("checker.key", CHECKER);
        let service = Service::start(&["--config", &folder.config()]);
        let http = Http::connect(service.address("http")).unwrap();
        let page = Chromium::shared().page();
        page.open(&format!("http://{}/", service.address("http")));
        Self { page, service, http, folder }
    }

    /// Sends a request other than a check.
    fn request(&mut self, method: &str, path: &str) -> u16 {
        self.http.request(method, path, None, "").unwrap().status
    }

    pub(crate) fn check(&mut self, attributes: &Value) -> u16 {
        let body = json!({ "attributes": attributes }).to_string();
        self.http.check(Some(BOSS), &body).unwrap().status
    }

    pub(crate) fn log_in(&mut self, ip: &str) -> u16 {
        self.check(&json!({ "path": "/login", "ip": ip }))
    }

    pub(crate) fn origin(&self) -> String {
        format!("http://{}/", self.service.address("http"))
    }

    /// Blocks the key that the lookup shows, and confirms it.
    pub(crate) fn block(&self) {
        self.page.click("#lookup-answer button.danger");
        self.page.wait_until("document.querySelector('#confirm-dialog').open");
        self.page.click("#confirm-yes");
    }

    /// Checks that the message of the last action does not overlap an element.
    pub(crate) fn block_message_is_above(&self, selector: &str) {
        let box_of =
            |selector| format!("document.querySelector('{selector}').getBoundingClientRect()");
        let (said, other) = (box_of("#said"), box_of(selector));
        let above = format!("{said}.bottom < {other}.top || {said}.left > {other}.right");
        assert_eq!(self.page.evaluate(&above), true);
    }

    /// Checks that the console has no errors and that the page sent requests only to its server.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.page.complaints(), Vec::<String>::new());
        let origin = self.origin();
        let requests = self.page.requests();
        assert!(requests.iter().any(|url| url.ends_with("/v1/live")), "{requests:?}");
        for url in requests {
            assert!(url.starts_with(&origin), "{url}");
        }
    }
}

/// Returns an expression that is true if an element has exactly this text.
pub(crate) fn shows(selector: &str, text: &str) -> String {
    let (selector, text) = (Value::from(selector), Value::from(text));
    format!("document.querySelector({selector})?.textContent === {text}")
}

/// Returns an expression that is true if an element is visible and contains this text.
pub(crate) fn has(selector: &str, text: &str) -> String {
    let (selector, text) = (Value::from(selector), Value::from(text));
    format!(
        "(() => {{ const it = document.querySelector({selector}); \
         return it !== null && it.checkVisibility() && it.innerText.includes({text}); }})()"
    )
}

#[test]
fn figures_update_with_traffic() {
    let mut shown = Shown::start("");
    shown.page.wait_until(&has("#first-steps", "No traffic yet"));
    let body = r#"{"attributes":{"path":"/login","ip":"203.0.113.9"}}"#;
    let origin = shown.origin();
    let line = format!("curl -H 'Content-Type: application/json' -d '{body}' {origin}v1/check");
    assert_eq!(shown.page.text("#first-curl"), line);
    assert_eq!(shown.page.text("#state"), "live");

    for _ in 0..12 {
        shown.log_in("203.0.113.7");
    }
    shown.page.wait_until(&has(".tile.of-allowed", "5 requests, 5 units since the start"));
    shown.page.wait_until(&has(".tile.of-denied", "7 requests, 7 units since the start"));
    shown.page.wait_until("document.querySelector('#first-steps').hidden");
    shown.page.wait_until("parseFloat(document.querySelector('#now-denied').textContent) > 0");
    for _ in 0..4 {
        assert_eq!(shown.check(&json!({ "path": "/api/x", "user": "alice" })), 200);
    }
    shown.page.wait_until(&has(".tile.of-all", "20 requests, 20 units since the start"));
    shown.page.wait_until(&has(".tile.of-shadow", "1 request, 1 unit since the start"));

    let row = "[...document.querySelectorAll('.policies tbody tr')]\
               .map(row => row.innerText.replace(/\\s+/g, ' '))";
    let rows = shown.page.evaluate(row);
    assert!(rows[0].as_str().unwrap().starts_with("login path = /login per ip 5/365d"), "{rows}");
    assert!(rows[0].as_str().unwrap().ends_with("100 %"), "{rows}");
    assert!(rows[2].as_str().unwrap().starts_with("watched shadow path ~ /api/**"), "{rows}");
    let top = |list: &str| shown.page.text(list).split_whitespace().collect::<Vec<_>>().join(" ");
    for list in ["#top-traffic li", "#top-denied li"] {
        assert_eq!(top(list), "203.0.113.7 login 5 allowed 7 denied");
    }
    shown.assert_clean();
}

#[test]
fn units_and_latency_are_shown() {
    let mut shown = Shown::start("");
    for user in ["alice", "bob"] {
        let attributes = json!({ "path": "/api/x", "user": user });
        let body = json!({ "attributes": attributes, "cost": 3 }).to_string();
        assert_eq!(shown.http.check(None, &body).unwrap().status, 200);
    }
    shown.page.wait_until(&has(".tile.of-allowed", "Allowed requests"));
    shown.page.wait_until(&has(".tile.of-allowed", "4 requests, 12 units since the start"));
    shown.page.wait_until(&has(".tile.of-latency", "≤"));
    let drawn = |chart: &str, text: &str| {
        let chart = format!("document.querySelector('{chart} svg').textContent");
        format!("{chart}.includes('{text}')")
    };
    shown.page.wait_until(&drawn("#latency-timeline", "latency"));
    shown.page.wait_until(&drawn("#timeline", "requests per second"));
    shown.page.wait_until(&has("#listeners tbody", "≤"));
    assert_eq!(shown.page.text("#timeline-title"), "Requests per second");
    shown.page.evaluate(
        "const select = document.querySelector('#counted'); select.value = 'units'; \
         select.dispatchEvent(new Event('change'))",
    );
    shown.page.wait_until(&shows("#timeline-title", "Units per second"));
    shown.page.wait_until(&has(".tile.of-allowed", "Allowed units"));
    shown.page.wait_until(&drawn("#timeline", "units per second"));
    let totals = "[...document.querySelectorAll('.policies tbody tr')]\
                  .map(row => row.querySelector('td.of-allowed .quiet').textContent)";
    assert_eq!(shown.page.evaluate(totals), json!(["0", "6", "6"]));
    shown.assert_clean();
}

#[test]
fn the_cause_of_a_store_outage_is_shown() {
    let port = Port::reserve();
    let address = format!("127.0.0.1:{}", port.number());
    let shown = Shown::with_config(&format!("store: {{ url: 'redis://{address}' }}\n{POLICIES}"));
    shown.page.wait_until(&has("#alerts", "Store unreachable"));
    let alert = shown.page.text("#alerts");
    for part in [&*address, "refused", "applying failure modes: local (login, api, watched)"] {
        assert!(alert.contains(part), "{part} in {alert}");
    }
    shown.page.wait_until(&has("#servers", "refused"));
    shown.assert_clean();
}

#[test]
fn keys_are_shown_as_text() {
    let mut shown = Shown::start("");
    for _ in 0..6 {
        shown.log_in(HOSTILE);
    }
    shown.page.wait_until(&shows("#top-denied .label", HOSTILE));
    shown.page.click("#top-denied .label");
    shown.page.wait_until(&shows("#lookup-answer b", HOSTILE));
    shown.block();
    shown.page.wait_until(&shows("#blocked b", HOSTILE));
    shown.page.write("#try-attributes input[aria-label='Value of path']", "/login");
    shown.page.write("#try-attributes input[aria-label='Value of ip']", HOSTILE);
    shown.page.press("Enter");
    shown.page.wait_until(&shows("#try-answer code", HOSTILE));
    assert_eq!(shown.page.evaluate("document.images.length"), 1, "only the logo");
    assert_eq!(shown.page.evaluate("window.hit === undefined"), true);
    shown.assert_clean();
}

#[test]
fn a_request_is_explained_without_charging() {
    let mut shown = Shown::start("");
    shown.page.wait_until("document.querySelectorAll('.attribute').length === 3");
    shown.page.write("#try-attributes input[aria-label='Value of path']", "/login");
    shown.page.write("#try-attributes input[aria-label='Value of ip']", "203.0.113.9");
    for _ in 0..2 {
        shown.page.click("#try-form button.main");
        shown.page.wait_until(&has("#try-answer", "5 of 5 left"));
    }
    let told = shown.page.text("#try-answer");
    for part in [
        "Allowed. login is the tightest policy",
        "Key: 203.0.113.9",
        "2 that do not match",
        "Requires path ~ /api/**; path is “/login”.",
    ] {
        assert!(told.contains(part), "{part} in {told}");
    }
    for left in (0..5).rev() {
        assert_eq!(shown.log_in("203.0.113.9"), 200, "{left}");
    }
    shown.page.click("#try-form button.main");
    shown.page.wait_until(&has("#try-answer .verdict", "Denied by login. Retry in"));
    assert!(shown.page.text("#try-answer .steps").contains("0 of 5 left"));
    assert_eq!(shown.page.evaluate("document.querySelector('.steps .bad b').textContent"), "login");
    let attributes = json!({ "path": "/login", "ip": "203.0.113.9" });
    let spent = json!({ "attributes": attributes, "cost": 2, "spent": true }).to_string();
    assert_eq!(shown.http.check(Some(BOSS), &spent).unwrap().status, 429);
    shown.page.click("#try-form button.main");
    shown.page.wait_until(&has("#try-answer .steps", "0 of 5 left, 2 owed"));
    shown.page.wait_until(&has(".budget", "140 %"));
    shown.assert_clean();
}

#[test]
fn statistics_reset_and_block_need_an_admin_key() {
    let mut shown = Shown::start(KEYS);
    for _ in 0..6 {
        shown.log_in("203.0.113.9");
    }
    assert_eq!(shown.log_in("203.0.113.9"), 429);
    shown.page.wait_until("document.querySelector('#key-dialog').open");
    shown.page.wait_until(&has("#alerts", "requires an API key"));
    shown.page.write("#key-input", "ключ");
    shown.page.press("Enter");
    let complaint = shown.page.evaluate("document.querySelector('#key-input').validationMessage");
    assert_eq!(complaint, "An API key consists of printable ASCII characters.");
    assert_eq!(shown.page.evaluate("document.querySelector('#key-dialog').open"), true);
    shown.page.write("#key-input", CHECKER);
    shown.page.press("Enter");
    shown.page.wait_until(&has("#alerts", "need an admin key"));
    shown.page.wait_until("document.querySelectorAll('#lookup-policy option').length === 3");
    assert_eq!(shown.page.evaluate("document.querySelectorAll('.chart-bars .label').length"), 0);

    shown.page.write("#lookup-key", "203.0.113.9");
    shown.page.press("Enter");
    shown.page.wait_until(&has("#lookup-answer", "0 of 5 left"));
    shown.page.click("#lookup-answer button.plain");
    shown.page.wait_until(&has("#said", "an API key with the scope `admin`"));
    assert_eq!(shown.log_in("203.0.113.9"), 429);

    shown.page.click("#key-open");
    shown.page.write("#key-input", BOSS);
    shown.page.press("Enter");
    shown.page.wait_until(&shows("#state", "live"));
    shown.page.click("#lookup-answer button.plain");
    shown.page.wait_until(&has("#said", "were reset"));
    shown.page.wait_until(&has("#lookup-answer", "5 of 5 left"));
    assert_eq!(shown.log_in("203.0.113.9"), 200);

    shown.block();
    shown.page.wait_until(&has("#said", "is blocked in login for 1 h"));
    assert_eq!(shown.log_in("203.0.113.9"), 429);
    shown.page.wait_until(&shows("#blocked b", "203.0.113.9"));
    shown.page.click("#blocked button");
    shown.page.wait_until(&has("#blocked", "No blocked keys."));
    assert_eq!(shown.log_in("203.0.113.9"), 200);

    shown.page.click("#try-form button.main");
    shown.page.wait_until("document.querySelector('#try-answer pre') !== null");
    let line = shown.page.text("#try-answer pre");
    let key =
        "curl -H \"Authorization: Bearer $PACEGATE_KEY\" -H 'Content-Type: application/json' ";
    assert!(line.starts_with(key), "{line}");

    let log = shown.service.log();
    for action in ["reset", "block", "unblock"] {
        assert!(log.contains(&format!("\"{action}\"")), "{action} in {log}");
    }
    let complaints = shown.page.complaints();
    let refused = |line: &String| line.starts_with("network: ") && line.contains("status of 40");
    assert!(complaints.iter().all(refused), "{complaints:?}");
    let stored = shown.page.evaluate("JSON.stringify(localStorage) + document.cookie");
    assert_eq!(stored, "{}", "the key is kept in this tab only");
}

#[test]
fn the_lookup_shows_the_current_state_of_a_key() {
    let mut shown = Shown::start("");
    let plans = "policies: [{ name: plans, per: [user], limit: 9/365d, \
                 overrides: [{ match: { plan: pro }, limit: 99/365d }] }]\n";
    shown.folder.replace("pacegate.yaml", plans);
    assert_eq!(shown.request("POST", "/v1/reload"), 200);
    shown.page.wait_until("document.querySelector('#lookup-policy').value === 'plans'");
    shown.page.write("#lookup-key", "alice");
    shown.page.press("Enter");
    shown.page.wait_until(&has("#lookup-answer", "Its overrides depend on the request"));
    shown.page.wait_until(&has("#lookup-answer", "9 of 9 left"));
    assert_eq!(shown.page.evaluate("document.querySelector('#lookup-answer .badge')"), Value::Null);

    // The page shows an action immediately, before its next poll.
    shown.page.evaluate(
        "document.addEventListener('pacegate-changed', e => e.stopImmediatePropagation(), true)",
    );
    shown.block();
    shown.page.wait_until(&has("#lookup-answer .badge", "denied for"));
    assert!(shown.page.text("#lookup-answer .buttons").contains("Unblock"));
    assert_eq!(shown.request("DELETE", "/v1/block?policy=plans&key=alice"), 200);
    shown.page.click("#lookup-answer .buttons button:last-child");
    shown.page.wait_until(&has("#said", "“alice” was not blocked in plans."));

    shown.page.wait_until(&has("#lookup-answer button.danger", "Block"));
    shown.block();
    shown.page.wait_until(&shows("#blocked b", "alice"));
    shown.folder.replace("pacegate.yaml", POLICIES);
    assert_eq!(shown.request("POST", "/v1/reload"), 200);
    shown.page.click("#blocked button");
    shown.page.wait_until(&has("#said", "“alice” is no longer blocked in plans."));
    shown.page.wait_until(&has("#blocked", "No blocked keys."));
    // The panel looks the key up again, and the policy no longer exists.
    shown.page.wait_until(&has("#lookup-answer", "unknown policy"));
}

#[test]
fn envoy_rules_are_marked() {
    let rules = "domain: edge\ndescriptors: [{ key: user, \
                 rate_limit: { unit: hour, requests_per_unit: 2 } }]\n";
    let shown = Shown::with_config(rules);
    shown.page.wait_until(&shows(".policies .chips", "Envoy descriptors"));
    assert_eq!(shown.page.text(".policies .policy-name button"), "edge.user");
    let hint = shown.page.evaluate("document.querySelector('#lookup-key').placeholder");
    assert_eq!(hint, "user");
    let names =
        "[...document.querySelectorAll('.attribute input[aria-label=Name]')].map(it => it.value)";
    assert_eq!(shown.page.evaluate(names), json!(["key"]));
    shown.assert_clean();
}

#[test]
fn foreign_responses_and_clock_steps_are_handled() {
    let shown = Shown::start("");
    shown.page.wait_until(&shows("#state", "live"));
    shown.page.evaluate(
        "window.ask = fetch; window.fetch = async () => new Response('<p>Who are you?</p>')",
    );
    shown.page.wait_until(&shows("#state", "unreachable"));
    shown.page.evaluate("window.fetch = ask");
    shown.page.wait_until(&shows("#state", "live"));
    // With a `since` in the future, the page would show nothing for a long time.
    shown.page.evaluate(
        "window.asked = []; \
         window.fetch = async (url, how) => { \
           asked.push(url); \
           const said = await (await ask(url, how)).json(); \
           if (asked.length < 3) said.history = { from: 9, step: 1, length: 0, policies: {} }; \
           return Response.json(said); \
         }",
    );
    shown.page.wait_until("asked.indexOf('v1/live') > 0");
    shown.page.wait_until("asked.at(-1).startsWith('v1/live?since=')");
    shown.assert_clean();
}

#[test]
fn a_restart_of_the_server_is_handled() {
    let port = Port::reserve();
    let address = format!("127.0.0.1:{}", port.number());
    let mut service = Service::start(&["--http", &address]);
    let page = Chromium::shared().page();
    page.open(&format!("http://{address}/"));
    page.wait_until(&shows("#state", "live"));
    let check = |times: u32| {
        let mut http = Http::connect(address.parse().unwrap()).unwrap();
        for _ in 0..times {
            http.check(None, r#"{"attributes":{"key":"alice"}}"#).unwrap();
        }
    };
    check(3);
    page.wait_until(&has(".tile.of-allowed", "3 requests, 3 units since the start"));
    drop(service);
    page.wait_until(&has("#alerts", "Server unreachable, retrying"));
    assert_eq!(page.text("#state"), "unreachable");
    assert!(
        page.text(".tile.of-allowed").contains("3 requests, 3 units since the start"),
        "the last data stays"
    );
    service = Service::start(&["--http", &address]);
    page.wait_until(&shows("#state", "live"));
    page.wait_until(&shows("#alerts", ""));
    check(2);
    page.wait_until(&has(".tile.of-allowed", "2 requests, 2 units since the start"));
    let complaints = page.complaints();
    assert!(complaints.iter().all(|line| line.starts_with("network: ")), "{complaints:?}");
    drop(service);
}

#[test]
fn everything_is_reachable_by_keyboard_and_fits_on_phones() {
    let mut shown = Shown::start("");
    shown.log_in("203.0.113.9");
    shown.page.wait_until("document.querySelectorAll('#top-traffic .label').length === 1");
    let mut reached = Vec::new();
    for _ in 0..60 {
        shown.page.press("Tab");
        let at = shown.page.evaluate(
            "(() => { const it = document.activeElement; \
             const seen = getComputedStyle(it).outlineStyle !== 'none'; \
             const name = it === document.body ? 'the end' : it.id || it.className; \
             return [name || it.textContent, seen]; })()",
        );
        if at[0] == "the end" {
            break;
        }
        assert_eq!(at[1], true, "the focus on {at} is visible");
        reached.push(at[0].as_str().unwrap().to_owned());
    }
    let wanted = [
        "skip-link",
        "Traffic",
        "Health",
        "theme",
        "shown",
        "chart",
        "link",
        "label",
        "lookup-policy",
        "lookup-key",
        "main",
        "try-domain",
        "try-add",
    ];
    let mut rest = reached.iter();
    for name in wanted {
        assert!(rest.any(|other| other == name), "{name} in its order: {reached:?}");
    }
    shown.page.evaluate("document.querySelector('#timeline .chart').focus()");
    shown.page.press("ArrowLeft");
    assert!(shown.page.text("#timeline .chart-say").contains("allowed"));

    for (width, scheme) in [(360, Scheme::Dark), (1280, Scheme::Light)] {
        shown.page.resize(width, 800);
        shown.page.prefer(scheme);
        // No scrolling sideways, once the charts have been drawn for the new width.
        shown.page.wait_until(&format!("document.documentElement.scrollWidth === {width}"));
        let dark = "getComputedStyle(document.documentElement).colorScheme";
        let expected = if scheme == Scheme::Dark { "dark" } else { "light" };
        assert_eq!(shown.page.evaluate(dark), expected);
    }
    shown.page.click("#theme");
    shown.page.click("#theme");
    assert_eq!(shown.page.evaluate("document.documentElement.dataset.theme"), "dark");
    shown.page.open(&shown.origin());
    assert_eq!(
        shown.page.evaluate("document.documentElement.dataset.theme"),
        "dark",
        "the theme is kept"
    );
    shown.assert_clean();
}

#[test]
fn a_page_under_another_host_name_is_rejected() {
    let shown = Shown::start("");
    let address = shown.service.address("http");
    let page = Chromium::shared().page();
    // Like a foreign page whose DNS name resolves to this machine (DNS rebinding).
    page.open(&format!("http://rebound.test:{}/", address.port()));
    page.wait_until("document.body.innerText.includes('Unknown host')");
    assert_eq!(page.evaluate("document.scripts.length"), 0, "the page is not served at all");
}

#[test]
fn a_hidden_page_does_not_poll() {
    let shown = Shown::start("");
    shown.page.wait_until(&shows("#state", "live"));
    // As when the user switches to another tab.
    shown.page.evaluate(
        "window.planned = 0; window.wait = setTimeout; \
         window.setTimeout = (what, time) => { planned += time === 1000; return wait(what, time); }; \
         Object.defineProperty(document, 'hidden', { value: true, configurable: true }); \
         document.dispatchEvent(new Event('visibilitychange'))",
    );
    let answered = "performance.getEntriesByType('resource')\
                    .filter(entry => entry.name.includes('/v1/live')).length";
    let before = shown.page.evaluate(answered);
    // After an action, the hidden page polls once, and not again.
    shown.page.evaluate("document.dispatchEvent(new CustomEvent('pacegate-changed'))");
    shown.page.wait_until(&format!("{answered} > {before}"));
    shown.page.wait_until("fetch('healthz').then(answer => answer.ok)");
    assert_eq!(shown.page.evaluate("planned"), 0);
    shown
        .page
        .evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))");
    shown.page.wait_until("planned > 0");
    shown.assert_clean();
}
