//! Checks the licences, sources and known vulnerabilities of dependencies against the rules in `deny.toml`.
//!
//! `cargo deny` reads the same rules, but would have to be built from source in each run. So this module itself checks
//! licences, sources and version requirements, with `cargo metadata`. Vulnerabilities are checked only if `cargo deny`
//! is installed and can fetch the advisory database.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    process::{Command, Stdio},
};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::command::root;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Fails if a dependency breaks a rule. Prints whether vulnerabilities were checked.
pub(crate) fn run() -> anyhow::Result<()> {
    let rules = fs::read_to_string(root().join("deny.toml")).context("cannot read deny.toml")?;
    let allowed = allowed_licences(&rules);
    ensure!(!allowed.is_empty(), "deny.toml allows no licence");
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let findings: Vec<_> = packages.iter().flat_map(|package| check(package, &allowed)).collect();
    for finding in &findings {
        writeln!(io::stdout(), "{finding}")?;
    }
    ensure!(findings.is_empty(), "{} dependencies break the rules of deny.toml", findings.len());
    let checked = packages.len();
    writeln!(io::stdout(), "licences, sources and versions of {checked} packages: ok")?;
    advisories()
}

/// Returns the packages of the workspace and their dependencies. `bench` and `fuzz` are separate workspaces and are
/// not distributed, so they are not checked.
fn metadata() -> anyhow::Result<Value> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start `cargo metadata`")?;
    ensure!(output.status.success(), "`cargo metadata` failed");
    serde_json::from_slice(&output.stdout).context("`cargo metadata` is not JSON")
}

/// Returns the licences in the `allow` list of deny.toml.
fn allowed_licences(rules: &str) -> BTreeSet<String> {
    let section = rules.split("\n[").find(|section| section.starts_with("licenses]"));
    let list = section.and_then(|section| section.split_once("\nallow = [")?.1.split(']').next());
    let quoted = list.unwrap_or_default().split('"').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

/// Returns the rules that a package breaks.
fn check(package: &Value, allowed: &BTreeSet<String>) -> Vec<String> {
    let text = |field: &str| package[field].as_str().unwrap_or_default();
    let name = format!("{} {}", text("name"), text("version"));
    match package["source"].as_str() {
        // Part of the project.
        None => wildcards(package)
            .map(|dependency| {
                format!("{name}: dependency `{dependency}` allows any version; require one")
            })
            .collect(),
        Some(CRATES_IO) => {
            let licence = text("license");
            match is_allowed(licence, allowed) {
                Ok(true) => Vec::new(),
                Ok(false) => vec![format!("{name}: the licence `{licence}` is not allowed")],
                Err(error) => vec![format!("{name}: the licence `{licence}`: {error}")],
            }
        }
        Some(source) => vec![format!("{name}: unknown source {source}")],
    }
}

/// Returns the external dependencies of a package that allow any version (`*`).
fn wildcards(package: &Value) -> impl Iterator<Item = &str> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let is_wild = |dependency: &&Value| dependency["req"] == "*" && dependency["path"].is_null();
    dependencies.filter(is_wild).filter_map(|dependency| dependency["name"].as_str())
}

/// Returns true if the allowed licences satisfy an SPDX expression.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> anyhow::Result<bool> {
    // Old packages use a slash instead of OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let is_met = any(&mut rest, allowed)?;
    ensure!(rest.is_empty(), "invalid SPDX expression");
    Ok(is_met)
}

fn any(words: &mut &[&str], allowed: &BTreeSet<String>) -> anyhow::Result<bool> {
    let mut is_met = all(words, allowed)?;
    while let [word, rest @ ..] = *words
        && *word == "OR"
    {
        *words = rest;
        is_met |= all(words, allowed)?;
    }
    Ok(is_met)
}

fn all(words: &mut &[&str], allowed: &BTreeSet<String>) -> anyhow::Result<bool> {
    let mut is_met = one(words, allowed)?;
    while let [word, rest @ ..] = *words
        && *word == "AND"
    {
        *words = rest;
        is_met &= one(words, allowed)?;
    }
    Ok(is_met)
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> anyhow::Result<bool> {
    match **words {
        ["(", ref rest @ ..] => {
            *words = rest;
            let is_met = any(words, allowed)?;
            let [")", rest @ ..] = *words else { bail!("invalid SPDX expression") };
            *words = rest;
            Ok(is_met)
        }
        // An exception permits more than its licence.
        [licence, "WITH", _, ref rest @ ..] | [licence, ref rest @ ..]
            if !["AND", "OR", "WITH", ")"].contains(&licence) =>
        {
            *words = rest;
            Ok(allowed.contains(licence))
        }
        _ => bail!("invalid SPDX expression"),
    }
}

/// Checks for known vulnerabilities with `cargo deny`, or prints why they cannot be checked.
fn advisories() -> anyhow::Result<()> {
    let deny = |words: &[&str]| {
        let mut command = Command::new("cargo");
        command.arg("deny").args(words).current_dir(root()).stdin(Stdio::null());
        command
    };
    let is_installed = deny(&["--version"]).output().is_ok_and(|output| output.status.success());
    if !is_installed {
        let missing = "cargo-deny is not installed; run `cargo install --locked cargo-deny`";
        writeln!(io::stdout(), "advisories: NOT CHECKED: {missing}")?;
        return Ok(());
    }
    let fetched = deny(&["fetch", "db"]).output().context("cannot start `cargo deny`")?;
    if !fetched.status.success() {
        let missing = "the advisory database cannot be fetched from https://github.com/rustsec";
        writeln!(io::stdout(), "advisories: NOT CHECKED: {missing}")?;
        return Ok(());
    }
    let checked = deny(&["check", "advisories"]).status().context("cannot start `cargo deny`")?;
    ensure!(checked.success(), "`cargo deny check advisories` failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn allowed() -> BTreeSet<String> {
        allowed_licences("a = 1\n\n[licenses]\nallow = [\n  \"MIT\",\n  \"ISC\",\n]\n\n[bans]\n")
    }

    #[test]
    fn expressions_are_met_by_allowed_licences() {
        for (expression, is_met) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("MIT AND (GPL-3.0 OR ISC)", true),
            ("(MIT OR ISC) AND GPL-3.0", false),
            ("GPL-3.0 OR MIT AND ISC", true),
            ("MIT WITH Some-exception OR GPL-3.0", true),
        ] {
            assert_eq!(is_allowed(expression, &allowed()).unwrap(), is_met, "{expression}");
        }
        for expression in ["", "MIT OR", "MIT ISC", "(MIT", "MIT)", "AND", "MIT WITH"] {
            assert!(is_allowed(expression, &allowed()).is_err(), "{expression}");
        }
    }

    #[test]
    fn packages_come_from_crates_io_under_allowed_licences() {
        let package = |source: Value, licence: &str| {
            let package = json!({
                "name": "a", "version": "1.0.0", "source": source, "license": licence,
                "dependencies": [
                    {"name": "wild", "req": "*", "path": null},
                    {"name": "own", "req": "*", "path": "/own"},
                    {"name": "tame", "req": "^1", "path": null},
                ],
            });
            check(&package, &allowed())
        };
        assert_eq!(package(json!(CRATES_IO), "MIT"), [""; 0]);
        let licence = package(json!(CRATES_IO), "GPL-3.0");
        assert_eq!(licence, ["a 1.0.0: the licence `GPL-3.0` is not allowed"]);
        let git = package(json!("git+https://example.com/a"), "MIT");
        assert_eq!(git, ["a 1.0.0: unknown source git+https://example.com/a"]);
        let own = package(Value::Null, "");
        assert_eq!(own, ["a 1.0.0: dependency `wild` allows any version; require one"]);
    }
}
