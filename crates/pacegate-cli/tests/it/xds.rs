//! Configuration over xDS.

use std::{
    fs,
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use pacegate_testkit::servers::{Certificates, Flavor, Port, Server, eventually};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    clients::{Folder, Grpc, Http, PATIENCE},
    control_plane::{ControlPlane, GoControlPlane, invalid_resource, resource},
    service::Service,
};

/// Starts a server that follows config servers.
fn start(servers: &str, variables: &[(&str, &str)]) -> Service {
    let own = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", servers),
        ("USE_STATSD", "false"),
    ];
    Service::start_with(&["--resp", "off"], &[&own, variables].concat())
}

/// Returns the limits of keys in a domain: `None` for a key without a limit. Charges each once.
fn limits(client: &mut Http, domain: &str, keys: &[&str]) -> Vec<Option<u64>> {
    let descriptor = |key| json!({"entries": [{"key": key, "value": "v"}]});
    let descriptors: Vec<_> = keys.iter().map(descriptor).collect();
    let body = json!({"domain": domain, "descriptors": descriptors}).to_string();
    let answer = client.request("POST", "/json", None, &body).unwrap();
    assert!([200, 429].contains(&answer.status), "{answer:?}");
    let statuses = &answer.json()["statuses"];
    let limit = |index| statuses[index]["currentLimit"]["requestsPerUnit"].as_u64();
    (0..keys.len()).map(limit).collect()
}

fn limit(client: &mut Http, domain: &str, key: &str) -> Option<u64> {
    limits(client, domain, &[key])[0]
}

fn http(service: &Service) -> Http {
    Http::connect(service.address("http")).unwrap()
}

#[test]
fn resources_are_accepted_replaced_and_removed() {
    let plane = ControlPlane::start();
    let nonce = plane.publish("1", &[resource("edge", &[("user", 5)]), resource("api", &[])]);
    let service = start(&plane.address(), &[("CONFIG_GRPC_XDS_NODE_ID", "me")]);
    let first = plane.request();
    assert_eq!((&*first.version_info, &*first.response_nonce), ("", ""));
    assert_eq!(first.node.unwrap().id, "me");
    let accepted = plane.request();
    assert_eq!((&*accepted.version_info, &*accepted.response_nonce), ("1", &*nonce));
    assert_eq!((accepted.node.unwrap().id, accepted.error_detail), ("me".to_owned(), None));
    let greeting = service.greeting.join("\n");
    let mode =
        format!("mode: envoyproxy/ratelimit, with the configuration of {};", plane.address());
    assert!(greeting.contains(&mode) && greeting.contains("ready: 1 policy"), "{greeting}");
    let mut client = http(&service);
    assert_eq!(limit(&mut client, "edge", "user"), Some(5));
    plane.apply("2", &[resource("edge", &[("path", 7)])]);
    assert_eq!(limits(&mut client, "edge", &["user", "path"]), [None, Some(7)]);
    plane.apply("3", &[]);
    assert_eq!(limits(&mut client, "edge", &["user", "path"]), [None, None]);
    // Reloads keep the resources.
    plane.apply("4", &[resource("edge", &[("path", 9)])]);
    assert_eq!(client.request("POST", "/v1/reload", None, "").unwrap().status, 200);
    assert_eq!(limit(&mut client, "edge", "path"), Some(9));
}

#[test]
fn a_rejected_response_changes_nothing_and_is_reported() {
    let plane = ControlPlane::start();
    plane.publish("1", &[resource("edge", &[("user", 5)])]);
    let service = start(&plane.address(), &[]);
    let mut client = http(&service);
    let nonce = plane.publish("2", &[resource("other", &[("user", 1)]), invalid_resource("edge")]);
    let rejected = loop {
        let request = plane.request();
        if request.response_nonce == nonce {
            break request;
        }
    };
    assert_eq!(rejected.version_info, "1", "the last accepted version");
    let reason = rejected.error_detail.unwrap().message;
    let expected = format!("{}/edge: descriptor `user`: unknown unit `unknown`", plane.address());
    assert!(reason.starts_with(&expected), "{reason}");
    assert_eq!(limits(&mut client, "edge", &["user"]), [Some(5)]);
    assert_eq!(limit(&mut client, "other", "user"), None);
    assert!(service.log().contains("rejected the configuration of a config server"));
    let metrics = client.get("/metrics").unwrap().body;
    assert!(metrics.contains("pacegate_config_reload_failures_total 1"), "{metrics}");
    let connected = format!("pacegate_config_server_connected{{server=\"{}\"}} 1", plane.address());
    assert!(metrics.contains(&connected), "{metrics}");
    // A message that cannot be decoded, one that is too large, and one that is compressed end the stream.
    for bytes in [&[0, 0, 0, 0, 1, 255][..], &[0, 255, 255, 255, 255], &[1, 0, 0, 0, 0]] {
        let before = plane.connections();
        plane.publish_bytes(bytes);
        eventually(PATIENCE, "it connects again", || plane.connections() > before);
        assert_eq!(limit(&mut client, "edge", "user"), Some(5));
    }
    plane.apply("3", &[resource("edge", &[("user", 6)])]);
    assert_eq!(limit(&mut client, "edge", "user"), Some(6));
}

#[test]
fn a_rejected_version_is_not_rejected_in_a_loop() {
    let plane = ControlPlane::start();
    plane.publish("1", &[resource("edge", &[("user", 5)])]);
    let service = start(&plane.address(), &[]);
    // As config servers in Go do, send the version again after each rejection.
    let begun = Instant::now();
    for _ in 0..4 {
        let nonce = plane.publish("2", &[invalid_resource("edge")]);
        assert!(plane.answer(&nonce).contains("unknown unit"));
    }
    assert!(begun.elapsed() >= Duration::from_millis(500 + 1_000 + 2_000));
    assert_eq!(service.log().matches("rejected the configuration").count(), 1);
    // Another version is answered at once.
    let begun = Instant::now();
    plane.apply("3", &[resource("edge", &[("user", 6)])]);
    assert!(begun.elapsed() < Duration::from_secs(3), "the next delay would be 4 s");
}

#[test]
fn two_config_servers_are_followed_at_once() {
    let (a, b) = (ControlPlane::start(), ControlPlane::start());
    a.publish("1", &[resource("edge", &[("user", 5)])]);
    b.publish("1", &[resource("quota", &[("model", 6)])]);
    let service = start(&format!("{},{}", a.address(), b.address()), &[]);
    let mut client = http(&service);
    assert_eq!(limit(&mut client, "edge", "user"), Some(5));
    assert_eq!(limit(&mut client, "quota", "model"), Some(6));
    // A domain of both is rejected, and accepted once the other has removed it.
    let shared = [resource("quota", &[("model", 7)]), resource("edge", &[("path", 8)])];
    let nonce = b.publish("2", &shared);
    let reason = b.answer(&nonce);
    let duplicate = format!("duplicate domain `edge`: already in {}/edge", a.address());
    assert!(reason.ends_with(&duplicate), "{reason}");
    assert_eq!(limit(&mut client, "quota", "model"), Some(6));
    a.apply("2", &[resource("own", &[("user", 5)])]);
    assert_eq!(b.answer(&nonce), "");
    assert_eq!(limits(&mut client, "edge", &["user", "path"]), [None, Some(8)]);
    assert_eq!(limit(&mut client, "quota", "model"), Some(7));
    // The domains of a config server stay without it.
    drop(b);
    a.apply("3", &[resource("own", &[("user", 9)])]);
    assert_eq!(limit(&mut client, "own", "user"), Some(9));
    assert_eq!(limit(&mut client, "quota", "model"), Some(7));
}

#[test]
fn a_rejected_version_is_not_tried_again_after_a_later_one_or_a_rollback() {
    let (a, b) = (ControlPlane::start(), ControlPlane::start());
    a.publish("1", &[resource("edge", &[("user", 5)])]);
    b.publish("1", &[resource("quota", &[("model", 6)])]);
    let service = start(&format!("{},{}", a.address(), b.address()), &[]);
    let mut client = http(&service);
    let assert_success = |expected: u8| {
        let metrics = http(&service).get("/metrics").unwrap().body;
        let line = format!("pacegate_config_last_reload_success {expected}");
        assert!(metrics.contains(&line), "{metrics}");
    };
    // Rejected, because the other server has the domain.
    let shared = [resource("edge", &[("user", 7)]), resource("quota", &[("model", 7)])];
    let nonce = a.publish("2", &shared);
    assert!(a.answer(&nonce).contains("duplicate domain `quota`"));
    assert_success(0);
    a.apply("3", &[resource("edge", &[("user", 8)])]);
    assert_success(1);
    // Version 2 would be valid now.
    b.apply("2", &[resource("own", &[("model", 6)])]);
    b.apply("3", &[resource("own", &[("model", 9)])]);
    assert_eq!(limit(&mut client, "own", "model"), Some(9));
    assert_eq!(limit(&mut client, "edge", "user"), Some(8));
    assert_eq!(limit(&mut client, "quota", "model"), None);
    assert_success(1);
    // A rollback to the active content.
    let nonce = a.publish("4", &[invalid_resource("edge")]);
    assert!(!a.answer(&nonce).is_empty());
    assert_success(0);
    a.apply("5", &[resource("edge", &[("user", 8)])]);
    assert_success(1);
}

#[test]
fn two_config_servers_can_exchange_their_domains() {
    let planes = [ControlPlane::start(), ControlPlane::start()];
    let domains = |planes: &[ControlPlane; 2], version: &str, [a, b]: [&str; 2], limit| {
        let nonce = planes[0].publish(version, &[resource(a, &[("user", limit)])]);
        (nonce, planes[1].publish(version, &[resource(b, &[("user", limit)])]))
    };
    domains(&planes, "1", ["a", "b"], 5);
    let servers = format!("{},{}", planes[0].address(), planes[1].address());
    let service = start(&servers, &[]);
    let mut client = http(&service);
    assert_eq!(limit(&mut client, "a", "user"), Some(5));
    assert_eq!(limit(&mut client, "b", "user"), Some(5));
    let nonces = domains(&planes, "2", ["b", "a"], 7);
    // The first of them may be rejected before the second arrives.
    let accepted = |plane: &ControlPlane, nonce: &str| loop {
        let request = plane.request();
        if request.response_nonce == nonce && request.error_detail.is_none() {
            break;
        }
    };
    accepted(&planes[0], &nonces.0);
    accepted(&planes[1], &nonces.1);
    assert_eq!(limit(&mut client, "a", "user"), Some(7));
    assert_eq!(limit(&mut client, "b", "user"), Some(7));
}

#[test]
fn domains_of_two_config_servers_are_merged_if_configured() {
    let (a, b) = (ControlPlane::start(), ControlPlane::start());
    a.publish("1", &[resource("edge", &[("user", 5)])]);
    b.publish("1", &[resource("edge", &[("path", 6)])]);
    let servers = format!("{},{}", a.address(), b.address());
    let service = start(&servers, &[("MERGE_DOMAIN_CONFIG", "true")]);
    let mut client = http(&service);
    assert_eq!(limits(&mut client, "edge", &["user", "path"]), [Some(5), Some(6)]);
    let nonce = b.publish("2", &[resource("edge", &[("user", 7)])]);
    assert!(b.answer(&nonce).contains("duplicate descriptor `user`"));
    assert_eq!(limits(&mut client, "edge", &["user", "path"]), [Some(5), Some(6)]);
}

#[test]
fn a_restarted_config_server_is_followed_within_a_second() {
    let port = Port::reserve();
    let plane = ControlPlane::start_at(port.number(), None);
    plane.publish("1", &[resource("edge", &[("user", 5)])]);
    let service = start(&plane.address(), &[("PACEGATE_LOG", "debug")]);
    let mut client = http(&service);
    drop(plane);
    // Wait until the delay between attempts has reached its maximum.
    eventually(PATIENCE, "several attempts fail", || {
        service.log().matches("cannot connect: Connection refused").count() > 5
    });
    assert_eq!(limit(&mut client, "edge", "user"), Some(5), "the last configuration stays");
    let metrics = client.get("/metrics").unwrap().body;
    let address = format!("127.0.0.1:{}", port.number());
    let lost = format!("pacegate_config_server_connected{{server=\"{address}\"}} 0");
    assert!(metrics.contains(&lost), "{metrics}");
    let plane = ControlPlane::start_at(port.number(), None);
    let begun = Instant::now();
    plane.publish("1", &[resource("edge", &[("user", 6)])]);
    eventually(PATIENCE, "it follows", || limit(&mut client, "edge", "user") == Some(6));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    let first = plane.request();
    assert_eq!((&*first.version_info, &*first.response_nonce), ("", ""), "of a new stream");
}

#[test]
fn the_start_waits_for_a_configuration_unless_forced() {
    let plane = ControlPlane::start();
    let variables = [
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true"),
    ];
    let service = start(&plane.address(), &variables);
    let (mut client, mut grpc) = (http(&service), Grpc::connect(service.address("grpc")).unwrap());
    assert_eq!(client.get("/healthcheck").unwrap().status, 503);
    assert_eq!(grpc.ask(None, "edge", &[("user", "a")]).unwrap().status, 2);
    let nonce = plane.publish("1", &[invalid_resource("edge")]);
    assert!(!plane.answer(&nonce).is_empty());
    assert_eq!(grpc.ask(None, "edge", &[("user", "a")]).unwrap().status, 2);
    plane.apply("2", &[resource("edge", &[("user", 5)])]);
    assert_eq!(grpc.ask(None, "edge", &[("user", "a")]).unwrap().remaining, 4);
    assert_eq!(client.get("/healthcheck").unwrap().status, 200);

    // Without a configuration, a server does not start, and a signal ends it.
    let port = Port::reserve();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pacegate"));
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "off"]);
    command.env("CONFIG_TYPE", "GRPC_XDS_SOTW").env("USE_STATSD", "false");
    command.env("CONFIG_GRPC_XDS_SERVER_URL", format!("127.0.0.1:{}", port.number()));
    let log = tempfile::NamedTempFile::new().unwrap();
    let output = fs::File::create(log.path()).unwrap();
    let mut waiting = command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap();
    let text = || fs::read_to_string(log.path()).unwrap();
    eventually(PATIENCE, "it waits", || text().contains("still waiting"));
    assert!(!text().contains("ready:"), "{}", text());
    let pid = waiting.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(waiting.wait().unwrap().success());
}

/// Requests with two descriptors until the end. Both must have the limit of the same revision. Returns their number.
fn load(address: SocketAddr, over: &AtomicBool) -> u64 {
    let mut client = Http::connect(address).unwrap();
    let (mut requests, mut last) = (0, Some(0));
    while !over.load(Ordering::Relaxed) {
        let found = limits(&mut client, "edge", &["user", "path"]);
        assert!(found[0] == found[1] && found[0] >= last, "{found:?} after {last:?}");
        (requests, last) = (requests + 1, found[0]);
    }
    requests
}

#[test]
fn a_thousand_updates_under_load_lose_no_decision() {
    const UPDATES: u32 = 1_000;
    const AMOUNT: u32 = 1_000_000_000;
    let revision = |number: u32| {
        let amount = AMOUNT + number;
        [resource("edge", &[("user", amount), ("path", amount)])]
    };
    let plane = ControlPlane::start();
    plane.publish("0", &revision(0));
    let service = start(&plane.address(), &[]);
    let over = Arc::new(AtomicBool::new(false));
    let address = service.address("http");
    let clients = [(); 2].map(|()| {
        let over = over.clone();
        thread::spawn(move || load(address, &over))
    });
    for number in 1..=UPDATES {
        plane.apply(&number.to_string(), &revision(number));
        assert!(clients.iter().all(|client| !client.is_finished()), "a client has failed");
    }
    over.store(true, Ordering::Relaxed);
    let requests: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
    let mut grpc = Grpc::connect(service.address("grpc")).unwrap();
    let answer = grpc.ask(None, "edge", &[("user", "v")]).unwrap();
    let used = u64::from(AMOUNT + UPDATES - answer.remaining);
    assert_eq!(used, requests + 1, "each answer is one charge, through all revisions");
    assert_eq!(service.log(), "");
}

/// The environment that Envoy Gateway gives its rate limiter, except for ports and addresses, which the test chooses.
fn gateway_environment(certs: &Path, server: &str, redis: &Server) -> Vec<(&'static str, String)> {
    let file = |name: &str| certs.join(name).to_str().unwrap().to_owned();
    let [cert, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(file);
    let own = |name, value: &str| (name, value.to_owned());
    vec![
        own("RUNTIME_ROOT", "/data"),
        own("RUNTIME_SUBDIRECTORY", "ratelimit"),
        own("RUNTIME_IGNOREDOTFILES", "true"),
        own("RUNTIME_WATCH_ROOT", "false"),
        own("LOG_LEVEL", "info"),
        own("USE_STATSD", "false"),
        own("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        own("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        own("CONFIG_GRPC_XDS_SERVER_URL", server),
        own("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        own("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        own("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &cert),
        own("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
        own("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
        own("GRPC_SERVER_USE_TLS", "true"),
        own("GRPC_SERVER_TLS_CERT", &cert),
        own("GRPC_SERVER_TLS_KEY", &key),
        own("GRPC_SERVER_TLS_CA_CERT", &ca),
        own("REDIS_SOCKET_TYPE", "tcp"),
        own("REDIS_URL", &redis.address()),
        own("USE_PROMETHEUS", "true"),
        own("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
        // The image sets this one.
        own("PACEGATE_INSECURE", "true"),
        own("HOST", "127.0.0.1"),
        own("PORT", "0"),
        own("GRPC_HOST", "127.0.0.1"),
        own("GRPC_PORT", "0"),
        own("DEBUG_HOST", "127.0.0.1"),
        own("DEBUG_PORT", "0"),
        own("PROMETHEUS_ADDR", "127.0.0.1:0"),
    ]
}

/// Starts the program as `/bin/ratelimit`.
fn start_as_ratelimit(variables: &[(&'static str, String)]) -> Service {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pacegate"));
    command.arg0("/bin/ratelimit").envs(variables.iter().map(|(name, value)| (name, value)));
    Service::launch(&mut command)
}

/// Copies the files of the secret `envoy-rate-limit`.
fn install(folder: &Path, certificates: &Certificates) {
    for (from, to) in [
        (certificates.server_cert(), "tls.crt"),
        (certificates.server_key(), "tls.key"),
        (certificates.ca(), "ca.crt"),
    ] {
        fs::copy(from, folder.join(to)).unwrap();
    }
}

/// Accepts clients with a certificate of the same authority, with TLS 1.3 only, as Envoy Gateway does.
fn server_config(certificates: &Certificates) -> ServerConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.ca()).unwrap()).unwrap();
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
    let certificate = CertificateDer::from_pem_file(certificates.server_cert()).unwrap();
    let key = PrivateKeyDer::from_pem_file(certificates.server_key()).unwrap();
    ServerConfig::builder_with_protocol_versions(&[&TLS13])
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate], key)
        .unwrap()
}

#[test]
fn certificates_for_config_servers_are_read_for_each_connection() {
    let (ours, others) = (Certificates::new(), Certificates::new());
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), &others);
    let plane = ControlPlane::start_at(0, Some(server_config(&ours)));
    let server = format!("localhost:{}", plane.address().rsplit(':').next().unwrap());
    let redis = Server::start(Flavor::Redis);
    let mut variables = gateway_environment(folder.path(), &server, &redis);
    // Another name, which the certificate has too.
    variables.push(("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "127.0.0.1".to_owned()));
    let service = start_as_ratelimit(&variables);
    eventually(PATIENCE, "the certificate is rejected", || {
        service.log().contains("invalid peer certificate")
    });
    install(folder.path(), &ours);
    plane.apply("1", &[resource("edge", &[("user", 5)])]);
    assert_eq!(limit(&mut http(&service), "edge", "user"), Some(5));
}

#[test]
fn a_pacegate_file_can_name_the_config_servers() {
    let plane = ControlPlane::start();
    plane.publish("1", &[resource("edge", &[("user", 5)])]);
    let folder = Folder::with_config(&format!(
        "policies: [{{ name: own, domain: shop, per: user, limit: 4/week }}]\n\
         envoy: {{ xds: {{ servers: ['{}'], node: me }} }}\n",
        plane.address()
    ));
    let service = Service::start(&["--config", &folder.config()]);
    assert_eq!(plane.request().node.unwrap().id, "me");
    let mut client = http(&service);
    let own = |client: &mut Http| {
        let answer = client.check(None, r#"{"domain":"shop","attributes":{"user":"a"}}"#).unwrap();
        answer.json()["remaining"].as_u64()
    };
    assert_eq!((limit(&mut client, "edge", "user"), own(&mut client)), (Some(5), Some(3)));
    plane.apply("2", &[resource("edge", &[("user", 6)])]);
    assert_eq!((limit(&mut client, "edge", "user"), own(&mut client)), (Some(6), Some(2)));
    assert_eq!(client.request("POST", "/v1/reload", None, "").unwrap().status, 200);
    assert_eq!((limit(&mut client, "edge", "user"), own(&mut client)), (Some(6), Some(1)));
}

#[test]
fn a_self_signed_config_server_is_accepted_if_its_certificate_is_the_ca() {
    let certificates = Certificates::self_signed();
    let certificate = CertificateDer::from_pem_file(certificates.server_cert()).unwrap();
    let key = PrivateKeyDer::from_pem_file(certificates.server_key()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate], key).unwrap();
    let plane = ControlPlane::start_at(0, Some(config));
    plane.publish("1", &[resource("edge", &[("user", 5)])]);
    let ca = certificates.ca().to_str().unwrap().to_owned();
    let tls = [
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &*ca),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ];
    let server = format!("localhost:{}", plane.address().rsplit(':').next().unwrap());
    let service = start(&server, &tls);
    plane.request();
    drop(service);
    let others = Certificates::self_signed();
    let plane = ControlPlane::start_at(0, Some(server_config(&others)));
    let server = format!("localhost:{}", plane.address().rsplit(':').next().unwrap());
    let service = start(&server, &tls);
    eventually(PATIENCE, "another certificate is rejected", || {
        service.log().contains("invalid peer certificate")
    });
}

#[test]
fn the_environment_of_envoy_gateway_and_its_library_work_unchanged() {
    let Some(program) = GoControlPlane::program() else {
        return eprintln!(
            "skipped: `cargo xtask servers` builds the config server, if Go is installed"
        );
    };
    let (certificates, port) = (Certificates::new(), Port::reserve());
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), &certificates);
    let file = |name| folder.path().join(name).to_str().unwrap().to_owned();
    let [cert, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(file);
    let args = ["-node", "envoy-ratelimit", "-cert", &cert, "-key", &key, "-ca", &ca];
    let server = format!("localhost:{}", port.number());
    let redis = Server::start(Flavor::Redis);
    let mut variables = gateway_environment(folder.path(), &server, &redis);
    let debug = Port::reserve();
    variables.push(("DEBUG_PORT", debug.number().to_string()));
    let service = start_as_ratelimit(&variables);
    let state = format!("state in redis://{}", redis.address());
    assert!(service.greeting.iter().any(|line| line.ends_with(&state)), "{:?}", service.greeting);
    let mut client = http(&service);
    assert_eq!(client.get("/healthcheck").unwrap().status, 200, "before the configuration");
    let mut plane = GoControlPlane::start(&program, &port, &args);
    plane.publish("1", &[resource("edge", &[("user", 1)])]);
    eventually(PATIENCE, "the first configuration", || {
        service.log().contains("configuration received")
    });

    // An update takes effect within 100 ms.
    let mut times: Vec<Duration> = (2..=41)
        .map(|number| {
            let begun = Instant::now();
            plane.publish(&number.to_string(), &[resource("edge", &[("user", number)])]);
            while limit(&mut client, "edge", "user") != Some(u64::from(number)) {
                assert!(begun.elapsed() < PATIENCE);
            }
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    let median = times[times.len() / 2];
    // `egctl config envoy-ratelimit` reads this page.
    let mut pages = Http::connect(([127, 0, 0, 1], debug.number()).into()).unwrap();
    let page = pages.get("/rlconfig").unwrap().body;
    assert!(page.starts_with("edge.user: unit=YEAR requests_per_unit=41,"), "{page}");
    eprintln!("an update took {median:?} (median), {:?} (maximum)", times[times.len() - 1]);
    assert!(median < Duration::from_millis(100), "{median:?}");

    // It repeats a rejected version at once, and sends a correction after the next rejection.
    plane.publish("bad", &[invalid_resource("edge")]);
    let rejections = |count: usize| {
        let events = std::iter::repeat_with(|| plane.event());
        events.filter(|event| !event.error.is_empty()).take(count).collect::<Vec<_>>()
    };
    let begun = Instant::now();
    for event in rejections(3) {
        assert!(event.version == "41" && event.error.contains("unknown unit"), "{event:?}");
        assert!(event.node == "envoy-ratelimit" && !event.nonce.is_empty(), "{event:?}");
    }
    assert!(begun.elapsed() >= Duration::from_millis(1_500), "{:?}", begun.elapsed());
    assert_eq!(limit(&mut client, "edge", "user"), Some(41), "a rejected version changes nothing");
    plane.publish("good", &[resource("edge", &[("user", 50)])]);
    eventually(PATIENCE, "the correction", || limit(&mut client, "edge", "user") == Some(50));

    // Killed and restarted, it is followed within a second.
    drop(plane);
    eventually(PATIENCE, "it is lost", || {
        service.log().contains("no connection to a config server")
    });
    assert_eq!(limit(&mut client, "edge", "user"), Some(50));
    let mut plane = GoControlPlane::start(&program, &port, &args);
    let begun = Instant::now();
    plane.publish("1", &[resource("edge", &[("user", 60)])]);
    eventually(PATIENCE, "it follows", || limit(&mut client, "edge", "user") == Some(60));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}
