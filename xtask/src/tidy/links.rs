//! Checks that links between documents are valid.

use std::path::Path;

use super::{File, Finding};

/// Checks the links of a file. `exists` gets a path relative to the project's root.
pub(super) fn check(file: &File, exists: impl Fn(&Path) -> bool) -> Vec<Finding> {
    if !file.path.ends_with(".md") {
        return Vec::new();
    }
    let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    relative_links(&file.text)
        .filter(|(_, target)| !exists(&folder.join(target)))
        .map(|(line, target)| {
            let what = format!("broken link `{target}`; expected a file relative to this one");
            Finding::new(file, line, what)
        })
        .collect()
}

/// Returns line numbers and link targets, without fragments.
fn relative_links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    let prose = text.lines().zip(1..).filter(move |(line, _)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    prose
        .flat_map(|(line, number)| line_targets(line).map(move |target| (number, target)))
        .filter(|(_, target)| !target.contains("://") && !target.starts_with("mailto:"))
        .map(|(number, target)| (number, target.split('#').next().unwrap_or(target)))
        .filter(|(_, target)| !target.is_empty())
}

/// Returns the targets of `[text](target)` and `![text](target "title")`.
fn line_targets(line: &str) -> impl Iterator<Item = &str> {
    let outside_code = line.split('`').step_by(2);
    outside_code.flat_map(|prose| prose.split("](").skip(1)).filter_map(|rest| {
        let target = rest.split_once(')')?.0;
        target.split_whitespace().next()
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{file, lines},
        *,
    };

    #[test]
    fn targets_are_found_in_prose_only() {
        let text = "[a](b.md) and ![c](d.png \"e\") [`f`](g.md#h)\n\
                    `[x](x.md)` [web](https://a.b/c) [here](#part) [mail](mailto:a@b.c)\n\
                    ```\n[x](x.md)\n```\n[i](j/)\n";
        let found: Vec<_> = relative_links(text).collect();
        assert_eq!(found, [(1, "b.md"), (1, "d.png"), (1, "g.md"), (6, "j/")]);
    }

    #[test]
    fn targets_are_relative_to_their_document() {
        let text = "[a](../b.md)\n[c](d.md)\n";
        let exists = |path: &Path| path == Path::new("docs/../b.md");
        assert_eq!(lines(check(&file("docs/a.md", text), exists)), [2]);
        assert_eq!(check(&file("docs/a.rs", text), exists), []);
    }
}
