//! Draws `docs/images/` by driving the engine through a described traffic and noting what it decides:
//! `cargo run -p pacegate-docs`. A test sees to it that the pictures there are what the engine of today would draw.

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
    fn pictures_show_what_the_engine_does() {
        for (name, drawn) in picture::all().unwrap() {
            let there = fs::read_to_string(images().join(name)).unwrap_or_default();
            assert!(there == drawn, "docs/images/{name} is stale: `cargo run -p pacegate-docs`");
        }
    }
}
