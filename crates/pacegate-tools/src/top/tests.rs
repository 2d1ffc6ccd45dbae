use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::{Terminal, backend::TestBackend, buffer::Buffer, style::Color};
use serde_json::{Value, json};

use super::{data::Live, plain, view::View};

const START: u64 = 1_790_000_000;

fn policy(name: &str, limit: &str, mode: &str, used: Option<f64>) -> Value {
    json!({
        "name": name, "mode": mode, "limits": [{ "limit": limit }], "used": used,
        "allowed": 12_345, "denied": 67, "shadow_denied": 0, "allowed_units": 24_690,
    })
}

/// Returns the response of a server that started at `started`, with the same counts in each of the `length`
/// seconds up to `end`.
fn response(started: u64, end: u64, length: u64, allowed: u32, denied: u32) -> Value {
    let list = |count: u32| vec![count; usize::try_from(length).unwrap()];
    let key = |policy: &str, key: &str, counts: [u64; 2]| {
        let [allowed, denied] = counts;
        json!({ "policy": policy, "key": key, "allowed": allowed, "denied": denied })
    };
    json!({
        "now": end, "started": started, "version": "0.1.0", "revision": 3,
        "reload_complaint": null, "draining": false,
        "policies": [
            policy("login-per-ip", "5/minute sliding-window", "enforce", Some(1.4)),
            policy("search", "30/minute", "shadow", None),
        ],
        "policies_total": 2,
        "history": {
            "from": end + 1 - length, "step": 1, "length": length,
            "policies": {
                "login-per-ip": {
                    "allowed": list(allowed), "denied": list(denied), "shadow_denied": list(0),
                    "allowed_units": list(2 * allowed), "denied_units": list(3 * denied),
                },
                "search": { "allowed": list(2), "denied": list(0), "shadow_denied": list(1) },
            },
        },
        "busiest": [key("login-per-ip", "203.0.113.9", [10, 90]), key("search", "a\u{1b}[2J", [7, 0])],
        "most_denied": [key("login-per-ip", "203.0.113.9", [10, 90])],
        "blocked": [{ "policy": "login-per-ip", "key": "\u{202e}b", "until": START }],
        "blocked_total": 1,
        "store": { "kind": "memory", "reachable": true, "keys": 123, "max_keys": 1_000_000 },
        "listeners": [
            { "name": "http", "connections": 3, "latency": { "p50": 0.00005, "p99": 0.0025 } },
            { "name": "resp", "connections": 0, "latency": { "p50": null, "p99": null } },
        ],
    })
}

fn live(value: Value) -> Live {
    serde_json::from_value(value).unwrap()
}

fn view() -> View {
    let mut view = View::new("http://127.0.0.1:8080".to_owned());
    view.take(live(response(START, START + 100, 100, 40, 5)));
    view
}

fn press(view: &mut View, key: KeyCode) -> bool {
    view.press(KeyEvent::new(key, KeyModifiers::NONE))
}

/// Returns the lines of a screen without trailing spaces.
fn lines(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area;
    let line = |y| (0..area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..area.height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn screen(view: &View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    lines(terminal.backend().buffer())
}

#[test]
fn a_wide_screen_shows_all_panes() {
    let expected = "\x20Pacegate 0.1.0 at http://127.0.0.1:8080  up 1 min 40 s  revision 3
 store memory, 123 of 1,000,000 keys
 http 3 connections, p50 ≤ 50µs, p99 ≤ 2.5ms  resp 0 connections
 allowed 42/s (80 units/s)  denied 5/s (15 units/s)  shadow 1/s  1 blocked
┌ 1 Policies in file order ────────────────────────────────────────────────────────────────────────┐
│POLICY       LIMIT                   ALLOWED/s DENIED/s SHADOW/s USED UNITS/s LAST 5 MINUTES      │
│login-per-ip 5/minute sliding-window        40        5        0 140%      80             ████████│
│search       30/minute (shadow)              2        0        1    -       0             ████████│
└──────────────────────────────────────────────────────────────────────────────────────────────────┘
┌ 2 Keys by traffic ─────────────────────────────┐┌ 3 Keys by denials ─────────────────────────────┐
│ALLOWED  DENIED KEY                 POLICY      ││ALLOWED  DENIED KEY                 POLICY      │
│     10      90 203.0.113.9         login-per-ip││     10      90 203.0.113.9         login-per-ip│
│      7       0 a\\u{1b}[2J          search      ││                                                │
│                                                ││                                                │
└────────────────────────────────────────────────┘└────────────────────────────────────────────────┘
 q quit  ? help  Tab pane  s sort  Space pause";
    assert_eq!(screen(&view(), 100, 16).join("\n"), expected);
    let mut terminal = Terminal::new(TestBackend::new(100, 16)).unwrap();
    terminal.draw(|frame| view().draw(frame)).unwrap();
    let colour = |x, y| terminal.backend().buffer()[(x, y)].fg;
    // Red for denied, yellow for shadow-denied.
    assert_eq!((colour(98, 6), colour(98, 7)), (Color::Red, Color::Yellow));
}

const SMALL: &str = "\x20Pacegate 0.1.0 at http://127.0.0.1:8080
┌ 1 Policies in file order ────────────┐
│POLICY       ALLOWED/s DENIED/s       │
│login-per-ip        40        5       │
│search               2        0       │
│                                      │
│                                      │
│                                      │
└──────────────────────────────────────┘
 q quit  ? help  Tab pane  s sort  Space";

#[test]
fn a_small_screen_shows_one_pane_at_a_time() {
    let mut view = view();
    assert_eq!(screen(&view, 40, 10).join("\n"), SMALL);
    press(&mut view, KeyCode::Tab);
    let traffic = &screen(&view, 40, 10)[1..5];
    assert_eq!(
        traffic,
        [
            "┌ 2 Keys by traffic ───────────────────┐",
            "│ALLOWED  DENIED KEY          POLICY   │",
            "│     10      90 203.0.113.9  login-pe…│",
            "│      7       0 a\\u{1b}[2J   search   │",
        ]
    );
    press(&mut view, KeyCode::Char('3'));
    assert_eq!(screen(&view, 40, 10)[1], "┌ 3 Keys by denials ───────────────────┐");
    for (width, height) in [(1, 1), (5, 3), (20, 8), (300, 2), (2, 100)] {
        screen(&view, width, height);
    }
}

#[test]
fn shadow_denials_and_the_key_of_all_clients_are_named() {
    let mut value = response(START, START + 10, 10, 4, 1);
    let long = "x".repeat(60);
    value["busiest"] = json!([
        { "policy": "search", "key": "", "allowed": 5, "denied": 3 },
        { "policy": "login-per-ip", "key": long, "allowed": 1, "denied": 2 },
    ]);
    let mut view = view();
    view.take(live(value));
    press(&mut view, KeyCode::Tab);
    assert_eq!(
        screen(&view, 60, 10)[2..5],
        [
            "│ALLOWED  DENIED  SHADOW KEY                   POLICY      │",
            "│      5       0       3 all clients           search      │",
            "│      1       2       0 xxxxxxxxxxxxxxxxxxxx… login-per-ip│",
        ]
    );
    assert!(plain(&view).contains("search              5       0       3  all clients\n"));
}

#[test]
fn a_resized_screen_is_redrawn_completely() {
    let view = view();
    let mut terminal = Terminal::new(TestBackend::new(100, 16)).unwrap();
    for (width, height) in [(100, 16), (40, 10), (100, 16)] {
        terminal.backend_mut().resize(width, height);
        terminal.draw(|frame| view.draw(frame)).unwrap();
        assert_eq!(lines(terminal.backend().buffer()), screen(&view, width, height));
    }
}

#[test]
fn keys_work_as_documented_in_the_help() {
    let mut view = view();
    press(&mut view, KeyCode::Char('?'));
    assert_eq!(
        screen(&view, 60, 10)[1..9],
        [
            "┌┌ Help (press any key to close) ─────────────────────────┐┐",
            "││ q, Esc     quit                                        ││",
            "││ ?          this help                                   ││",
            "││ Tab, 1 2 3 policies, keys by traffic, keys by denials  ││",
            "││ s          sort policies by another column             ││",
            "││ Space      pause or resume                             ││",
            "││ Up, Down   scroll                                      ││",
            "└└────────────────────────────────────────────────────────┘┘",
        ]
    );
    assert!(!press(&mut view, KeyCode::Char('q')), "it closes the help");
    assert_eq!(screen(&view, 40, 10).join("\n"), SMALL);
    let names = |view: &View| {
        let name = |line: &String| line.trim_matches('│').split(' ').next().unwrap().to_owned();
        screen(view, 40, 10)[3..5].iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(&view), ["login-per-ip", "search"]);
    for (title, order) in [
        ("by denied", ["login-per-ip", "search"]),
        ("by allowed", ["login-per-ip", "search"]),
        ("by shadow", ["search", "login-per-ip"]),
        ("by used", ["login-per-ip", "search"]),
        ("by name", ["login-per-ip", "search"]),
        ("in file order", ["login-per-ip", "search"]),
    ] {
        press(&mut view, KeyCode::Char('s'));
        assert_eq!(names(&view), order, "{title}");
        assert!(screen(&view, 40, 10)[1].contains(title), "{title}");
    }
    for _ in 0..5 {
        press(&mut view, KeyCode::Down);
    }
    assert_eq!(names(&view)[0], "search");
    press(&mut view, KeyCode::Up);
    assert_eq!(names(&view)[0], "login-per-ip");
    press(&mut view, KeyCode::Char(' '));
    assert!(!view.wants_more() && screen(&view, 90, 10)[0].ends_with("revision 3  paused"));
    press(&mut view, KeyCode::Char(' '));
    assert!(view.wants_more());
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(view.press(control_c) && press(&mut view, KeyCode::Char('q')));
    assert!(press(&mut view, KeyCode::Esc));
}

#[test]
fn an_unreachable_server_is_retried_and_a_restarted_one_resets_the_history() {
    let mut view = View::new("http://10.0.0.7:8080".to_owned());
    view.fail("cannot reach it: \u{1b}refused".to_owned());
    view.pass(Duration::from_secs(3));
    view.fail("cannot reach it: refused".to_owned());
    let away = " unreachable for 3 s, retrying: cannot reach it: refused";
    assert_eq!(screen(&view, 90, 16)[..2], [" Pacegate at http://10.0.0.7:8080", away]);
    view.take(live(response(START, START + 10, 10, 4, 1)));
    assert!(!screen(&view, 90, 16).concat().contains("reachable"));
    view.pass(Duration::from_secs(9));
    view.fail("gone".to_owned());
    // The last data stays visible.
    assert!(screen(&view, 90, 16)[1].starts_with(" unreachable for 0 s"));
    assert_eq!(view.recent("login-per-ip"), ([20, 5, 0, 40, 15], 5));
    assert_eq!(view.since(), START + 10);
    // A restarted server: its counters and its history start at zero.
    view.take(live(response(START + 20, START + 22, 2, 1, 0)));
    assert_eq!(view.recent("login-per-ip"), ([2, 0, 0, 4, 0], 2));
    assert_eq!(view.history("login-per-ip"), (vec![[1, 0, 0]; 2], START + 22));
}

#[test]
fn parts_of_the_history_are_joined() {
    let mut view = View::new(String::new());
    let history = |view: &View| view.history("login-per-ip").0;
    view.take(live(response(START, START + 2, 2, 4, 0)));
    view.take(live(response(START, START + 2, 0, 0, 0)));
    view.take(live(response(START, START + 3, 1, 9, 1)));
    assert_eq!(history(&view), [[4, 0, 0], [4, 0, 0], [9, 1, 0]]);
    // A pause longer than the server's history leaves a gap.
    view.take(live(response(START, START + 6, 1, 8, 0)));
    assert_eq!(history(&view)[3..], [[0, 0, 0], [0, 0, 0], [8, 0, 0]]);
    // The server's clock went back.
    view.take(live(response(START, START + 5, 3, 7, 0)));
    assert_eq!(history(&view), [[7, 0, 0]; 3]);
    // It went back before the known history: the next response must contain the whole history.
    view.take(live(response(START, START + 5, 0, 0, 0)));
    assert_eq!((view.since(), history(&view).len()), (START + 5, 3));
    view.take(live(response(START, START + 4, 0, 0, 0)));
    assert_eq!((view.since(), history(&view).len()), (0, 0));
    for end in 1..5 {
        view.take(live(response(START, START + end * 400, 400, 2, 0)));
        assert_eq!(history(&view), [[2, 0, 0]; 300]);
    }
    // A new policy and a removed one.
    let mut other = response(START, START + 1_602, 2, 3, 0);
    other["policies"][1]["name"] = "new".into();
    view.take(live(other));
    assert_eq!(view.history("search").0, [[0; 3]; 0]);
    assert_eq!(view.history("new").0, [[0; 3]; 300]);
}

#[test]
fn invalid_responses_do_not_panic() {
    for odd in [
        json!({}),
        json!({ "history": { "from": u64::MAX, "length": 4_000_000_000_u64 }, "now": 1e300 }),
        json!({ "history": { "from": 0, "length": 1 }, "policies": [{ "name": "\u{9b}x" }] }),
    ] {
        let mut view = view();
        view.take(live(odd));
        screen(&view, 100, 20);
        plain(&view);
    }
}

#[test]
fn an_unreachable_store_is_shown_with_its_cause() {
    let mut value = response(START, START + 10, 10, 4, 1);
    let cause = "connection refused; applying failure modes: local (search)";
    value["store"] = json!({ "kind": "redis", "reachable": false, "outage": cause });
    let mut view = view();
    view.take(live(value.clone()));
    let expected = format!("store redis unreachable: {cause}");
    assert_eq!(screen(&view, 90, 16)[1], format!(" {expected}"));
    assert!(plain(&view).contains(&expected));
    let servers = json!([{ "round_trip": 0.00025 }, { "round_trip": 0.0001 }]);
    value["store"] = json!({
        "kind": "redis", "reachable": true, "breaker": "closed", "servers": servers, "calls": 10,
        "requests": 15, "timed_out": 3,
    });
    view.take(live(value));
    let expected =
        "store redis, breaker closed, round trip 250µs, 1.5 requests per call, 3 timed out";
    assert!(plain(&view).contains(expected), "{}", plain(&view));
}

#[test]
fn plain_text_contains_all_tables() {
    let expected = "\
Pacegate 0.1.0 at http://127.0.0.1:8080
up 1 min 40 s, revision 3
store memory, 123 of 1,000,000 keys
http 3 connections, p50 ≤ 50µs, p99 ≤ 2.5ms
resp 0 connections

POLICY        LIMIT                    ALLOWED/s  DENIED/s  SHADOW/s  UNITS/s  \
ALLOWED  DENIED  SHADOW   UNITS  USED  LAST 5 MINUTES
login-per-ip  5/minute sliding-window         40         5         0       80   \
12,345      67       0  24,690  140%           ██████
search        30/minute (shadow)               2         0         1        0   \
12,345      67       0  24,690     -           ██████

BUSIEST       ALLOWED  DENIED  SHADOW  KEY
login-per-ip       10      90       0  203.0.113.9
search              7       0       0  a\\u{1b}[2J

MOST DENIED   ALLOWED  DENIED  SHADOW  KEY
login-per-ip       10      90       0  203.0.113.9

blocked: \\u{202e}b of login-per-ip
";
    let text = plain(&view());
    assert_eq!(text, expected);
}
