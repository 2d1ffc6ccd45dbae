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
