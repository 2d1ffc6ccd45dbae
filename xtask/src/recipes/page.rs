//! The blocks of a recipe page.

use anyhow::{Context, bail};

/// A marked block: a file to write, or commands to run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Block {
    File { name: String, text: String },
    Commands(Vec<Step>),
}

/// A command and its expected output, in which `...` stands for any text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) command: String,
    pub(super) output: Vec<String>,
}

/// Returns the blocks of a page that are marked with `<!-- recipe: run -->` or `<!-- recipe: FILE -->`.
pub(super) fn blocks(text: &str) -> anyhow::Result<Vec<Block>> {
    text.split("<!-- recipe: ").skip(1).map(block).collect()
}

fn block(rest: &str) -> anyhow::Result<Block> {
    let (name, rest) =
        rest.split_once(" -->\n```").context("a recipe mark is not before a block")?;
    let (_, code) = rest.split_once('\n').context("a block has no text")?;
    let (code, _) = code.split_once("\n```").context("a block has no end")?;
    Ok(match name {
        "run" => Block::Commands(steps(code)?),
        name => Block::File { name: name.to_owned(), text: format!("{code}\n") },
    })
}

/// Splits a console block into commands, which start with `$ ` and go on after a backslash, and their output.
fn steps(code: &str) -> anyhow::Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    for line in code.lines() {
        let is_open = steps.last().is_some_and(|step| step.command.ends_with('\\'));
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (_, Some(step)) if is_open => step.command = format!("{}\n{line}", step.command),
            (Some(command), _) => {
                steps.push(Step { command: command.to_owned(), output: Vec::new() });
            }
            (None, Some(step)) => step.output.push(line.to_owned()),
            (None, None) => bail!("a block to run starts with `{line}`; expected `$ COMMAND`"),
        }
    }
    Ok(steps)
}

/// Returns true if a text has the parts of the expected line, in this order.
pub(super) fn matches(expected: &str, line: &str) -> bool {
    let mut parts = expected.trim_end().split("...");
    let Some(mut rest) = parts.next().and_then(|first| line.trim_end().strip_prefix(first)) else {
        return false;
    };
    let mut is_open = false;
    for part in parts {
        let Some(place) = rest.find(part) else { return false };
        (rest, is_open) = (&rest[place + part.len()..], part.is_empty());
    }
    rest.is_empty() || is_open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_blocks_are_files_or_commands() {
        let page = "# A\n<!-- recipe: a.yaml -->\n```yaml\na: b\n```\n```sh\nx\n```\n\
                    <!-- recipe: run -->\n```console\n$ one \\\n  two\nout\n$ three\n```\n";
        let step = |command: &str, output: &[&str]| Step {
            command: command.to_owned(),
            output: output.iter().map(|&line| line.to_owned()).collect(),
        };
        let file = Block::File { name: "a.yaml".to_owned(), text: "a: b\n".to_owned() };
        let commands = Block::Commands(vec![step("one \\\n  two", &["out"]), step("three", &[])]);
        assert_eq!(blocks(page).unwrap(), [file, commands]);
        assert!(blocks("<!-- recipe: run -->\n```console\nout\n```\n").is_err());
    }

    #[test]
    fn dots_stand_for_any_text() {
        for (expected, line, fits) in [
            ("a", "a ", true),
            ("a", "ab", false),
            ("a...", "abc", true),
            ("a...c", "abc", true),
            ("a...c", "abcd", false),
            ("...b...", "abc", true),
            ("...x...", "abc", false),
        ] {
            assert_eq!(matches(expected, line), fits, "{expected} {line}");
        }
    }
}
