//! The operations page matches the program.

use std::{collections::BTreeSet, fs, path::Path};

use pacegate_testkit::servers::{Flavor, Server};

use crate::{
    clients::{Folder, Http},
    program::run,
    service::Service,
};

/// Returns the names of the metrics of a service.
fn reported(service: &Service) -> BTreeSet<String> {
    let text = Http::connect(service.address("http")).unwrap().get("/metrics").unwrap().body;
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let name = |line: &str| {
        let (name, kind) = line.split_once(' ').unwrap();
        let end = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        format!("{name}{end}")
    };
    kinds.map(name).collect()
}

/// Returns the names in the tables of the page.
fn described() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let text = fs::read_to_string(page).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `pacegate_"));
    let names = rows.flat_map(|row| row.split('`')).filter(|word| word.starts_with("pacegate_"));
    names.map(str::to_owned).collect()
}

#[test]
fn an_invalid_log_level_is_rejected() {
    let serve =
        |level: &str| run(&["serve", "--config", "/nowhere.yaml", "--log", level], b"").stderr;
    for (level, stray) in
        [("inof", "inof"), ("info,pacegate_server", "pacegate_server"), ("warn, x", "x")]
    {
        let said = format!("error: invalid --log: invalid level `{stray}`\n");
        assert!(serve(level).starts_with(&said), "{}", serve(level));
    }
    for level in
        ["INFO", "off", "2", "info,pacegate_server=debug", "pacegate_server=debug", "info,"]
    {
        assert!(serve(level).contains("cannot read /nowhere.yaml"), "{level}: {}", serve(level));
    }
}

#[test]
fn the_page_describes_exactly_the_existing_metrics() {
    let server = Server::start(Flavor::Redis);
    let config_server = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "127.0.0.1:1"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("USE_STATSD", "false"),
    ];
    let webhook = Folder::with_config(
        "policies: [{ name: plan, limit: 10/day, notify: 80% }]\n\
         notifications: { webhook: { url: 'http://127.0.0.1:1/', secret_env: WEBHOOK_SECRET } }\n",
    );
    let services = [
        Service::start_with(
            &[&webhook.config()],
            &[("WEBHOOK_SECRET", "the-secret-of-the-webhook")],
        ),
        Service::start(&["--store", &server.url()]),
        Service::start_with(&["--resp", "off"], &config_server),
    ];
    let reported: BTreeSet<_> = services.iter().flat_map(reported).collect();
    assert_eq!(described(), reported);
}
