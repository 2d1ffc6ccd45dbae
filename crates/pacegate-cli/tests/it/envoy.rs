//! The service in the place of envoyproxy/ratelimit, with its environment variables.

use std::{
    fs,
    io::Read,
    net::{SocketAddr, TcpListener},
    os::unix::fs::symlink,
    process::Command,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pacegate_testkit::servers::{Certificates, Client, Flavor, Port, Proxy, Server, eventually};

use crate::{
    clients::{Folder, Grpc, Http},
    service::Service,
};

const RULES: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 2 }
";

/// Checks `user=a` in the domain `edge`. Returns the message of the answer, without its prefix.
async fn ask(address: SocketAddr) -> Bytes {
    let io = TokioIo::new(tokio::net::TcpStream::connect(address).await.unwrap());
    let (mut client, connection) = handshake(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let question = b"\0\0\0\0\x13\x0a\x04edge\x12\x0b\x0a\x09\x0a\x04user\x12\x01a";
    let path = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let request = Request::post(format!("http://pacegate/{path}"))
        .header("content-type", "application/grpc")
        .body(Full::new(Bytes::from_static(question)))
        .unwrap();
    let body = client.send_request(request).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    // The service would wait for an open connection at shutdown.
    drop(client);
    connection.await.unwrap().unwrap();
    body.to_bytes().slice(5..)
}

#[tokio::test]
async fn the_variables_of_a_deployment_are_enough() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("ratelimit/config");
    fs::create_dir_all(&rules).unwrap();
    fs::write(rules.join("edge.yaml"), RULES).unwrap();
    let service = Service::start_with(
        &[],
        &[
            ("RUNTIME_ROOT", folder.path().to_str().unwrap()),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
            ("REDIS_POOL_SIZE", "9"),
        ],
    );
    assert!(service.greeting.iter().any(|line| line.starts_with("ready: 1 polic")));
    let address = service.address("grpc");
    for code in [1, 1, 2] {
        let answer = ask(address).await;
        // The code comes first, then the configured headers.
        assert_eq!(answer[..2], [0x08, code]);
        let text = String::from_utf8_lossy(&answer);
        assert!(text.contains("RateLimit-Limit") && text.contains("RateLimit-Reset"));
    }
    service.signal("TERM");
    let (status, logged) = service.wait();
    assert!(status.success(), "{logged}");
    assert!(logged.contains("REDIS_POOL_SIZE has no effect"), "{logged}");
}

/// Runs a service with these options and variables besides those of a deployment, and returns its log.
fn log_of(args: &[&str], variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("config")).unwrap();
    fs::write(folder.path().join("config/edge.yaml"), RULES).unwrap();
    let own = [("RUNTIME_ROOT", folder.path().to_str().unwrap()), ("REDIS_POOL_SIZE", "9")];
    let service = Service::start_with(args, &[&own, variables].concat());
    service.signal("TERM");
    let (status, logged) = service.wait();
    assert!(status.success(), "{logged}");
    logged
}

#[test]
fn the_variables_of_a_deployment_set_the_log_level() {
    let (warning, info) = ("REDIS_POOL_SIZE has no effect", "shutting down");
    for (args, variables, expected) in [
        // The default of envoyproxy/ratelimit is to log warnings only.
        (&[][..], &[][..], (true, false)),
        (&[], &[("LOG_LEVEL", "INFO")], (true, true)),
        (&[], &[("LOG_LEVEL", "FATAL")], (false, false)),
        (&[], &[("LOG_LEVEL", "ERROR"), ("PACEGATE_LOG", "info")], (true, true)),
        (&["--log", "error"], &[("LOG_LEVEL", "INFO")], (false, false)),
    ] {
        let logged = log_of(args, variables);
        let found = (logged.contains(warning), logged.contains(info));
        assert_eq!(found, expected, "{args:?} {variables:?}: {logged}");
    }
    let json = log_of(&[], &[("LOG_FORMAT", "json")]);
    let event: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert!(event["message"].as_str().unwrap().starts_with(warning), "{json}");
    let text = log_of(&["--log-format", "text"], &[("LOG_FORMAT", "json")]);
    assert!(!text.starts_with('{'), "{text}");
}

/// Sends hits for `user=a` to `POST /json`, and returns the status.
fn hits(service: &Service, domain: &str, hits: u64) -> u16 {
    let descriptor = r#"{"entries": [{"key": "user", "value": "a"}]}"#;
    let question =
        format!(r#"{{"domain": "{domain}", "hitsAddend": {hits}, "descriptors": [{descriptor}]}}"#);
    let mut client = Http::connect(service.address("http")).unwrap();
    client.request("POST", "/json", None, &question).unwrap().status
}

#[test]
fn denied_hits_count_unless_a_variable_says_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("config")).unwrap();
    fs::write(folder.path().join("config/edge.yaml"), RULES).unwrap();
    let root = ("RUNTIME_ROOT", folder.path().to_str().unwrap());
    for (variables, mode, status) in [
        (&[root][..], "descriptors are counted independently, and denied hits too", 429),
        (
            &[root, ("PACEGATE_DESCRIPTORS", "together")],
            "all descriptors of a request are counted, or none",
            200,
        ),
    ] {
        let service = Service::start_with(&[], variables);
        let mode =
            format!("mode: envoyproxy/ratelimit, with the files in {}/config; {mode}", root.1);
        assert!(service.greeting.contains(&mode), "{:?}", service.greeting);
        assert_eq!(hits(&service, "edge", 3), 429);
        assert_eq!(hits(&service, "edge", 1), status, "{mode}");
    }
}

/// Beside a Pacegate file, rules are counted as in envoyproxy/ratelimit, and policies all or nothing.
#[test]
fn each_file_follows_its_own_format() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (ours, theirs) = (path("pacegate.yaml"), path("edge.yaml"));
    fs::write(
        &ours,
        "policies: [{ name: api, domain: own, per: [user], limit: 2/365d }]\n\
         envoy: { response_headers: { limit: X-Limit } }\n",
    )
    .unwrap();
    fs::write(&theirs, RULES).unwrap();
    let service = Service::start_with(&["--config", &ours, "--config", &theirs], &[]);
    assert!(!service.greeting.iter().any(|line| line.starts_with("mode:")));
    for (domain, status) in [("edge", 429), ("own", 200)] {
        assert_eq!(hits(&service, domain, 3), 429, "{domain}");
        assert_eq!(hits(&service, domain, 1), status, "{domain}");
    }
    let mut client = Http::connect(service.address("http")).unwrap();
    let question =
        r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "b"}]}]}"#;
    let answer = client.request("POST", "/json", None, question).unwrap();
    assert!(answer.body.contains(r#"{"key":"X-Limit","value":"2"}"#), "{}", answer.body);
}

/// A deployment in a cluster sets the name of the program, the environment, and a probe.
#[tokio::test]
async fn the_program_serves_under_the_name_ratelimit() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("config")).unwrap();
    fs::write(folder.path().join("config/edge.yaml"), RULES).unwrap();
    let program = folder.path().join("ratelimit");
    symlink(env!("CARGO_BIN_EXE_pacegate"), &program).unwrap();
    let root = folder.path().to_str().unwrap();
    // The image sets the first variable. Ports are chosen by the system.
    let variables =
        [("PACEGATE_INSECURE", "true"), ("RUNTIME_ROOT", root), ("PORT", "0"), ("GRPC_PORT", "0")];
    // Theirs ignores arguments.
    let service = Service::launch(Command::new(&program).arg("--quota=1").envs(variables));
    assert!(!service.greeting.iter().any(|line| line.starts_with("resp")), "off in this mode");
    let (http, grpc) = (service.address("http"), service.address("grpc"));
    assert!(http.ip().is_unspecified() && grpc.ip().is_unspecified());
    let there = |address: SocketAddr| SocketAddr::from(([127, 0, 0, 1], address.port()));
    assert_eq!(ask(there(grpc)).await[..2], [0x08, 1]);
    let mut client = Http::connect(there(http)).unwrap();
    assert_eq!(client.get("/healthcheck").unwrap().status, 200);
    let question =
        r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}"#;
    for status in [200, 429] {
        assert_eq!(client.request("POST", "/json", None, question).unwrap().status, status);
    }
}

/// Dashboards for envoyproxy/ratelimit read these names and labels.
#[test]
fn statistics_have_the_names_of_envoyproxy_ratelimit() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("config")).unwrap();
    let rules = format!(
        "{RULES}  - key: ip\n    detailed_metric: true\n    shadow_mode: true\n    \
         rate_limit: {{ unit: year, requests_per_unit: 1 }}\n"
    );
    fs::write(folder.path().join("config/edge.yaml"), rules).unwrap();
    let (metrics, debug) = (Port::reserve(), Port::reserve());
    let statsd = TcpListener::bind("127.0.0.1:0").unwrap();
    let service = Service::start_with(
        &[],
        &[
            ("RUNTIME_ROOT", folder.path().to_str().unwrap()),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", &format!("localhost:{}", metrics.number())),
            ("DEBUG_HOST", "127.0.0.1"),
            ("DEBUG_PORT", &debug.number().to_string()),
            ("USE_STATSD", "true"),
            ("STATSD_HOST", "127.0.0.1"),
            ("STATSD_PORT", &statsd.local_addr().unwrap().port().to_string()),
            ("STATS_FLUSH_INTERVAL", "1h"),
        ],
    );
    for (hits_addend, status) in [(1, 200), (4, 429)] {
        assert_eq!(hits(&service, "edge", hits_addend), status);
    }
    assert_eq!(hits(&service, "other", 1), 200);
    let mut client = Http::connect(service.address("http")).unwrap();
    let ip = r#"{"entries": [{"key": "ip", "value": "10.0.0.1"}]}"#;
    let ip = format!(r#"{{"domain": "edge", "hitsAddend": 3, "descriptors": [{ip}]}}"#);
    assert_eq!(client.request("POST", "/json", None, &ip).unwrap().status, 200);
    let page = |port: &Port, path: &str| {
        let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
        Http::connect(address).unwrap().get(path).unwrap().body
    };
    let found = page(&metrics, "/metrics");
    let name = "ratelimit_service_rate_limit";
    for line in [
        &*format!("{name}_total_hits{{domain=\"edge\",key1=\"user\"}} 5"),
        &format!("{name}_within_limit{{domain=\"edge\",key1=\"user\"}} 1"),
        &format!("{name}_over_limit{{domain=\"edge\",key1=\"user\"}} 3"),
        &format!("{name}_near_limit{{domain=\"edge\",key1=\"user\"}} 1"),
        &format!("{name}_shadow_mode{{domain=\"edge\",key1=\"ip_10_0_0_1\"}} 2"),
        &format!("{name}_other_domain_not_found 1"),
        "ratelimit_service_config_load_success 1",
    ] {
        assert!(found.lines().any(|other| other == line), "{line}\n{found}");
    }
    assert!(found.contains("\nprocess_resident_memory_bytes "), "{found}");
    let rules = page(&debug, "/rlconfig");
    let user = "edge.user: unit=YEAR requests_per_unit=2, shadow_mode: false, quota_mode: false";
    assert!(rules.lines().any(|line| line == user), "{rules}");
    let total = "ratelimit.service.rate_limit.edge.user.total_hits";
    let stats = page(&debug, "/stats");
    assert!(stats.contains(&format!("{total}: 5\n")), "{stats}");
    // Changes since the start are sent at the end.
    service.signal("TERM");
    let (mut received, mut connection) = (String::new(), statsd.accept().unwrap().0);
    connection.read_to_string(&mut received).unwrap();
    let changes = received.lines().filter_map(|line| line.strip_prefix(total)?.strip_suffix("|c"));
    let sum: u64 = changes.map(|change| change[1..].parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 5, "{received}");
    assert!(service.wait().0.success());
}

/// The same settings in a Pacegate file, next to files of envoyproxy/ratelimit.
#[test]
fn a_pacegate_file_has_the_settings_of_statistics_health_and_tls() {
    let (certificates, folder) = (Certificates::new(), Folder::new());
    let (metrics, debug) = (Port::reserve(), Port::reserve());
    let (cert, key) = (certificates.server_cert(), certificates.server_key());
    let config = format!(
        "policies: []\nenvoy:\n  needs_rules: true\n  tls: {{ certificate: {}, key: {} }}\n  statistics:\n    \
         near_limit_ratio: 0.5\n    prometheus: {{ address: '127.0.0.1:{}', path: /m }}\n    debug: 127.0.0.1:{}\n",
        cert.display(),
        key.display(),
        metrics.number(),
        debug.number()
    );
    folder.replace("pacegate.yaml", &config);
    let status = |service: &Service| {
        let mut client = Http::connect(service.address("http")).unwrap();
        client.get("/healthcheck").unwrap().status
    };
    let service = Service::start(&["--config", &folder.config()]);
    assert_eq!(status(&service), 503, "without rules");
    assert!(
        service.greeting.iter().any(|line| line.contains("grpc") && line.ends_with(" with TLS"))
    );
    drop(service);
    folder.replace("edge.yaml", RULES);
    let rules = folder.path("edge.yaml");
    let args = ["--config", &folder.config(), "--config", rules.to_str().unwrap()];
    let service = Service::start(&args);
    assert_eq!(status(&service), 200);
    for expected in [200, 200, 429] {
        assert_eq!(hits(&service, "edge", 1), expected);
    }
    let page = |port: &Port, path: &str| {
        let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
        Http::connect(address).unwrap().get(path).unwrap().body
    };
    let found = page(&metrics, "/m");
    let near = "ratelimit_service_rate_limit_near_limit{domain=\"edge\",key1=\"user\"} 1";
    assert!(found.lines().any(|line| line == near), "{found}");
    assert!(page(&debug, "/rlconfig").starts_with("edge.user: unit=YEAR requests_per_unit=2,"));
}

/// With its local cache, envoyproxy/ratelimit does not count denials after the first.
#[test]
fn denials_are_cached_if_the_local_cache_has_a_size() {
    let redis = Server::start(Flavor::Redis);
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("config")).unwrap();
    fs::write(folder.path().join("config/edge.yaml"), RULES).unwrap();
    for (size, prefix) in [("0", "none:"), ("1000000", "cached:")] {
        let metrics = Port::reserve();
        let service = Service::start_with(
            &[],
            &[
                ("RUNTIME_ROOT", folder.path().to_str().unwrap()),
                ("REDIS_URL", &redis.address()),
                ("REDIS_TIMEOUT", "20s"),
                ("CACHE_KEY_PREFIX", prefix),
                ("LOCAL_CACHE_SIZE_IN_BYTES", size),
                ("USE_PROMETHEUS", "true"),
                ("PROMETHEUS_ADDR", &format!("localhost:{}", metrics.number())),
            ],
        );
        assert_eq!(hits(&service, "edge", 3), 429);
        for _ in 0..20 {
            assert_eq!(hits(&service, "edge", 1), 429);
        }
        let address = SocketAddr::from(([127, 0, 0, 1], metrics.number()));
        let page = Http::connect(address).unwrap().get("/metrics").unwrap().body;
        let count = |name: &str| {
            let name =
                format!("ratelimit_service_rate_limit_{name}{{domain=\"edge\",key1=\"user\"}} ");
            let line = page.lines().find_map(|line| line.strip_prefix(&name));
            line.map_or(0, |count| count.parse::<u64>().unwrap())
        };
        assert_eq!(count("over_limit"), 1 + 20, "{page}");
        // An entry is checked on Redis again after a second.
        let cached = count("over_limit_with_local_cache");
        assert_eq!(cached > 0, size != "0", "{cached} cached\n{page}");
        assert!(cached <= 20, "{page}");
    }
}

/// The ports of envoyproxy/ratelimit have no authentication, so administration is for this machine only.
#[test]
fn administration_is_off_on_a_public_address() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("config")).unwrap();
    fs::write(folder.path().join("config/edge.yaml"), RULES).unwrap();
    let variables = [("RUNTIME_ROOT", folder.path().to_str().unwrap())];
    for (args, status) in [
        (&["--http", "0.0.0.0:0", "--resp", "0.0.0.0:0", "--insecure"][..], 403),
        (&["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"], 200),
    ] {
        let service = Service::start_with(args, &variables);
        let address = |name| SocketAddr::from(([127, 0, 0, 1], service.address(name).port()));
        let mut client = Http::connect(address("http")).unwrap();
        assert_eq!(client.request("POST", "/v1/reload", None, "").unwrap().status, status);
        assert_eq!(client.get("/v1/stats").unwrap().status, status);
        assert_eq!(client.get("/metrics").unwrap().status, 200);
        assert_eq!(client.get("/healthcheck").unwrap().status, 200);
        let mut resp = Client::connect(&address("resp").to_string()).unwrap();
        let reset = resp.command(&["PACEGATE.RESET", "ATTR", "user", "a"]).unwrap();
        let is_off = reset.text().contains("administration is off");
        assert_eq!(is_off, status == 403, "{reset:?}");
    }
}

/// Callers with a longer timeout than Envoy's default of 20 ms use such a Redis.
#[test]
fn a_redis_that_is_30_ms_away_is_used_if_the_caller_allows_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("config")).unwrap();
    fs::write(folder.path().join("config/edge.yaml"), RULES).unwrap();
    let server = Server::start(Flavor::Redis);
    let proxy = Proxy::start(server.address());
    proxy.set_delay(Duration::from_millis(30));
    let address = proxy.address();
    let variables = [
        ("RUNTIME_ROOT", folder.path().to_str().unwrap()),
        ("REDIS_URL", &*address),
        ("REDIS_TIMEOUT", "10s"),
    ];
    let service = Service::start_with(&[], &variables);
    let mut http = Http::connect(service.address("http")).unwrap();
    eventually(Duration::from_secs(20), "the store is used", || {
        http.get("/readyz").is_ok_and(|answer| answer.status == 200)
    });
    let mut grpc = Grpc::connect(service.address("grpc")).unwrap();
    for (timeout, allowed) in [("5S", true), ("5S", true), ("5S", false)] {
        grpc.timeout = Some(timeout);
        let answer = grpc.ask(None, "edge", &[("user", "a")]).unwrap();
        assert_eq!((answer.allowed, answer.degraded), (allowed, false));
    }
    assert_eq!(server.command(&["DBSIZE"]).int(), 1);
    // Envoy's default leaves too little time.
    grpc.timeout = Some("20m");
    assert!(grpc.ask(None, "edge", &[("user", "b")]).unwrap().degraded);
}

/// A shadow rule and a repeated descriptor do not make the others wait for each other.
#[test]
#[expect(clippy::disallowed_methods, reason = "the delay of each round trip is real")]
fn descriptors_are_decided_at_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("config")).unwrap();
    let shadow = "  - key: ip\n    shadow_mode: true\n    \
                  rate_limit: { unit: year, requests_per_unit: 1 }\n";
    fs::write(folder.path().join("config/edge.yaml"), format!("{RULES}{shadow}")).unwrap();
    let server = Server::start(Flavor::Redis);
    let proxy = Proxy::start(server.address());
    let address = proxy.address();
    let variables = [
        ("RUNTIME_ROOT", folder.path().to_str().unwrap()),
        ("REDIS_URL", &*address),
        ("REDIS_TIMEOUT", "10s"),
    ];
    let service = Service::start_with(&[], &variables);
    let descriptor =
        |(key, value)| format!(r#"{{"entries":[{{"key":"{key}","value":"{value}"}}]}}"#);
    let users = ["a", "b", "c", "d", "e", "f", "a", "a"].map(|user| descriptor(("user", user)));
    let all = [&[descriptor(("ip", "x"))], &users[..]].concat().join(",");
    let question = format!(r#"{{"domain": "edge", "descriptors": [{all}]}}"#);
    let mut http = Http::connect(service.address("http")).unwrap();
    assert_eq!(hits(&service, "edge", 1), 200);
    let delay = Duration::from_millis(300);
    proxy.set_delay(delay);
    let begun = Instant::now();
    // Three hits of `a`, after the first one above, exceed 2.
    let answer = http.request("POST", "/json", None, &question).unwrap();
    let codes: Vec<_> = answer.json()["statuses"].as_array().unwrap().to_vec();
    let denied = codes.iter().filter(|status| status["code"] == "OVER_LIMIT").count();
    assert_eq!((answer.status, codes.len(), denied), (429, 9, 2), "{codes:?}");
    assert!(begun.elapsed() < 7 * delay, "{:?}", begun.elapsed());
}
