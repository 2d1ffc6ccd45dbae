//! Runs the blocks of the documentation that no other test runs. A block names its test in the line before it:
//! `<!-- test: config_blocks_are_valid -->`.

use std::{env, ffi::OsStr, fs, path::Path, process::Command};

use serde_json::Value;

use crate::{
    clients::{Folder, Http},
    guide::{self, Block, blocks, instead},
    program::{run_in, without_times},
    service::Service,
};

/// The commands of a `console` block, each with the output below it.
fn commands<'a>(block: &'a Block, prompt: &str) -> Vec<(&'a str, String)> {
    let mut commands: Vec<(&str, String)> = Vec::new();
    for line in block.text.lines() {
        match (line.strip_prefix(prompt), commands.last_mut()) {
            (Some(command), _) => commands.push((command, String::new())),
            (None, Some((_, output))) => output.extend([line, "\n"]),
            (None, None) => panic!("{}: no command before {line:?}", block.page),
        }
    }
    commands
}

/// Runs a command of a page in a folder, where `pacegate` is the program under test. Returns all output.
fn run_shell(folder: &Path, command: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_pacegate")).parent().unwrap();
    let path = [program.as_os_str(), &env::var_os("PATH").unwrap()].join(OsStr::new(":"));
    let mut shell = Command::new("sh");
    let output =
        shell.args(["-c", command]).current_dir(folder).env("PATH", path).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// Replaces every number with `N`.
fn without_numbers(text: &str) -> String {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut masked = String::new();
    for c in text.chars() {
        match (is_number(c), masked.ends_with('N')) {
            (true, true) => {}
            (true, false) => masked.push('N'),
            (false, _) => masked.push(c),
        }
    }
    masked
}

/// Replaces durations of several units, such as `28d 20h 40m 22s`, with `T`, because they depend on the date.
fn without_durations(text: &str) -> String {
    let is_unit = |word: &str| {
        let number = word.trim_end_matches(['d', 'h', 'm', 's']);
        number.len() + 1 == word.len() && number.chars().all(|c| c.is_ascii_digit())
    };
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let words: Vec<_> = line.split(' ').collect();
        let runs = words.chunk_by(|one, next| is_unit(one) && is_unit(next));
        let masked = runs.map(|run| if run.len() > 1 { "T" } else { run[0] });
        lines.push(masked.collect::<Vec<_>>().join(" "));
    }
    lines.join("\n")
}

#[test]
fn config_blocks_are_valid() {
    for block in guide::marked("config_blocks_are_valid") {
        let folder = Folder::with_config(&block.text);
        let finished =
            run_in(&folder.path(""), &["validate", "--without-secrets", &folder.config()]);
        assert_eq!(finished.code, Some(0), "{}:\n{}\n{finished:?}", block.page, block.text);
    }
}

#[test]
fn json_blocks_are_accepted_as_requests() {
    let folder = Folder::with_config(&blocks("http.md", "yaml")[0]);
    let service = Service::start(&["--config", &folder.config()]);
    let mut http = Http::connect(service.address("http")).unwrap();
    for block in guide::marked("json_blocks_are_accepted_as_requests") {
        for request in serde_json::Deserializer::from_str(&block.text).into_iter::<Value>() {
            let request = request.unwrap().to_string();
            assert_eq!(http.check(None, &request).unwrap().status, 200, "{request}");
        }
    }
}

/// In a folder with the file of the README as `pacegate.yaml`, and an invalid one.
#[test]
fn console_blocks_show_the_output() {
    let readme = guide::marked("config_blocks_are_valid");
    let readme = readme.iter().find(|block| block.page == "README.md").unwrap();
    for block in guide::marked("console_blocks_show_the_output") {
        let folder = tempfile::tempdir().unwrap();
        for (command, shown) in commands(&block, "$ ") {
            if !command.starts_with("pacegate init") {
                fs::write(folder.path().join("pacegate.yaml"), &readme.text).unwrap();
            }
            let invalid = "policies:\n  - name: login\n    limt: 5/minute\n    limit: 5/minute\n";
            fs::write(folder.path().join("bad.yaml"), invalid).unwrap();
            let output = run_shell(folder.path(), command);
            let [output, shown] =
                [output, shown].map(|text| without_durations(&without_times(&text)));
            assert_eq!(output, shown, "{}: {command}", block.page);
        }
    }
}

#[test]
fn redis_cli_blocks_show_the_output() {
    let folder = Folder::with_config(&blocks("resp.md", "yaml")[0]);
    let service = Service::start(&["--config", &folder.config()]);
    let port = service.address("resp").port().to_string();
    for block in guide::marked("redis_cli_blocks_show_the_output") {
        let session = "127.0.0.1:6380> ";
        let is_session = block.text.contains(session);
        let text = block.text.replace("$ redis-cli -p 6380\n", "");
        let block = Block { text, ..block };
        let mut options = String::new();
        for (command, shown) in commands(&block, if is_session { session } else { "$ " }) {
            if command == "HELLO 3" {
                options.push_str("-3");
                continue;
            }
            let line = match is_session {
                true => format!("redis-cli --no-raw {options} -p {port} {command}"),
                false => {
                    instead(command, "redis-cli -p 6380", &format!("redis-cli --no-raw -p {port}"))
                }
            };
            let output = run_shell(&folder.path(""), &line);
            assert_eq!(
                without_numbers(output.trim_end()),
                without_numbers(shown.trim_end()),
                "{line}"
            );
        }
    }
}

/// With a home folder that has the folders for completions.
#[test]
fn shell_blocks_run() {
    for block in guide::marked("shell_blocks_run") {
        let home = tempfile::tempdir().unwrap();
        for folder in
            [".local/share/bash-completion/completions", ".zfunc", ".config/fish/completions"]
        {
            fs::create_dir_all(home.path().join(folder)).unwrap();
        }
        let script = format!("set -eu; HOME=$PWD\n{}echo done", block.text);
        let output = run_shell(home.path(), &script);
        assert!(output.ends_with("done\n"), "{}:\n{}{output}", block.page, block.text);
    }
}
