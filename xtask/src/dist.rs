//! Builds a release archive: the program, its completions, manual pages and licences.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};

use crate::command::{cargo, root, show};

/// Shells and the names of their completion files.
const COMPLETIONS: [(&str, &str); 4] = [
    ("bash", "pacegate.bash"),
    ("zsh", "_pacegate"),
    ("fish", "pacegate.fish"),
    ("powershell", "_pacegate.ps1"),
];

/// Text files of an archive, relative to the project's root.
const TEXTS: [&str; 5] =
    ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "deploy/pacegate.yaml"];

/// Builds the program for a target and packs it into `target/dist`, next to a SHA-256 checksum.
pub(crate) fn run(target: Option<&str>) -> anyhow::Result<()> {
    let host = host()?;
    let target = target.unwrap_or(&host);
    cargo(
        &[
            "build",
            "--release",
            "--locked",
            "--package",
            "pacegate-cli",
            "--features",
            "otlp",
            "--target",
            target,
        ],
        &[],
    )?;
    let is_windows = target.contains("windows");
    let file = if is_windows { "pacegate.exe" } else { "pacegate" };
    let program = root().join("target").join(target).join("release").join(file);
    let name = format!("pacegate-{}-{target}", env!("CARGO_PKG_VERSION"));
    let folder = root().join("target/dist").join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    copy(&program, &folder)?;
    for text in TEXTS {
        copy(&root().join(text), &folder)?;
    }
    let runnable = if target == host { program } else { host_program()? };
    write_completions(&runnable, &folder)?;
    write_manual(&runnable, &folder)?;
    copy_for_packages(&folder)?;
    let archive = pack(&folder, is_windows)?;
    let sum = checksum(&archive)?;
    writeln!(io::stdout(), "{}\n{}", archive.display(), sum.display())?;
    Ok(())
}

/// Returns the target that this machine compiles for.
fn host() -> anyhow::Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot start `rustc`")?;
    let text = String::from_utf8(output.stdout).context("`rustc -vV` is not text")?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

/// Builds the program for this machine: a program for another one cannot print its completions here.
fn host_program() -> anyhow::Result<PathBuf> {
    cargo(
        &["build", "--release", "--locked", "--package", "pacegate-cli", "--features", "otlp"],
        &[],
    )?;
    Ok(root().join("target/release/pacegate"))
}

fn copy(file: &Path, folder: &Path) -> anyhow::Result<()> {
    let name = file.file_name().with_context(|| format!("{} has no name", file.display()))?;
    let copied = fs::copy(file, folder.join(name));
    copied.with_context(|| format!("cannot copy {} to {}", file.display(), folder.display()))?;
    Ok(())
}

fn write_completions(program: &Path, folder: &Path) -> anyhow::Result<()> {
    let folder = folder.join("completions");
    fs::create_dir(&folder)?;
    for (shell, name) in COMPLETIONS {
        fs::write(folder.join(name), output(program, &["completions", shell])?)?;
    }
    Ok(())
}

/// Writes one manual page for the program and one for each of its commands.
fn write_manual(program: &Path, folder: &Path) -> anyhow::Result<()> {
    let folder = folder.join("man");
    fs::create_dir(&folder)?;
    let folder = folder.to_str().context("the path of the project is not UTF-8")?;
    output(program, &["man", "--dir", folder])?;
    Ok(())
}

/// Copies the completions and manual pages to `target/dist/current`, where the Debian package finds them.
fn copy_for_packages(folder: &Path) -> anyhow::Result<()> {
    let current = folder.with_file_name("current");
    for part in ["completions", "man"] {
        let target = current.join(part);
        fs::create_dir_all(&target)
            .with_context(|| format!("cannot create {}", target.display()))?;
        for file in fs::read_dir(folder.join(part))? {
            copy(&file?.path(), &target)?;
        }
    }
    Ok(())
}

fn output(program: &Path, args: &[&str]) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new(program);
    let line = show(command.args(args))?;
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    ensure!(
        output.status.success(),
        "`{line}` failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// Packs a folder as `.tar.gz`, or as `.zip` for Windows.
fn pack(folder: &Path, is_windows: bool) -> anyhow::Result<PathBuf> {
    let parent = folder.parent().context("the archive has no folder")?;
    let name = folder.file_name().and_then(|name| name.to_str()).context("invalid archive name")?;
    let (file, program, options) = match is_windows {
        true => (format!("{name}.zip"), "zip", "-qr"),
        false => (format!("{name}.tar.gz"), "tar", "-czf"),
    };
    let mut command = Command::new(program);
    let line = show(command.args([options, &file, name]).current_dir(parent))?;
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    ensure!(status.success(), "`{line}` failed");
    Ok(parent.join(file))
}

/// Writes a checksum in the form that `sha256sum -c` reads.
fn checksum(archive: &Path) -> anyhow::Result<PathBuf> {
    let bytes = fs::read(archive).with_context(|| format!("cannot read {}", archive.display()))?;
    let name =
        archive.file_name().and_then(|name| name.to_str()).context("invalid archive name")?;
    let path = archive.with_file_name(format!("{name}.sha256"));
    fs::write(&path, format!("{}  {name}\n", hex(&Sha256::digest(&bytes))))?;
    Ok(path)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
