//! Rules about the lines of a file.

use super::{File, Finding};

const MAX_COLUMNS: usize = 120;
const MAX_LINES: usize = 800;

/// Markers of unfinished code. They are split with `concat!`, so that this file passes the check.
const UNFINISHED: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("db", "g!("),
];

pub(super) fn check(file: &File) -> Vec<Finding> {
    [wide_lines, long_files, unfinished, sleeping_tests, floats, permitted_unsafe]
        .into_iter()
        .flat_map(|rule| rule(file))
        .collect()
}

fn wide_lines(file: &File) -> Vec<Finding> {
    find(file, file.is_rust(), |line| {
        let columns = line.chars().count();
        let what = || format!("line has {columns} columns; at most {MAX_COLUMNS} are allowed");
        (columns > MAX_COLUMNS).then(what)
    })
}

fn long_files(file: &File) -> Vec<Finding> {
    if !file.is_rust() || file.is_test() {
        return Vec::new();
    }
    let code = lines_of_code(&file.text);
    let what = || format!("file has {code} lines of code; at most {MAX_LINES} are allowed");
    (code > MAX_LINES).then(|| Finding::new(file, code, what())).into_iter().collect()
}

/// Counts the lines up to the module `tests`, which comes last. Other test code counts as code.
fn lines_of_code(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let begins = |two: &[&str]| two[0].starts_with("#[cfg(") && two[1].ends_with("mod tests {");
    lines.windows(2).position(begins).unwrap_or(lines.len())
}

/// Reports markers of unfinished code. Markdown is exempt, because it may mention these words.
fn unfinished(file: &File) -> Vec<Finding> {
    find(file, !file.path.ends_with(".md"), |line| {
        let word = UNFINISHED.into_iter().find(|word| line.contains(word))?;
        Some(format!("unfinished code: `{word}`; complete it, or open an issue instead"))
    })
}

fn sleeping_tests(file: &File) -> Vec<Finding> {
    find(file, file.is_rust() && file.is_test(), |line| {
        let what = "test sleeps; use a manual clock, or wait for a condition";
        line.contains(concat!("sleep", "(")).then(|| what.to_owned())
    })
}

fn floats(file: &File) -> Vec<Finding> {
    // This file only formats times as fractions of a second, for JSON.
    let is_display = file.path == "crates/pacegate/src/serialize.rs";
    let exact = file.is_rust() && file.path.starts_with("crates/pacegate/src/") && !is_display;
    find(file, exact, |line| {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let float = words.find(|word| ["f32", "f64"].contains(word))?;
        Some(format!("`{float}` in code that decides; use integers, which are exact"))
    })
}

/// The modules that may contain unsafe code: the prefetch, and exports for JavaScript.
const UNSAFE_MODULES: [&str; 2] =
    ["crates/pacegate/src/store/memory/prefetch.rs", "docs/playground/src/abi.rs"];

/// The compiler denies unsafe code in the workspace, so only an attribute can permit it.
fn permitted_unsafe(file: &File) -> Vec<Finding> {
    let applies = file.is_rust() && !UNSAFE_MODULES.contains(&&*file.path);
    find(file, applies, |line| {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let is_named = words.any(|word| word == concat!("unsafe", "_code"));
        let is_denied = line.contains("forbid(") || line.contains("deny(");
        (is_named && !is_denied)
            .then(|| "unsafe code is permitted here; no other module may have any".to_owned())
    })
}

fn find(file: &File, applies: bool, rule: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    if !applies {
        return Vec::new();
    }
    let lines = file.text.lines().zip(1..);
    lines.filter_map(|(line, number)| Some(Finding::new(file, number, rule(line)?))).collect()
}

impl File {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_test(&self) -> bool {
        self.path.split('/').any(|part| part == "tests")
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{file, lines},
        *,
    };

    #[test]
    fn line_width_is_measured_in_characters() {
        let (fits, wide) = ("ä".repeat(120), "ä".repeat(121));
        let text = format!("{fits}\n{wide}\n");
        assert_eq!(lines(wide_lines(&file("a.rs", &text))), [2]);
        assert_eq!(wide_lines(&file("a.md", &text)), []);
    }

    #[test]
    fn only_code_counts_towards_the_file_length() {
        let (fits, long) = ("x\n".repeat(800), "x\n".repeat(801));
        let tested = format!("{fits}#[cfg(test)]\nmod tests {{\n{long}");
        assert_eq!(long_files(&file("a.rs", &tested)), []);
        let elsewhere = format!("#[cfg(test)]\nmod tests;\n{fits}");
        assert_eq!(lines(long_files(&file("a.rs", &elsewhere))), [802]);
        assert_eq!(lines(long_files(&file("a.rs", &long))), [801]);
        assert_eq!(long_files(&file("crates/a/tests/it/b.rs", &long)), []);
    }

    #[test]
    fn unfinished_code_is_reported() {
        for word in UNFINISHED {
            let text = format!("fine\n  {word}\n");
            let found = unfinished(&file("a.rs", &text));
            assert_eq!(lines(found), [2], "{word}");
            assert_eq!(unfinished(&file("a.md", &text)), []);
        }
    }

    #[test]
    fn tests_do_not_sleep() {
        let text = concat!("clock.sleep_until(x);\nthread::sleep", "(x);\n");
        assert_eq!(lines(sleeping_tests(&file("crates/a/tests/it/b.rs", text))), [2]);
        assert_eq!(sleeping_tests(&file("crates/a/src/b.rs", text)), []);
    }

    #[test]
    fn only_some_modules_permit_unsafe_code() {
        let name = concat!("unsafe", "_code");
        let text =
            format!("#![forbid({name})]\n#![deny({name})]\n#[allow({name})] // forbid\n{name},\n");
        assert_eq!(lines(permitted_unsafe(&file("crates/a/src/b.rs", &text))), [3, 4]);
        assert_eq!(permitted_unsafe(&file(UNSAFE_MODULES[0], &text)), []);
    }

    #[test]
    fn decisions_use_no_floats() {
        let text = "let a: u64 = 1;\nlet b: f64 = x;\nlet buf64 = 1;\n(x as f32)\n1f64_\n";
        assert_eq!(lines(floats(&file("crates/pacegate/src/a.rs", text))), [2, 4]);
        assert_eq!(floats(&file("crates/pacegate-server/src/a.rs", text)), []);
    }
}
