//! Checks that a public type name occurs once in a crate.

use std::collections::HashMap;

use super::{File, Finding};

/// A type that a crate defines.
struct Definition<'a> {
    file: &'a File,
    line: usize,
    is_public: bool,
}

/// Reports every definition of a name that a crate defines twice, if one of them is public.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut definitions: HashMap<(&str, &str), Vec<Definition<'_>>> = HashMap::new();
    for file in files {
        let Some(name) = crate_name(&file.path) else { continue };
        for (line, is_public, word) in types(&file.text) {
            let definition = Definition { file, line, is_public };
            definitions.entry((name, word)).or_default().push(definition);
        }
    }
    let twice = definitions
        .into_iter()
        .filter(|(_, all)| all.len() > 1 && all.iter().any(|definition| definition.is_public));
    let mut findings: Vec<Finding> = twice
        .flat_map(|((name, word), all)| {
            let what = format!("type `{word}` is defined twice in {name}; rename one of them");
            all.into_iter().map(move |one| Finding::new(one.file, one.line, what.clone()))
        })
        .collect();
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings
}

/// Returns the crate of a source file. Tests are exempt.
fn crate_name(path: &str) -> Option<&str> {
    let (name, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    let is_source = rest.starts_with("src/") && rest.ends_with(".rs");
    let is_test = rest.contains("/tests") || rest.ends_with("_tests.rs");
    (is_source && !is_test).then_some(name)
}

/// Returns the types defined before the module `tests`: their line, whether they are public, and their name.
fn types(text: &str) -> impl Iterator<Item = (usize, bool, &str)> {
    let code = text.lines().take_while(|line| !line.ends_with("mod tests {"));
    code.zip(1..).filter_map(|(line, number)| {
        let line = line.trim_start();
        let is_public = line.starts_with("pub ");
        let rest = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
            Some(rest) => rest.trim_start(),
            None => line,
        };
        let (kind, rest) = rest.split_once(' ')?;
        let is_type = ["struct", "enum", "trait", "union"].contains(&kind);
        let end = rest.find(|char: char| !char.is_alphanumeric() && char != '_');
        let name = &rest[..end.unwrap_or(rest.len())];
        (is_type && name.starts_with(char::is_uppercase)).then_some((number, is_public, name))
    })
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};

    #[test]
    fn a_public_name_is_reported_where_it_occurs_twice() {
        let files = [
            file("crates/a/src/one.rs", "pub struct Gate;\nstruct Inner;\npub enum Kind {}\n"),
            file(
                "crates/a/src/two.rs",
                "\npub(crate) struct Gate<'a>(&'a str);\nstruct Inner {}\n",
            ),
            file("crates/b/src/one.rs", "pub trait Gate {}\n"),
            file("crates/a/tests/it/main.rs", "pub struct Kind;\n"),
            file("crates/a/src/three.rs", "#[cfg(test)]\nmod tests {\n    pub struct Kind;\n"),
        ];
        let found: Vec<_> =
            check(&files).into_iter().map(|finding| (finding.path, finding.line)).collect();
        let expected = [("crates/a/src/one.rs", 1), ("crates/a/src/two.rs", 2)];
        assert_eq!(found, expected.map(|(path, line)| (path.to_owned(), line)));
    }
}
