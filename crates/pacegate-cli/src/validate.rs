use std::{
    fmt,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use pacegate::{
    Limit,
    policy::{Condition, Match, Mode, Policy},
};
use pacegate_server::{
    ConfigError, Environment, LoadError, Settings, WrittenRule, config_warnings, load_config,
};
use pacegate_tools::table;
use serde_json::{Value, json};

use super::CommandError;

/// Check config files
///
/// Reports all errors of each file with their position and the expected value. For a valid file, lists its
/// policies and warns about likely mistakes. Also checks files of RLaaS and envoyproxy/ratelimit; a
/// directory may contain files of the latter.
///
/// Exit codes: 0 if all files are valid, 1 if one is invalid, 2 if one could not be read.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Validate {
    /// Config files, or directories with files of envoyproxy/ratelimit
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Print one line of JSON per file
    #[arg(long)]
    json: bool,

    /// Do not read secrets, for environments without them, such as CI
    #[arg(long)]
    without_secrets: bool,
}

const EXAMPLES: &str = "\
Examples:
  Check a config file before you deploy it:
    pacegate validate pacegate.yaml

  Check files in an environment without the secrets:
    pacegate validate --without-secrets deploy/*.yaml

  Check rules of envoyproxy/ratelimit:
    pacegate validate /data/ratelimit/config

  Get the errors as JSON:
    pacegate validate --json pacegate.yaml | jq '.problems[]'";

/// Displays the result for one file as text.
struct ResultText<'a> {
    file: &'a Path,
    found: &'a Result<Settings, ConfigError>,
}

pub(super) fn run(args: &Validate) -> Result<ExitCode, CommandError> {
    let environment = match args.without_secrets {
        true => Environment::process().without_secrets(),
        false => Environment::process(),
    };
    let mut output = BufWriter::new(io::stdout().lock());
    let mut code = ExitCode::SUCCESS;
    for file in &args.files {
        let found = match load_config(file, &environment) {
            Ok(settings) => Ok(settings),
            Err(LoadError::Bad(error)) => Err(error),
            Err(error) => {
                output.flush().map_err(unwritable)?;
                let hint = "check the path and the permissions of the file";
                return Err(CommandError::new(error, "cannot check the file", hint));
            }
        };
        if found.is_err() {
            code = ExitCode::from(1);
        }
        match args.json {
            true => writeln!(output, "{}", as_json(file, &found)),
            false => writeln!(output, "{}", ResultText { file, found: &found }),
        }
        .map_err(unwritable)?;
    }
    output.flush().map_err(unwritable)?;
    Ok(code)
}

fn unwritable(error: io::Error) -> CommandError {
    CommandError::output(error, "cannot print the result")
}

impl fmt::Display for ResultText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = match self.found {
            Ok(settings) => settings,
            Err(error) => return write!(f, "{error}"),
        };
        let (policies, rules) = (settings.effective_policies(), settings.written_rules());
        let policies = policies.policies();
        let (count, one, many) = match rules.len() {
            0 => (policies.len(), "policy", "policies"),
            rules => (rules, "rule", "rules"),
        };
        let plural = if count == 1 { one } else { many };
        write!(f, "{}: valid, {count} {plural}", self.file.display())?;
        let rows: Vec<_> = match rules {
            [] => policies.iter().flat_map(rows).collect(),
            rules => rules.iter().map(rule_row).collect(),
        };
        let head = ["policy", "domain", "match", "per", "limit"].map(str::to_owned);
        if !rows.is_empty() {
            let rows = std::iter::once(head).chain(rows).map(Vec::from).collect();
            write!(f, "\n\n {}", table(rows, |_| false).join("\n "))?;
        }
        for (place, warning) in config_warnings(settings).into_iter().enumerate() {
            let gap = if place == 0 { "\n\n" } else { "\n" };
            write!(f, "{gap}warning: {warning}")?;
        }
        Ok(())
    }
}

fn rows(policy: &Policy) -> Vec<[String; 5]> {
    let mode = match policy.mode {
        Mode::Shadow => " (shadow)",
        _ => "",
    };
    let own = [
        format!("{}{mode}", policy.name),
        if policy.domain.is_empty() { "-" } else { &policy.domain }.to_owned(),
        conditions_text(&policy.matching),
        whose(&policy.per),
        limits(&policy.limits),
    ];
    let overrides = policy.overrides.iter().map(|other| {
        let matching = format!("  {}", conditions_text(&other.matching));
        [String::new(), String::new(), matching, String::new(), limits(&other.limits)]
    });
    std::iter::once(own).chain(overrides).collect()
}

fn rule_row(rule: &WrittenRule) -> [String; 5] {
    let mode = match (rule.shadow, rule.quota) {
        (true, _) => " (shadow)",
        (false, true) => " (quota)",
        (false, false) => "",
    };
    let way = rule.path.iter().map(|(key, value)| match value {
        None => format!("{key} present"),
        Some(value) if value.contains('*') => format!("{key} ~ {value}"),
        Some(value) => format!("{key} = {value}"),
    });
    [
        format!("{}{mode}", rule.policy),
        rule.domain.clone(),
        joined(way),
        whose(&rule.per),
        limits(&rule.limits),
    ]
}

fn whose(per: &[String]) -> String {
    match per {
        [] => "all clients".to_owned(),
        per => per.join(", "),
    }
}

fn limits(limits: &[Limit]) -> String {
    match limits {
        [] => "unlimited".to_owned(),
        limits => joined(limits),
    }
}

/// Formats the conditions of a policy.
fn conditions_text(matching: &Match) -> String {
    if matching.is_any() {
        return "every request".to_owned();
    }
    joined(
        matching
            .conditions()
            .map(|(attribute, condition)| format!("{attribute} {}", condition_text(condition))),
    )
}

fn condition_text(condition: &Condition) -> String {
    match condition {
        Condition::OneOf(values) => format!("= {}", values.join(" or ")),
        Condition::Glob(glob) => format!("~ {glob}"),
        Condition::Cidr(nets) => format!("in {}", joined(nets)),
        Condition::Present => "present".to_owned(),
        Condition::Absent => "absent".to_owned(),
        _ => "otherwise".to_owned(),
    }
}

/// Returns texts separated by commas.
fn joined<T: ToString>(texts: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<String> = texts.into_iter().map(|text| text.to_string()).collect();
    texts.join(", ")
}

fn as_json(file: &Path, found: &Result<Settings, ConfigError>) -> Value {
    let file = file.display().to_string();
    match found {
        Ok(settings) => {
            let warnings = config_warnings(settings);
            let rules: Vec<_> = settings.written_rules().iter().map(rule_json).collect();
            if !rules.is_empty() {
                return json!({"file": file, "good": true, "rules": rules, "warnings": warnings});
            }
            let policies = settings.effective_policies();
            let policies: Vec<_> = policies.policies().iter().map(policy_json).collect();
            json!({"file": file, "good": true, "policies": policies, "warnings": warnings})
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

fn rule_json(rule: &WrittenRule) -> Value {
    let entry = |(key, value): &(String, Option<String>)| json!({"key": key, "value": value});
    json!({
        "policy": rule.policy.as_str(),
        "domain": rule.domain,
        "descriptor": rule.path.iter().map(entry).collect::<Vec<_>>(),
        "per": rule.per,
        "limit": texts(&rule.limits),
        "shadow": rule.shadow,
        "quota": rule.quota,
    })
}

fn texts(limits: &[Limit]) -> Vec<String> {
    limits.iter().map(Limit::to_string).collect()
}

fn policy_json(policy: &Policy) -> Value {
    let matching = |matching: &Match| {
        let conditions = matching.conditions();
        let conditions = conditions
            .map(|(attribute, condition)| (attribute.to_owned(), condition_text(condition).into()));
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
