//! Listeners on public addresses.

use std::time::Duration;

use pacegate_testkit::servers::{Certificates, Client, eventually};

use crate::{clients::Folder, program, service::Service};

const OFF: [&str; 6] = ["--http", "off", "--grpc", "off", "--resp", "off"];
const POLICIES: &str = "policies: [{ name: api, per: [key], limit: 10/week }]\n";
/// The hash of `test`.
const KEYS: &str = "keys: [{ name: k, sha256: \
                    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 }]\n";

fn tls(certificates: &Certificates, with_clients: bool) -> String {
    let (certificate, key) = (certificates.server_cert(), certificates.server_key());
    let client_ca = format!(", client_ca: '{}'", certificates.ca().display());
    format!(
        "tls: {{ certificate: '{}', key: '{}'{} }}\n",
        certificate.display(),
        key.display(),
        if with_clients { &client_ca } else { "" }
    )
}

/// Returns the last two lines that a service prints if it does not start.
fn refusal(args: &[&str]) -> (Option<i32>, String) {
    let finished = program::run(args, b"");
    assert_eq!(finished.stdout, "");
    let lines: Vec<&str> = finished.stderr.lines().collect();
    (finished.code, lines[lines.len() - 2..].join("\n"))
}

#[test]
fn a_service_without_listeners_is_rejected() {
    let folder = Folder::with_config(POLICIES);
    let said = "error: cannot serve: all listeners are off\n\
                hint: set an address for --http, --grpc or --resp, such as 127.0.0.1:8080";
    let config = folder.config();
    let args = [&["serve", "--config", &config], &OFF[..]].concat();
    assert_eq!(refusal(&args), (Some(2), said.to_owned()));
}

#[test]
fn a_public_address_requires_tls_and_keys() {
    let certificates = Certificates::new();
    let tls = tls(&certificates, false);
    let neither = "certificates (tls) and API keys (keys)";
    let no_keys = "API keys (keys) or the clients' authority (tls.client_ca)";
    for (name, address) in [("http", "0.0.0.0:0"), ("grpc", "[::]:0"), ("resp", "0.0.0.0:0")] {
        for (settings, missing) in [("", neither), (&*tls, no_keys), (KEYS, "certificates (tls)")] {
            let folder = Folder::with_config(&format!("{settings}{POLICIES}"));
            let flag = format!("--{name}");
            let mut args = vec!["serve", "--config"];
            let config = folder.config();
            args.push(&config);
            for pair in OFF.chunks(2) {
                args.extend(if pair[0] == flag { [&*flag, address] } else { [pair[0], pair[1]] });
            }
            let text = format!(
                "error: cannot serve: {name} would listen on {address}, which others can reach, \
                 without {missing}\nhint: configure both, listen on 127.0.0.1, or use --insecure \
                 in a private network"
            );
            assert_eq!(refusal(&args), (Some(2), text));
        }
    }
}

#[test]
fn a_public_address_is_served_with_tls_and_keys_or_insecure() {
    let certificates = Certificates::new();
    for (settings, flag) in [
        (format!("{}{KEYS}", tls(&certificates, false)), None),
        (tls(&certificates, true), None),
        (String::new(), Some("--insecure")),
    ] {
        let folder = Folder::with_config(&format!("{settings}{POLICIES}"));
        let config = folder.config();
        let mut args = vec!["--config", &config, "--http", "0.0.0.0:0", "--resp", "0.0.0.0:0"];
        args.extend(flag);
        let service = Service::start(&args);
        assert!(service.address("resp").ip().is_unspecified());
    }
    let service = Service::start(&["--resp", "127.8.8.8:0"]);
    assert!(service.address("resp").ip().is_loopback(), "all of 127.0.0.0/8 is this machine");
}

#[test]
fn a_reload_keeps_the_keys_of_a_public_listener() {
    let certificates = Certificates::new();
    let tls = tls(&certificates, false);
    let folder = Folder::with_config(&format!("{tls}{KEYS}{POLICIES}"));
    let service = Service::start(&["--config", &folder.config(), "--http", "0.0.0.0:0"]);
    folder.replace("pacegate.yaml", &format!("{tls}{POLICIES}"));
    let told = "which others can reach, without API keys (keys)";
    eventually(Duration::from_secs(5), "it is logged", || service.log().contains(told));
    let log = service.log();
    assert!(log.contains("reload failed; keeping the current configuration"), "{log}");
    assert!(!log.contains("configuration reloaded"), "{log}");
}

#[test]
fn an_address_in_use_is_reported() {
    let service = Service::start(&[]);
    let address = service.address("resp").to_string();
    let mut args = vec!["serve"];
    args.extend(&OFF[..4]);
    args.extend(["--resp", &address]);
    let text = format!(
        "error: cannot serve: cannot listen for resp on {address}: Address already in use (os error 98)\n\
         hint: choose another address, port 0 for a free port, or off"
    );
    assert_eq!(refusal(&args), (Some(2), text));
    assert_eq!(Client::connect(&address).unwrap().command(&["PING"]).unwrap().text(), "PONG");
}
