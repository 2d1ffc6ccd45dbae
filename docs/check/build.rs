//! Completes the examples of the documentation. Readers see every line of a code block, so the blocks contain
//! no boilerplate: a Rust block without a `main` is wrapped into one here.

use std::{
    env,
    error::Error,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Relative to the root of the repository.
const PAGES: [&str; 16] = [
    "README.md",
    "docs/algorithms.md",
    "docs/failure-modes.md",
    "docs/guide/actix.md",
    "docs/guide/axum.md",
    "docs/guide/budgets.md",
    "docs/guide/functions.md",
    "docs/guide/governor.md",
    "docs/guide/notifications.md",
    "docs/guide/outgoing.md",
    "docs/guide/plans.md",
    "docs/guide/redis.md",
    "docs/guide/rust.md",
    "docs/guide/store.md",
    "docs/guide/tonic.md",
    "docs/layouts.md",
];

/// Lines that rustdoc compiles but does not show.
const BEFORE: &str = "\
# #[tokio::main(flavor = \"current_thread\")]
# async fn main() -> Result<(), Box<dyn std::error::Error>> {
";
const AFTER: &str = "\
# Ok(())
# }
";

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    for page in PAGES {
        let path = root.join(page);
        writeln!(io::stdout(), "cargo::rerun-if-changed={}", path.display())?;
        let name = path.file_name().ok_or("page without a file name")?;
        fs::write(out.join(name), whole(&fs::read_to_string(&path)?))?;
    }
    Ok(())
}

fn whole(page: &str) -> String {
    let mut made = String::new();
    let mut rest = page;
    while let Some((before, block)) = rest.split_once("\n```rust") {
        let (head, block) = block.split_once('\n').unwrap_or((block, ""));
        let (code, after) = block.split_once("\n```\n").unwrap_or((block, ""));
        let code = format!("{code}\n");
        let code = if stands_alone(&code) { code } else { format!("{BEFORE}{code}{AFTER}") };
        made.push_str(&format!("{before}\n```rust{head}\n{code}```\n"));
        rest = after;
    }
    made + rest
}

/// Returns true if the code has a `main`, or hidden lines that provide one.
fn stands_alone(code: &str) -> bool {
    code.lines().any(|line| line.contains("fn main(") || line.starts_with("# "))
}
