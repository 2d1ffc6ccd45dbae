//! Checks the Helm chart: `helm lint`, and every example against the schemas of Kubernetes.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use crate::command::{root, show};

const CHART: &str = "deploy/helm/pacegate";

/// Programs that the check needs, with the Go modules that build them.
const HELM: (&str, &str) = ("helm", "helm.sh/helm/v3/cmd/helm@v3.22.0");
const VALIDATE: (&str, &str) = ("kubectl-validate", "sigs.k8s.io/kubectl-validate@v0.0.4");

/// The newest version whose schemas `kubectl-validate` contains.
const KUBERNETES: &str = "1.30";

/// Renders and validates every example. Builds missing programs with Go, which takes some minutes.
pub(crate) fn run() -> anyhow::Result<()> {
    let (helm, validate) = (find_or_build(HELM)?, find_or_build(VALIDATE)?);
    let folder = root().join("target/charts");
    fs::create_dir_all(&folder).context("cannot create target/charts")?;
    let mut examples = Vec::new();
    for example in fs::read_dir(root().join(CHART).join("examples"))? {
        examples.push(example?.path());
    }
    examples.sort();
    ensure!(!examples.is_empty(), "{CHART}/examples is empty");
    for example in &examples {
        run_in_root(Command::new(&helm).args(["lint", "--strict", CHART, "-f"]).arg(example))?;
        let render = Command::new(&helm)
            .args(["template", "pacegate", CHART, "--kube-version", KUBERNETES, "-f"])
            .arg(example)
            .current_dir(root())
            .output()
            .context("cannot start helm")?;
        let errors = String::from_utf8_lossy(&render.stderr);
        ensure!(render.status.success(), "cannot render {}: {errors}", example.display());
        let name = example.file_name().context("an example has no name")?;
        let manifest = folder.join(name);
        fs::write(&manifest, render.stdout)?;
        run_in_root(Command::new(&validate).arg(&manifest).args(["--version", KUBERNETES]))?;
    }
    writeln!(io::stdout(), "{} example values files are valid", examples.len())?;
    Ok(())
}

/// Builds helm if it is missing.
pub(crate) fn provide_helm() -> anyhow::Result<()> {
    find_or_build(HELM).map(drop)
}

/// Returns the path of a program in `PATH` or `target/charts/bin`, and builds it there if it is missing.
fn find_or_build((name, module): (&str, &str)) -> anyhow::Result<PathBuf> {
    let bin = root().join("target/charts/bin");
    let built = bin.join(name);
    if built.exists() {
        return Ok(built);
    }
    let is_in_path = Command::new(name).arg("--help").output().is_ok();
    if is_in_path {
        return Ok(PathBuf::from(name));
    }
    install(module, &bin)?;
    Ok(built)
}

fn install(module: &str, bin: &Path) -> anyhow::Result<()> {
    run_in_root(Command::new("go").args(["install", module]).env("GOBIN", bin))
}

fn run_in_root(command: &mut Command) -> anyhow::Result<()> {
    let line = show(command.current_dir(root()))?;
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    ensure!(status.success(), "`{line}` failed");
    Ok(())
}
