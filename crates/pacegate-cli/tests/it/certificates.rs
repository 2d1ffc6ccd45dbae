//! TLS, on all listeners, with certificates that change.

use std::{fs, io, net::SocketAddr, path::Path, process::Command, sync::Arc, time::Duration};

use pacegate_testkit::servers::{Certificates, eventually};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::{
    clients::{Folder, Grpc, Http, connect, connect_tls},
    service::Service,
};

const WITHIN: Duration = Duration::from_secs(5);
const BODY: &str = r#"{"attributes": {"key": "k"}}"#;

fn config(extra: &str) -> String {
    format!(
        "tls: {{ certificate: tls.crt, key: tls.key{extra} }}\n\
         policies: [{{ name: api, per: [key], limit: 100/week }}]\n"
    )
}

fn install(folder: &Folder, certificates: &Certificates) {
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    folder.replace("tls.crt", &text(&certificates.server_cert()));
    folder.replace("tls.key", &text(&certificates.server_key()));
}

fn start(certificates: &Certificates, extra: &str) -> (Folder, Service) {
    let folder = Folder::with_config(&config(extra));
    folder.replace("ca.crt", &certificates.ca_pem());
    install(&folder, certificates);
    let service = Service::start(&["--config", &folder.config()]);
    (folder, service)
}

/// A client that trusts one CA. Its certificate, if any, is from `shown`.
fn client(trusted: &Certificates, shown: Option<&Certificates>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted.ca()).unwrap()).unwrap();
    let builder = ClientConfig::builder().with_root_certificates(roots);
    Arc::new(match shown {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let certificate = CertificateDer::from_pem_file(own.client_cert()).unwrap();
            let key = PrivateKeyDer::from_pem_file(own.client_key()).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    })
}

fn by_http(
    address: SocketAddr,
    name: &'static str,
    config: &Arc<ClientConfig>,
) -> io::Result<bool> {
    let mut client = Http::over(connect_tls(address, name, config.clone())?);
    Ok(client.check(None, BODY)?.status == 200)
}

fn by_resp(
    address: SocketAddr,
    name: &'static str,
    config: &Arc<ClientConfig>,
) -> io::Result<bool> {
    use io::{Read, Write};
    let mut stream = connect_tls(address, name, config.clone())?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    Ok(&answer == b"+PONG\r\n")
}

fn by_grpc(
    address: SocketAddr,
    name: &'static str,
    config: &Arc<ClientConfig>,
) -> io::Result<bool> {
    let mut client = Grpc::connect_tls(address, name, config.clone())?;
    Ok(client.ask(None, "d", &[("key", "k")])?.status == 0)
}

/// Connects to HTTP, RESP and gRPC, and returns their answers.
fn all(service: &Service, name: &'static str, config: &Arc<ClientConfig>) -> [io::Result<bool>; 3] {
    [
        by_http(service.address("http"), name, config),
        by_resp(service.address("resp"), name, config),
        by_grpc(service.address("grpc"), name, config),
    ]
}

fn is_answered(answers: &[io::Result<bool>; 3]) -> bool {
    answers.iter().all(|answer| matches!(answer, Ok(true)))
}

fn is_refused(answers: &[io::Result<bool>; 3]) -> bool {
    answers.iter().all(Result::is_err)
}

#[test]
fn all_listeners_require_tls() {
    let (ours, others) = (Certificates::new(), Certificates::new());
    let (_folder, service) = start(&ours, "");
    let trusting = client(&ours, None);
    for name in ["localhost", "127.0.0.1"] {
        let answers = all(&service, name, &trusting);
        assert!(is_answered(&answers), "{answers:?}");
    }
    let answers = all(&service, "localhost", &client(&others, None));
    assert!(is_refused(&answers), "an authority that is not trusted: {answers:?}");
    let answers = all(&service, "example.org", &trusting);
    assert!(is_refused(&answers), "another name: {answers:?}");
    let plain = Http::connect(service.address("http")).unwrap().check(None, BODY);
    assert!(plain.is_err(), "without TLS: {plain:?}");
    assert!(service.greeting[0].starts_with("http listens on https://127.0.0.1:"));
    assert!(
        service.greeting[1].ends_with(" with TLS") && service.greeting[2].ends_with(" with TLS")
    );
}

#[test]
fn variables_of_envoyproxy_ratelimit_enable_tls_for_grpc_only() {
    let (certificates, folder) = (Certificates::new(), Folder::new());
    fs::create_dir(folder.path("config")).unwrap();
    fs::write(folder.path("config/edge.yaml"), "domain: edge\n").unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let root = text(&folder.path(""));
    let (cert, key) = (text(&certificates.server_cert()), text(&certificates.server_key()));
    let ca = text(certificates.ca().as_ref());
    let variables = [
        ("RUNTIME_ROOT", &*root),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &cert),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_CLIENT_TLS_CACERT", &ca),
    ];
    let service = Service::start_with(&[], &variables);
    // Probes have no certificate.
    let mut probe = Http::connect(service.address("http")).unwrap();
    assert_eq!(probe.get("/healthcheck").unwrap().status, 200);
    let (shown, hidden) = (client(&certificates, Some(&certificates)), client(&certificates, None));
    assert!(by_grpc(service.address("grpc"), "localhost", &shown).unwrap());
    assert!(by_grpc(service.address("grpc"), "localhost", &hidden).is_err());
    for (name, is_accepted) in [("localhost", true), ("envoy.local", false)] {
        let named = [&variables[..], &[("GRPC_CLIENT_TLS_SAN", name)]].concat();
        let service = Service::start_with(&[], &named);
        let answer = by_grpc(service.address("grpc"), "localhost", &shown);
        assert_eq!(answer.is_ok(), is_accepted, "{name}: {answer:?}");
    }
    let args = ["serve", "--grpc", "off", "--resp", "off", "--http", "0.0.0.0:0"];
    let refused =
        Command::new(env!("CARGO_BIN_EXE_pacegate")).args(args).envs(variables).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("without certificates (tls) and API keys (keys)"), "{told}");
}

#[test]
fn stock_clients_connect_with_tls() {
    let ours = Certificates::new();
    let (_folder, service) = start(&ours, ", client_ca: ca.crt");
    let (ca, cert, key) = (ours.ca(), ours.client_cert(), ours.client_key());
    let port = service.address("resp").port().to_string();
    let redis_cli = |shown: bool| {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "localhost", "-p", &port, "--tls", "--sni", "localhost", "--cacert"]);
        command.arg(&ca);
        if shown {
            command.arg("--cert").arg(&cert).arg("--key").arg(&key);
        }
        let output = command.args(["CL.THROTTLE", "k", "9", "1", "60"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(redis_cli(true).starts_with("0\n10\n9\n"), "{}", redis_cli(true));
    assert!(!redis_cli(false).contains("10"), "without a certificate");
    let url = format!("https://localhost:{}/v1/check", service.address("http").port());
    let curl = |shown: bool, version: &str| {
        let mut command = Command::new("curl");
        command.args(["--silent", version, "--max-time", "10", "--ipv4", "--cacert"]).arg(&ca);
        if shown {
            command.arg("--cert").arg(&cert).arg("--key").arg(&key);
        }
        command.args(["--write-out", " %{http_version} %{http_code}", "--json", BODY, &url]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(curl(true, "--http1.1").ends_with(" 1.1 200"), "{}", curl(true, "--http1.1"));
    assert!(curl(true, "--http2").ends_with(" 2 200"), "{}", curl(true, "--http2"));
    assert!(curl(false, "--http2").ends_with(" 000"), "{}", curl(false, "--http2"));
}

#[test]
fn client_certificates_are_required_if_configured() {
    let (ours, others) = (Certificates::new(), Certificates::new());
    let (_folder, service) = start(&ours, ", client_ca: ca.crt");
    let answers = all(&service, "localhost", &client(&ours, Some(&ours)));
    assert!(is_answered(&answers), "{answers:?}");
    let answers = all(&service, "localhost", &client(&ours, None));
    assert!(is_refused(&answers), "without a certificate: {answers:?}");
    let answers = all(&service, "localhost", &client(&ours, Some(&others)));
    assert!(is_refused(&answers), "with one of another authority: {answers:?}");
}

#[test]
fn client_certificates_need_a_name_if_configured() {
    let ours = Certificates::new();
    let shown = client(&ours, Some(&ours));
    for (name, is_accepted) in [("localhost", true), ("127.0.0.1", true), ("envoy.local", false)] {
        let (_folder, service) = start(&ours, &format!(", client_ca: ca.crt, client_name: {name}"));
        let answers = all(&service, "localhost", &shown);
        let is_expected = if is_accepted { is_answered(&answers) } else { is_refused(&answers) };
        assert!(is_expected, "{name}: {answers:?}");
        let answers = all(&service, "localhost", &client(&ours, None));
        assert!(is_refused(&answers), "without a certificate: {answers:?}");
    }
}

#[test]
fn certificates_are_replaced_while_the_service_runs() {
    let (old, new) = (Certificates::new(), Certificates::new());
    let (folder, service) = start(&old, "");
    let (with_old, with_new) = (client(&old, None), client(&new, None));
    let stream = connect_tls(service.address("http"), "localhost", with_old.clone()).unwrap();
    let mut open = Http::over(stream);
    assert_eq!(open.check(None, BODY).unwrap().status, 200);
    install(&folder, &new);
    eventually(WITHIN, "the new one is shown", || {
        is_answered(&all(&service, "localhost", &with_new))
    });
    assert!(is_refused(&all(&service, "localhost", &with_old)));
    assert_eq!(open.check(None, BODY).unwrap().status, 200, "open connections keep working");
}

#[test]
fn invalid_certificates_are_logged_and_change_nothing() {
    let (ours, others) = (Certificates::new(), Certificates::new());
    let (folder, service) = start(&ours, "");
    let trusting = client(&ours, None);
    let complaint = "reload failed; keeping the current certificates";
    let other_key = fs::read_to_string(others.server_key()).unwrap();
    for (count, (file, text, reason)) in [
        ("tls.crt", "no certificate at all", "holds no certificate"),
        ("tls.key", "no key", "cannot read"),
        ("tls.key", &*other_key, "certificate and key do not go together"),
    ]
    .into_iter()
    .enumerate()
    {
        install(&folder, &ours);
        folder.replace(file, text);
        eventually(WITHIN, reason, || {
            let log = service.log();
            log.matches(complaint).count() > count && log.contains(reason)
        });
        assert!(is_answered(&all(&service, "localhost", &trusting)));
    }
    // Configuration and certificates reload independently.
    folder.replace("pacegate.yaml", "policies: [\n");
    install(&folder, &others);
    let with_others = client(&others, None);
    eventually(WITHIN, "new ones are shown", || {
        is_answered(&all(&service, "localhost", &with_others))
    });
    let told = "reload failed; keeping the current configuration";
    eventually(WITHIN, "it is logged", || service.log().contains(told));
}

#[test]
fn connections_without_a_handshake_do_not_delay_the_shutdown() {
    let (_folder, service) = start(&Certificates::new(), "");
    let silent = ["http", "grpc", "resp"].map(|name| connect(service.address(name)).unwrap());
    let begun = tokio::time::Instant::now();
    service.signal("TERM");
    let (status, log) = service.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?} {log}", begun.elapsed());
    drop(silent);
}
