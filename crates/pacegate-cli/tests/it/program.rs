use std::{
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
};

/// The result of a finished program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `pacegate` with this input, which must fit into a pipe.
pub(crate) fn run(args: &[&str], input: &[u8]) -> Finished {
    let mut child = spawn(args);
    // A program that rejects its arguments does not read its input.
    drop(child.stdin.take().unwrap().write_all(input));
    let output = child.wait_with_output().unwrap();
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// [`run`] without input, with environment variables.
pub(crate) fn run_with(args: &[&str], variables: &[(&str, &str)]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pacegate"));
    command.args(args).envs(variables.iter().copied());
    let output = command.stdin(Stdio::null()).output().unwrap();
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs `pacegate` in a folder, without input.
pub(crate) fn run_in(folder: &Path, args: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pacegate"));
    let output = command.args(args).current_dir(folder).stdin(Stdio::null()).output().unwrap();
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Replaces every decimal fraction by `T`, because times depend on the machine.
pub(crate) fn without_times(text: &str) -> String {
    let mut masked = String::new();
    for part in text.split_inclusive(|c: char| !c.is_ascii_digit() && c != '.') {
        let number = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        match number.contains('.') {
            true => masked.extend(["T", &part[number.len()..]]),
            false => masked.push_str(part),
        }
    }
    masked
}

fn spawn(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_pacegate"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}
