//! Copies the documentation for mdBook. Links to files that the site does not contain become links to the repository.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::Context;

const REPOSITORY: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// Files that the site contains.
const EXTENSIONS: [&str; 3] = ["md", "png", "svg"];

/// Copies `docs` to `site/src`, and the settings and the style of the site to `site`.
pub(super) fn write(docs: &Path, site: &Path) -> anyhow::Result<()> {
    let source = site.join("src");
    copy_folder(docs, docs, &source)?;
    for name in ["book.toml", "site.css"] {
        fs::copy(docs.join(name), site.join(name))
            .with_context(|| format!("cannot copy {name}"))?;
    }
    Ok(())
}

fn copy_folder(docs: &Path, folder: &Path, target: &Path) -> anyhow::Result<()> {
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let path = entry?.path();
        let inside = path.strip_prefix(docs)?;
        if path.is_dir() {
            copy_folder(docs, &path, target)?;
        } else if is_shown(inside) {
            let copy = target.join(inside);
            fs::create_dir_all(copy.parent().unwrap_or(target))?;
            // The table of contents names files, not pages.
            let is_contents = inside == Path::new("SUMMARY.md");
            match inside.extension().is_some_and(|extension| extension == "md") && !is_contents {
                true => fs::write(copy, rewrite_links(&super::read(&path)?, inside))?,
                false => fs::copy(&path, copy).map(drop)?,
            }
        }
    }
    Ok(())
}

fn is_shown(path: &Path) -> bool {
    path.extension().is_some_and(|own| EXTENSIONS.iter().any(|extension| own == *extension))
}

/// Rewrites the links of a page, whose path is relative to `docs`. Leaves code alone.
fn rewrite_links(text: &str, page: &Path) -> String {
    let mut fenced = false;
    let lines = text.split_inclusive('\n').map(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fenced || fence { line.to_owned() } else { rewrite_line(line, page) }
    });
    lines.collect()
}

fn rewrite_line(line: &str, page: &Path) -> String {
    let parts = line.split('`').enumerate().map(|(place, part)| match place % 2 {
        0 => rewrite_prose(part, page),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

fn rewrite_prose(prose: &str, page: &Path) -> String {
    let mut parts = prose.split("](");
    let mut rewritten = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find([')', ' ']).unwrap_or(part.len());
        let (target, rest) = part.split_at(end);
        rewritten.push_str("](");
        rewritten.push_str(&repository_link(target, page).unwrap_or_else(|| site_link(target)));
        rewritten.push_str(rest);
    }
    rewritten
}

/// Returns a link within the site: mdBook calls the page of a `README.md` index.
fn site_link(target: &str) -> String {
    match target.contains("://") {
        true => target.to_owned(),
        false => target.replace("README.md", "index.md"),
    }
}

/// Returns the address in the repository of a relative link to a file that the site does not contain.
fn repository_link(target: &str, page: &Path) -> Option<String> {
    let (path, fragment) = match target.find('#') {
        Some(at) => target.split_at(at),
        None => (target, ""),
    };
    if path.is_empty() || path.contains(':') {
        return None;
    }
    let mut found = PathBuf::from("docs");
    for part in page.parent().unwrap_or(Path::new("")).join(path).components() {
        match part {
            Component::ParentDir => drop(found.pop()),
            Component::Normal(part) => found.push(part),
            _ => {}
        }
    }
    let is_page = found.starts_with("docs") && is_shown(&found);
    (!is_page).then(|| format!("{REPOSITORY}{}{fragment}", found.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_site_lead_to_the_repository() {
        let text = "[a](../x.md#b), [r](../recipes/README.md#s), [`c`](../../README.md \"d\"), `[e](../f)`\n\
                    ```\n[g](../../h)\n```\n![i](j.png) [k](data/l.yaml) [m](https://n.o) [p](#q)\n";
        let expected = format!(
            "[a](../x.md#b), [r](../recipes/index.md#s), [`c`]({REPOSITORY}README.md \"d\"), `[e](../f)`\n\
             ```\n[g](../../h)\n```\n![i](j.png) [k]({REPOSITORY}docs/guide/data/l.yaml) \
             [m](https://n.o) [p](#q)\n"
        );
        assert_eq!(rewrite_links(text, Path::new("guide/page.md")), expected);
    }
}
