//! `cargo xtask site`: builds the documentation as a website, with search and the playground, in `target/site/html`.

mod links;
mod pages;

use std::{
    fs,
    io::{self, Write},
    path::Path,
    process::Command,
};

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    command::{cargo, root, show},
    portable, servers,
};

const WASM: &str = "wasm32-unknown-unknown";
const MAX_WASM_BYTES: usize = 500_000;

/// Builds the site, checks its links, and tests it in a browser.
pub(crate) fn run() -> anyhow::Result<()> {
    let mdbook = servers::for_site()?;
    let site = root().join("target/site");
    if site.exists() {
        fs::remove_dir_all(&site).with_context(|| format!("cannot remove {}", site.display()))?;
    }
    pages::write(&root().join("docs"), &site)?;
    let mut command = Command::new(mdbook);
    command.arg("build").arg(&site);
    let line = show(&command)?;
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    ensure!(status.success(), "`{line}` failed");
    let html = site.join("html");
    let page = html.join("playground/index.html");
    fs::create_dir_all(html.join("playground"))?;
    fs::write(&page, playground()?)?;
    let broken = links::broken(&html)?;
    for link in &broken {
        writeln!(io::stdout(), "{link}")?;
    }
    ensure!(broken.is_empty(), "site: {} broken links", broken.len());
    cargo(
        &["test", "-p", "pacegate-playground", "--test", "site", "--", "--include-ignored"],
        &[],
    )?;
    writeln!(io::stdout(), "site: {}", html.join("index.html").display())?;
    Ok(())
}

/// Compiles the engine to WebAssembly and returns the playground as one HTML file, which needs no server.
fn playground() -> anyhow::Result<String> {
    portable::install_target(WASM)?;
    let build = ["build", "-p", "pacegate-playground", "--profile", "playground", "--target", WASM];
    cargo(&build, &[])?;
    let module = root().join("target").join(WASM).join("playground/pacegate_playground.wasm");
    let module = fs::read(&module).with_context(|| format!("cannot read {}", module.display()))?;
    let bytes = module.len();
    ensure!(bytes <= MAX_WASM_BYTES, "the module has {bytes} bytes; expected {MAX_WASM_BYTES}");
    writeln!(io::stderr(), "playground: {bytes} bytes of WebAssembly")?;
    let sources = root().join("docs/playground");
    let mut page = read(&sources.join("playground.html"))?;
    for (place, text) in [
        ("/*style*/", read(&sources.join("playground.css"))?),
        ("/*charts*/", read(&root().join("crates/pacegate-server/assets/chart.js"))?),
        ("/*script*/", read(&sources.join("playground.js"))?),
        ("/*module*/", STANDARD.encode(module)),
    ] {
        page = page.replacen(place, &text, 1);
    }
    Ok(page)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
