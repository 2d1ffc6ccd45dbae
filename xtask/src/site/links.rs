//! Finds links between the pages of a built site that lead nowhere.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::Context;

/// A built page: its links and the names of its parts.
#[derive(Debug, Default)]
struct Page {
    links: Vec<String>,
    ids: HashSet<String>,
}

/// Returns a line for each broken link.
pub(super) fn broken(html: &Path) -> anyhow::Result<Vec<String>> {
    let mut pages = HashMap::new();
    read_pages(html, html, &mut pages)?;
    let mut broken = Vec::new();
    for (path, page) in &pages {
        let links = page.links.iter().filter(|link| !is_valid(html, path, link, &pages));
        broken.extend(links.map(|link| format!("{}: broken link `{link}`", path.display())));
    }
    broken.sort_unstable();
    broken.dedup();
    Ok(broken)
}

fn read_pages(
    html: &Path,
    folder: &Path,
    pages: &mut HashMap<PathBuf, Page>,
) -> anyhow::Result<()> {
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let path = entry?.path();
        let inside = path.strip_prefix(html)?.to_owned();
        // The error page has a base address, and the print page repeats all others.
        let is_copy = ["404.html", "print.html"].iter().any(|name| inside == Path::new(name));
        if path.is_dir() {
            read_pages(html, &path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") && !is_copy {
            pages.insert(inside, Page::parse(&super::read(&path)?));
        }
    }
    Ok(())
}

fn is_valid(html: &Path, page: &Path, link: &str, pages: &HashMap<PathBuf, Page>) -> bool {
    // Links with a scheme, such as `https:` or `data:`, are not checked.
    if link.split(['/', '?', '#']).next().is_some_and(|start| start.contains(':')) {
        return true;
    }
    let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.to_owned(),
        path => normalize(&page.parent().unwrap_or(Path::new("")).join(path)),
    };
    match pages.get(&target) {
        Some(target) => fragment.is_empty() || target.ids.contains(fragment),
        None => html.join(&target).exists(),
    }
}

fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

impl Page {
    fn parse(html: &str) -> Self {
        let body = without_scripts(html);
        let links = ["href", "src"].iter().flat_map(|name| attributes(&body, name));
        let ids = ["id", "name"].iter().flat_map(|name| attributes(&body, name));
        Self { links: links.collect(), ids: ids.collect() }
    }
}

fn without_scripts(html: &str) -> String {
    let mut parts = html.split("<script");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        // Keeps the attributes of the script.
        let (head, rest) = part.split_once('>').unwrap_or((part, ""));
        text + head + rest.split_once("</script>").map_or("", |(_, after)| after)
    })
}

fn attributes(html: &str, name: &str) -> Vec<String> {
    let start = format!(" {name}=\"");
    let quoted = html.split(&start).skip(1);
    quoted.filter_map(|rest| Some(rest.split_once('"')?.0.replace("&amp;", "&"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_need_a_file_and_a_part() {
        let page = Page::parse(
            "<a href=\"b.html#c\" id=\"d\">e</a><script src=\"f.js\">' href=\"g\"'</script>",
        );
        assert_eq!(page.links, ["b.html#c", "f.js"]);
        let pages = HashMap::from([(PathBuf::from("x/a.html"), page)]);
        let valid = |link: &str| is_valid(Path::new("/none"), Path::new("x/y.html"), link, &pages);
        let found = ["a.html", "../x/a.html#d", "a.html#c", "z.html", "https://a.b"].map(valid);
        assert_eq!(found, [true, true, false, false, true]);
    }
}
