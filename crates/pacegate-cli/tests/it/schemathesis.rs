//! Compares the API with its OpenAPI document, by requests that schemathesis generates.

use std::process::Command;

use pacegate_testkit::servers::python;

use crate::{
    clients::{Folder, Http},
    service::Service,
};

const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance";
const POLICIES: &str = "
policies:
  - { name: user, per: [userId], limit: 5/minute }
  - { name: login, domain: shop, match: { path: /login }, per: [ip], limit: [2/second, 20/hour] }
  - { name: jobs, domain: jobs, per: [user], limit: 2/minute, algorithm: concurrency }
";

/// Runs schemathesis against a service. Panics with its output if it finds a difference.
fn run(service: &Service, options: &str, key: Option<&str>) {
    let folder = Folder::new();
    let url = format!("http://{}/openapi.json", service.address("http"));
    let mut command = Command::new(python());
    // Keeps its database out of the source tree.
    command.current_dir(folder.path(""));
    command.args(["-m", "schemathesis.cli", "run", &url, "--checks", CHECKS]);
    command.args(options.split(' '));
    command.args([
        "--seed",
        "1",
        "--generation-database",
        "none",
        "--warnings",
        "off",
        "--no-color",
    ]);
    command.args(key.iter().map(|key| format!("--header=Authorization: Bearer {key}")));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    // It does not test the path of the document.
    let tested = operations(service, key) - 1;
    assert!(said.contains(&format!("Tested: {tested}\n")), "{tested} operations: {said}");
}

/// Returns the number of operations in the document.
fn operations(service: &Service, key: Option<&str>) -> usize {
    let mut client = Http::connect(service.address("http")).unwrap();
    let document = client.request("GET", "/openapi.json", key, "").unwrap().json();
    let paths = document["paths"].as_object().unwrap();
    paths.values().map(|path| path.as_object().unwrap().len()).sum()
}

#[test]
fn every_answer_matches_the_openapi_document() {
    let folder = Folder::with_config(POLICIES);
    let service = Service::start(&["--config", &folder.config()]);
    run(&service, "--phases coverage,fuzzing --max-examples 15", None);
}

#[test]
fn every_answer_matches_the_openapi_document_with_api_keys() {
    let keys = "keys: [{ name: boss, env: BOSS, scope: admin }, { name: shop, env: SHOP, domains: [shop] }]\n";
    let folder = Folder::with_config(&format!("{POLICIES}{keys}"));
    let variables = [("BOSS", "the-key-of-the-boss"), ("SHOP", "the-key-of-the-shop")];
    let service = Service::start_with(&["--config", &folder.config()], &variables);
    for (_, key) in variables {
        run(&service, "--phases fuzzing --max-examples 8", Some(key));
    }
}
