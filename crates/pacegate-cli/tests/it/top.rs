//! Tests `pacegate top` on a terminal and with a pipe.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use pacegate_testkit::servers::eventually;
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Action, LocalModes, Winsize, tcflow, tcgetattr, tcsetwinsize},
};
use serde_json::Value;

use crate::{
    clients::{Folder, Http},
    service::Service,
};

const WITHIN: Duration = Duration::from_secs(20);

const POLICIES: &str = "policies: [{ name: per-user, per: [user], limit: 2/hour }]\n";
const ALICE: &str = r#"{"attributes":{"user":"al\u001b[2Jice"}}"#;
/// A key with control characters that move the cursor on many terminals.
const CONTROL: &str = "{\"attributes\":{\"user\":\"c\u{9b}2J\u{7f}\"}}";

/// The program in a pseudo-terminal.
struct Terminal {
    child: Child,
    ours: File,
    screen: Arc<Mutex<Screen>>,
}

/// A minimal terminal emulator.
struct Screen {
    cells: Vec<Vec<char>>,
    at: (usize, usize),
    /// An incomplete escape sequence.
    rest: Vec<u8>,
    /// All output so far.
    all: String,
}

impl Screen {
    fn new(width: usize, height: usize) -> Self {
        let cells = vec![vec![' '; width]; height];
        Self { cells, at: (0, 0), rest: Vec::new(), all: String::new() }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.rest) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let text = String::from_utf8(self.rest.drain(..whole).collect()).unwrap();
        self.all.push_str(&text);
        let mut rest = text.chars();
        while let Some(next) = rest.next() {
            if next != '\u{1b}' {
                self.put(next);
                continue;
            }
            let mut sequence = String::new();
            // A bracket and everything up to the final letter.
            for next in rest.by_ref().skip(1) {
                sequence.push(next);
                if next.is_ascii_alphabetic() {
                    break;
                }
            }
            self.obey(&sequence);
        }
    }

    fn put(&mut self, character: char) {
        let (row, column) = self.at;
        if let Some(cell) = self.cells.get_mut(row).and_then(|row| row.get_mut(column)) {
            *cell = character;
        }
        self.at.1 += 1;
    }

    fn obey(&mut self, sequence: &str) {
        if let Some(place) = sequence.strip_suffix('H') {
            let mut numbers = place.split(';').map(|number| number.parse().unwrap_or(1));
            let mut next = || numbers.next().unwrap_or(1_usize).saturating_sub(1);
            self.at = (next(), next());
        } else if sequence.ends_with('J') {
            self.cells.iter_mut().for_each(|row| row.fill(' '));
        }
    }

    fn text(&self) -> String {
        let line = |row: &Vec<char>| row.iter().collect::<String>().trim_end().to_owned();
        self.cells.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl Terminal {
    fn start(width: u16, height: u16, args: &[&str]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = || -> Stdio {
            File::options().read(true).write(true).open(&name).map(OwnedFd::from).unwrap().into()
        };
        let mut command = Command::new("setsid");
        command.args(["-c", env!("CARGO_BIN_EXE_pacegate"), "top"]).args(args);
        command.stdin(theirs()).stdout(theirs()).stderr(theirs()).env("TERM", "xterm-256color");
        // Set the size before the program starts.
        set_size(&ours, width, height);
        let screen = Arc::new(Mutex::new(Screen::new(width.into(), height.into())));
        let terminal = Self { child: command.spawn().unwrap(), ours: File::from(ours), screen };
        let (mut reader, screen) = (terminal.ours.try_clone().unwrap(), terminal.screen.clone());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails after the program has ended.
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                screen.lock().unwrap().write(&bytes[..read]);
            }
        });
        terminal
    }

    fn resize(&mut self, width: u16, height: u16) {
        *self.screen.lock().unwrap() = Screen::new(width.into(), height.into());
        set_size(&self.ours, width, height);
    }

    fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().text()
    }

    fn until(&self, text: &str) {
        let what = format!("{text:?} is shown");
        eventually(WITHIN, &what, || self.text().contains(text));
    }

    /// Waits for its end. Returns true if it succeeded, and the output since the last resize.
    fn wait(mut self) -> (bool, String) {
        let status = self.child.wait().unwrap();
        let leaves = "\u{1b}[?1049l";
        eventually(WITHIN, "the screen is restored", || {
            self.screen.lock().unwrap().all.contains(leaves)
        });
        (status.success(), self.screen.lock().unwrap().all.clone())
    }
}

/// Returns true if a terminal is in cooked mode.
fn is_cooked(terminal: impl std::os::fd::AsFd) -> bool {
    tcgetattr(terminal).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON)
}

fn set_size(terminal: impl std::os::fd::AsFd, width: u16, height: u16) {
    let size = Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

fn start(folder: &Folder, http: &str) -> Service {
    let config = folder.config();
    Service::start(&["--config", &config, "--http", http, "--grpc", "off", "--resp", "off"])
}

#[test]
fn the_view_survives_a_restart_of_the_server_and_resizes() {
    let folder = Folder::with_config(POLICIES);
    let service = start(&folder, "127.0.0.1:0");
    let address = service.address("http");
    let url = format!("http://{address}");
    for status in [200, 200, 429] {
        assert_eq!(Http::connect(address).unwrap().check(None, ALICE).unwrap().status, status);
    }
    let mut top = Terminal::start(100, 20, &[&url, "--interval", "100ms"]);
    top.until("per-user");
    top.until(r"     2       1 al\u{1b}[2Jice");
    top.until("2 Keys by traffic");
    top.resize(40, 10);
    top.until("│per-user");
    assert!(!top.text().contains("Keys by traffic"), "{}", top.text());
    top.press("2");
    top.until("2 Keys by traffic");
    drop(service);
    top.until("unreachable for");
    // A busy machine may not show each second.
    eventually(WITHIN, "the time goes on", || {
        let text = top.text();
        text.contains(" s, retrying") && !text.contains("unreachable for 0 s")
    });
    let service = start(&folder, &address.to_string());
    top.resize(100, 20);
    // The new server has no data of the previous one.
    eventually(WITHIN, "the new server is shown", || {
        let text = top.text();
        text.contains("3 Keys by denials") && !text.contains("reachable") && !text.contains("2Jice")
    });
    assert_eq!(Http::connect(address).unwrap().check(None, ALICE).unwrap().status, 200);
    top.until(r"     1       0 al\u{1b}[2Jice");
    top.press("q");
    assert!(top.wait().0);
    drop(service);
}

#[test]
fn the_terminal_is_restored_after_a_signal() {
    for signal in ["TERM", "HUP", "INT"] {
        let top = Terminal::start(60, 12, &["http://127.0.0.1:1"]);
        top.until("unreachable for");
        assert!(!is_cooked(&top.ours), "raw mode, without echo");
        let id = top.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status();
        assert!(sent.unwrap().success());
        let ours = top.ours.try_clone().unwrap();
        let (is_good, all) = top.wait();
        assert!(is_cooked(&ours), "{signal}: cooked mode, with echo");
        assert!(is_good && all.contains("\u{1b}[?1049h"), "{signal}: {all:?}");
        assert!(all.contains("\u{1b}[?25h"), "the cursor is shown again: {all:?}");
    }
}

#[test]
fn a_blocked_terminal_does_not_prevent_the_exit() {
    let mut top = Terminal::start(60, 12, &["http://127.0.0.1:1"]);
    top.until("unreachable for");
    let name = ptsname(&top.ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = File::options().read(true).write(true).open(name).unwrap();
    tcflow(&theirs, Action::OOff).unwrap();
    let sent = Command::new("kill").arg(top.child.id().to_string()).status();
    assert!(sent.unwrap().success());
    eventually(WITHIN, "it ends", || top.child.try_wait().unwrap().is_some());
    assert!(is_cooked(&theirs), "cooked mode, with echo");
}

#[test]
fn a_pipe_gets_text_or_json() {
    let folder = Folder::with_config(POLICIES);
    let service = start(&folder, "127.0.0.1:0");
    let address = service.address("http");
    assert_eq!(Http::connect(address).unwrap().check(None, ALICE).unwrap().status, 200);
    let url = format!("http://{address}");
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pacegate"));
        command.arg("top").args(args).output().unwrap()
    };
    for args in [&[&*url][..], &[&url, "--once"]] {
        let output = run(args);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success());
        assert!(text.starts_with(&format!("Pacegate 0.1.0 at {url}\nup ")), "{text}");
        assert!(
            text.contains(
                "\nBUSIEST   ALLOWED  DENIED  SHADOW  KEY\nper-user        1       0       0  al\\u{1b}[2Jice\n"
            ),
            "{text}"
        );
    }
    assert_eq!(Http::connect(address).unwrap().check(None, CONTROL).unwrap().status, 200);
    let output = run(&[&url, "--once", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.trim_end_matches('\n').find(char::is_control), None, "{text:?}");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["policies"][0]["name"], "per-user");
    let traffic = json["busiest"].as_array().unwrap();
    for key in ["al\u{1b}[2Jice", "c\u{9b}2J\u{7f}"] {
        assert!(traffic.iter().any(|top| top["key"] == key), "{traffic:?}");
    }
    let gone = run(&["http://127.0.0.1:1"]);
    let error = String::from_utf8(gone.stderr).unwrap();
    assert_eq!(gone.status.code(), Some(2));
    assert!(error.contains("cannot reach http://127.0.0.1:1"), "{error}");
}

/// `top` has its own types, because the server may be of another version.
#[test]
fn every_field_that_top_reads_is_in_the_openapi_document() {
    let folder = Folder::with_config(POLICIES);
    let service = start(&folder, "127.0.0.1:0");
    let mut http = Http::connect(service.address("http")).unwrap();
    let document = http.get("/openapi.json").unwrap().json();
    // One element in each list, so that all types occur.
    let one = serde_json::json!({
        "policies": [{ "limits": [{}] }], "history": { "policies": { "a": {} } }, "busiest": [{}],
        "most_denied": [{}], "blocked": [{}], "store": { "servers": [{}] }, "listeners": [{}],
    });
    let live: pacegate_tools::top::Live = serde_json::from_value(one).unwrap();
    let mut missing = Vec::new();
    let schema = serde_json::json!({ "$ref": "#/components/schemas/Live" });
    compare("", &serde_json::to_value(live).unwrap(), &[&schema], &document, &mut missing);
    assert_eq!(missing, Vec::<String>::new());
}

/// Adds the fields of `value` that none of the schemas has to `missing`.
fn compare<'a>(
    path: &str,
    value: &Value,
    schemas: &[&'a Value],
    document: &'a Value,
    missing: &mut Vec<String>,
) {
    let mut all = schemas.to_vec();
    let mut next = 0;
    while let Some(&schema) = all.get(next) {
        let referred = schema["$ref"].as_str().map(|path| document.pointer(&path[1..]).unwrap());
        let parts = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|of| schema[of].as_array());
        all.extend(referred.into_iter().chain(parts.flatten()));
        next += 1;
    }
    let under = |name: &str| -> Vec<&'a Value> {
        all.iter().filter_map(|schema| schema.pointer(name)).filter(|it| it.is_object()).collect()
    };
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}/{name}");
        match (under(&format!("/properties/{name}")), under("/additionalProperties")) {
            (named, others) if named.is_empty() && others.is_empty() => missing.push(path),
            (named, others) if named.is_empty() => {
                compare(&path, value, &others, document, missing);
            }
            (named, _) => compare(&path, value, &named, document, missing),
        }
    }
    for value in value.as_array().into_iter().flatten() {
        compare(&format!("{path}[]"), value, &under("/items"), document, missing);
    }
}
