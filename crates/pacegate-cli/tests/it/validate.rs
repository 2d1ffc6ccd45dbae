//! Tests `pacegate validate` and `pacegate schema`.

use std::fs;

use pacegate_server::{config_reference as reference, config_schema as schema};

use crate::program::{Finished, run};

/// Runs `pacegate validate` on a file with this text. Removes the directory from the file name in the output.
fn validate(args: &[&str], text: &str) -> Finished {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pacegate.yaml");
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let mut finished = run(&[&["validate"], args, &[path]].concat(), b"");
    finished.stdout = finished.stdout.replace(path, "pacegate.yaml");
    finished
}

fn finished(code: i32, stdout: &str) -> Finished {
    Finished { code: Some(code), stdout: stdout.to_owned(), stderr: String::new() }
}

const POLICIES: &str = "\
policies:
  - name: login-per-ip
    match: { method: [POST, PUT], ip: { cidr: 10.0.0.0/8 } }
    per: ip
    limit: 5/minute sliding-window
  - name: api-per-user
    domain: shop
    match: { path: /api/**, user: { present: true }, bot: { absent: true } }
    per: [tenant, user]
    limit: [10/second burst 20, 1000/hour]
    overrides:
      - { match: { plan: pro }, limit: unlimited }
    mode: shadow
";

#[test]
fn a_valid_file_is_listed() {
    let shown = "\
pacegate.yaml: valid, 2 policies

  policy                 domain  match                                     per           limit
  login-per-ip           -       method = POST or PUT, ip in 10.0.0.0/8    ip            5/minute sliding-window
  api-per-user (shadow)  shop    path ~ /api/**, user present, bot absent  tenant, user  10/second burst 20, 1000/hour
                                   plan = pro                                            unlimited
";
    assert_eq!(validate(&[], POLICIES), finished(0, shown));
    assert_eq!(validate(&[], "shadow: true\n"), finished(0, "pacegate.yaml: valid, 0 policies\n"));
}

#[test]
fn an_empty_file_is_invalid() {
    let why = "the file has no settings: write `policies: []` to run without limits\n --> pacegate.yaml\n";
    for text in ["", "null\n", "~", "---\n", "# policies: []\n", "\u{feff}\n"] {
        assert_eq!(validate(&[], text), finished(1, why), "{text:?}");
    }
    let none = finished(0, "pacegate.yaml: valid, 0 policies\n");
    assert_eq!(validate(&[], "policies: []\n"), none);
    assert_eq!(validate(&[], "{}\n"), none);
}

#[test]
fn errors_of_a_file_are_reported() {
    let why = "\
unknown field `limits`: did you mean `limit`?
 --> pacegate.yaml:1:23
  |
1 | policies: [{ name: a, limits: 5/minute }]
  |                       ^^^^^^
";
    assert_eq!(validate(&[], "policies: [{ name: a, limits: 5/minute }]\n"), finished(1, why));
    let why = "line 2 is not UTF-8: save the file as UTF-8\n --> pacegate.yaml\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pacegate.yaml");
    fs::write(&path, b"shadow: true\n# \xff\n").unwrap();
    let bad = run(&["validate", path.to_str().unwrap()], b"");
    assert_eq!(
        (bad.code, bad.stdout.replace(path.to_str().unwrap(), "pacegate.yaml")),
        (Some(1), why.to_owned())
    );
}

#[test]
fn json_is_one_line_per_file() {
    let good = concat!(
        r#"{"file":"pacegate.yaml","good":true,"policies":[{"domain":"","limit":["5/minute"],"#,
        r#""match":{"a":"= b"},"name":"a","overrides":[],"per":["x"],"shadow":false}],"warnings":[]}"#,
        "\n"
    );
    let text = "policies: [{ name: a, limit: 5/minute, match: { a: b }, per: x }]";
    assert_eq!(validate(&["--json"], text), finished(0, good));
    let bad = concat!(
        r#"{"file":"pacegate.yaml","good":false,"left_out":0,"problems":[{"column":1,"line":1,"#,
        r#""message":"unknown field `sahdow`: did you mean `shadow`?"}]}"#,
        "\n"
    );
    assert_eq!(validate(&["--json"], "sahdow: true"), finished(1, bad));
}

#[test]
fn an_unreadable_file_exits_with_2() {
    let missing = run(&["validate", "/no/such/file.yaml"], b"");
    assert_eq!((missing.code, &*missing.stdout), (Some(2), ""));
    let said = "error: cannot check the file: cannot read /no/such/file.yaml: ";
    assert!(missing.stderr.starts_with(said), "{}", missing.stderr);
    assert_eq!(run(&["validate"], b"").code, Some(2));
}

#[test]
fn secrets_can_be_skipped() {
    let text = "store: { url_env: PACEGATE_TEST_NOT_SET }\nkeys: [{ name: a, file: not/there }, { name: b, env: X }]\n";
    assert_eq!(validate(&[], text).code, Some(1));
    assert_eq!(validate(&["--without-secrets"], text).code, Some(0));
}

/// Returns the warnings about a file, which must be valid.
fn warnings(text: &str) -> Vec<String> {
    let finished = validate(&[], text);
    assert_eq!(finished.code, Some(0), "{}", finished.stdout);
    finished
        .stdout
        .lines()
        .filter_map(|line| Some(line.strip_prefix("warning: ")?.to_owned()))
        .collect()
}

#[test]
fn unused_overrides_are_warnings() {
    let text = "
policies:
  - name: a
    match: { plan: [free, pro], user: { present: true } }
    limit: 5/minute
    overrides:
      - { match: { plan: pro }, limit: 6/minute }
      - { match: { plan: gold }, limit: 7/minute }
      - { match: { user: { absent: true } }, limit: 7/minute }
      - { match: { plan: pro }, limit: 8/minute }
      - { match: {}, limit: 9/minute }
      - { match: { plan: free }, limit: 10/minute }
";
    assert_eq!(
        warnings(text),
        [
            "policy `a`: override 2 is never used because the policy covers no such request",
            "policy `a`: override 3 is never used because the policy covers no such request",
            "policy `a`: override 4 is never used because override 1 matches first",
            "policy `a`: override 6 is never used because override 5 matches first",
        ]
    );
}

#[test]
fn values_that_look_like_patterns_are_warnings() {
    let told = warnings(
        "policies:
  - { name: net, limit: 1/day, match: { ip: 10.0.0.0/8, path: /10.0.0.0/8 } }
  - { name: list, limit: 1/day, match: { path: [/login*, /a?b], ip: [::1, '2001:db8::/32'] } }
  - name: replaced
    limit: 1/day
    overrides: [{ match: { ip: ['192.0.2.0/24'] }, limit: unlimited }]
  - name: meant
    limit: 1/day
    match: { path: /login*, ip: { cidr: [10.0.0.0/8] }, host: { equal: '*' }, plan: [a, b], x: 10.0.0.1 }
",
    );
    let net = |policy: &str, net: &str| {
        format!(
            "policy `{policy}`: `ip`: `{net}` is compared literally: to match addresses in it, write `{{cidr: {net}}}`"
        )
    };
    let list = "policy `list`: `path`: `/login*` in a list is compared literally: use `glob` for a pattern";
    assert_eq!(
        told,
        [
            net("net", "10.0.0.0/8"),
            list.to_owned(),
            net("list", "2001:db8::/32"),
            net("replaced", "192.0.2.0/24"),
        ]
    );
}

#[test]
fn limits_and_costs_without_effect_are_warnings() {
    let text = "
policies:
  - { name: idle, limit: [10/second, 600/minute] }
  - { name: tight, limit: [10/second, 599/minute] }
  - { name: odd, limit: [10/7s, 600/minute] }
  - { name: cost, limit: 5/minute, max_cost: 6 }
  - name: cost-of-pro
    limit: 5/minute
    max_cost: 6
    overrides: [{ match: { plan: pro }, limit: 6/minute }]
";
    assert_eq!(
        warnings(text),
        [
            "policy `idle`: the limit `600/minute` never denies because `10/second` admits at most 600 in that time",
            "policy `cost`: a `max_cost` of 6 has no effect because its limits admit at most 5 at once",
        ]
    );
}

#[test]
fn weaker_guarantees_of_a_cluster_are_warnings() {
    let policies = "
policies:
  - { name: a, limit: 5/minute, per: user }
  - { name: b, limit: 5/minute, per: ip }
  - { name: c, limit: 5/minute, per: [user, x], tag: { attribute: user } }
";
    assert_eq!(warnings(&format!("store: redis://127.0.0.1\n{policies}")), [""; 0]);
    let told = warnings(&format!("store: redis+cluster://127.0.0.1\n{policies}"));
    assert_eq!(told.len(), 2);
    for (told, pair) in told.iter().zip(["policies `a` and `b`: ", "policies `b` and `c`: "]) {
        assert!(told.starts_with(pair), "{told}");
    }
    let shared = format!("store: {{ url: redis://a, layout: rlaas }}\n{policies}");
    assert_eq!(warnings(&shared).len(), 1);
}

#[test]
fn public_listeners_are_warnings() {
    let open =
        "listen: { http: 0.0.0.0:80, resp: \"[::1]:80\", grpc: \"[::ffff:127.0.0.1]:81\" }\n";
    let tls = "tls: { certificate: a, key: b }\n";
    let key = format!("keys: [{{ name: a, sha256: {} }}]\n", "0".repeat(64));
    let said = |missing: &str| {
        let open = "`listen.http` is open to other machines: the server does not start without";
        vec![format!("{open} {missing}")]
    };
    let neither = "certificates (tls) and API keys (keys)";
    let no_keys = "API keys (keys) or the clients' authority (tls.client_ca)";
    assert_eq!(warnings(open), said(neither));
    assert_eq!(warnings(&format!("{open}{key}")), said("certificates (tls)"));
    assert_eq!(warnings(&format!("{open}{tls}")), said(no_keys));
    assert_eq!(warnings(&format!("{open}{tls}{key}")), [""; 0]);
    let clients = tls.replace("key: b", "key: b, client_ca: c");
    assert_eq!(warnings(&format!("{open}{clients}")), [""; 0]);
}

#[test]
fn the_schema_is_printed() {
    assert_eq!(run(&["schema"], b""), finished(0, &format!("{:#}\n", schema())));
    assert_eq!(run(&["schema", "--docs"], b""), finished(0, &reference()));
}

const RULES: &str = "\
domain: edge
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 20 }
  - key: plan
    value: gold
    descriptors:
      - key: path
        value: /api/*
        shadow_mode: true
        rate_limits:
          - { unit: second, requests_per_unit: 5 }
          - { period: 30s, requests_per_unit: 60 }
  - key: plan
    value: free
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 100 }
  - key: admin
    rate_limit: { unlimited: true }
";

#[test]
fn rules_of_envoyproxy_ratelimit_are_shown() {
    let shown = "\
pacegate.yaml: valid, 4 rules

  policy                                             domain  match                       per          limit
  edge.user                                          edge    user present                user         20/minute
  edge.plan-gold.path-_api__..19e363d89567 (shadow)  edge    plan = gold, path ~ /api/*  path         5/second, 60/30s
  edge.plan-free (quota)                             edge    plan = free                 all clients  100/day
  edge.admin                                         edge    admin present               admin        unlimited
";
    assert_eq!(validate(&[], RULES), finished(0, shown));
    let json = validate(&["--json"], RULES);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["rules"][0]["limit"][0], "20/minute");
    assert_eq!(json["rules"][1]["descriptor"][1]["value"], "/api/*");
    assert_eq!(json["rules"][2]["quota"], true);
}

#[test]
fn errors_of_rules_are_reported() {
    let why = "\
unknown unit `fortnight`: expected second, minute, hour, day, week, month or year, or a period such as 30s or 5m
 --> pacegate.yaml:4:25
  |
4 |     rate_limit: { unit: fortnight, requests_per_unit: 20 }
  |                         ^
";
    assert_eq!(validate(&[], &RULES.replacen("minute", "fortnight", 1)), finished(1, why));
}

#[test]
fn a_directory_of_rules_is_checked_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    fs::write(folder.path().join("a.yaml"), RULES).unwrap();
    fs::write(folder.path().join("b.yml"), RULES.replace("edge", "shop")).unwrap();
    fs::write(folder.path().join(".c.txt"), "not: [read").unwrap();
    let good = run(&["validate", path], b"");
    assert_eq!(good.code, Some(0), "{good:?}");
    assert!(good.stdout.starts_with(&format!("{path}: valid, 8 rules\n")), "{good:?}");
    fs::write(folder.path().join("b.yml"), RULES).unwrap();
    let twice = run(&["validate", path], b"");
    assert_eq!(twice.code, Some(1), "{twice:?}");
    let place =
        format!("duplicate domain `edge`: already in {path}/a.yaml:1\n --> {path}/b.yml:1:9\n");
    assert!(twice.stdout.starts_with(&place), "{twice:?}");
    fs::remove_file(folder.path().join("b.yml")).unwrap();
    fs::create_dir(folder.path().join("below")).unwrap();
    let empty = run(&["validate", &format!("{path}/below")], b"");
    assert_eq!(empty.code, Some(2), "{empty:?}");
    assert!(empty.stderr.contains("the directory contains no rule files"), "{empty:?}");
    fs::write(folder.path().join("below/shop"), RULES.replace("edge", "shop")).unwrap();
    let below = run(&["validate", path], b"");
    assert!(below.stdout.starts_with(&format!("{path}: valid, 8 rules\n")), "{below:?}");
    let missing = run(&["validate", &format!("{path}/nowhere")], b"");
    assert_eq!(missing.code, Some(2), "{missing:?}");
}
