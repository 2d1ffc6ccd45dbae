use std::{env, ffi::OsString, path::PathBuf, process::Command};

use anyhow::{Context, ensure};

use super::say;
use crate::command::root;

/// A program and its possible locations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) file: &'static str,
    /// Directory under `target/servers`.
    pub(super) folder: &'static str,
    /// The environment variable that overrides the program.
    pub(super) variable: Option<&'static str>,
    /// The argument that prints the version.
    pub(super) version: &'static str,
}

impl Program {
    /// Finds the program in the same way as `pacegate_testkit::servers`: from the variable, from
    /// `target/servers`, or from `PATH`.
    pub(super) fn find(self) -> Option<PathBuf> {
        if let Some(binary) = self.variable.and_then(named) {
            return Some(binary.into());
        }
        let own = root().join("target/servers").join(self.folder);
        let path: OsString = named("PATH").unwrap_or_default();
        std::iter::once(own)
            .chain(env::split_paths(&path))
            .map(|folder| folder.join(self.file))
            .find(|file| file.is_file())
    }

    /// Returns true if the environment variable is set.
    pub(super) fn is_named(self) -> bool {
        self.variable.and_then(named).is_some()
    }

    /// Runs it, and prints its name, version and path.
    pub(super) fn tell(self) -> anyhow::Result<()> {
        let Self { name, file, .. } = self;
        let binary = self.find().with_context(|| {
            format!("{file} not found after its installation\nhint: {}", self.hint())
        })?;
        let said = Command::new(&binary).arg(self.version).output();
        let said = said.with_context(|| format!("cannot run {}", binary.display()))?;
        let said = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
        // Some programs exit with an error code when they print their version.
        let number = version(&said);
        ensure!(number.is_some(), "{} does not run: {}", binary.display(), said.trim());
        say(&format!("{name} {}: {}", number.unwrap_or_default(), binary.display()))?;
        Ok(())
    }

    pub(super) fn hint(self) -> String {
        let Self { file, variable, .. } = self;
        let named = variable.map(|name| format!(", or set {name} to the path of {file}"));
        format!("install it{}", named.unwrap_or_default())
    }
}

fn named(variable: &str) -> Option<OsString> {
    env::var_os(variable).filter(|value| !value.is_empty())
}

/// Returns the first word that looks like a version.
fn version(said: &str) -> Option<&str> {
    said.split([' ', '\n', '/', '=', ','])
        .map(|word| word.strip_prefix('v').unwrap_or(word))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_the_output_of_programs() {
        for (said, number) in [
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "7.0.15"),
            ("nginx version: nginx/1.22.1\n", "1.22.1"),
            ("\nenvoy  version: 0a1b2c/1.40.0/Clean/RELEASE/BoringSSL\n", "1.40.0"),
            ("Python 3.11.7\n", "3.11.7"),
            ("mdbook v0.5.4\n", "0.5.4"),
            ("wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer", "4.1.0-3+b2"),
        ] {
            assert_eq!(version(said), Some(number));
        }
        let broken = "nginx: error while loading shared libraries: libpcre2-8.so.0: cannot open";
        assert_eq!(version(broken), None);
    }
}
