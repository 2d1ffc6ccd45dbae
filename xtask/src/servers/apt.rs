//! Packages of Debian and its derivatives.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use super::{folder, run_command};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Installs a package without starting its service.
pub(super) fn install(package: &str) -> anyhow::Result<()> {
    let install = ["install", "-y", "--no-install-recommends", package];
    if apt_get(&install).is_ok() {
        return Ok(());
    }
    // The package lists may be missing, as in a new container, or outdated.
    apt_get(&["update"])?;
    apt_get(&install)
}

/// Installs Valkey if the distribution has it; otherwise unpacks it from Debian's backports.
pub(super) fn valkey() -> anyhow::Result<()> {
    if is_offered("valkey-server") {
        return install("valkey-server");
    }
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    if codename == Some("bookworm") {
        return unpack_backports("valkey", &["valkey-server", "valkey-tools"]);
    }
    apt_get(&["update"])?;
    ensure!(is_offered("valkey-server"), "this distribution has no package valkey-server");
    install("valkey-server")
}

/// Unpacks nginx, or installs it if the unpacked program does not run.
pub(super) fn nginx() -> anyhow::Result<()> {
    if unpack("nginx", &["nginx"], &[]).is_err() {
        apt_get(&["update"])?;
        unpack("nginx", &["nginx"], &[])?;
    }
    let root = folder()?.join("nginx");
    let runs = Command::new(root.join("usr/sbin/nginx")).arg("-v").output();
    if runs.is_ok_and(|ran| ran.status.success()) {
        return Ok(());
    }
    fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    install("nginx-light")
}

/// Unpacks Caddy, which needs no libraries.
pub(super) fn caddy() -> anyhow::Result<()> {
    if unpack("caddy", &["caddy"], &[]).is_err() {
        apt_get(&["update"])?;
        unpack("caddy", &["caddy"], &[])?;
    }
    Ok(())
}

/// Unpacks packages of bookworm-backports. The libraries they need come with redis-server.
fn unpack_backports(name: &str, packages: &[&str]) -> anyhow::Result<()> {
    let work = work(name)?;
    let no_folder = || format!("cannot write to {}", work.display());
    fs::create_dir_all(work.join("lists/partial")).with_context(no_folder)?;
    let keyring = Path::new(KEYRING).exists().then(|| format!("[signed-by={KEYRING}] "));
    let mirror = find_mirror()?;
    let source = format!("deb {}{mirror} bookworm-backports main\n", keyring.unwrap_or_default());
    fs::write(work.join("list"), source).with_context(no_folder)?;
    // With separate directories, so that the system's configuration, lists and cache stay unchanged.
    let at = |option: &str, path: &str| format!("-oDir::{option}={}", work.join(path).display());
    let own = [
        at("Etc::sourcelist", "list"),
        at("State::lists", "lists"),
        "-oDir::Etc::sourceparts=-".to_owned(),
        "-oDir::Cache::pkgcache=".to_owned(),
        "-oDir::Cache::srcpkgcache=".to_owned(),
    ];
    run_command(Command::new("apt-get").args(&own).arg("update").current_dir(&work))?;
    unpack(name, packages, &own)
}

/// Unpacks packages under `target/servers`, without installing them or changing the system.
fn unpack(name: &str, packages: &[&str], options: &[String]) -> anyhow::Result<()> {
    let work = work(name)?;
    let mut download = Command::new("apt-get");
    run_command(download.args(options).arg("download").args(packages).current_dir(&work))?;
    let root = folder()?.join(name);
    for file in fs::read_dir(&work).with_context(|| format!("cannot read {}", work.display()))? {
        let file = file?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            run_command(Command::new("dpkg").arg("-x").arg(file).arg(&root))?;
        }
    }
    Ok(())
}

/// Returns the directory for unpacked packages.
fn work(name: &str) -> anyhow::Result<PathBuf> {
    let work = folder()?.join(format!("{name}-packages"));
    fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    Ok(work)
}

/// Returns the mirror that this machine uses for bookworm.
fn find_mirror() -> anyhow::Result<String> {
    let listed = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten();
    let listed = listed.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let texts = listed.chain([PathBuf::from("/etc/apt/sources.list")]);
    texts
        .filter_map(|path| fs::read_to_string(path).ok())
        .find_map(|text| mirror(&text, "bookworm"))
        .context("no bookworm source in /etc/apt/sources.list and /etc/apt/sources.list.d")
}

/// Returns the address of a suite, from a source list in either format.
fn mirror(text: &str, suite: &str) -> Option<String> {
    let lines = || text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let one_line = lines().find_map(|line| {
        let rest = line.strip_prefix("deb ")?.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']')?.1,
            None => rest,
        };
        let mut words = rest.split_whitespace();
        let uri = words.next()?;
        (words.next()? == suite).then(|| uri.to_owned())
    });
    let lines: Vec<&str> = lines().collect();
    let stanza = |lines: &[&str]| {
        let field = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name));
        let is_it = field("Suites:")?.split_whitespace().any(|word| word == suite);
        Some(field("URIs:").filter(|_| is_it)?.split_whitespace().next()?.to_owned())
    };
    one_line.or_else(|| lines.split(|line| line.is_empty()).find_map(stanza))
}

fn is_offered(package: &str) -> bool {
    let shown = Command::new("apt-cache").args(["show", package]).output();
    shown.is_ok_and(|shown| shown.status.success() && !shown.stdout.is_empty())
}

/// Runs apt-get, as root or with sudo.
fn apt_get(words: &[&str]) -> anyhow::Result<()> {
    let apt = Command::new("apt-get").arg("--version").output();
    ensure!(apt.is_ok(), "apt-get not found");
    // RUNLEVEL keeps Debian's scripts from starting the service.
    let settings = ["RUNLEVEL=1", "DEBIAN_FRONTEND=noninteractive"];
    let mut command = Command::new(if is_root() { "env" } else { "sudo" });
    if !is_root() {
        command.arg("env");
    }
    run_command(command.args(settings).arg("apt-get").args(words))
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_found_in_both_list_formats() {
        let one_line = "# deb http://old bookworm main\n\
            deb-src http://source bookworm main\n\
            deb http://security bookworm-security main\n\
            deb [arch=amd64 signed-by=/k] http://mirror/debian bookworm main contrib\n";
        assert_eq!(mirror(one_line, "bookworm").as_deref(), Some("http://mirror/debian"));
        let stanzas = "Types: deb\nURIs: http://security\nSuites: bookworm-security\n\n\
            Types: deb\n# a note\nURIs: http://mirror/debian http://other\n\
            Suites: bookworm bookworm-updates\nComponents: main\n";
        assert_eq!(mirror(stanzas, "bookworm").as_deref(), Some("http://mirror/debian"));
        assert_eq!(mirror(stanzas, "trixie"), None);
        assert_eq!(mirror("", "bookworm"), None);
    }
}
