//! `cargo xtask tidy`: project rules that no other tool checks.

mod blocks;
mod files;
mod links;
mod messages;
mod named_tests;
mod names;
mod rules;

use std::{
    fmt,
    io::{self, Write},
    process::Command,
};

use anyhow::{Context, ensure};

use crate::command::root;

/// A file of the project.
#[derive(Debug)]
struct File {
    /// Relative to the project's root, with slashes.
    path: String,
    text: String,
}

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    line: usize,
    what: String,
}

/// Prints all violations; fails if there are any.
pub(crate) fn run() -> anyhow::Result<()> {
    let files = project_files()?;
    let mut findings: Vec<Finding> = files.iter().flat_map(rules::check).collect();
    findings.extend(
        files.iter().flat_map(|file| links::check(file, |path| root().join(path).exists())),
    );
    findings.extend(files::check(&files));
    findings.extend(named_tests::check(&files));
    findings.extend(names::check(&files));
    findings.extend(blocks::check(&files));
    findings.extend(messages::check(&files));
    for finding in &findings {
        writeln!(io::stdout(), "{finding}")?;
    }
    ensure!(findings.is_empty(), "tidy: {} findings in {} files", findings.len(), files.len());
    writeln!(io::stdout(), "tidy: {} files, no findings", files.len())?;
    Ok(())
}

/// Returns all text files that are tracked by git, or untracked and not ignored.
fn project_files() -> anyhow::Result<Vec<File>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("cannot start `git ls-files`")?;
    ensure!(listed.status.success(), "`git ls-files` failed: is this a git checkout?");
    let paths = String::from_utf8(listed.stdout).context("a file name is not UTF-8")?;
    let read = |path: &str| {
        let text = std::fs::read_to_string(root().join(path)).ok()?;
        Some(File { path: path.to_owned(), text })
    };
    Ok(paths.split_terminator('\0').filter_map(read).collect())
}

/// Returns the name of the function that a line declares.
fn function_name(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("fn ")?;
    rest.split(['(', '<']).next()
}

impl Finding {
    fn new(file: &File, line: usize, what: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

#[cfg(test)]
fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}

#[cfg(test)]
fn lines(findings: impl IntoIterator<Item = Finding>) -> Vec<usize> {
    findings.into_iter().map(|finding| finding.line).collect()
}
