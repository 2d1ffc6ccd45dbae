//! Config files: the errors of bad ones, and the settings of good ones.

use std::{
    fs,
    path::{Path, PathBuf},
};

use pacegate::PolicySet;
use pacegate_server::{
    DEFAULT_CONFIG, Environment, Settings, StoreSettings, config_reference as reference,
    config_schema as schema, read_config as read,
};

/// The files of a folder of `tests/it/config`, by name.
fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/config").join(folder);
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    files
}

fn environment() -> Environment<'static> {
    Environment::of(|name| match name {
        "SHORT_API_KEY" => Some("fifteen-bytes-k".to_owned()),
        "REDIS_URL_KEY" => Some("redis://127.0.0.1:7000".to_owned()),
        _ => name.ends_with("KEY").then(|| format!("the value of {name}")),
    })
}

fn read_file(path: &Path) -> Result<Settings, String> {
    let name = path.file_name().unwrap().to_str().unwrap();
    let text = fs::read_to_string(path).unwrap();
    read(&text, name, &environment()).map_err(|error| error.to_string())
}

/// Compares a text with a file, or writes the file if `PACEGATE_BLESS` is set.
pub(crate) fn assert_is_in_file(path: &Path, text: &str) {
    if std::env::var_os("PACEGATE_BLESS").is_some() {
        fs::write(path, text).unwrap();
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    assert_eq!(text, expected, "{}: PACEGATE_BLESS=1 writes it", path.display());
}

#[test]
fn errors_of_bad_files_name_the_problem_and_a_fix() {
    let files = files("bad");
    assert!(files.len() > 30, "{}", files.len());
    for path in files {
        let error = read_file(&path).expect_err(path.to_str().unwrap());
        assert!(!error.contains("hunter2"), "{error}");
        assert_is_in_file(&path.with_extension("txt"), &format!("{error}\n"));
    }
}

#[test]
fn errors_do_not_repeat_secrets() {
    for text in [
        "auth: hunter2",
        "passphrase: \"hunter2, with hunter2\"",
        "api_keys: [hunter2, hunter2]",
        "api_keys:\n  - hunter2\nkeys:\n  - hunter2",
        "store:\n  pass: hunter2",
        "store:\n  auth:\n    user: hunter2",
        "store: { url: redis://127.0.0.1, auth: 'hunter2, hunter2' }",
        "store: { url: redis://127.0.0.1, auth: { pass: hunter2 } }",
        "tls: { certificate: a, key: b, passphrase: 'hunter2, hunter2' }",
        "keys: hunter2",
        "keys: [hunter2]",
        "keys:\n  - hunter2",
        "keys:\n  - { name: a, secret: hunter2 }",
        "keys:\n  - { name: a, api_keys: [hunter2] }",
        "keys:\n  - name: a\n    token: |\n      hunter2\n    scope: boss",
        "keys:\n  - name: a\n    key:\n      - hunter2: [",
        "keys:\n  - { name: a, sha256: hunter2 }",
        "{\n  \"keys\": [\n    {\"name\": \"a\", \"pass\": \"hunter2\"}\n  ]\n}",
        "api_keys:\n  a: hunter2\n  a: hunter2",
        "pass: hunter2: hunter2",
        "pass: \"hunter2",
        "pass: [hunter2",
        "pass: &hunter2 *hunter3",
        "pass: !hunter2 x",
    ] {
        let error = read(text, "test.yaml", &environment()).expect_err(text).to_string();
        assert!(!error.contains("hunter2"), "{text}\n\n{error}");
        assert!(error.contains("test.yaml:"), "{error}");
    }
}

#[test]
fn good_files_have_the_expected_settings() {
    for path in files("good") {
        let settings = read_file(&path).unwrap();
        assert_is_in_file(&path.with_extension("txt"), &told(&settings));
    }
}

/// Displays settings, without compiled policies.
fn told(settings: &Settings) -> String {
    let mut rest = settings.clone();
    rest.policies = PolicySet::new([]).unwrap();
    format!("{:#?}\n{rest:#?}\n", settings.policies.policies())
}

#[test]
fn files_without_policies_have_default_settings() {
    for text in ["{}", "policies:\n", "policies: []\n"] {
        let settings = read(text, "pacegate.yaml", &environment()).unwrap();
        assert_eq!(settings.policies.policies().len(), 0, "{text}");
        assert_eq!(settings.store, Settings::new(settings.policies.clone()).store);
    }
}

#[test]
fn the_default_is_one_policy_by_key() {
    let settings = read(DEFAULT_CONFIG, "pacegate.yaml", &environment()).unwrap();
    let plain = PolicySet::of_limits(["100/minute".parse().unwrap()]).unwrap();
    assert_eq!(told(&settings), told(&Settings::new(plain)));
    assert_is_in_file(&from_root("deploy/pacegate.yaml"), DEFAULT_CONFIG);
}

#[test]
fn commented_settings_of_the_default_file_are_valid() {
    let mut text = String::new();
    for line in DEFAULT_CONFIG.lines().filter(|line| !line.starts_with("store:")) {
        let mentioned = line.trim_start().strip_prefix("# ").filter(|_| !line.contains("$schema"));
        let is_yaml = |text: &&str| {
            text.trim_start().starts_with("- ")
                || text.split_once(": ").is_some_and(|(name, _)| !name.trim().contains(' '))
                || ["keys:", "  overrides:"].contains(text)
        };
        match mentioned.filter(is_yaml) {
            Some(yaml) if !yaml.starts_with("store: r") => {
                let indent = line.len() - line.trim_start().len();
                text.extend([&line[..indent], yaml, "\n"]);
            }
            Some(_) => {}
            None => text.extend([line, "\n"]),
        }
    }
    let environment = environment().without_secrets();
    let settings =
        read(&text, "pacegate.yaml", &environment).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(settings.policies.policies().len(), 3, "{text}");
    assert_eq!(settings.security.credentials.len(), 2, "{text}");
    assert!(settings.security.tls.is_some(), "{text}");
}

fn from_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn the_shipped_schema_matches_the_types() {
    let text = format!("{:#}\n", schema());
    assert_is_in_file(&from_root("crates/pacegate-server/schema/pacegate.schema.json"), &text);
}

#[test]
fn the_reference_matches_the_types() {
    assert_is_in_file(&from_root("docs/configuration.md"), &reference());
}

/// Formats the value at a path such as `bounds.batch`, like a config file.
fn said(path: &[&str], value: &serde_json::Value) -> String {
    let mut text = value.to_string();
    for name in path.iter().rev() {
        text = format!("{{{name}: {text}}}");
    }
    text
}

#[test]
fn the_defaults_in_the_schema_are_the_actual_defaults() {
    let schema = schema();
    let plain = told(&read("{}", "pacegate.yaml", &environment()).unwrap());
    let mut tried = 0;
    for (section, definition) in [
        (&[][..], &schema),
        (&["listen"], &schema["$defs"]["Listen"]),
        (&["headers"], &schema["$defs"]["Headers"]),
        (&["bounds"], &schema["$defs"]["Bounds"]),
        (&["envoy"], &schema["$defs"]["Envoy"]),
        (&["inline_limits"], &schema["$defs"]["InlineLimits"]),
    ] {
        for (name, field) in definition["properties"].as_object().unwrap() {
            let Some(default) = field.get("default") else { continue };
            let text = said(&[section, &[name]].concat(), default);
            assert_eq!(
                told(&read(&text, "pacegate.yaml", &environment()).unwrap()),
                plain,
                "{text}"
            );
            tried += 1;
        }
    }
    assert_eq!(tried, 24, "every default is compared");
}

#[test]
fn the_defaults_of_stores_and_policies_are_the_actual_defaults() {
    let schema = schema();
    let (redis, memory) = ("store: {url: redis://a", "store: {");
    let policy = "policies: [{name: a, limit: 5/minute, per: [x]";
    for (type_name, plain, end) in
        [("Store", redis, "}"), ("Store", memory, "}"), ("Policy", policy, "}]")]
    {
        let read = |text: &str| told(&read(text, "pacegate.yaml", &environment()).unwrap());
        for (name, field) in schema["$defs"][type_name]["properties"].as_object().unwrap() {
            let Some(default) = field.get("default") else { continue };
            if type_name == "Store" && (name == "max_keys") != (plain == memory) {
                continue;
            }
            let comma = if plain.ends_with('{') { "" } else { ", " };
            let text = format!("{plain}{comma}{name}: {default}{end}");
            assert_eq!(read(&text), read(&format!("{plain}{end}")), "{text}");
        }
    }
}

#[test]
fn secrets_come_from_hashes_files_and_variables() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("key"), "sixteen-byte-key\r\n").unwrap();
    fs::write(folder.path().join("url"), "redis://:pass@127.0.0.1:7001\n").unwrap();
    let text = "
store: { url_file: url }
keys:
  - { name: file, file: key }
  - { name: env, env: KEY }
  - { name: hash, sha256: 60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752 }
";
    let file = folder.path().join("pacegate.yaml");
    let environment =
        Environment::of(|name| (name == "KEY").then(|| "sixteen-byte-ke2".to_owned()));
    let settings = read(text, file.to_str().unwrap(), &environment).unwrap();
    let hashes =
        settings.security.credentials.iter().map(|key| {
            key.sha256[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        });
    // The keys from the file, the variable and `test2`.
    assert_eq!(hashes.collect::<Vec<_>>(), ["88dbf2d3", "0a1b565a", "60303ae2"]);
    let StoreSettings::Redis { url, .. } = &settings.store else { panic!("{settings:?}") };
    assert_eq!(url, "redis://:pass@127.0.0.1:7001");
    assert!(!format!("{settings:?}").contains("pass@"));
}
