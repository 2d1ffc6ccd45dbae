//! Checks that tests named in documents exist.

use std::collections::HashSet;

use super::{File, Finding, function_name};

/// Checks the last column of tables whose header ends in `test` or `tests`: functions and Rust files in backticks.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let sources: Vec<&File> = files.iter().filter(|file| file.path.ends_with(".rs")).collect();
    let functions: HashSet<&str> =
        sources.iter().flat_map(|file| file.text.lines().filter_map(function_name)).collect();
    let is_source = |name: &str| {
        sources.iter().any(|file| file.path == name || file.path.ends_with(&format!("/{name}")))
    };
    let documents = files.iter().filter(|file| file.path.ends_with(".md"));
    let named = documents
        .flat_map(|file| test_cells(&file.text).map(move |(line, cell)| (file, line, cell)));
    named
        .flat_map(|(file, line, cell)| {
            let missing = cell.split('`').skip(1).step_by(2).filter(|name| match *name {
                name if name.ends_with(".rs") => !is_source(name),
                name if is_function_name(name) => !functions.contains(name),
                _ => false,
            });
            missing
                .map(move |name| {
                    let what =
                        format!("no test `{name}`; expected a function or file of the project");
                    Finding::new(file, line, what)
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

fn is_function_name(name: &str) -> bool {
    name.contains('_') && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

/// Returns the line numbers and the last cells of tables about tests.
fn test_cells(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_about_tests = None;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let Some(row) = line.trim().strip_prefix('|').and_then(|row| row.strip_suffix('|')) else {
            is_about_tests = None;
            return None;
        };
        let cell = row.rsplit('|').next()?.trim();
        let is_row = *is_about_tests.get_or_insert(matches!(cell, "test" | "tests"));
        is_row.then_some((number, cell))
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{file, lines},
        *,
    };

    #[test]
    fn missing_tests_are_found_in_tables_about_tests_only() {
        let text = "`no_such_test`\n\n\
                    | bound | test |\n|---|---|\n\
                    | `max_keys` | `keys.rs`: `a_test`, `another_test` |\n\
                    | x | `gone.rs` |\n\
                    | x | `it/keys.rs`, `gone_test` and `word` |\n\n\
                    | setting | meaning |\n|---|---|\n| a | `no_such_test` |\n";
        let source = "#[test]\nfn a_test() {\n}\nasync fn another_test<T>(a: T) {\n";
        let files = [file("docs/a.md", text), file("crates/a/tests/it/keys.rs", source)];
        assert_eq!(lines(check(&files)), [6, 7]);
    }
}
