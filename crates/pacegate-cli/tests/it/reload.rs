//! Reloads of the configuration.

use std::{fs, os::unix::fs::symlink, process::Command, time::Duration};

use pacegate_testkit::servers::{Client, eventually};

use crate::{
    clients::{Folder, Http},
    service::Service,
};

const WITHIN: Duration = Duration::from_secs(5);

fn policy(limit: &str) -> String {
    format!("policies: [{{ name: api, per: [key], limit: {limit} }}]\n")
}

fn start(folder: &Folder) -> Service {
    Service::start(&["--config", &folder.config(), "--grpc", "off"])
}

fn resp(service: &Service) -> Client {
    Client::connect(&service.address("resp").to_string()).unwrap()
}

fn revision(client: &mut Client) -> u64 {
    let info = client.command(&["INFO"]).unwrap().text();
    let line = info.lines().find_map(|line| line.strip_prefix("config_revision:"));
    line.unwrap().parse().unwrap()
}

fn until_revision(client: &mut Client, number: u64) {
    eventually(WITHIN, &format!("revision {number}"), || revision(client) == number);
}

/// Checks a key. Returns the limit and the remaining units.
fn charge(client: &mut Client) -> (String, i64) {
    let reply = client.command(&["PACEGATE.CHECK", "ATTR", "key", "alice"]).unwrap();
    let items = reply.items();
    (items[5].text(), items[7].int())
}

#[test]
fn counters_are_kept_if_name_algorithm_and_period_stay() {
    let folder = Folder::with_config(&policy("10/day"));
    let service = start(&folder);
    let mut client = resp(&service);
    for left in [9, 8, 7] {
        assert_eq!(charge(&mut client), ("10/day".into(), left));
    }
    for (number, limit, left) in [
        (2, "100/day", 96),
        (3, "5/day", 0),
        (4, "100/hour", 99),
        (5, "100/day sliding-log", 99),
        (6, "100/day", 94),
    ] {
        folder.replace("pacegate.yaml", &policy(limit));
        until_revision(&mut client, number);
        assert_eq!(charge(&mut client), (limit.into(), left), "{number}");
    }
    folder.replace("pacegate.yaml", &policy("100/day").replace("api", "another"));
    until_revision(&mut client, 7);
    assert_eq!(charge(&mut client), ("100/day".into(), 99), "another name starts afresh");
}

#[test]
fn a_file_is_read_again_after_any_change() {
    let folder = Folder::with_config(&policy("10/day"));
    let service = start(&folder);
    let mut client = resp(&service);
    let limit = |client: &mut Client| charge(client).0;
    assert_eq!((revision(&mut client), &*limit(&mut client)), (1, "10/day"));
    folder.replace("pacegate.yaml", &policy("20/day"));
    until_revision(&mut client, 2);
    assert_eq!(limit(&mut client), "20/day", "by a rename");
    fs::write(folder.config(), policy("30/day")).unwrap();
    until_revision(&mut client, 3);
    assert_eq!(limit(&mut client), "30/day", "in place");
    fs::remove_file(folder.config()).unwrap();
    let missing = "cannot read";
    eventually(WITHIN, "the loss is logged", || service.log().contains(missing));
    assert_eq!(
        (revision(&mut client), &*limit(&mut client)),
        (3, "30/day"),
        "a deleted file changes nothing"
    );
    fs::write(folder.config(), policy("40/day")).unwrap();
    until_revision(&mut client, 4);
    assert_eq!(limit(&mut client), "40/day", "the file exists again");
    service.signal("HUP");
    until_revision(&mut client, 5);
    assert_eq!(limit(&mut client), "40/day", "SIGHUP reloads an unchanged file");
    fs::write(folder.path("neighbour"), "x").unwrap();
    folder.replace("pacegate.yaml", &policy("50/day"));
    until_revision(&mut client, 6);
    assert_eq!(limit(&mut client), "50/day", "other files in the folder are ignored");
}

#[test]
fn a_link_that_kubernetes_swaps_is_followed() {
    let folder = Folder::new();
    let version = |name: &str, limit: &str| {
        fs::create_dir(folder.path(name)).unwrap();
        fs::write(folder.path(name).join("pacegate.yaml"), policy(limit)).unwrap();
    };
    let point_to = |name: &str| {
        symlink(name, folder.path("..data_tmp")).unwrap();
        fs::rename(folder.path("..data_tmp"), folder.path("..data")).unwrap();
    };
    version("..2026_01", "10/day");
    point_to("..2026_01");
    symlink("..data/pacegate.yaml", folder.path("pacegate.yaml")).unwrap();
    let service = start(&folder);
    let mut client = resp(&service);
    assert_eq!(charge(&mut client), ("10/day".into(), 9));
    let mut before = "..2026_01".to_owned();
    for (number, limit, left) in [(2, "20/day", 18), (3, "30/day", 27), (4, "40/day", 36)] {
        let name = format!("..2026_0{number}");
        version(&name, limit);
        point_to(&name);
        fs::remove_dir_all(folder.path(&before)).unwrap();
        before = name;
        until_revision(&mut client, number);
        assert_eq!(charge(&mut client), (limit.into(), left));
    }
}

#[test]
fn a_link_into_another_folder_is_followed() {
    let (folder, elsewhere) = (Folder::new(), Folder::with_config(&policy("10/day")));
    symlink(elsewhere.config(), folder.config()).unwrap();
    let service = start(&folder);
    let mut client = resp(&service);
    elsewhere.replace("pacegate.yaml", &policy("20/day"));
    until_revision(&mut client, 2);
    assert_eq!(charge(&mut client), ("20/day".into(), 19));
}

#[test]
fn rules_in_subfolders_are_read_again() {
    let folder = Folder::new();
    let rule = |amount: u32| {
        format!(
            "domain: edge\ndescriptors: [{{ key: user, rate_limit: {{ unit: day, \
             requests_per_unit: {amount} }} }}]\n"
        )
    };
    fs::create_dir_all(folder.path("rules/below")).unwrap();
    let file = folder.path("rules/below/edge");
    fs::write(&file, rule(1)).unwrap();
    let rules = folder.path("rules");
    let service = Service::start(&["--config", rules.to_str().unwrap(), "--grpc", "off"]);
    let mut client = resp(&service);
    fs::write(&file, rule(2)).unwrap();
    until_revision(&mut client, 2);
    fs::remove_file(&file).unwrap();
    let lost = "the directory contains no rule files";
    eventually(WITHIN, "the loss is logged", || service.log().contains(lost));
    assert_eq!(revision(&mut client), 2);
}

#[test]
fn changes_are_found_in_a_busy_folder() {
    let folder = Folder::with_config(&policy("10/day"));
    let service = start(&folder);
    let mut client = resp(&service);
    // The files are read once at the start; this is the first change.
    folder.replace("pacegate.yaml", &policy("20/day"));
    until_revision(&mut client, 2);
    fs::write(folder.path("log"), "x").unwrap();
    folder.replace("pacegate.yaml", &policy("30/day"));
    eventually(WITHIN, "revision 3", || {
        fs::write(folder.path("log"), "x").unwrap();
        revision(&mut client) == 3
    });
}

#[test]
fn an_invalid_file_changes_nothing_and_is_reported_with_its_position() {
    let folder = Folder::with_config(&policy("10/day"));
    let service = start(&folder);
    let mut client = resp(&service);
    charge(&mut client);
    let file = folder.config();
    for (count, (bad, place)) in [
        ("policies: [{ name: api, per: [key], limt: 5/day }]\n", ":1:37"),
        ("policies:\n  - name: api\n    limit: often\n", ":3:12"),
        ("policies: [\n", ":"),
    ]
    .into_iter()
    .enumerate()
    {
        folder.replace("pacegate.yaml", bad);
        let told = format!("{file}{place}");
        let complaint = "reload failed; keeping the current configuration";
        eventually(WITHIN, "it is logged", || {
            let log = service.log();
            log.matches(complaint).count() == count + 1 && log.contains(&told)
        });
        assert_eq!(revision(&mut client), 1);
    }
    assert_eq!(
        charge(&mut client),
        ("10/day".into(), 8),
        "the last valid configuration stays active"
    );
    service.signal("HUP");
    eventually(WITHIN, "it is logged again", || {
        service.log().matches("keeping the current configuration").count() == 4
    });
    folder.replace("pacegate.yaml", &policy("20/day"));
    until_revision(&mut client, 2);
    assert_eq!(charge(&mut client), ("20/day".into(), 17));
}

#[test]
fn an_empty_file_removes_no_limits() {
    let folder = Folder::with_config(&policy("10/day"));
    let service = start(&folder);
    let mut client = resp(&service);
    charge(&mut client);
    let nothing = "the file has no settings: write `policies: []` to run without limits";
    let no_policies =
        "the new configuration has no policies: write `policies: []` to remove all limits";
    for (count, (text, why)) in
        [("", nothing), ("shadow: true\n", no_policies), ("policies:\n", no_policies)]
            .into_iter()
            .enumerate()
    {
        folder.replace("pacegate.yaml", text);
        eventually(WITHIN, "it is logged", || {
            let log = service.log();
            log.matches("reload failed; keeping").count() == count + 1 && log.contains(why)
        });
        assert_eq!(revision(&mut client), 1, "{text:?}");
    }
    assert_eq!(
        charge(&mut client),
        ("10/day".into(), 8),
        "the last valid configuration stays active"
    );
    folder.replace("pacegate.yaml", "policies: []\n");
    until_revision(&mut client, 2);
    folder.replace("pacegate.yaml", "shadow: true\n");
    until_revision(&mut client, 3);
}

const RULES: &str =
    "domain: edge\ndescriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 3 } }]\n";

#[test]
fn an_empty_file_beside_rules_removes_no_limits() {
    let folder = Folder::with_config(&policy("10/day"));
    folder.replace("rules.yaml", RULES);
    let rules = folder.path("rules.yaml");
    let both = ["--config", &*folder.config(), "--config", rules.to_str().unwrap()];
    let service = Service::start(&[&both[..], &["--grpc", "off"]].concat());
    let mut client = resp(&service);
    folder.replace("pacegate.yaml", "shadow: false\n");
    let why = "the new configuration has no policies: write `policies: []` to remove all limits";
    eventually(WITHIN, "it is logged", || service.log().contains(why));
    assert_eq!(
        charge(&mut client),
        ("10/day".into(), 9),
        "the last valid configuration stays active"
    );
    folder.replace("rules.yaml", "domain: edge\n");
    eventually(WITHIN, "it is logged", || service.log().matches(why).count() == 2);
    folder.replace("pacegate.yaml", "policies: []\n");
    until_revision(&mut client, 2);
    folder.replace("rules.yaml", RULES);
    until_revision(&mut client, 3);
}

#[test]
fn a_policy_with_the_name_of_a_rule_is_rejected() {
    let folder = Folder::with_config(&policy("10/day"));
    folder.replace("rules.yaml", RULES);
    let rules = folder.path("rules.yaml");
    let both = ["--config", &*folder.config(), "--config", rules.to_str().unwrap()];
    let service = Service::start(&[&both[..], &["--grpc", "off"]].concat());
    folder.replace("pacegate.yaml", &policy("10/day").replace("api", "edge.user"));
    let why = "a rule and a policy are both named `edge.user`: rename the policy";
    eventually(WITHIN, "it is logged", || service.log().contains(why));
}

#[test]
fn rules_can_be_removed() {
    let folder = Folder::new();
    folder.replace("rules.yaml", RULES);
    let rules = folder.path("rules.yaml");
    let service = Service::start(&["--config", rules.to_str().unwrap(), "--grpc", "off"]);
    let mut client = resp(&service);
    folder.replace("rules.yaml", "domain: edge\n");
    until_revision(&mut client, 2);
    folder.replace("rules.yaml", &policy("10/day"));
    until_revision(&mut client, 3);
    folder.replace("rules.yaml", RULES);
    until_revision(&mut client, 4);
}

#[test]
fn a_reload_cannot_remove_all_api_keys() {
    let key = format!("keys: [{{ name: boss, sha256: {} }}]\n", "0".repeat(64));
    let folder = Folder::with_config(&(policy("10/day") + &key));
    let service = start(&folder);
    let refusal = "the new configuration has no API keys: restart the server to run it without \
                   authentication";
    let mut client = resp(&service);
    let mut http = Http::connect(service.address("http")).unwrap();
    for (attempt, without) in [policy("20/day"), policy("30/day") + "keys: []\n"].iter().enumerate()
    {
        folder.replace("pacegate.yaml", without);
        eventually(WITHIN, "it is refused", || {
            service.log().matches(refusal).count() == attempt + 1
        });
        let status = http.request("POST", "/v1/reload", None, "").unwrap().status;
        assert_eq!(status, 401, "admin calls stay closed");
        assert!(client.command(&["PING"]).unwrap().text().starts_with("NOAUTH"));
    }
    // Another key may take the place of the last one.
    let other = format!("keys: [{{ name: other, sha256: {} }}]\n", "1".repeat(64));
    folder.replace("pacegate.yaml", &(policy("40/day") + &other));
    eventually(WITHIN, "it is used", || service.log().contains("revision=2"));
}

#[test]
fn a_file_in_the_current_folder_is_watched_after_it_was_deleted() {
    let folder = Folder::with_config(&policy("10/day"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_pacegate"));
    let service = Service::launch(
        command
            .args(["serve", "--config", "pacegate.yaml", "--http", "off", "--grpc", "off"])
            .args(["--resp", "127.0.0.1:0"])
            .current_dir(folder.path("")),
    );
    let mut client = resp(&service);
    for (number, limit) in [(2, "20/day"), (3, "30/day")] {
        fs::remove_file(folder.config()).unwrap();
        let lost = || service.log().matches("cannot read").count() == number as usize - 1;
        eventually(WITHIN, "the loss is logged", lost);
        fs::write(folder.config(), policy(limit)).unwrap();
        // Sooner than the next poll of the files.
        until_revision(&mut client, number);
    }
}

#[test]
fn host_rules_follow_the_current_listener_until_a_restart() {
    let config = |http: &str| format!("listen: {{ http: {http} }}\n{}", policy("10/day"));
    for (now, then, status) in
        [("127.0.0.1:0", "0.0.0.0:0", 403), ("0.0.0.0:0", "127.0.0.1:0", 200)]
    {
        let folder = Folder::with_config(&config(now));
        let mut command = Command::new(env!("CARGO_BIN_EXE_pacegate"));
        let service = Service::launch(
            command.args(["serve", "--insecure", "--config", &folder.config()]).args([
                "--grpc",
                "off",
                "--resp",
                "127.0.0.1:0",
            ]),
        );
        let address = ([127, 0, 0, 1], service.address("http").port()).into();
        let mut http = Http::connect(address).unwrap();
        let mut stats = || {
            http.send("GET /v1/stats HTTP/1.1\r\nhost: pacegate.example\r\n\r\n").unwrap().status
        };
        assert_eq!(stats(), status, "{now}");
        folder.replace("pacegate.yaml", &config(then));
        until_revision(&mut resp(&service), 2);
        assert_eq!(stats(), status, "{now}, and {then} after a restart");
    }
}

#[test]
fn changes_that_need_a_restart_are_logged() {
    let folder = Folder::with_config(&policy("10/day"));
    let service = start(&folder);
    let mut client = resp(&service);
    let mut http = Http::connect(service.address("http")).unwrap();
    let other = format!(
        "store: {{ max_keys: 5 }}\ntls: {{ certificate: a, key: b }}\n{}",
        policy("20/day")
    );
    folder.replace("pacegate.yaml", &other);
    until_revision(&mut client, 2);
    let log = service.log();
    assert!(log.contains("a changed store takes effect after a restart"), "{log}");
    assert!(
        log.contains("changed listeners and certificate paths take effect after a restart"),
        "{log}"
    );
    let answer = http.check(None, r#"{"attributes": {"key": "bob"}}"#).unwrap().json();
    assert_eq!((&answer["limit"], &answer["revision"]), (&"20/day".into(), &2.into()));
}
