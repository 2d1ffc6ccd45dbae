//! Access to the guides, so that tests can run their examples.

use std::{fs, path::Path};

/// Returns the code blocks of one language in a page of `docs/guide`.
pub(crate) fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = text(page);
    let fence = format!("\n```{language}\n");
    let after = text.split(&fence).skip(1);
    let blocks: Vec<String> = after
        .map(|rest| rest.split_inclusive("\n```").next().unwrap().replace("\n```", "\n"))
        .collect();
    assert!(!blocks.is_empty(), "{page} has no {language} block");
    blocks
}

/// Returns a page of `docs/guide`.
pub(crate) fn text(page: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(page);
    fs::read_to_string(file).unwrap()
}

/// Replaces a part of a guide with a value of the test. Panics if the guide does not contain it.
pub(crate) fn instead(text: &str, theirs: &str, ours: &str) -> String {
    assert!(text.contains(theirs), "the guide no longer contains {theirs:?}:\n{text}");
    text.replace(theirs, ours)
}

/// A code block of a page.
#[derive(Debug)]
pub(crate) struct Block {
    /// Relative to the root of the repository.
    pub(crate) page: String,
    pub(crate) text: String,
}

/// Returns the blocks of all pages that are marked with `<!-- test: NAME -->`. Panics if there is none.
pub(crate) fn marked(test: &str) -> Vec<Block> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["docs", "docs/guide", "deploy", "crates/pacegate-cli"];
    let pages = folders.iter().flat_map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let pages = pages.map(|entry| entry.unwrap().path()).chain([root.join("README.md")]);
    let mut pages: Vec<_> =
        pages.filter(|path| path.extension().is_some_and(|it| it == "md")).collect();
    pages.sort();
    let mark = format!("<!-- test: {test} -->\n```");
    let mut found = Vec::new();
    for path in pages {
        let text = fs::read_to_string(&path).unwrap();
        let page = path.strip_prefix(&root).unwrap().display().to_string();
        for after in text.split(&mark).skip(1) {
            let (_, code) = after.split_once('\n').unwrap();
            let (code, _) = code.split_once("\n```").unwrap();
            found.push(Block { page: page.clone(), text: format!("{code}\n") });
        }
    }
    assert!(!found.is_empty(), "no block names {test}");
    found
}
