//! The configuration of each layout in `docs/layouts.md`, run against a real server.

use std::{fs, path::Path};

use pacegate_testkit::servers::{Client, Flavor, Server};

use crate::{
    clients::{Folder, Http},
    program::run,
    service::Service,
};

/// Returns the YAML blocks of the page.
fn examples() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/layouts.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("\n```yaml\n").skip(1);
    blocks.map(|block| block.split("\n```").next().unwrap().to_owned()).collect()
}

/// Returns the key of an example and its time to live: `# key ratelimiter:alice:{window_start_ms}, 61 s`.
fn promise(example: &str) -> (String, i64) {
    let line = example.lines().find_map(|line| line.strip_prefix("# key ")).unwrap();
    let (name, life) = line.rsplit_once(", ").unwrap();
    (name.to_owned(), life.strip_suffix(" s").unwrap().parse().unwrap())
}

/// Returns the server's time in seconds.
fn seconds(client: &mut Client) -> u64 {
    client.command(&["TIME"]).unwrap().items()[0].int().cast_unsigned()
}

fn key_at(name: &str, seconds: u64) -> String {
    let start = seconds - seconds % 60;
    name.replace("{window_start_ms}", &format!("{start}000"))
        .replace("{window}", &(start / 60).to_string())
}

#[test]
fn every_example_uses_its_documented_key() {
    let examples = examples();
    assert_eq!(examples.len(), 9);
    for (place, example) in examples.iter().enumerate() {
        let server = Server::start(Flavor::ALL[place % 2]);
        let address = "url: redis://127.0.0.1:6379";
        assert!(example.contains(address), "{example}");
        // A busy machine must not make a failure mode decide.
        let patient = format!("deadline: 20s, url: {}", server.url());
        let folder = Folder::with_config(&example.replace(address, &patient));
        let validated = run(&["validate", &folder.config()], b"");
        assert_eq!(validated.code, Some(0), "{validated:?}");
        let service = Service::start(&["--config", &folder.config()]);
        let mut http = Http::connect(service.address("http")).unwrap();
        let mut client = server.connect().unwrap();
        let before = seconds(&mut client);
        let answer = http.check(None, r#"{"attributes":{"user":"alice"}}"#).unwrap();
        let after = seconds(&mut client);
        assert_eq!((answer.status, &answer.json()["source"]), (200, &"store".into()), "{example}");
        let keys = client.command(&["KEYS", "*"]).unwrap();
        let [key] = keys.items() else { panic!("{keys:?}: {example}") };
        let (name, life) = promise(example);
        let expected = [before, after].map(|seconds| key_at(&name, seconds));
        assert!(expected.contains(&key.text()), "{key:?}, not {expected:?}");
        let left = client.command(&["PTTL", &key.text()]).unwrap().int();
        assert!((life * 1_000 - 30_000..=life * 1_000).contains(&left), "{left} ms: {example}");
    }
}
