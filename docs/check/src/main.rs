//! Draws `docs/images/` by driving the engine through a described traffic and noting what it decides.
//!
//! `cargo run --manifest-path docs/check/Cargo.toml` writes the pictures; with `--check` it writes nothing, and fails
//! if a picture is not what the engine of today would draw.

mod picture;
mod plot;
mod svg;
mod traffic;

use std::{error::Error, fs, path::Path, process::ExitCode};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let check = match &*arguments {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err("usage: tollgate-docs [--check]".into()),
    };
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images");
    let mut stale = 0;
    for (name, drawn) in picture::all()? {
        let path = images.join(name);
        if !check {
            fs::create_dir_all(&images)?;
            fs::write(&path, drawn)?;
            println!("docs/images/{name}");
        } else if fs::read_to_string(&path).ok().as_deref() != Some(&*drawn) {
            eprintln!("docs/images/{name} is not what the engine does now: run without --check");
            stale += 1;
        }
    }
    Ok(if stale == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
