use pacegate_testkit::servers::{Flavor, Server};

use crate::{
    clients::Folder,
    program::{Finished, run, run_with},
    service::Service,
};

const LIMIT: &str = "2/hour sliding-log";

#[test]
fn the_last_decision_is_the_exit_code() {
    for (times, code) in [("1", 0), ("2", 0), ("3", 1), ("4", 1)] {
        let finished = run(&["check", "--limit", LIMIT, "alice", "--times", times], b"");
        assert_eq!(finished.code, Some(code), "{finished:?}");
    }
}

#[test]
fn decisions_are_printed_as_text() {
    let finished = run(&["check", "--limit", LIMIT, "alice", "--times", "3"], b"");
    let (allowed, denied) = finished.stdout.split_at(finished.stdout.find("3:").unwrap());
    assert_eq!(
        allowed,
        "1: allowed by 2/hour sliding-log, 1 remaining, resets in 1h\n\
         2: allowed by 2/hour sliding-log, 0 remaining, resets in 1h\n"
    );
    assert_eq!(denied, "3: denied by 2/hour sliding-log, 0 remaining, retry in 1h\n");
    assert_eq!(finished.stderr, "");
}

#[test]
fn decisions_are_printed_as_json() {
    let args = ["check", "--limit", LIMIT, "alice", "--cost", "2", "--json"];
    let expected = concat!(
        r#"{"allowed":true,"policy":"inline","limit":"2/hour sliding-log","remaining":0,"#,
        r#""retry_after":null,"reset_after":3600.0,"source":"store","#,
        r#""shadow_denied":false,"degraded":false}"#,
        "\n",
    );
    let finished = Finished { code: Some(0), stdout: expected.to_owned(), stderr: String::new() };
    assert_eq!(run(&args, b""), finished);
}

#[test]
fn a_check_takes_up_to_its_cost() {
    let args = ["check", "--limit", "5/hour", "alice", "--cost", "3", "--up-to", "--times", "3"];
    let finished = run(&args, b"");
    let lines: Vec<_> = finished.stdout.lines().collect();
    for (line, start) in lines.iter().zip([
        "1: allowed by 5/hour, 3 units granted, 2 remaining, resets in ",
        "2: allowed by 5/hour, 2 units granted, 0 remaining, resets in ",
        "3: denied by 5/hour, 0 units granted, 0 remaining, retry in ",
    ]) {
        assert!(line.starts_with(start), "{line}");
    }
    assert_eq!((lines.len(), finished.code), (3, Some(1)));
    let folder = Folder::with_config("policies: [{ name: p, per: [user], limit: 5/365d }]\n");
    let service = Service::start(&["--config", &folder.config()]);
    let server = format!("http://{}", service.address("http"));
    for source in [["--server", &server], ["--config", &folder.config()]] {
        let args = ["check", "-a", "user=bob", "--cost", "9", "--up-to", "--json"];
        let finished = run(&[&args[..], &source].concat(), b"");
        assert!(finished.stdout.contains("\"granted\":5"), "{finished:?}");
        assert_eq!(finished.code, Some(0));
    }
}

#[test]
fn a_limit_of_zero_always_denies() {
    let finished = run(&["check", "--limit", "0/hour", "alice"], b"");
    assert_eq!(finished.stdout, "1: denied by 0/hour, 0 remaining, never admitted\n");
    assert_eq!(finished.code, Some(1));
}

#[test]
fn errors_are_one_sentence_with_a_hint() {
    refuses(
        &["--limit", "5/fortnight"],
        "error: invalid --limit: `5/fortnight` is not a limit: the period `fortnight` is not one \
         of `second`, `minute`, `hour`, `day`, `week`, `month`, `year`, `30s`, `250ms`, `500us`, `2h`\n\
         hint: expected an amount per period: 10/second, '10/second burst 20', '5/30s sliding-log'\n",
    );
    refuses(
        &["--limit", LIMIT, "--cost", "3"],
        "error: cannot decide: a cost of 3 can never be admitted: policy `inline` takes at \
         most 2 at once\n\
         hint: use a smaller cost, or a limit with a burst such as '5/minute burst 20'\n",
    );
}

#[test]
fn an_invalid_command_line_exits_with_2() {
    for args in [&["check"][..], &["check", "alice", "-a", "b=c"], &["chekc"], &[]] {
        let finished = run(args, b"");
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""), "{args:?}");
        assert!(finished.stderr.contains("Usage: pacegate"), "{}", finished.stderr);
    }
}

#[test]
fn missing_limits_policies_and_servers_exit_with_2() {
    refuses(
        &[],
        "error: missing --limit: a key needs a limit\n\
         hint: expected an amount per period: 10/second, '10/second burst 20', '5/30s sliding-log'\n",
    );
    let finished = run(&["check", "-a", "user=alice"], b"");
    assert_eq!(finished.code, Some(2));
    assert!(finished.stderr.ends_with("hint: use --config FILE or --server URL\n"));
    let closed = run(&["check", "k", "--limit", "1/hour", "--server", "http://127.0.0.1:1"], b"");
    assert!(closed.stderr.starts_with("error: cannot decide: cannot reach http://127.0.0.1:1/: "));
    assert_eq!(closed.code, Some(2));
}

#[test]
fn policies_of_a_file_decide_attributes() {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let text = "policies: [{ name: api, match: { path: /api/** }, per: [user], limit: 1/day }]";
    std::fs::write(file.path(), text).unwrap();
    let config = file.path().to_str().unwrap();
    let ask = |path: &str| {
        let args = ["check", "--config", config, "-a", path, "-a", "user=a", "--times", "2"];
        run(&args, b"")
    };
    let covered = ask("path=/api/x");
    let (first, second) = covered.stdout.split_once('\n').unwrap();
    assert!(first.starts_with("1: allowed by 1/day of policy api, 0 remaining, "), "{first}");
    assert!(second.starts_with("2: denied by 1/day of policy api, 0 remaining, "), "{second}");
    assert_eq!(covered.code, Some(1));
    assert_eq!(
        ask("path=/x").stdout,
        "1: allowed: no limit applies\n2: allowed: no limit applies\n"
    );
}

#[test]
fn a_local_check_and_a_server_share_counters_in_redis() {
    let redis = Server::start(Flavor::Redis);
    let url = redis.url();
    let limit = "2/day";
    let own = ["check", "job", "--limit", limit, "--store", &url, "--json"];
    assert_eq!(run(&own, b"").code, Some(0));
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    // A long deadline, in case the machine is busy.
    std::fs::write(file.path(), format!("store: {{ url: \"{url}\", deadline: 5s }}")).unwrap();
    let service = Service::start(&["--config", file.path().to_str().unwrap()]);
    let server = format!("http://{}", service.address("http"));
    let asked = ["check", "job", "--limit", limit, "--server", &server];
    let second = run(&asked, b"");
    assert!(second.stdout.starts_with("1: allowed by 2/day, 0 remaining"), "{second:?}");
    assert_eq!(run(&asked, b"").code, Some(1));
    assert_eq!(run(&own, b"").code, Some(1));
}

#[test]
fn an_unavailable_store_is_an_error() {
    let redis = Server::start(Flavor::Redis);
    let url = redis.url();
    let folder = Folder::new();
    let ask = |command: &str, failure: &str| {
        let policy =
            format!("policies: [{{ name: a, per: [ip], limit: 1/day, failure: {failure} }}]\n");
        folder.replace("pacegate.yaml", &policy);
        run(&[command, "--config", &folder.config(), "--store", &url, "-a", "ip=::1"], b"")
    };
    let refused = |finished: Finished| {
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""));
        let said = ": store unavailable; no decision was made\n\
                    hint: check the store with pacegate doctor URL\n";
        assert!(finished.stderr.ends_with(said), "{}", finished.stderr);
    };
    // It accepts connections but rejects writes.
    let _ = redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    refused(run(&["check", "job", "--limit", "1/day", "--store", &url], b""));
    refused(ask("check", "local"));
    // Policies with a failure mode of open or closed still decide.
    assert_eq!(ask("check", "open").code, Some(0));
    assert_eq!(ask("check", "closed").code, Some(1));
    let _ = redis.command(&["ACL", "SETUSER", "default", "-@scripting"]);
    for failure in ["local", "open", "closed"] {
        refused(ask("explain", failure));
    }
}

#[test]
fn the_command_line_overrides_the_environment() {
    let folder = Folder::with_config("policies: [{ name: api, per: [user], limit: 1/day }]\n");
    let service = Service::start(&["--grpc", "off", "--resp", "off"]);
    let server = format!("http://{}", service.address("http"));
    let nobody = ("PACEGATE_SERVER", "http://127.0.0.1:1");
    let away = ("PACEGATE_STORE", "redis://127.0.0.1:1");
    let config = folder.config();
    let by_service = "1: allowed by 100/minute of policy default, ";
    let by_file = "1: allowed by 1/day of policy api, 0 remaining, ";
    let own = "1: allowed by 5/minute, 4 remaining, ";
    let here = ("PACEGATE_SERVER", &*server);
    for (args, variables, told) in [
        (&["check", "--server", &server, "-a", "key=a"][..], &[away][..], by_service),
        (&["check", "-a", "key=a"], &[away, here], by_service),
        (&["check", "--config", &config, "-a", "user=a"], &[nobody], by_file),
        (&["explain", "--config", &config, "-a", "user=a"], &[nobody], "+ api matches; "),
        (&["check", "--limit", "5/minute", "alice"], &[nobody], own),
        (&["check", "--store", "memory", "--limit", "5/minute", "alice"], &[nobody], own),
        (&["check", "--server", &server, "--limit", "5/minute", "alice"], &[away, nobody], own),
    ] {
        let finished = run_with(args, variables);
        assert!(finished.stdout.starts_with(told), "{args:?} {finished:?}");
        assert_eq!((finished.code, &*finished.stderr), (Some(0), ""), "{args:?}");
    }
    for other in [["--config", &config], ["--store", "memory"]] {
        for command in ["check", "explain"] {
            let args = [command, "-a", "user=a", "--server", &server, other[0], other[1]];
            let both = run(&args, b"");
            assert_eq!(both.code, Some(2), "{both:?}");
            let told =
                format!("error: the argument '--server <URL>' cannot be used with '{} <", other[0]);
            assert!(both.stderr.starts_with(&told), "{both:?}");
            assert!(both.stderr.contains("Usage: pacegate"), "{both:?}");
        }
    }
}

#[test]
fn empty_variables_are_ignored() {
    let variables = ["PACEGATE_STORE", "PACEGATE_SERVER"].map(|name| (name, ""));
    let finished = run_with(&["check", "--limit", "5/minute", "alice"], &variables);
    assert_eq!((finished.code, &*finished.stderr), (Some(0), ""));
    let variables = [
        "PACEGATE_STORE",
        "PACEGATE_CONFIG",
        "PACEGATE_WORKERS",
        "PACEGATE_LOG",
        "PACEGATE_LOG_FORMAT",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ];
    let service = Service::start_with(&["--grpc", "off"], &variables.map(|name| (name, "")));
    assert_eq!(
        service.greeting.last().unwrap(),
        "ready: 1 policy, state in memory for up to 1000000 keys"
    );
}

#[test]
fn envoy_rules_do_not_decide_attributes() {
    let folder = Folder::with_config(
        "domain: edge\ndescriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 0 } }]\n",
    );
    for command in ["check", "explain"] {
        let args = [command, "--config", &folder.config(), "--domain", "edge", "-a", "user=alice"];
        let finished = run(&args, b"");
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""));
        let said = "match descriptors, not attributes";
        assert!(finished.stderr.contains(said), "{}", finished.stderr);
    }
}

#[test]
fn duplicate_attributes_are_rejected() {
    for command in ["check", "explain"] {
        let args = [
            command,
            "--server",
            "http://127.0.0.1:1",
            "-a",
            "user=a",
            "-a",
            "ip=::1",
            "-a",
            "user=b",
        ];
        let finished = run(&args, b"");
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""));
        let said = "error: the attribute 'user' is given twice\n";
        assert!(finished.stderr.starts_with(said), "{}", finished.stderr);
    }
}

#[test]
fn limits_with_the_same_counter_are_rejected() {
    refuses(
        &["--limit", "5/minute", "--limit", "6/minute"],
        "error: invalid --limit: `5/minute` and `6/minute` have one algorithm and period\n\
         hint: expected an amount per period: 10/second, '10/second burst 20', '5/30s sliding-log'\n",
    );
}

fn refuses(args: &[&str], stderr: &str) {
    let args = [&["check", "alice"], args].concat();
    let finished = Finished { code: Some(2), stdout: String::new(), stderr: stderr.to_owned() };
    assert_eq!(run(&args, b""), finished);
}
