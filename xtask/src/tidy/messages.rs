//! Checks that the messages in the troubleshooting page exist in the source.

use super::{File, Finding};

const PAGE: &str = "docs/recipes/troubleshooting.md";
const COLUMN: &str = "| message |";

/// Messages of libraries, which the source does not contain.
const FOREIGN: &str = "(from the JSON parser)";

/// Checks each part of the first column between backticks. `...` in it stands for a value.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else { return Vec::new() };
    let is_source = |file: &&File| {
        let in_crates = file.path.starts_with("crates/") && file.path.contains("/src/");
        (in_crates || file.path.starts_with("clients/")) && !file.path.contains("test")
    };
    let sources: Vec<String> =
        files.iter().filter(is_source).map(|file| joined(&file.text)).collect();
    let missing = |part: &str| !sources.iter().any(|text| text.contains(part));
    let mut findings = Vec::new();
    let mut in_table = false;
    for (line, number) in page.text.lines().zip(1..) {
        in_table = line.starts_with(COLUMN) || in_table && line.starts_with('|');
        if !in_table || line.starts_with(COLUMN) || line.starts_with("|---") {
            continue;
        }
        for part in parts(line).filter(|part| missing(part)) {
            findings.push(Finding::new(
                page,
                number,
                format!("the source has no message with `{part}`"),
            ));
        }
    }
    findings
}

/// Joins the lines of string literals, and removes the escapes of quotes.
fn joined(text: &str) -> String {
    let mut lines = text.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    let text = lines.fold(first, |text, line| text + line.trim_start());
    text.replace("\\\"", "\"")
}

/// Returns the fixed parts of the messages in the first column of a row.
fn parts(row: &str) -> impl Iterator<Item = &str> {
    let column = row.split(" | ").next().unwrap_or_default();
    let column = if column.contains(FOREIGN) { "" } else { column };
    let messages = match column.split("``").nth(1) {
        // Two backticks quote a message that contains some.
        Some(message) => vec![message],
        None => column.split('`').skip(1).step_by(2).collect(),
    };
    let parts = messages.into_iter().flat_map(|message| message.split("..."));
    parts.map(|part| part.trim_matches([' ', ':', ',', ';', '`'])).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{file, lines},
        *,
    };

    #[test]
    fn each_message_of_the_table_is_in_the_source() {
        let page = "| message | cause |\n|---|---|\n\
                    | `cannot reach ...: gone`, `too long` | a |\n\
                    | `` ... needs a `limit` `` | b |\n\
                    | `unknown field` (from the JSON parser) | c |\n\
                    | `never said` | d |\n\n| `other table` | e |\n";
        let source =
            "\"cannot reach {0}: \\\n      gone\", \"too long\", \"`key` needs a `limit`\"";
        let files = [file(PAGE, page), file("crates/a/src/lib.rs", source)];
        assert_eq!(lines(check(&files)), [6]);
        assert_eq!(lines(check(&files[..1])), [3, 3, 3, 4, 6]);
    }
}
