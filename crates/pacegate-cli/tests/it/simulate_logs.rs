//! Tests `pacegate simulate` with malformed and unusual logs.

use std::fmt::Write as _;

use serde_json::Value;

use crate::program::{Finished, run};

fn simulate(words: &[&str], log: &str) -> Finished {
    run(&[&["simulate"], words].concat(), log.as_bytes())
}

/// Returns the report for a log with a limit of one per day.
fn report(words: &[&str], log: &str) -> Value {
    let finished =
        simulate(&[&["--limit", "1/day", "--json", "--top", "1000"], words].concat(), log);
    assert_eq!((finished.code, &*finished.stderr), (Some(0), ""), "{words:?}");
    serde_json::from_str(&finished.stdout).unwrap()
}

/// Returns the number of requests and of malformed lines.
fn counts(report: &Value) -> [u64; 2] {
    ["requests", "malformed"].map(|name| report["traffic"][name].as_u64().unwrap())
}

fn keys(report: &Value) -> Vec<&str> {
    let busiest = report["variants"][0]["policies"][0]["busiest"].as_array().unwrap();
    busiest.iter().map(|key| key["key"].as_str().unwrap()).collect()
}

fn rows(count: usize) -> String {
    (0..count).fold(String::new(), |mut text, row| {
        writeln!(text, "2026-01-01T00:00:{:02}Z,10.0.{}.{},x", row % 60, row / 250, row % 250)
            .unwrap();
        text
    })
}

#[test]
fn a_stray_quote_does_not_affect_other_lines() {
    let heading = "time,ip,ua\n";
    let within = format!("{heading}2026-01-01T00:00:00Z,1.1.1.1,a 5\" screen\n{}", rows(200));
    assert_eq!(counts(&report(&[], &within)), [201, 0]);

    // An opening quote without an end loses only its line, even if the end of the file is far away.
    let lines = 60_000;
    let open = format!("{heading}2026-01-01T00:00:00Z,1.1.1.1,\"open\n{}", rows(lines));
    assert!(open.len() > 1_500_000);
    let told = report(&[], &open);
    assert_eq!(counts(&told), [lines as u64, 1]);
    let example = told["traffic"]["malformed_examples"][0].as_str().unwrap();
    assert_eq!(example, "standard input:2: unclosed quote");
    assert_eq!(told["traffic"]["lines"], lines + 2);

    // A value with line breaks at the end of the file, without a final line break.
    let last = format!("{heading}{}2026-01-01T00:01:00Z,\"a\nb\",\"c\nd\"", rows(2));
    let told = report(&[], &last);
    assert_eq!((counts(&told), keys(&told).contains(&"a\\nb")), ([3, 0], true));
}

#[test]
fn only_the_line_that_is_too_long_is_malformed() {
    let line = |path: &str| {
        format!("1.1.1.1 - - [01/Jan/2026:00:00:00 +0000] \"GET /{path} HTTP/1.1\" 200 1\n")
    };
    for length in [(1 << 20) + 1, 3 << 20] {
        let text = [line(""), line(&"x".repeat(length)), line("")].concat();
        assert_eq!(counts(&report(&[], &text)), [2, 1], "{length}");
    }
    // Longer than the first batch, but shorter than the maximum length of a line.
    let text = [line(""), line(&"x".repeat(300_000)), line("")].concat();
    assert_eq!(counts(&report(&[], &text)), [3, 0]);
}

#[test]
fn values_longer_than_the_server_accepts_are_malformed() {
    let line = |user: &str| format!("{{\"time\":1767225600,\"user\":\"{user}\"}}\n");
    let text = [line(&"a".repeat(1_024)), line(&"b".repeat(1_025))].concat();
    let told = report(&["--per", "user"], &text);
    assert_eq!(counts(&told), [1, 1]);
    let example = told["traffic"]["malformed_examples"][0].as_str().unwrap();
    assert_eq!(example, "standard input:2: value longer than 1,024 bytes");
    assert_eq!(keys(&told), [format!("{}…", "a".repeat(199))], "the displayed key is truncated");
    assert_eq!(counts(&report(&[], &text)), [2, 0], "no policy uses the value");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let line = "1.1.1.1 - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let told = report(&[], &format!("\u{feff}{line}{line}"));
    assert_eq!((counts(&told), keys(&told)), ([2, 0], vec!["1.1.1.1"]));
    let told = report(&[], &format!("\u{feff}time,ip\n{}", rows(1)));
    assert_eq!(counts(&told), [1, 0]);
    let told = report(&[], "\u{feff}{\"time\":1767225600,\"ip\":\"1.1.1.1\"}\n");
    assert_eq!(counts(&told), [1, 0]);
}

#[test]
fn csv_is_detected_with_the_map() {
    let agent = "\"Mozilla/5.0 (X11; Linux; a; b; c)\"";
    let bare = format!("2026-01-01T00:00:00Z,1.2.3.4,{agent}\n").repeat(2);
    let told = report(&["--map", "time=1,ip=2"], &bare);
    assert_eq!((counts(&told), keys(&told)), ([2, 0], vec!["1.2.3.4"]));
    let named = "when,who\n2026-01-01T00:00:00Z,1.2.3.4\n";
    let told = report(&["--map", "time=when,ip=who"], named);
    assert_eq!((counts(&told), keys(&told)), ([1, 0], vec!["1.2.3.4"]));
    let finished = simulate(&["--limit", "1/day", "--map", "time=2"], &bare);
    assert!(finished.stderr.contains("unknown log format"), "{}", finished.stderr);
}

#[test]
fn candidate_fields_have_a_fixed_order() {
    let text = "{\"time\":1767225600,\"client_ip\":\"9.9.9.9\"}\n\
                {\"time\":1767225601,\"ip\":\"1.1.1.1\",\"client_ip\":\"9.9.9.9\"}\n";
    assert_eq!(keys(&report(&[], text)), ["1.1.1.1", "9.9.9.9"]);
}

#[test]
fn escapes_in_paths_are_decoded() {
    let line = |path: &str| {
        format!("1.1.1.1 - - [01/Jan/2026:00:00:00 +0000] \"GET {path} HTTP/1.1\" 200 1\n")
    };
    let text = [line(r"/caf\xC3\xA9?x"), line("/caf%C3%A9"), line(r"/a\x22b"), line(r#"/a\"b"#)];
    let told = report(&["--per", "path"], &text.concat());
    assert_eq!(counts(&told), [4, 0]);
    assert_eq!(keys(&told).len(), 2, "{:?}", keys(&told));
}

#[test]
fn an_empty_log_is_reported() {
    for text in ["", "\n\n"] {
        let finished = simulate(&["--limit", "1/day", "--format", "common"], text);
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""));
        let said = "nothing to replay: standard input is empty";
        assert!(finished.stderr.contains(said), "{}", finished.stderr);
    }
    let finished = simulate(&["--limit", "1/day"], "");
    assert!(finished.stderr.contains("standard input is empty"), "{}", finished.stderr);
}

#[test]
fn one_field_can_provide_several_attributes() {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let text = "policies:\n  - { name: a, per: user, limit: 1/day }\n  - { name: b, per: user_id, limit: 1/day }\n";
    std::fs::write(file.path(), text).unwrap();
    let config = ["--json", "--config", file.path().to_str().unwrap()];
    let table = "time,user_id\n2026-01-01T00:00:00Z,bob\n2026-01-01T00:00:01Z,eve\n";
    let common =
        |user: &str| format!("{user} - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let common = common("bob") + &common("eve");
    let numbered = "2026-01-01T00:00:00Z,bob\n2026-01-01T00:00:01Z,eve\n";
    for (log, map) in [
        (table, "time=time"),
        (&*common, "user=ip,user_id=ip"),
        (numbered, "time=1,user=2,user_id=2"),
        (
            "{\"time\":1767225600,\"user_id\":\"bob\"}\n{\"time\":1767225601,\"user_id\":\"eve\"}\n",
            "time=time",
        ),
    ] {
        let finished = simulate(&[&config[..], &["--map", map]].concat(), log);
        let told: Value = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!(told["notes"].as_array().unwrap().len(), 0, "{map}: {}", told["notes"]);
        for place in [0, 1] {
            let policy = &told["variants"][0]["policies"][place];
            assert_eq!(
                (&policy["allowed"], &policy["keys"]["seen"]),
                (&2.into(), &2.into()),
                "{map}"
            );
        }
    }
}

#[test]
fn a_search_rejects_input_that_can_be_read_only_once() {
    let line = "1.1.1.1 - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n";
    for place in ["-", "/dev/stdin"] {
        let finished = simulate(&[place, "--suggest", "deny at most 1%"], line);
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""), "{place}");
        let name = if place == "-" { "standard input" } else { place };
        let said = format!("{name} can be read only once, but --suggest needs several passes");
        assert!(finished.stderr.contains(&said), "{}", finished.stderr);
    }
    let finished = simulate(&["-", "-", "--limit", "1/day"], line);
    assert_eq!((finished.code, &*finished.stdout), (Some(2), ""));
    let said = "standard input is given twice";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
}

#[test]
fn a_read_error_is_reported_once() {
    let finished = simulate(&["/nowhere/access.log", "--limit", "1/day"], "");
    let said = "error: cannot simulate: cannot read /nowhere/access.log: No such file or directory (os error 2)\n";
    assert!(finished.stderr.starts_with(said), "{}", finished.stderr);
}

#[test]
fn a_line_may_begin_with_the_virtual_host() {
    let line =
        |head: &str| format!("{head} - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let log = line("Shop.example:443 203.0.113.7")
        + &line("203.0.113.7")
        + &line("shop.example:80 2001:DB8::1");
    let told = report(&[], &log);
    assert_eq!((counts(&told), keys(&told)), ([3, 0], vec!["203.0.113.7", "2001:db8::1"]));
    assert_eq!(keys(&report(&["--per", "host"], &log)), ["shop.example", "(absent)"]);
    // A list of client and proxies, or an identd user, is not a virtual host.
    let log =
        line("203.0.113.7 203.0.113.8") + &line("1.1.1.1, 203.0.113.8") + &line("h ident alice");
    assert_eq!(keys(&report(&[], &log)), ["h", "1.1.1.1,", "203.0.113.7"]);
}

#[test]
fn mapped_attributes_that_no_policy_uses_are_reported() {
    let line = "1.1.1.1 - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let told = report(&["--map", "time=1,ip=ip,pi=ip", "--map", "tenant=user,pi=user"], line);
    let said = "no policy uses `tenant` and `pi`, set with --map";
    assert_eq!(told["notes"], serde_json::json!([said]));
    assert_eq!(report(&["--map", "time=1,ip=ip"], line)["notes"], serde_json::json!([]));
}

/// The costs of requests, from CSV, JSON and a mapped field.
#[test]
fn costs_in_the_log_are_charged() {
    let decided = |words: &[&str], log: &str| {
        let words = [&["--limit", "10/day", "--json"], words].concat();
        let finished = simulate(&words, log);
        assert_eq!((finished.code, &*finished.stderr), (Some(0), ""), "{words:?}");
        let report: Value = serde_json::from_str(&finished.stdout).unwrap();
        let variant = &report["variants"][0];
        let decided = ["allowed", "denied"].map(|name| variant[name].as_u64().unwrap());
        (decided, report["traffic"]["malformed"].as_u64().unwrap())
    };
    let time = |second: u32| format!("2026-01-01T00:00:{second:02}Z");
    // 4 + 4 + 2 fit, 3 does not, 1 is the default, 11 never fits, and 0 charges nothing.
    let costs = ["4", "4", "3", "2", "", "11", "0"];
    let rows = costs.iter().zip(0..).map(|(cost, n)| format!("{},1.1.1.1,{cost}\n", time(n)));
    let rows: String = rows.collect();
    let csv = format!("time,ip,cost\n{rows}{},1.1.1.1,many\n", time(9));
    assert_eq!(decided(&[], &csv), ([3, 4], 1));
    let mapped = format!("time,ip,tokens\n{rows}");
    assert_eq!(decided(&["--map", "cost=tokens"], &mapped), ([3, 4], 0));
    assert_eq!(decided(&[], &mapped), ([7, 0], 0), "without a map, each counts as 1");
    // Several limits take another path.
    let several = ["--limit", "100/hour"];
    let both: Vec<_> = decided(&several, &csv).0.into();
    assert_eq!(both.iter().sum::<u64>(), 7);
    let json = format!("{{\"time\":\"{}\",\"ip\":\"1.1.1.1\",\"cost\":10}}\n", time(1)).repeat(2);
    assert_eq!(decided(&[], &json), ([1, 1], 0));
}

/// A month begins with its first day in its time zone.
#[test]
fn calendar_periods_are_simulated() {
    let line = |time: &str| format!("{time},1.1.1.1\n");
    let times = [
        "2026-01-31T22:59:58Z",
        "2026-01-31T22:59:59Z",
        "2026-01-31T23:00:00Z",
        "2026-02-28T22:59:59Z",
        "2026-02-28T23:00:00Z",
    ];
    let log = format!("time,ip\n{}", times.map(line).concat());
    let words = ["--limit", "1/month in Europe/Berlin", "--json"];
    let finished = simulate(&words, &log);
    assert_eq!((finished.code, &*finished.stderr), (Some(0), ""));
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    let variant = &report["variants"][0];
    assert_eq!(["allowed", "denied"].map(|name| variant[name].as_u64().unwrap()), [3, 2]);
}
