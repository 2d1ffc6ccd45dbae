//! Rules about the existence of files.

use super::{File, Finding};

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = crates_without_readme(files);
    findings.extend(missing_changelog(files));
    findings.extend(pages_without_chapter(files));
    findings
}

/// Returns the pages of the documentation that the table of contents of the site lacks.
fn pages_without_chapter(files: &[File]) -> Vec<Finding> {
    let summary = files.iter().find(|file| file.path == SUMMARY);
    let chapters = summary.map_or("", |file| &file.text);
    let pages = files.iter().filter(|file| file.path != SUMMARY && file.path.ends_with(".md"));
    let pages = pages.filter_map(|file| Some((file, file.path.strip_prefix("docs/")?)));
    pages
        .filter(|(_, page)| !chapters.contains(&format!("]({page})")))
        .map(|(file, page)| Finding::new(file, 1, format!("`{page}` is missing in {SUMMARY}")))
        .collect()
}

const SUMMARY: &str = "docs/SUMMARY.md";

fn crates_without_readme(files: &[File]) -> Vec<Finding> {
    let manifests = files.iter().filter_map(|file| {
        let name = file.path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
        (!name.contains('/')).then_some((file, name))
    });
    manifests
        .filter(|(_, name)| {
            !files.iter().any(|file| file.path == format!("crates/{name}/README.md"))
        })
        .map(|(file, _)| {
            Finding::new(file, 1, "README.md is missing; describe who should use the crate")
        })
        .collect()
}

fn missing_changelog(files: &[File]) -> Option<Finding> {
    let path = "CHANGELOG.md";
    let changelog = files.iter().find(|file| file.path == path);
    let headed =
        changelog.is_some_and(|file| file.text.lines().any(|line| line == "## Unreleased"));
    let what =
        "heading `## Unreleased` is missing; add it, with a line for each user-visible change";
    (!headed).then(|| Finding { path: path.to_owned(), line: 1, what: what.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::{super::file, *};

    #[test]
    fn each_crate_has_a_readme() {
        let files = ["crates/a/Cargo.toml", "crates/a/README.md", "crates/b/Cargo.toml"];
        let found = crates_without_readme(&files.map(|path| file(path, "")));
        let paths: Vec<_> = found.iter().map(|finding| &*finding.path).collect();
        assert_eq!(paths, ["crates/b/Cargo.toml"]);
    }

    #[test]
    fn each_page_is_a_chapter() {
        let pages =
            ["docs/a.md", "docs/b/c.md", "docs/b/d.md", "README.md"].map(|path| file(path, ""));
        let summary = file(SUMMARY, "- [A](a.md)\n  - [C](b/c.md)\n");
        let found = pages_without_chapter(&pages.into_iter().chain([summary]).collect::<Vec<_>>());
        assert_eq!(found.iter().map(|finding| &*finding.path).collect::<Vec<_>>(), ["docs/b/d.md"]);
    }

    #[test]
    fn the_changelog_has_an_unreleased_section() {
        for (text, found) in [("# Changes\n\n## Unreleased\n", false), ("## 0.1.0\n", true)] {
            assert_eq!(missing_changelog(&[file("CHANGELOG.md", text)]).is_some(), found);
        }
        assert!(missing_changelog(&[]).is_some());
    }
}
