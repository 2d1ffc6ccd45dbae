use crate::{program::run, service::Service};

const POLICIES: &str = "
policies:
  - { name: login, match: { path: /login, method: POST }, per: [ip], limit: 5/minute }
  - name: api
    match: { path: /api/** }
    per: [user]
    limit: [10/second, 1000/hour]
    overrides: [{ match: { plan: pro }, limit: 100/second }]
  - { name: seen, limit: 0/second, mode: shadow }
  - { name: office, match: { ip: { cidr: 10.0.0.0/8 } }, limit: 0/day }
";

#[test]
fn every_policy_is_explained() {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), POLICIES).unwrap();
    let config = file.path().to_str().unwrap();
    let explain = |attributes: &[&str]| {
        let mut args = vec!["explain", "--config", config];
        attributes.iter().for_each(|one| args.extend(["-a", one]));
        run(&args, b"")
    };
    let paying = explain(&["path=/api/x", "user=al\x1bice", "plan=pro"]);
    assert_eq!(
        paying.stdout,
        "- login does not match: path is /api/x; expected /login\n\
         + api matches, override 1; key: al\\u{1b}ice\n    100/second: 100 remaining\n\
         + seen matches, shadow mode; key: all clients\n    0/second: always denies\n\
         - office does not match: ip is missing; expected in 10.0.0.0/8\n\
         allowed; api is the tightest policy\n"
    );
    assert_eq!(paying.code, Some(0));
    let inside = explain(&["ip=10.1.2.3"]);
    assert!(inside.stdout.ends_with("denied by office\n"), "{}", inside.stdout);
    assert_eq!(inside.code, Some(1));
}

/// A monthly budget shows its window and its thresholds.
#[test]
fn a_budget_is_explained() {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let policy = "{ name: tokens, per: [user], limit: 10000/month, notify: [80%, 100%] }";
    std::fs::write(file.path(), format!("policies: [{policy}]\n")).unwrap();
    let config = file.path().to_str().unwrap();
    let budget = run(&["explain", "--config", config, "-a", "user=alice"], b"");
    let lines: Vec<_> = budget.stdout.lines().collect();
    assert_eq!(lines[0], "+ tokens matches; key: alice");
    let start = lines[1].strip_prefix("    10000/month: 10000 remaining; window from ").unwrap();
    let (start, end) = start.split_once(" to ").unwrap();
    for first in [start, end] {
        assert!(first.contains(", 01 ") && first.ends_with(" 00:00:00 GMT"), "{first}");
    }
    assert_eq!(lines[2], "    reports keys at 80%, 100%");
}

#[test]
fn a_server_explains_its_policies() {
    let service = Service::start(&[]);
    let server = format!("http://{}", service.address("http"));
    let told = run(&["explain", "--server", &server, "-a", "key=bob"], b"");
    let expected = "+ default matches; key: bob\n    100/minute: 100 remaining\n\
                    allowed; default is the tightest policy\n";
    assert_eq!((&*told.stdout, told.code), (expected, Some(0)), "{}", told.stderr);
}

#[test]
fn a_file_in_shadow_mode_never_denies() {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), "shadow: true\npolicies: [{ name: a, per: [ip], limit: 0/day }]\n")
        .unwrap();
    let config = file.path().to_str().unwrap();
    let service = Service::start(&["--config", config]);
    let server = format!("http://{}", service.address("http"));
    for who in [["--config", config], ["--server", &*server]] {
        let checked = run(&[&["check", "-a", "ip=::1"], &who[..]].concat(), b"");
        let words = "1: allowed: no limit applies, denied in shadow mode\n";
        assert_eq!((&*checked.stdout, checked.code), (words, Some(0)), "{}", checked.stderr);
        let told = run(&[&["explain", "-a", "ip=::1"], &who[..]].concat(), b"");
        let words = "+ a matches, shadow mode; key: ::1\n    0/day: always denies\n\
                     allowed: only policies in shadow mode match\n";
        assert_eq!((&*told.stdout, told.code), (words, Some(0)), "{}", told.stderr);
    }
    let shown = run(&["validate", config], b"");
    assert!(shown.stdout.contains("  a (shadow)  "), "{}", shown.stdout);
    let shown = run(&["validate", "--json", config], b"");
    assert!(shown.stdout.contains("\"shadow\":true"), "{}", shown.stdout);
}

#[test]
fn explain_without_policies_is_an_error() {
    let told = run(&["explain", "-a", "key=bob"], b"");
    assert_eq!(told.code, Some(2));
    assert!(told.stderr.ends_with("use --config FILE or --server URL\n"));
}
