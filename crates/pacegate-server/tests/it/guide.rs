//! What the guides show, so that it is tried as it stands there.

use std::{fs, path::Path};

/// The blocks of code of one language in a page of `docs/guide`.
pub(crate) fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = text(page);
    let fence = format!("\n```{language}\n");
    let after = text.split(&fence).skip(1);
    let blocks: Vec<String> = after
        .map(|rest| rest.split_inclusive("\n```").next().unwrap().replace("\n```", "\n"))
        .collect();
    assert!(!blocks.is_empty(), "{page} has nothing in {language}");
    blocks
}

/// All of a page of `docs/guide`.
pub(crate) fn text(page: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(page);
    fs::read_to_string(file).unwrap()
}

/// Puts something of the test's own in the place of what a guide says, which must be there.
pub(crate) fn instead(text: &str, theirs: &str, ours: &str) -> String {
    assert!(text.contains(theirs), "the guide does not say {theirs:?} any more:\n{text}");
    text.replace(theirs, ours)
}
