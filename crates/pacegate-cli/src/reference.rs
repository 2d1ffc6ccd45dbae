//! `docs/commands.md`, generated from the same definitions as `--help`.

use std::{fmt::Write, fs, path::Path};

use clap::CommandFactory;

use super::Cli;

const HEAD: &str = "\
<!-- Generated from crates/pacegate-cli/src: PACEGATE_BLESS=1 cargo test -p pacegate-cli --bin pacegate reference -->
# Commands and options

The output of `pacegate --help` and of `pacegate COMMAND --help`. [The command line](guide/cli.md) has examples with
their output.
";

fn commands() -> String {
    let mut pacegate = Cli::command().disable_help_subcommand(true).term_width(100);
    pacegate.build();
    let names: Vec<String> =
        pacegate.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let mut page = HEAD.to_owned();
    let mut add = |name: &str, command: &mut clap::Command| {
        let help = command.render_long_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        write!(page, "\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end()).unwrap();
    };
    add("pacegate", &mut pacegate.clone());
    for name in names {
        let command = pacegate.find_subcommand(&name).unwrap();
        add(&name, &mut command.clone().term_width(100));
    }
    page
}

#[test]
fn the_reference_matches_the_commands() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let page = commands();
    if std::env::var_os("PACEGATE_BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/commands.md is stale: PACEGATE_BLESS=1 writes it");
}
