use std::path::Path;

use bytes::Bytes;
use pacegate::{
    PolicySet, Request,
    policy::{FailureMode, Mode},
};
use pacegate_redis::Layout;

use super::{
    file::{FileError, RuleFile},
    options::EnvoyOptions,
    proto::{Entry, Unit},
    rules::{Rule, Rules},
};
use crate::config::Settings;

fn source(text: &str) -> RuleFile {
    RuleFile { file: "rules.yaml".into(), text: text.to_owned() }
}

fn rules(text: &str) -> Rules {
    Rules::parse(&[source(text)], &EnvoyOptions::default())
        .unwrap_or_else(|error| panic!("{error}"))
}

fn error(text: &str) -> FileError {
    Rules::parse(&[source(text)], &EnvoyOptions::default()).expect_err(text)
}

fn entries(pairs: &[(&str, &str)]) -> Vec<Entry> {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    pairs.iter().map(|(key, value)| Entry { key: bytes(key), value: bytes(value) }).collect()
}

fn find<'r>(rules: &'r Rules, pairs: &[(&str, &str)]) -> Option<&'r Rule> {
    rules.domain(b"d").unwrap().rule(&entries(pairs))
}

/// Returns the name of the rule of a descriptor.
fn named(rules: &Rules, pairs: &[(&str, &str)]) -> String {
    let name = find(rules, pairs).map(|rule| rule.name.to_vec()).unwrap_or_default();
    String::from_utf8(name).unwrap()
}

const LEVELS: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: {name: bare, unit: minute, requests_per_unit: 1}
  - key: k
    value: v*
    rate_limit: {name: first wildcard, unit: minute, requests_per_unit: 1}
  - key: k
    value: ve*
    rate_limit: {name: second wildcard, unit: minute, requests_per_unit: 1}
  - key: k
    value: very
    rate_limit: {name: exact, unit: minute, requests_per_unit: 1}
  - key: k
    value: '*x*'
    descriptors:
      - key: in
        rate_limit: {name: below, unit: minute, requests_per_unit: 1}
  - key: other
    value: 404
    rate_limit: {name: number, unit: minute, requests_per_unit: 1}
    descriptors:
      - key: in
        value: yes
        rate_limit: {name: deep, unit: minute, requests_per_unit: 1}
";

#[test]
fn the_most_specific_is_taken() {
    let rules = rules(LEVELS);
    for (pairs, name) in [
        (&[("k", "very")][..], "exact"),
        (&[("k", "vera")], "first wildcard"),
        (&[("k", "v")], "first wildcard"),
        (&[("k", "other")], "bare"),
        (&[("k", "")], "bare"),
        (&[("k", "axb")], ""),
        (&[("k", "axb"), ("in", "any")], "below"),
        (&[("k", "vxb"), ("in", "any")], ""),
        (&[("k", "very"), ("in", "any")], ""),
        (&[("other", "404")], "number"),
        (&[("other", "404"), ("in", "yes")], "deep"),
        (&[("other", "404"), ("in", "yes"), ("in", "yes")], ""),
        (&[("other", "405")], ""),
        (&[("in", "yes")], ""),
        (&[("k_v", "ery")], ""),
        (&[], ""),
    ] {
        assert_eq!(named(&rules, pairs), name, "{pairs:?}");
    }
    assert!(rules.domain(b"e").is_none());
}

#[test]
fn each_other_value_has_its_own_counter() {
    let rules = rules(
        "
domain: d
descriptors:
  - key: a
    value: x
    descriptors:
      - {key: b, rate_limit: {unit: day, requests_per_unit: 1}}
      - key: w
        value: p*
        share_threshold: true
        rate_limit: {unit: day, requests_per_unit: 1}
  - key: a
    descriptors:
      - {key: b, rate_limit: {unit: day, requests_per_unit: 1}}
      - {key: b, value: '1', rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: c, value: x, rate_limit: {unit: day, requests_per_unit: 1}}
",
    );
    for (pairs, policy, key) in [
        (&[("a", "x"), ("b", "y")][..], "d.a-x.b", "y"),
        (&[("a", "x"), ("w", "pq")], "d.a-x.w-p_..8b6fecc5b11a", ""),
        (&[("a", "z"), ("b", "y")], "d.a.b", "z, y"),
        (&[("a", "z"), ("b", "1")], "d.a.b-1", "z"),
        (&[("c", "x")], "d.c-x", ""),
    ] {
        let rule = find(&rules, pairs).unwrap();
        let entries = entries(pairs);
        assert_eq!(rule.policy.as_str(), policy);
        assert_eq!(rule.key(&entries).as_key().to_string(), key, "{pairs:?}");
    }
    let keys = [[("a", "1"), ("b", "2, 3")], [("a", "1, 2"), ("b", "3")]].map(|pairs| {
        let entries = entries(&pairs);
        find(&rules, &pairs).unwrap().key(&entries).as_key().to_buf()
    });
    assert_ne!(keys[0], keys[1]);
}

#[test]
fn every_field_is_read() {
    let rules = rules(
        "
domain: d
descriptors:
  - key: k
    value: v
    shadow_mode: true
    quota_mode: true
    detailed_metric: true
    value_to_metric: false
    share_threshold: false
    metadata: {team: edge, level: 2}
    failure: closed
    rate_limit:
      name: n
      unit: WEEK
      requests_per_unit: 5
      unlimited: false
      replaces: [{name: a}, {name: b}]
  - key: free
    rate_limit: {unlimited: true, name: f, requests_per_unit: 3}
  - key: several
    rate_limits:
      - {unit: second, requests_per_unit: 2, algorithm: token-bucket, burst: 4}
      - {period: 5m, requests_per_unit: 100, name: five, algorithm: sliding-window}
      - {unit: 30s, requests_per_unit: 50}
  - key: nothing
    rate_limit:
    descriptors:
---
domain: e
",
    );
    let rule = find(&rules, &[("k", "v")]).unwrap();
    assert_eq!((&*rule.name, rule.shadow, rule.quota), (&b"n"[..], true, true));
    assert_eq!(rule.replaces, [Box::from("a"), Box::from("b")]);
    assert_eq!(rule.bounds[0].unit, Unit::Week);
    assert_eq!(rule.metadata.as_ref().unwrap().fields.len(), 2);
    assert!(find(&rules, &[("free", "x")]).unwrap().is_unlimited());
    let several = find(&rules, &[("several", "x")]).unwrap();
    assert_eq!(&*several.name, b"five");
    let limits: Vec<_> = several.bounds.iter().map(|bound| bound.limit.to_string()).collect();
    assert_eq!(limits, ["2/second burst 4", "100/5m sliding-window", "50/30s"]);
    assert!(find(&rules, &[("nothing", "x")]).is_none());
    assert!(rules.domain(b"e").is_some());

    let [shadow, several] = &*rules.policies else { panic!("{:?}", rules.policies) };
    assert_eq!((shadow.name.as_str(), shadow.mode), ("d.k-v", Mode::Shadow));
    assert_eq!((shadow.failure, shadow.limits.len()), (FailureMode::Closed, 1));
    assert_eq!((several.mode, several.limits.len()), (Mode::Enforce, 3));
}

#[test]
fn only_descriptors_lead_to_their_policies() {
    let rules = rules(LEVELS);
    let set = PolicySet::new(rules.policies.iter().cloned()).unwrap();
    assert_eq!(set.policies().len(), 7);
    let request = Request::new().in_domain("d").with("", "").with("k", "very");
    assert_eq!(set.covering(&request).count(), 0);
}

/// A text, the line of the error, the text at the error, and the message.
type Mistake = (String, u64, &'static str, String);

fn one(descriptor: &str) -> String {
    format!("domain: d\ndescriptors:\n  - {descriptor}\n")
}

fn mistakes_in_descriptors() -> Vec<Mistake> {
    let key = "missing key of a descriptor: expected one, such as `key: user`";
    let there = "already in line 3; use `rate_limits` there for several limits";
    let two = "{unit: day, requests_per_unit: 1}, {unit: 24h, requests_per_unit: 2}";
    let text = str::to_owned;
    vec![
        (
            text("domain: ''"),
            1,
            "''",
            text("the domain is empty: expected a name, such as `domain: edge`"),
        ),
        (one("key: a*"), 3, "a*", text("`*` in a key matches nothing: use it in the value")),
        (
            text("domain: d\n---\ndomain: d"),
            3,
            "d",
            text("duplicate domain `d`: already in rules.yaml:1"),
        ),
        (one("{key: ''}"), 3, "''", text(key)),
        (one("{value: v}"), 3, "{value", text(key)),
        (
            one("{key: k, value: v}\n  - {key: k, value: v}"),
            4,
            "k, value: v}",
            format!("duplicate descriptor `k` with value `v`: {there}"),
        ),
        (
            one("{key: k, value: v*}\n  - {key: k, value: v*}"),
            4,
            "k, value: v*}",
            format!("duplicate descriptor `k` with value `v*`: {there}"),
        ),
        (
            one("{key: k}\n  - {key: k}"),
            4,
            "k}",
            format!("duplicate descriptor `k` without a value: {there}"),
        ),
        (
            one("{key: k, value: v, share_threshold: true}"),
            3,
            "true",
            text("`share_threshold` requires a value with a `*`"),
        ),
        (
            one("{key: k, failure: sometimes}"),
            3,
            "sometimes",
            text("unknown failure mode `sometimes`: expected open, closed or local"),
        ),
        (
            one(&format!("{{key: k, rate_limits: [{two}]}}")),
            3,
            "{unit: 24h",
            text("`1/day` and `2/day` share a counter: remove the larger"),
        ),
        (
            one("{key: k, rate_limits: [], rate_limit: {unit: day, requests_per_unit: 1}}"),
            3,
            "[]",
            text("`rate_limit` and `rate_limits` exclude each other"),
        ),
        (
            one("{key: k, rate_limits: [{unlimited: true}]}"),
            3,
            "{unlimited",
            text("`unlimited` is not allowed in `rate_limits`"),
        ),
    ]
}

fn mistakes_in_limits() -> Vec<Mistake> {
    let limit = |limit: &str| one(&format!("{{key: k, rate_limit: {{{limit}}}}}"));
    let units = "expected second, minute, hour, day, week, month or year, \
                 or a period such as 30s or 5m";
    let amount = "missing `requests_per_unit`; 0 denies everything";
    let text = str::to_owned;
    vec![
        (
            limit("unit: fortnight, requests_per_unit: 1"),
            3,
            "fortnight",
            format!("unknown unit `fortnight`: {units}"),
        ),
        (
            limit("requests_per_unit: 1"),
            3,
            "{requests_per_unit",
            format!("unknown unit ``: {units}"),
        ),
        (limit("unit: minute"), 3, "{unit", text(amount)),
        (
            limit("unit: minute, unlimited: true"),
            3,
            "minute",
            text("`unlimited` and `unit` exclude each other"),
        ),
        (
            limit("unit: day, requests_per_unit: 1, name: n, replaces: [{name: n}]"),
            3,
            "{name: n}]",
            text("a rule cannot replace itself"),
        ),
        (
            limit("unit: day, requests_per_unit: 1, replaces: [{name: ''}]"),
            3,
            "{name: ''}]",
            text("`replaces` requires the name of a rule: expected `- name: other`"),
        ),
        (
            limit("unit: day, requests_per_unit: 1, algorithm: concurrency"),
            3,
            "concurrency",
            text(
                "concurrency limits need permits, which Envoy cannot release: use another algorithm",
            ),
        ),
        (
            limit("unit: day, period: 5m, requests_per_unit: 1"),
            3,
            "5m",
            text("`unit` and `period` exclude each other"),
        ),
    ]
}

/// Returns the text of a file from the location of an error.
fn pointed_at<'t>(text: &'t str, error: &FileError) -> &'t str {
    let line = text.lines().nth(usize::try_from(error.line).unwrap() - 1).unwrap();
    &line[usize::try_from(error.column).unwrap() - 1..]
}

#[test]
fn errors_have_a_location() {
    for (text, line, at, message) in
        mistakes_in_descriptors().into_iter().chain(mistakes_in_limits())
    {
        let error = error(&text);
        assert_eq!((error.message.as_str(), error.line), (message.as_str(), line), "{text}");
        let pointed_at = pointed_at(&text, &error);
        assert!(pointed_at.starts_with(at), "{message}: {pointed_at}");
    }
}

#[test]
fn unknown_fields_are_named_with_those_that_are_known() {
    let error = error(
        "domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      unit: day\n      request_per_unit: 5\n",
    );
    assert!(error.message.starts_with("unknown field `request_per_unit`"), "{error}");
    assert!(error.message.contains("requests_per_unit"), "{error}");
    let shown = error.to_string();
    assert!(shown.starts_with("rules.yaml:6:7: unknown field"), "{shown}");
    assert!(shown.ends_with("\n  |       request_per_unit: 5"), "{shown}");
}

#[test]
fn text_that_is_no_file_of_theirs_is_refused() {
    for text in ["domain: [", "a", "domain: d\ndescriptors: 5", "domain: d\nnamespace: x", "\u{0}"]
    {
        let error = error(text);
        assert!(error.line > 0, "{text:?}: {error}");
    }
    let negative =
        "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: -1}}]";
    assert!(pointed_at(negative, &error(negative)).starts_with("-1"));
}

#[test]
fn errors_name_the_expected_form() {
    let of = |field: &str| one(&format!("{{key: k, {field}}}"));
    let limit = |field: &str| of(&format!("rate_limit: {{unit: day, {field}}}"));
    for (text, message) in [
        (of("rate_limt: 1"), "unknown field `rate_limt`: did you mean `rate_limit`?"),
        (of("key: l"), "duplicate field `key`: remove one of them"),
        (of("value: [v]"), "expected one text, neither a list nor a map"),
        (limit("requests_per_unit: many"), "expected a whole number from 0"),
        (limit("requests_per_unit: -1"), "expected a whole number from 0"),
        ("domain: d\ndescriptors: {key: k}".to_owned(), "expected a list, such as `[a, b]`"),
        ("domain:\ndescriptors: []".to_owned(), "missing value: write one, or remove the field"),
        ("domain: d\ndescriptors: [".to_owned(), "invalid YAML: "),
    ] {
        let reply = error(&text).message;
        assert!(reply.starts_with(message), "{text}: {reply}");
    }
    assert_eq!(error(&of("shadow_mode: maybe")).message, "expected `true` or `false`");
}

#[test]
fn a_directory_is_all_of_its_files_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let load = |merge_domains| {
        Rules::load(folder.path(), &EnvoyOptions { merge_domains, ..EnvoyOptions::default() })
    };
    write("a.yaml", "domain: a\ndescriptors: [{key: k}]");
    write("b.yml", "domain: b");
    std::fs::create_dir_all(folder.path().join("d.yaml/below")).unwrap();
    write("c", "domain: c");
    write("d.yaml/below/e.conf", "domain: e");
    // Kubernetes keeps the targets of its symbolic links in such directories.
    std::fs::create_dir(folder.path().join("..2026_11_16")).unwrap();
    write("..2026_11_16/linked", "domain: l");
    write(".swp", "domain: [");
    let link = |to: &str, from: &str| {
        std::os::unix::fs::symlink(to, folder.path().join(from)).unwrap();
    };
    link("..2026_11_16", "..data");
    link("..data/linked", "linked");
    let rules = load(false).unwrap();
    let mut domains: Vec<_> = rules.domains.keys().map(|name| &**name).collect();
    domains.sort_unstable();
    assert_eq!(domains, [b"a", b"b", b"c", b"e", b"l"]);

    write("e.yaml", "domain: a\ndescriptors: [{key: l}]");
    let error = load(false).unwrap_err();
    assert!(error.message.starts_with("duplicate domain `a`: already in "), "{error}");
    assert!(error.file.ends_with("e.yaml"));
    assert!(load(true).is_ok());

    write("f.yaml", "domain: a\ndescriptors: [{key: k}]");
    let error = load(true).unwrap_err();
    let first = folder.path().join("a.yaml");
    let said = format!(
        "duplicate descriptor `k` without a value: already in {}:2; use `rate_limits` there for several limits",
        first.display()
    );
    assert_eq!(error.message, said);

    std::fs::remove_file(folder.path().join("f.yaml")).unwrap();
    write("g.txt", "domain: [");
    let error = load(true).unwrap_err();
    assert!(error.file.ends_with("g.txt"), "{error}");

    let error = Rules::load(Path::new("/nowhere/at/all"), &EnvoyOptions::default()).unwrap_err();
    assert!(
        error.to_string().starts_with("/nowhere/at/all: cannot read /nowhere/at/all: "),
        "{error}"
    );
}

/// The guide lists these files, which envoyproxy/ratelimit accepts.
#[test]
fn probable_mistakes_are_rejected_although_envoyproxy_ratelimit_accepts_them() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    for (text, expected) in [
        (
            format!("domain: d\ndescriptors: [{{key: 'a*', {limit}}}]"),
            "`*` in a key matches nothing",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day}}]".into(),
            "missing `requests_per_unit`",
        ),
        (format!("domain: d\ndescriptors: [{{key: a, key: b, {limit}}}]"), "duplicate field `key`"),
        ("domain: d\n---\ndomain: d".into(), "duplicate domain `d`"),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 010}}]"
                .into(),
            "expected a whole number",
        ),
    ] {
        let error = error(&text);
        assert!(error.message.contains(expected), "{text}: {error}");
    }
    for accepted in ["'7'", "4294967296"] {
        let text =
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: N}}]";
        rules(&text.replace('N', accepted));
    }
    rules("domain: d\n---\ndomain: e");
}

#[test]
fn missing_rules_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let load = || Rules::load(folder.path(), &EnvoyOptions::default()).unwrap_err();
    std::fs::create_dir(folder.path().join("config")).unwrap();
    std::fs::write(folder.path().join(".hidden.yaml"), "domain: a").unwrap();
    let expected = format!(
        "{0}: cannot read {0}: the directory contains no rule files (hidden files are ignored): \
         add one, such as config.yaml with `domain: edge`",
        folder.path().display()
    );
    assert_eq!(load().to_string(), expected);
    let empty = folder.path().join("empty.yaml");
    std::fs::write(&empty, "# nothing\n").unwrap();
    let error = load();
    assert_eq!(
        (&error.file, &*error.message),
        (&empty, "the file has no rules: expected `domain: edge` and descriptors")
    );
    std::fs::remove_file(empty).unwrap();
    std::os::unix::fs::symlink(".", folder.path().join("loop")).unwrap();
    let error = load();
    assert!(
        error.message.ends_with("directories are nested more than 16 levels deep, or form a cycle"),
        "{error}"
    );
}

#[test]
fn rules_that_record_in_full_need_the_native_layout() {
    let text = "
domain: d
descriptors:
  - key: k
    record_in_full: true
    rate_limit: {unit: minute, requests_per_unit: 1}
";
    let rules = rules(text);
    let mut settings = Settings::new(rules.beside(&PolicySet::new([]).unwrap()).unwrap());
    settings.store = "redis://127.0.0.1:6379".parse().unwrap();
    settings.check_layout().unwrap();
    settings.layout = Layout::rlaas();
    let error = settings.check_layout().unwrap_err().to_string();
    let expected = "policy `d.k`: the layout of the store cannot record debt: remove `record_in_full`, \
                    or use the layout `native`";
    assert_eq!(error, expected);
}
