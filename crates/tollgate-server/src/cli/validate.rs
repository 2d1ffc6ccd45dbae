use std::{
    fmt,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::{Value, json};
use tollgate::{
    Limit,
    policy::{Condition, Match, Mode, Policy},
};

use super::Trouble;
use crate::config::{ConfigError, Environment, LoadError, Settings, load, warnings};

/// Check configuration files
///
/// Says everything that is wrong with each file, where, and what to write instead. Of a good one it shows
/// the policies, and what is allowed but likely not meant.
///
/// Exits with 0 if all files are good, 1 if one is not, 2 if one could not be read.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// The files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Print one line of JSON for each file
    #[arg(long)]
    json: bool,

    /// Do not look up secrets: for checks where they are not, such as in CI
    #[arg(long)]
    without_secrets: bool,
}

const EXAMPLES: &str = "\
Examples:
  Check a file before it is deployed:
    tollgate validate tollgate.yaml

  Check all files where the secrets they name are not:
    tollgate validate --without-secrets deploy/*.yaml

  Read what is wrong in a program:
    tollgate validate --json tollgate.yaml | jq '.problems[]'";

/// What was found in one file, in words.
struct Words<'a> {
    file: &'a Path,
    found: &'a Result<Settings, ConfigError>,
}

/// A condition as it would be said.
struct Said<'a>(&'a Match);

/// Texts with a comma between them.
struct Listed<T>(Vec<T>);

pub(super) fn run(args: &Args) -> Result<ExitCode, Trouble> {
    let environment = match args.without_secrets {
        true => Environment::process().without_secrets(),
        false => Environment::process(),
    };
    let mut output = BufWriter::new(io::stdout().lock());
    let mut code = ExitCode::SUCCESS;
    for file in &args.files {
        let found = match load(file, &environment) {
            Ok(settings) => Ok(settings),
            Err(LoadError::Bad(error)) => Err(error),
            Err(error @ LoadError::Unreadable { .. }) => {
                output.flush().map_err(unwritable)?;
                let hint = "check the name of the file, and who may read it";
                return Err(Trouble::new(error, "cannot check", hint));
            }
        };
        if found.is_err() {
            code = ExitCode::from(1);
        }
        match args.json {
            true => writeln!(output, "{}", as_json(file, &found)),
            false => writeln!(output, "{}", Words { file, found: &found }),
        }
        .map_err(unwritable)?;
    }
    output.flush().map_err(unwritable)?;
    Ok(code)
}

fn unwritable(error: io::Error) -> Trouble {
    Trouble::new(error, "cannot print what was found", "check where standard output leads")
}

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = match self.found {
            Ok(settings) => settings,
            Err(error) => return write!(f, "{error}"),
        };
        let policies = settings.policies.policies();
        let plural = if policies.len() == 1 { "policy" } else { "policies" };
        write!(f, "{}: good, {} {plural}", self.file.display(), policies.len())?;
        if !policies.is_empty() {
            write!(f, "\n\n{}", Table(policies.iter().flat_map(rows).collect()))?;
        }
        for (place, warning) in warnings(settings).into_iter().enumerate() {
            let gap = if place == 0 { "\n\n" } else { "\n" };
            write!(f, "{gap}warning: {warning}")?;
        }
        Ok(())
    }
}

const COLUMNS: usize = 5;

/// Rows of cells, all of one column equally wide.
struct Table(Vec<[String; COLUMNS]>);

fn rows(policy: &Policy) -> Vec<[String; COLUMNS]> {
    let mode = match policy.mode {
        Mode::Shadow => " (shadow)",
        _ => "",
    };
    let own = [
        format!("{}{mode}", policy.name),
        if policy.domain.is_empty() { "-".to_owned() } else { printable(&policy.domain) },
        Said(&policy.matching).to_string(),
        if policy.per.is_empty() {
            "all together".to_owned()
        } else {
            printable(&policy.per.join(", "))
        },
        limits(&policy.limits),
    ];
    let overrides = policy.overrides.iter().map(|other| {
        let matching = format!("  {}", Said(&other.matching));
        [String::new(), String::new(), matching, String::new(), limits(&other.limits)]
    });
    std::iter::once(own).chain(overrides).collect()
}

fn limits(limits: &[Limit]) -> String {
    match limits {
        [] => "unlimited".to_owned(),
        limits => Listed(limits.iter().collect()).to_string(),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["policy", "domain", "match", "per", "limit"].map(str::to_owned);
        let rows = || std::iter::once(&head).chain(&self.0);
        let width =
            |column: usize| rows().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; COLUMNS] = std::array::from_fn(width);
        for (place, row) in rows().enumerate() {
            let mut line = String::from(if place == 0 { " " } else { "\n " });
            for (cell, width) in row.iter().zip(widths) {
                line.push_str(&format!(" {cell:width$} "));
            }
            write!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_any() {
            return f.write_str("every request");
        }
        for (place, (attribute, condition)) in self.0.conditions().enumerate() {
            let gap = if place == 0 { "" } else { ", " };
            write!(f, "{gap}{} {}", printable(attribute), said(condition))?;
        }
        Ok(())
    }
}

fn said(condition: &Condition) -> String {
    match condition {
        Condition::OneOf(values) => {
            let values = values.iter().map(|value| printable(value)).collect::<Vec<_>>();
            format!("= {}", values.join(" or "))
        }
        Condition::Glob(glob) => format!("~ {}", printable(&glob.to_string())),
        Condition::Cidr(nets) => format!("in {}", Listed(nets.iter().collect())),
        Condition::Present => "present".to_owned(),
        Condition::Absent => "absent".to_owned(),
        _ => "otherwise".to_owned(),
    }
}

fn printable(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

impl<T: fmt::Display> fmt::Display for Listed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, text) in self.0.iter().enumerate() {
            let gap = if place == 0 { "" } else { ", " };
            write!(f, "{gap}{text}")?;
        }
        Ok(())
    }
}

fn as_json(file: &Path, found: &Result<Settings, ConfigError>) -> Value {
    let file = file.display().to_string();
    match found {
        Ok(settings) => {
            let policies: Vec<_> = settings.policies.policies().iter().map(policy_json).collect();
            json!({"file": file, "good": true, "policies": policies, "warnings": warnings(settings)})
        }
        Err(error) => {
            let problems: Vec<_> = error
                .problems()
                .iter()
                .map(|problem| {
                    let line = problem.position.map(|position| position.line);
                    let column = problem.position.map(|position| position.column);
                    json!({"line": line, "column": column, "message": problem.message})
                })
                .collect();
            json!({"file": file, "good": false, "problems": problems, "left_out": error.left_out()})
        }
    }
}

fn policy_json(policy: &Policy) -> Value {
    let texts = |limits: &[Limit]| limits.iter().map(Limit::to_string).collect::<Vec<_>>();
    let matching = |matching: &Match| {
        let conditions = matching.conditions();
        let conditions =
            conditions.map(|(attribute, condition)| (attribute.to_owned(), said(condition).into()));
        Value::Object(conditions.collect())
    };
    let overrides: Vec<_> = policy
        .overrides
        .iter()
        .map(|other| json!({"match": matching(&other.matching), "limit": texts(&other.limits)}))
        .collect();
    json!({
        "name": policy.name.as_str(),
        "domain": policy.domain,
        "match": matching(&policy.matching),
        "per": policy.per,
        "limit": texts(&policy.limits),
        "overrides": overrides,
        "shadow": policy.mode == Mode::Shadow,
    })
}
