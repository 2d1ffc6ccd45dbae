//! Configuration files: what is wrong with bad ones, and what good ones say.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tollgate::PolicySet;
use tollgate_server::config::{Environment, Settings, read};

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
        "REDIS_URL_KEY" => Some("redis://127.0.0.1:7000".to_owned()),
        _ => name.ends_with("KEY").then(|| format!("the value of {name}")),
    })
}

fn read_file(path: &Path) -> Result<Settings, String> {
    let name = path.file_name().unwrap().to_str().unwrap();
    let text = fs::read_to_string(path).unwrap();
    read(&text, name, &environment()).map_err(|error| error.to_string())
}

/// Compares with what is in the file, or writes it there if `TOLLGATE_BLESS` is set.
pub(crate) fn assert_is_in_file(path: &Path, text: &str) {
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        fs::write(path, text).unwrap();
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    assert_eq!(text, expected, "{}: TOLLGATE_BLESS=1 writes it", path.display());
}

#[test]
fn bad_files_are_told_what_is_wrong_and_what_to_write() {
    let files = files("bad");
    assert!(files.len() > 30, "{}", files.len());
    for path in files {
        let error = read_file(&path).expect_err(path.to_str().unwrap());
        assert!(!error.contains("hunter2"), "{error}");
        assert_is_in_file(&path.with_extension("txt"), &format!("{error}\n"));
    }
}

#[test]
fn good_files_say_what_they_said() {
    for path in files("good") {
        let settings = read_file(&path).unwrap();
        assert_is_in_file(&path.with_extension("txt"), &told(&settings));
    }
}

/// All that settings say, but for how policies are compiled.
fn told(settings: &Settings) -> String {
    let mut rest = settings.clone();
    rest.policies = PolicySet::new([]).unwrap();
    format!("{:#?}\n{rest:#?}\n", settings.policies.policies())
}

#[test]
fn nothing_said_is_the_default() {
    for text in ["", "{}", "policies:\n", "policies: []\n"] {
        let settings = read(text, "tollgate.yaml", &environment()).unwrap();
        assert_eq!(settings.policies.policies().len(), 0, "{text}");
        assert_eq!(settings.store, Settings::new(settings.policies.clone()).store);
    }
}
