//! Draws `docs/images/`: runs the engine with synthetic traffic and draws its decisions. Run it with `cargo
//! run -p pacegate-docs`. A test checks that the images match the current engine.

mod picture;
mod plot;
mod svg;
mod traffic;

use std::{
    error::Error,
    fs,
    io::{self, Write},
    path::PathBuf,
};

fn main() -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(images())?;
    for (name, drawn) in picture::all()? {
        fs::write(images().join(name), drawn)?;
        writeln!(io::stdout(), "docs/images/{name}")?;
    }
    Ok(())
}

fn images() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../images")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_match_the_engine() {
        for (name, drawn) in picture::all().unwrap() {
            let there = fs::read_to_string(images().join(name)).unwrap_or_default();
            assert!(there == drawn, "docs/images/{name} is stale: `cargo run -p pacegate-docs`");
        }
    }
}
