use pacegate_testkit::servers::{Flavor, Server, ServerOptions};
use serde_json::Value;

use crate::program::run;

/// A deadline that even a busy machine meets.
const PATIENT: [&str; 2] = ["--deadline", "10s"];

fn doctor(url: &str, more: &[&str]) -> crate::program::Finished {
    run(&[&["doctor", url][..], &PATIENT, more].concat(), b"")
}

fn healthy(flavor: Flavor) -> ServerOptions {
    Server::options(flavor).arg("maxmemory", "100mb")
}

#[test]
fn a_healthy_server_is_reported_as_text_without_colours() {
    let server = healthy(Flavor::Valkey).start();
    let finished = doctor(&server.url(), &[]);
    assert_eq!((finished.code, &*finished.stderr), (Some(0), ""), "{finished:?}");
    let out = &finished.stdout;
    assert!(out.starts_with(&format!("{}, server, Valkey ", server.address())), "{out}");
    assert!(
        out.contains(
            "\n  ✓ script      every script type works: a limit of 1 admitted one request"
        ),
        "{out}"
    );
    assert!(out.contains("→ ACL SETUSER pacegate reset on >PASSWORD ~pg:* -@all"), "{out}");
    assert!(!out.contains('\u{1b}'), "{out}");
    assert!(out.lines().last().unwrap().starts_with("0 problems (✗), "), "{out}");
}

#[test]
fn problems_exit_with_1_and_warnings_only_with_strict() {
    let server = Server::start(Flavor::Redis);
    assert_eq!(doctor(&server.url(), &[]).code, Some(0));
    let strict = doctor(&server.url(), &["--strict"]);
    assert_eq!(strict.code, Some(1));
    assert!(strict.stdout.contains("\n  ! memory "), "{}", strict.stdout);
    server.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let evicting = doctor(&server.url(), &[]);
    assert_eq!(evicting.code, Some(1));
    assert!(evicting.stdout.contains("\n  ✗ eviction    `allkeys-lru`: "), "{}", evicting.stdout);
}

#[test]
fn the_report_is_printed_as_json() {
    let server = healthy(Flavor::Redis).password("secret").start();
    let finished = doctor(&server.url(), &["--json", "--prefix", "other:"]);
    assert_eq!(finished.code, Some(0));
    assert!(!finished.stdout.contains("secret"), "{}", finished.stdout);
    assert_eq!(finished.stdout.lines().count(), 1);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["url"], format!("redis://{}", server.address()));
    assert_eq!(report["reached"], true);
    let found = &report["servers"][0];
    assert_eq!((&found["part"], &found["address"]), (&"server".into(), &server.address().into()));
    let findings = found["findings"].as_array().unwrap();
    let rights = findings.iter().find(|finding| finding["subject"] == "rights").unwrap();
    assert_eq!(rights["level"], "notice");
    assert!(rights["advice"].as_str().unwrap().contains(" ~other:* "), "{rights}");
    let script = findings.iter().find(|finding| finding["subject"] == "script").unwrap();
    assert_eq!((&script["level"], &script["advice"]), (&"good".into(), &Value::Null));
}

#[test]
fn unreachable_servers_exit_with_2_and_passwords_are_hidden() {
    let mut server = healthy(Flavor::Redis).password("right").start();
    let url = format!("redis://:hush@{}", server.address());
    for flags in [&[][..], &["--json"]] {
        let finished = doctor(&url, flags);
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stdout.contains("check user and password in the address"));
        assert!(!format!("{finished:?}").contains("hush"), "{finished:?}");
    }
    server.kill();
    let gone = doctor(&url, &[]);
    assert_eq!(gone.code, Some(2));
    assert!(gone.stdout.contains("✗ reach       cannot connect to 127.0.0.1:"), "{gone:?}");
    assert!(!format!("{gone:?}").contains("hush"), "{gone:?}");
}

#[test]
fn invalid_arguments_are_rejected_with_a_hint() {
    let finished = run(&["doctor", "redis://:hush@a:x"], b"");
    assert_eq!((finished.code, &*finished.stdout), (Some(2), ""));
    assert_eq!(
        finished.stderr,
        "error: invalid address: invalid port: expected a number from 1 to 65535; example: \
         redis://user:password@127.0.0.1:6379/0\n\
         hint: see pacegate doctor --help for examples of addresses\n"
    );
    for deadline in ["20", "0ms", "fast", "20h"] {
        let finished = run(&["doctor", "redis://a", "--deadline", deadline], b"");
        assert_eq!(finished.code, Some(2), "{deadline}");
        assert!(finished.stderr.contains("such as 20ms"));
    }
}
