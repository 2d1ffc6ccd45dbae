//! The examples of the guides, run as they stand there.

use std::{fs, path::Path, process::Command};

use tollgate_testkit::servers::python;

use crate::service::Service;

/// The code blocks of a guide from this heading on, each with its language.
fn blocks(page: &str, heading: &str) -> Vec<(String, String)> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(page);
    let text = fs::read_to_string(guide).unwrap();
    let (_, section) = text.split_once(&format!("\n{heading}\n")).unwrap();
    let mut blocks = Vec::new();
    let mut lines = section.lines();
    while let Some(language) = lines.by_ref().find_map(|line| line.strip_prefix("```")) {
        let code: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push((language.to_owned(), code.join("\n") + "\n"));
    }
    blocks
}

/// The Python under its heading in a guide, and the output that comes after it.
fn example(page: &str) -> (String, String) {
    let mut blocks = blocks(page, "### Python").into_iter();
    let (language, code) = blocks.next().unwrap();
    assert_eq!(language, "python");
    let (_, output) = blocks.next().unwrap();
    (code, output)
}

fn run(code: &str) -> String {
    let output = Command::new(python()).args(["-c", code]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{code}\n{errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_python_of_the_guide_to_resp_prints_what_it_says() {
    let service = Service::start(&[]);
    let (code, expected) = example("resp.md");
    let there = format!("port={},", service.address("resp").port());
    assert_eq!(run(&code.replace("port=6380,", &there)), expected);
}

#[test]
fn the_python_of_the_guide_to_http_limits_to_three() {
    let service = Service::start(&[]);
    let (_, code) = blocks("http.md", "### Python").swap_remove(0);
    let there = code.replace("127.0.0.1:8080", &service.address("http").to_string());
    // A window that ends meanwhile would let more pass.
    let printed = run(&there.replace("\"3/minute\"", "\"3/minute sliding-log\""));
    let lines: Vec<_> = printed.lines().collect();
    let allowed = ["allowed, 2 left", "allowed, 1 left", "allowed, 0 left"];
    assert_eq!((&lines[..3], lines.len()), (&allowed[..], 5), "{printed}");
    let denied =
        |line: &&str| line.starts_with("denied, retry in 59.") && line.ends_with(" seconds");
    assert!(lines[3..].iter().all(denied), "{printed}");
}
