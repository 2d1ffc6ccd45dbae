//! The programs of the guides, in the languages that this machine has.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use pacegate_testkit::servers::{Flavor, Server, python};

use crate::{
    clients::Folder,
    guide::{self, blocks, instead},
    service::Service,
};

/// Runs a program of the guide, written into a file of this name. Each tries five requests against a limit of three.
fn run(program: &str, file: &str, command: &mut Command) {
    let folder = Folder::with_config("policies: []\n");
    let service = Service::start(&["--config", &folder.config()]);
    let program = instead(program, "127.0.0.1:8080", &service.address("http").to_string());
    // A window that does not end while the test runs.
    let program = instead(&program, "3/minute", "3/31d");
    fs::write(folder.path(file), program).unwrap();
    let output = command.arg(folder.path(file)).current_dir(folder.path("")).output().unwrap();
    assert_output(&output);
}

/// Returns the program in a language, with a longer timeout for busy machines.
fn program(language: &str, second: &str, minute: &str) -> String {
    instead(&blocks("http.md", language)[0], second, minute)
}

fn assert_output(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 5, "{said}{errors}");
    assert_eq!(lines[..3], ["allowed, 2 left", "allowed, 1 left", "allowed, 0 left"]);
    for line in &lines[3..] {
        let seconds =
            line.strip_prefix("denied, retry in ").and_then(|it| it.strip_suffix(" seconds"));
        let seconds: f64 = seconds.unwrap_or_else(|| panic!("{said}")).parse().unwrap();
        assert!((1.0..=31_536_000.0).contains(&seconds), "{line}");
    }
}

/// Returns the output of a program; `None` if it is not installed.
fn asked(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// Removes types, for a Node without TypeScript.
fn without_types(program: &str) -> String {
    let (first, rest) = program.split_once('\n').unwrap();
    assert!(first.starts_with("type Decision = "), "{first}");
    let rest = instead(rest, "(key: string, limit: string): Promise<Decision>", "(key, limit)");
    instead(&rest, " as Decision", "")
}

#[test]
fn python_programs_decide() {
    let program = program("python", "timeout=1", "timeout=60");
    run(&program, "check.py", &mut Command::new(python()));
}

#[test]
fn typescript_programs_decide() {
    let program = program("typescript", "timeout(1000)", "timeout(60000)");
    match asked("node", &["-p", "process.features.typescript"]).as_deref() {
        None => eprintln!("skipped: node is not installed"),
        Some("strip" | "transform") => run(&program, "check.mts", &mut Command::new("node")),
        Some(_) => run(&without_types(&program), "check.mjs", &mut Command::new("node")),
    }
}

#[test]
fn go_programs_decide() {
    if asked("go", &["version"]).is_none() {
        return eprintln!("skipped: go is not installed");
    }
    // It needs only the standard library.
    let offline = [("GOPROXY", "off"), ("GOTOOLCHAIN", "local"), ("GOFLAGS", "")];
    let program = program("go", "Timeout: time.Second", "Timeout: time.Minute");
    run(&program, "check.go", Command::new("go").arg("run").envs(offline));
}

#[test]
fn java_programs_decide() {
    // Only a JDK runs source files.
    if asked("javac", &["-version"]).is_none() {
        return eprintln!("skipped: no JDK is installed");
    }
    let program = program("java", "ofSeconds(1)", "ofSeconds(60)");
    run(&program, "Check.java", &mut Command::new("java"));
}

/// The types of the Spring starter that a limiter uses, and a program that calls it.
const STARTER: [(&str, &str); 4] = [
    (
        "RateLimiter.java",
        "public interface RateLimiter { RateLimitDecision evaluate(String key, RateLimitPolicy policy); }",
    ),
    (
        "RateLimitPolicy.java",
        "import java.time.Duration;
         public class RateLimitPolicy {
            public int getLimit() { return 3; }
            public Duration getWindow() { return Duration.ofDays(31); }
            public String getScope() { return \"global\"; }
         }",
    ),
    (
        "RateLimitDecision.java",
        "import java.time.Duration;
         public record RateLimitDecision(
            boolean isAllowed, long remaining, Duration retryAfter, Duration resetAfter) {}",
    ),
    (
        "Main.java",
        "import io.pacegate.client.*;
         public class Main {
            public static void main(String[] args) {
                Pacegate client = Pacegate.builder(args[1], FailureMode.CLOSED)
                    .deadline(java.time.Duration.ofMinutes(1)).build();
                RateLimiter limiter = new PacegateRateLimiter(client);
                for (int call = 0; call < 4; call++) {
                    RateLimitDecision decision = limiter.evaluate(args[0], new RateLimitPolicy());
                    boolean waits = decision.retryAfter() != null && decision.remaining() > 0
                        && decision.remaining() - decision.retryAfter().toMillis() <= 1;
                    boolean ends = decision.resetAfter() != null && !decision.resetAfter().isZero();
                    System.out.println(decision.isAllowed() + \" \" + waits + \" \" + ends);
                }
            }
         }",
    ),
];

/// Returns the sources of the Java client that need only the JDK, and of the bean.
fn java_client() -> Vec<PathBuf> {
    let java = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/java");
    let sources = fs::read_dir(java.join("src/main/java/io/pacegate/client")).unwrap();
    let sources = sources.map(|entry| entry.unwrap().path());
    let plain = sources.filter(|path| !path.ends_with("RateLimitFilter.java"));
    plain.chain([java.join("spring-starter/PacegateRateLimiter.java")]).collect()
}

#[test]
fn the_bean_for_the_spring_starter_shares_its_counters() {
    if asked("javac", &["-version"]).is_none() {
        return eprintln!("skipped: no JDK is installed");
    }
    let redis = Server::start(Flavor::Redis);
    let config = &blocks("spring.md", "yaml")[0];
    let patient = format!("deadline: 20s, url: {}", redis.url());
    let config = instead(config, "url: redis://127.0.0.1:6379", &patient);
    let folder = Folder::with_config(&config);
    let service = Service::start(&["--config", &folder.config()]);
    let mut compiler = Command::new("javac");
    compiler.arg("-d").arg(folder.path("")).args(java_client());
    for (name, text) in STARTER {
        fs::write(folder.path(name), text).unwrap();
        compiler.arg(folder.path(name));
    }
    let compiled = compiler.output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let key = r#"global:com.example.Api#get "quoted""#;
    let mut program = Command::new("java");
    let url = format!("http://{}", service.address("http"));
    let output =
        program.arg("-cp").arg(folder.path("")).args(["Main", key, &url]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let allowed = "true false true\n".repeat(3);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("{allowed}false true true\n"),
        "{errors}"
    );
    let keys = redis.command(&["KEYS", "*"]);
    let [name] = keys.items() else { panic!("{keys:?}") };
    assert!(name.text().starts_with(&format!("ratelimiter:{key}:")), "{name:?}");
    assert_eq!(redis.command(&["GET", &name.text()]).text(), "4");
}

#[test]
fn python_programs_throttle_over_resp() {
    let service = Service::start(&[]);
    let port = format!("port={},", service.address("resp").port());
    let program = instead(&blocks("resp.md", "python")[0], "port=6380,", &port);
    let output = Command::new(python()).args(["-c", &program]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let printed = format!("\n```\n{said}```\n");
    assert!(guide::text("resp.md").contains(&printed), "the guide shows different output:\n{said}");
}
