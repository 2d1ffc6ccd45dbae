//! Checks that every program, command and file in the documents is tested, or marked as not run with the reason.

use std::collections::HashSet;

use super::{File, Finding, function_name};

/// Blocks that need no mark: output, and Rust, which is a doctest.
const UNMARKED: [&str; 4] = ["", "text", "rust", "rust,no_run"];

/// Generated together with the schema, and tested there.
const GENERATED: &str = "docs/configuration.md";

/// Checks the line before each block: `<!-- test: NAME -->`, `<!-- recipe: FILE -->` or `<!-- not run: REASON -->`.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let sources = files.iter().filter(|file| file.path.ends_with(".rs"));
    let functions: HashSet<&str> =
        sources.flat_map(|file| file.text.lines().filter_map(function_name)).collect();
    let pages = files.iter().filter(|file| is_page(&file.path));
    pages
        .flat_map(|page| {
            blocks(&page.text).filter_map(|(line, before)| {
                let what = complaint(before, &functions)?;
                Some(Finding::new(page, line, what))
            })
        })
        .collect()
}

fn is_page(path: &str) -> bool {
    let is_readme = path == "README.md" || path.ends_with("/README.md");
    let is_document = path.starts_with("docs/") && path.ends_with(".md");
    (is_readme || is_document) && path != GENERATED
}

/// Returns the line number of each block and the line before it.
fn blocks(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let (mut inside, mut before) = (false, "");
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let previous = std::mem::replace(&mut before, line);
        let language = line.trim_start().strip_prefix("```")?;
        inside = !inside;
        (inside && !UNMARKED.contains(&language)).then_some((number, previous))
    })
}

fn complaint(before: &str, functions: &HashSet<&str>) -> Option<String> {
    let mark = before.trim().strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
    let Some((kind, value)) = mark.and_then(|mark| mark.split_once(": ")) else {
        return Some(
            "block without a mark; write `<!-- test: NAME -->` or `<!-- not run: REASON -->` before it"
                .to_owned(),
        );
    };
    match kind {
        // `cargo xtask recipes` runs it.
        "not run" | "recipe" => None,
        "test" if functions.contains(value) => None,
        "test" => Some(format!("no test `{value}`; expected a function of the project")),
        _ => Some(format!("unknown mark `{kind}`; expected `test`, `recipe` or `not run`")),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{file, lines},
        *,
    };

    #[test]
    fn blocks_need_a_test_or_a_reason() {
        let text = "```sh\na\n```\n\
                    <!-- test: a_test -->\n```sh\nb\n```\n\
                    <!-- test: gone -->\n```json\n{}\n```\n\
                    <!-- not run: needs Docker -->\n```yaml\na: b\n```\n\
                    ```\noutput\n```\n```rust\nfn a() {}\n```\n```toml\na = 1\n```\n";
        let files = [file("docs/a.md", text), file("crates/a/tests/it/a.rs", "fn a_test() {\n")];
        assert_eq!(lines(check(&files)), [1, 9, 22]);
        let files = [file("CHANGELOG.md", text), file(GENERATED, text)];
        assert_eq!(check(&files), []);
    }
}
