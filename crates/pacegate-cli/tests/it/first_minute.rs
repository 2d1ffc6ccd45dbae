//! The first minute of a new user: a file from `init`, `serve`, and the request that the server suggests, until 429.

use std::{fs, path::Path, process::Command};

use tempfile::TempDir;

use crate::{
    program::{Finished, run, run_in},
    service::Service,
};

const CASES: [&str; 4] = ["login", "api", "envoy", "llm"];

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// `pacegate serve ARGS` in a folder, on free ports.
fn serve_in(folder: &TempDir, args: &[&str]) -> Service {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pacegate"));
    command.arg("serve").args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--resp", "off"]);
    Service::launch(command.args(args).current_dir(folder))
}

/// Replaces the period of a minute, so that the window does not move on while the test runs.
fn lengthen_period(folder: &TempDir) {
    let path = folder.path().join("pacegate.yaml");
    let text = fs::read_to_string(&path).unwrap().replace("5/minute", "5/365d");
    fs::write(&path, text).unwrap();
}

/// Runs the suggested command until it is denied; returns how often it was allowed.
fn allowed_until_429(service: &Service) -> usize {
    let line = service.greeting.iter().find_map(|line| line.strip_prefix("try: ")).unwrap();
    let line = line.replacen("curl", "curl -sS -o /dev/null -w '%{http_code}'", 1);
    let statuses = (0..200).map(|_| {
        let output = Command::new("sh").args(["-c", &line]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    statuses.take_while(|status| status == "200").count()
}

#[test]
fn init_writes_valid_files_that_serve_finds() {
    for case in CASES {
        let folder = folder();
        let written = run_in(folder.path(), &["init", case]);
        let stdout = "wrote pacegate.yaml; run it with: pacegate serve pacegate.yaml\n".to_owned();
        assert_eq!(written, Finished { code: Some(0), stdout, stderr: String::new() });
        let valid = run_in(folder.path(), &["validate", "pacegate.yaml"]);
        assert_eq!((valid.code, &*valid.stderr), (Some(0), ""), "{case}: {}", valid.stdout);
        assert!(!valid.stdout.contains("warning"), "{case}: {}", valid.stdout);
        let service = serve_in(&folder, &[]);
        assert!(service.greeting.iter().any(|line| line.starts_with("try: ")), "{case}");
    }
}

#[test]
fn the_suggested_request_is_limited_by_a_policy_of_the_file() {
    let folder = folder();
    assert_eq!(run_in(folder.path(), &["init", "login"]).code, Some(0));
    lengthen_period(&folder);
    assert_eq!(allowed_until_429(&serve_in(&folder, &[])), 5);
}

/// The commands of the README, with a longer period.
#[test]
fn the_readme_shows_a_limit_that_is_reached() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let [commands, script] = [0, 1].map(|block| {
        let block = readme.split("```sh\n").nth(block + 1).unwrap();
        block.split_once("```").unwrap().0
    });
    assert_eq!(commands, "pacegate init login\npacegate serve\n");

    let folder = folder();
    assert_eq!(run_in(folder.path(), &["init", "login"]).code, Some(0));
    lengthen_period(&folder);
    let service = serve_in(&folder, &[]);
    let script = script.replace("127.0.0.1:8080", &service.address("http").to_string());
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let statuses = String::from_utf8(output.stdout).unwrap();
    assert_eq!(statuses, "200\n200\n200\n200\n200\n429\n");
}

#[test]
fn init_overwrites_nothing() {
    let folder = folder();
    fs::write(folder.path().join("pacegate.yaml"), "policies: []\n").unwrap();
    let refused = run_in(folder.path(), &["init", "api"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("pacegate.yaml"), "{}", refused.stderr);
    let text = fs::read_to_string(folder.path().join("pacegate.yaml")).unwrap();
    assert_eq!(text, "policies: []\n");
    assert_eq!(run(&["init", "api", "--output", "-"], b"").code, Some(0));
}

#[test]
fn a_file_on_the_command_line_takes_precedence() {
    let folder = folder();
    fs::write(folder.path().join("pacegate.yaml"), "policies: []\n").unwrap();
    let two = "policies: [{ name: a, limit: 5/minute }, { name: b, limit: 6/minute }]\n";
    fs::write(folder.path().join("two.yaml"), two).unwrap();
    let policies = |service: Service| service.greeting.last().unwrap().clone();
    assert!(policies(serve_in(&folder, &["two.yaml"])).starts_with("ready: 2 policies"));
    assert!(
        policies(serve_in(&folder, &["--config", "two.yaml"])).starts_with("ready: 2 policies")
    );
    assert!(policies(serve_in(&folder, &[])).starts_with("ready: 0 policies"));

    let mut command = Command::new(env!("CARGO_BIN_EXE_pacegate"));
    command.args(["serve", "two.yaml", "--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off"]);
    command.env("PACEGATE_CONFIG", "pacegate.yaml").current_dir(&folder);
    assert!(policies(Service::launch(&mut command)).starts_with("ready: 2 policies"));

    let both = run_in(folder.path(), &["serve", "two.yaml", "--config", "two.yaml"]);
    assert_eq!(both.code, Some(2));
    assert!(both.stderr.contains("FILE and --config are the same"), "{}", both.stderr);
}

/// Terminals are 80 columns wide at least: clap would break longer examples into commands that do not run.
#[test]
fn examples_fit_into_80_columns() {
    let help = run(&["--help"], b"").stdout;
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let names = commands.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for name in names.filter(|name| !["", "help"].contains(name)) {
        let help = run(&[name, "--help"], b"").stdout;
        let (_, examples) = help.split_once("\nExamples:\n").unwrap_or_default();
        let long: Vec<&str> = examples.lines().filter(|line| line.len() > 80).collect();
        assert!(long.is_empty(), "{name}: {long:#?}");
    }
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    for args in
        ["schema", "man serve", "completions bash", "init login --output -", "validate --help"]
    {
        let line =
            format!("{} {args} | true; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_pacegate"));
        let output = Command::new("bash").args(["-c", &line]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*stderr), (Some(0), ""), "{args}");
    }
}
