//! The curl commands of the guides, and the command that the service suggests.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::{
    clients::Folder,
    guide::{blocks, instead},
    service::Service,
};

/// Runs commands of a guide against a service.
struct Shell {
    service: Service,
    folder: Folder,
}

/// The result of a command.
#[derive(Debug)]
struct Done {
    code: Option<i32>,
    text: String,
}

/// The exit code of `curl --fail` after a status of 400 or more.
const REFUSED: Option<i32> = Some(22);
const BOTH: [&str; 2] = ["http1.1", "http2-prior-knowledge"];

impl Shell {
    /// Uses a version of HTTP, and the policies of the nginx guide.
    fn start(version: &str) -> Self {
        let folder = Folder::with_config(&blocks("nginx.md", "yaml")[0]);
        let service = Service::start(&["--config", &folder.config()]);
        Self { service, folder }.speaking(version)
    }

    fn speaking(self, version: &str) -> Self {
        let options = format!("silent\nshow-error\nfail-with-body\n{version}\n");
        self.folder.replace(".curlrc", &options);
        self
    }

    fn run(&self, command: &str) -> Done {
        let address = self.service.address("http").to_string();
        let command = instead(command, "127.0.0.1:8080", &address);
        let output = Command::new("sh")
            .args(["-euc", &command])
            .env("CURL_HOME", self.folder.path(""))
            .output()
            .unwrap();
        Done { code: output.status.code(), text: String::from_utf8(output.stdout).unwrap() }
    }

    fn json(&self, command: &str) -> Value {
        let done = self.run(command);
        assert_eq!(done.code, Some(0), "{command}: {done:?}");
        done.json()
    }
}

impl Done {
    fn json(&self) -> Value {
        let body = self.text.rsplit("\r\n\r\n").next().unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The commands of a page, in their order, with limits whose windows do not end while the test runs.
fn commands(page: &str) -> Vec<String> {
    let text = blocks(page, "sh").concat().replace("\\\n", " ").replace("3/minute", "3/31d");
    text.lines().filter(|line| line.starts_with("curl")).map(str::to_owned).collect()
}

#[test]
fn the_suggested_command_works() {
    for version in BOTH {
        let shell = Shell { service: Service::start(&[]), folder: Folder::new() };
        let shell = shell.speaking(version);
        let line = shell.service.greeting.iter().find_map(|line| line.strip_prefix("try: "));
        let address = shell.service.address("http").to_string();
        let line = instead(line.unwrap(), &address, "127.0.0.1:8080");
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
        let readme = fs::read_to_string(readme).unwrap();
        assert!(readme.contains(&format!("\n$ {line}\n")), "the README does not show: {line}");
        let decision = shell.json(&line);
        assert_eq!((&decision["policy"], &decision["remaining"]), (&json!("default"), &json!(99)));
    }
}

#[test]
fn the_suggested_command_works_with_an_api_key() {
    let policies = "policies: [{ name: default, per: [key], limit: 100/minute }]\n";
    let folder =
        Folder::with_config(&format!("keys: [{{ name: boss, file: boss.key }}]\n{policies}"));
    folder.replace("boss.key", "the-key-of-the-boss");
    let service = Service::start(&["--config", &folder.config()]);
    let shell = Shell { service, folder }.speaking("http1.1");
    let line = shell.service.greeting.iter().find_map(|line| line.strip_prefix("try: ")).unwrap();
    let line = instead(line, &shell.service.address("http").to_string(), "127.0.0.1:8080");
    let decision = shell.json(&format!("PACEGATE_KEY=the-key-of-the-boss; {line}"));
    assert_eq!(decision["allowed"], true);
}

#[test]
fn the_commands_of_the_http_guide_work() {
    for version in BOTH {
        let shell = Shell::start(version);
        let [check, batch, peek, reset, clear_policy, clear_domain, rest @ ..] =
            &*commands("http.md")
        else {
            panic!("the guide shows too few commands");
        };
        let [block, unblock, acquire, renew, release, explain, descriptors] = rest else {
            panic!("unexpected commands in the guide: {rest:?}");
        };
        for (remaining, code) in [(2, Some(0)), (1, Some(0)), (0, Some(0)), (0, REFUSED)] {
            let done = shell.run(check);
            assert_eq!(done.code, code, "{done:?}");
            let status = if code == REFUSED { "429" } else { "200" };
            let head = if version == "http1.1" { "HTTP/1.1" } else { "HTTP/2" };
            assert!(done.text.starts_with(&format!("{head} {status}")), "{done:?}");
            assert_eq!(done.text.contains("\nretry-after: "), status == "429", "{done:?}");
            let decision = done.json();
            assert_eq!(decision["allowed"], status == "200");
            assert_eq!(decision["remaining"], remaining);
        }
        let answers = shell.json(batch);
        assert_eq!(answers["answers"][0]["remaining"], 4);
        assert_eq!(answers["answers"][1]["error"]["type"], "urn:pacegate:problem:cost");
        assert_eq!(shell.json(peek)["limits"][0]["remaining"], 0);
        assert_eq!(shell.json(reset)["limits"], 2);
        let login = r#"http://127.0.0.1:8080/v1/check -H 'Content-Type: application/json' \
                       -d '{"domain": "shop", "attributes": {"path": "/login", "ip": "::1"}}'"#;
        for (clear, keys) in [(clear_policy, 1), (clear_domain, 2)] {
            assert_eq!(shell.json(&format!("curl {login}"))["allowed"], true);
            assert_eq!(shell.json(clear)["keys"], keys, "{clear}");
        }
        assert_eq!(shell.json(block)["policy"], "login");
        assert_eq!(shell.json(explain)["policies"][0]["limits"][0]["source"], "blocked");
        assert_eq!(shell.json(unblock)["limits"], 1);
        let permit = shell.json(acquire)["permit"].as_str().unwrap().to_owned();
        assert_eq!(shell.run(renew).code, REFUSED, "the example permit of the guide is not held");
        let own = |command| instead(command, "5f0c1b7a99d3e642c81d04f6a2b97e35", &permit);
        assert_eq!(shell.json(&own(renew))["limits"], 1);
        assert_eq!(shell.json(&own(release))["limits"], 1);
        assert_eq!(shell.run(&own(renew)).code, REFUSED);
        let policies = shell.json(explain);
        assert_eq!(policies["policies"][0]["policy"], "login", "{policies}");
        let answer = shell.json(descriptors);
        assert_eq!(answer["overallCode"], "OK");
        let limit = json!({"name": "shop", "requestsPerUnit": 10, "unit": "SECOND"});
        assert_eq!(answer["statuses"][0]["currentLimit"], limit);
    }
}

#[test]
fn the_commands_of_the_nginx_guide_work() {
    for version in BOTH {
        let shell = Shell::start(version);
        let [auth, explain] = commands("nginx.md").try_into().unwrap();
        let done = shell.run(&auth);
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(done.text.contains("\nratelimit: \"login\";r=4;t="), "{done:?}");
        let policies = shell.json(&explain);
        assert_eq!(policies["policies"][0]["policy"], "login", "{policies}");
    }
}
