//! `cargo xtask recipes`: runs the tests of the clients, their READMEs, and every page of `docs/recipes` and
//! `docs/migrate`.

mod page;
mod tools;

use std::{
    fs::{self, File},
    io::{self, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::Duration,
};

use anyhow::{Context, bail, ensure};

use self::{
    page::{Block, Step, blocks, matches},
    tools::Tools,
};
use crate::command::{cargo, root, timed};

const PAGES: [&str; 2] = ["docs/recipes", "docs/migrate"];
const CLIENTS: [&str; 4] = ["typescript", "python", "go", "java"];

/// Pages that `cargo xtask test` runs.
const SAMPLE: [&str; 2] = ["recipes/llm-tokens", "migrate/limitador"];

/// Tests of a client that need no packages. `cargo xtask test` runs them too.
const PYTHON_VECTORS: &str = "python vectors";

/// Languages, the extensions of their files in the pages, and the programs that they need.
const LANGUAGES: [(&str, &str, &str); 4] = [
    ("typescript", ".mjs", "npm"),
    ("python", ".py", "python3"),
    ("go", ".go", "go"),
    ("java", ".java", "mvn"),
];

/// Proxies, which listen on another port than applications.
const PROXIES: [&str; 5] = ["nginx", "caddy", "haproxy", "envoy", "traefik"];

/// Ports in the pages, which are replaced with free ones: HTTP, gRPC and RESP of the server, an application, and a
/// proxy in front of it.
const PORTS: [&str; 5] = ["8080", "8081", "6380", "3000", "8000"];
const HTTP: usize = 0;
const GRPC: usize = 1;
const RESP: usize = 2;
const APPLICATION: usize = 3;
const PROXY: usize = 4;

/// Maximum time for a command of a page, and for a program to listen.
const COMMAND_SECONDS: &str = "900";
const LISTEN_TRIES: u32 = 1200;

/// Runs the clients and pages whose names contain `only`, with a given or a newly built server.
pub(crate) fn run(only: Option<&str>, program: Option<&str>) -> anyhow::Result<()> {
    let program = match program {
        Some(program) => PathBuf::from(program),
        None => {
            cargo(&["build", "-p", "pacegate-cli"], &[])?;
            built_program()
        }
    };
    let is_chosen = |name: &str| only.is_none_or(|only| name.contains(only));
    let clients: Vec<&str> =
        CLIENTS.into_iter().filter(|name| is_chosen(&format!("client {name}"))).collect();
    let mut pages = pages()?;
    pages.retain(|page| is_chosen(&page.name));
    ensure!(!clients.is_empty() || !pages.is_empty(), "no recipe `{}`", only.unwrap_or_default());
    run_chosen(&program, &clients, &pages)
}

/// Runs some pages with the server that the tests have built. Skips those whose language is not installed.
pub(crate) fn run_sample() -> anyhow::Result<()> {
    let mut pages = pages()?;
    pages.retain(|page| SAMPLE.contains(&&*page.name));
    ensure!(pages.len() == SAMPLE.len(), "expected the pages {SAMPLE:?}");
    let mut out = io::stdout().lock();
    for page in &pages {
        if let Some(program) = page.missing_program() {
            writeln!(out, "skipped {}: {program} is not installed", page.name)?;
        }
    }
    drop(out);
    pages.retain(|page| page.missing_program().is_none());
    let has_python = !is_missing("python3");
    run_chosen(&built_program(), if has_python { &[PYTHON_VECTORS] } else { &[] }, &pages)
}

fn built_program() -> PathBuf {
    root().join("target/debug/pacegate")
}

fn run_chosen(program: &Path, clients: &[&str], pages: &[Source]) -> anyhow::Result<()> {
    let tools = Tools::prepare(program)?;
    let mut rows = Vec::new();
    if PROXIES.iter().any(|name| pages.iter().any(|page| page.starts(name))) {
        rows.push(measured("install proxies", || tools.install_proxies()));
    }
    if pages.iter().any(|page| page.starts("helm")) {
        rows.push(measured("install helm", Tools::install_helm));
    }
    for (language, ..) in LANGUAGES {
        let needs_it = |page: &Source| page.languages().any(|(name, ..)| *name == language);
        if clients.contains(&language) || pages.iter().any(needs_it) {
            rows.push(measured(&format!("install {language}"), || {
                tools.install_language(language)
            }));
        }
    }
    for client in clients {
        rows.push(measured(&format!("client {client}"), || test_client(&tools, client)));
    }
    for Source { name, text } in pages {
        rows.push(measured(name, || run_page(&tools, name, text)));
    }
    print(&rows)
}

/// A step of the table.
struct Row {
    name: String,
    result: anyhow::Result<()>,
    took: Duration,
}

fn measured(name: &str, work: impl FnOnce() -> anyhow::Result<()>) -> Row {
    let (result, took) = timed(work);
    Row { name: name.to_owned(), result, took }
}

fn print(rows: &[Row]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "\nseconds  result  recipe")?;
    for Row { name, result, took } in rows {
        let word = if result.is_ok() { "ok" } else { "FAILED" };
        writeln!(out, "{:7.1}  {word:6}  {name}", took.as_secs_f32())?;
    }
    for row in rows {
        if let Err(error) = &row.result {
            writeln!(out, "\n{}: {error:#}", row.name)?;
        }
    }
    let failed = rows.iter().filter(|row| row.result.is_err()).count();
    writeln!(out, "\n{} passed, {failed} failed", rows.len() - failed)?;
    ensure!(failed == 0, "{failed} recipes failed");
    Ok(())
}

/// A page with something to run.
struct Source {
    /// Such as `recipes/per-ip`.
    name: String,
    text: String,
}

impl Source {
    /// Returns the languages of its files.
    fn languages(
        &self,
    ) -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> {
        LANGUAGES.iter().filter(|(_, extension, _)| self.text.contains(&format!("{extension} -->")))
    }

    /// Returns a program that one of its languages needs and that is not installed.
    fn missing_program(&self) -> Option<&'static str> {
        self.languages().map(|(.., program)| *program).find(|program| is_missing(program))
    }

    /// Returns true if it runs this program.
    fn starts(&self, name: &str) -> bool {
        self.text.lines().any(|line| line.starts_with(&format!("$ {name} ")))
    }
}

fn is_missing(program: &str) -> bool {
    Command::new(program).arg("--help").output().is_err()
}

/// Returns the pages that have something to run.
fn pages() -> anyhow::Result<Vec<Source>> {
    let mut found = Vec::new();
    for folder in PAGES {
        let entries =
            fs::read_dir(root().join(folder)).with_context(|| format!("cannot read {folder}"))?;
        for entry in entries {
            let path = entry?.path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let name = format!("{}/{stem}", folder.trim_start_matches("docs/"));
            found.push(Source { name, text: fs::read_to_string(&path)? });
        }
    }
    for client in CLIENTS {
        let path = root().join("clients").join(client).join("README.md");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        found.push(Source { name: format!("readme/{client}"), text });
    }
    found.retain(|page| page.text.contains("<!-- recipe: "));
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn test_client(tools: &Tools, client: &str) -> anyhow::Result<()> {
    let folder = tools.clients.join(client.split(' ').next().unwrap_or(client));
    let config = tools.folder.join("clients.yaml");
    fs::write(&config, "policies: []\n")?;
    let ports = free_ports()?;
    let _server = server(tools, &config, &ports, &tools.folder.join("clients.log"))?;
    let url = format!("http://127.0.0.1:{}", ports[HTTP]);
    let go = ["test", "-count=1", "-v", "./..."];
    let commands = match client {
        "typescript" => vec![(folder, command("npm", &["test", "--silent"]))],
        "python" => {
            vec![(folder, command("python3", &["-m", "unittest", "discover", "-s", "tests"]))]
        }
        PYTHON_VECTORS => {
            vec![(folder, command("python3", &["-m", "unittest", "tests/test_vectors.py"]))]
        }
        "go" => {
            let gin = folder.join("ginlimit");
            vec![(folder, command("go", &go)), (gin, command("go", &go))]
        }
        _ => vec![(folder, command("mvn", &["-q", "-B", "test"]))],
    };
    for (folder, mut command) in commands {
        tools.run(command.env("PACEGATE_URL", &url).current_dir(folder))?;
    }
    Ok(())
}

fn command(program: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words);
    command
}

/// Runs a page in a new folder, under `node` so that programs find its packages.
fn run_page(tools: &Tools, name: &str, text: &str) -> anyhow::Result<()> {
    let folder = tools.folder.join("node/pages").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    symlink(root().join("deploy"), folder.join("deploy"))?;
    let checkout = folder.with_file_name("pacegate");
    if checkout.symlink_metadata().is_err() {
        symlink(&tools.checkout, checkout)?;
    }
    let mut page = Page { tools, folder, ports: free_ports()?, server: None, program: None };
    for block in blocks(text)? {
        match block {
            Block::File { name, text } => {
                let file = page.folder.join(&name);
                fs::create_dir_all(file.parent().unwrap_or(&page.folder))?;
                fs::write(file, page.with_ports(&text))?;
                match &*name {
                    "pacegate.yaml" => page.restart()?,
                    "main.go" => tools.write_go_module(&page.folder)?,
                    _ => {}
                }
            }
            Block::Commands(steps) => {
                for step in steps {
                    page.run(&step)?;
                }
            }
        }
    }
    Ok(())
}

/// A page that is being run.
struct Page<'a> {
    tools: &'a Tools,
    folder: PathBuf,
    ports: [u16; 5],
    server: Option<Running>,
    /// The program that was started last with `&`.
    program: Option<Running>,
}

impl Page<'_> {
    fn with_ports(&self, text: &str) -> String {
        PORTS
            .iter()
            .zip(self.ports)
            .fold(text.to_owned(), |text, (port, free)| text.replace(port, &free.to_string()))
    }

    /// Starts the server with new counters.
    fn restart(&mut self) -> anyhow::Result<()> {
        self.server = None;
        let config = self.folder.join("pacegate.yaml");
        self.server =
            Some(server(self.tools, &config, &self.ports, &self.folder.join("server.log"))?);
        Ok(())
    }

    fn run(&mut self, step: &Step) -> anyhow::Result<()> {
        let text = self.with_ports(&step.command);
        if let Some(program) = text.strip_suffix(" &") {
            return self.start(program);
        }
        let mut command = command("timeout", &[COMMAND_SECONDS, "sh", "-c", &text]);
        let ran = self.tools.environment(&mut command).current_dir(&self.folder).output();
        let ran = ran.with_context(|| format!("cannot start `{text}`"))?;
        let output = String::from_utf8_lossy(&ran.stdout);
        let lines: Vec<&str> = output.lines().collect();
        let is_expected = lines.len() == step.output.len()
            && step
                .output
                .iter()
                .zip(&lines)
                .all(|(expected, line)| matches(&self.with_ports(expected), line));
        let errors = String::from_utf8_lossy(&ran.stderr);
        ensure!(
            is_expected,
            "`{text}` printed\n{output}{errors}\nexpected\n{}",
            step.output.join("\n")
        );
        Ok(())
    }

    /// Starts a program instead of the previous one, and the server again, so that the counters are new.
    fn start(&mut self, program: &str) -> anyhow::Result<()> {
        self.program = None;
        if self.server.is_some() {
            self.restart()?;
        }
        let is_proxy = PROXIES.iter().any(|name| program.starts_with(name));
        let port = self.ports[if is_proxy { PROXY } else { APPLICATION }];
        let mut command = command("sh", &["-c", &format!("exec {program}")]);
        self.tools.environment(&mut command).current_dir(&self.folder);
        self.program = Some(Running::start(&mut command, port, &self.folder.join("program.log"))?);
        Ok(())
    }
}

fn server(tools: &Tools, config: &Path, ports: &[u16; 5], log: &Path) -> anyhow::Result<Running> {
    let mut command = Command::new(tools.folder.join("bin/pacegate"));
    command.args(["serve", "--config"]).arg(config);
    for (option, port) in
        [("--http", ports[HTTP]), ("--grpc", ports[GRPC]), ("--resp", ports[RESP])]
    {
        command.arg(option).arg(format!("127.0.0.1:{port}"));
    }
    Running::start(&mut command, ports[HTTP], log)
}

/// A child process that is stopped at the end.
struct Running(Child);

impl Running {
    /// Starts a program and waits until it listens.
    fn start(command: &mut Command, port: u16, log: &Path) -> anyhow::Result<Self> {
        let output =
            File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command.stdout(output.try_clone()?).stderr(output).spawn();
        let mut running = Self(child.with_context(|| format!("cannot start {command:?}"))?);
        for _ in 0..LISTEN_TRIES {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(running);
            }
            if let Some(status) = running.0.try_wait()? {
                bail!("{command:?} ended with {status}:\n{}", fs::read_to_string(log)?);
            }
            pause();
        }
        bail!("{command:?} does not listen on port {port}:\n{}", fs::read_to_string(log)?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Not `Child::kill`, which would leave the workers of nginx running. The process may have ended already.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "other programs do not report when they listen")]
fn pause() {
    thread::sleep(Duration::from_millis(50));
}

/// Returns ports that are free now. None contains a port of the pages, which would be replaced again.
fn free_ports() -> anyhow::Result<[u16; 5]> {
    loop {
        let ports = any_free_ports()?;
        let contains_other = |port: u16| PORTS.iter().any(|other| port.to_string().contains(other));
        if !ports.into_iter().any(contains_other) {
            return Ok(ports);
        }
    }
}

fn any_free_ports() -> anyhow::Result<[u16; 5]> {
    let listeners: Vec<TcpListener> =
        PORTS.iter().map(|_| TcpListener::bind(("127.0.0.1", 0))).collect::<Result<_, _>>()?;
    let mut ports = [0; 5];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
