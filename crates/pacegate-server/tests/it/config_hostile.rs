//! Malicious and very large config files.

use std::fmt::Write;

use pacegate::{Request, policy::PolicySet};
use pacegate_server::{Environment, read_config as read};

const GOOD: &str = include_str!("config/good/everything.yaml");

/// Reads a file, which may be invalid. The result must be printable.
fn survives(text: &str) {
    let environment = Environment::of(|_| None).without_secrets();
    match read(text, "hostile.yaml", &environment) {
        Ok(settings) => assert!(!format!("{settings:?}").is_empty()),
        Err(error) => assert!(error.to_string().contains("hostile.yaml"), "{error}"),
    }
}

fn refusal(text: &str) -> String {
    let environment = Environment::of(|_| None);
    read(text, "hostile.yaml", &environment).unwrap_err().to_string()
}

/// Pseudorandom numbers with a fixed seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

#[test]
fn truncated_files_are_survived() {
    for end in (0..GOOD.len()).filter(|end| GOOD.is_char_boundary(*end)) {
        survives(&GOOD[..end]);
    }
}

#[test]
fn mutilated_files_are_survived() {
    let pieces = [
        "\0",
        "\t",
        "\r",
        ":",
        "- ",
        "{",
        "}",
        "[",
        "]",
        "*a",
        "&a ",
        "!!",
        "|",
        ">",
        "'",
        "\"",
        "\\",
        "%",
        "@",
        "`",
        "?",
        "~",
        "<<: ",
        "---\n",
        "...\n",
        "#",
        ",",
        "\u{feff}",
        "\u{85}",
        "ä",
        "𝄞",
        "99999999999999999999",
        "-1",
        "\n",
        "!!binary ",
        "!!int ",
        "? ",
    ];
    let mut numbers = Numbers(1);
    for _ in 0..2_000 {
        let mut text = GOOD.as_bytes().to_owned();
        for _ in 0..=numbers.below(4) {
            let place = numbers.below(text.len());
            let end = place + numbers.below(12).min(text.len() - place);
            text.splice(place..end, pieces[numbers.below(pieces.len())].bytes());
        }
        survives(&String::from_utf8_lossy(&text));
    }
}

#[test]
fn noise_is_survived() {
    let mut numbers = Numbers(2);
    for _ in 0..2_000 {
        let length = numbers.below(200);
        let noise: Vec<u8> =
            (0..length).map(|_| u8::try_from(numbers.below(256)).unwrap()).collect();
        survives(&String::from_utf8_lossy(&noise));
        let ascii: Vec<u8> = noise.iter().map(|byte| byte & 0x7f).collect();
        survives(&String::from_utf8(ascii).unwrap());
    }
}

#[test]
fn files_that_expand_are_rejected() {
    let mut bomb = String::from("a: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
        writeln!(bomb, "b{level}: &a{level} [{aliases}]").unwrap();
    }
    survives(&format!("policies: []\n{bomb}"));
    let aliases = "  - name: a\n    limit: *l\n".repeat(65);
    let many = format!("policies:\n  - name: a\n    limit: &l 5/minute\n{aliases}");
    let told = refusal(&many);
    assert!(
        told.starts_with("the file is too large, too deeply nested, or has too many aliases"),
        "{told}"
    );
    let deep = refusal(&format!("policies: {}", "[".repeat(100_000)));
    assert!(deep.contains("too deeply nested") || deep.contains("invalid YAML"), "{deep}");
    let keys = refusal(&format!("{{{}", "? ".repeat(100_000)));
    assert!(keys.contains("hostile.yaml"), "{keys}");
}

#[test]
fn the_size_of_a_file_is_bounded() {
    let told = refusal(&" ".repeat(16 * 1024 * 1024 + 1));
    assert!(told.starts_with("the file has 16777217 bytes: write at most 16777216"), "{told}");
}

#[test]
fn quoted_lines_are_short_and_escaped() {
    let told =
        refusal(&format!("# é\nlisten: {{http: \"\u{9b}31m{}\", x: 1}}\n", "a".repeat(10_000)));
    assert!(told.lines().all(|line| line.chars().count() < 200), "{told}");
    assert!(!told.contains('\u{9b}'), "{told:?}");
}

fn many(count: usize) -> String {
    let mut text = String::from("policies:\n");
    for n in 0..count {
        let path = if n % 2 == 0 { format!("/api/{n}") } else { format!("/files/{n}/**") };
        write!(
            text,
            "  - name: policy-{n}\n    match: {{ path: {path}, method: [GET, POST] }}\n    per: [user]\n    \
             limit: [10/second burst 20, 1000/hour]\n    failure: closed\n"
        )
        .unwrap();
    }
    text
}

fn policies(count: usize) -> PolicySet {
    read(&many(count), "many.yaml", &Environment::of(|_| None)).unwrap().policies
}

#[test]
fn ten_thousand_policies_are_read_and_found() {
    let policies = policies(10_000);
    assert_eq!(policies.policies().len(), 10_000);
    for (path, name) in [("/api/9998", "policy-9998"), ("/files/9999/a/b", "policy-9999")] {
        let request = Request::new().with("path", path).with("method", "GET");
        let found: Vec<_> =
            policies.covering(&request).map(|(policy, _)| policy.name.as_str()).collect();
        assert_eq!(found, [name]);
    }
}

/// Measures reading and matching: `cargo test --release -p pacegate-server -- --ignored --nocapture scale`.
#[test]
#[ignore = "a measurement"]
fn scale() {
    use pacegate::{Clock, SystemClock};
    let clock = SystemClock::new();
    for count in [10, 10_000, 100_000] {
        let text = many(count);
        let start = clock.now();
        let policies = policies(count);
        let read = clock.now().as_micros() - start.as_micros();
        let (api, file) = ("/api/8", "/files/9/a");
        let start = clock.now();
        for _ in 0..1_000_000 {
            for path in [api, file] {
                let request = Request::new().with("path", path).with("method", "GET");
                assert_eq!(policies.covering(&request).count(), 1);
            }
        }
        let matched = clock.now().as_micros() - start.as_micros();
        println!(
            "{count} policies, {} bytes: read in {read} us, matched in {} ns",
            text.len(),
            matched / 2_000
        );
    }
}
