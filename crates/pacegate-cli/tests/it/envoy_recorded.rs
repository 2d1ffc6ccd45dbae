//! The answers of the real envoyproxy/ratelimit, recorded in `tests/envoyproxy-ratelimit.json`.
//!
//! `cargo test -p pacegate-cli --test it record_envoyproxy_ratelimit -- --ignored` records them again. It needs Go and
//! Redis, and builds [`VERSION`] from the Go module proxy.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use pacegate_testkit::servers::{Flavor, Port, Server, eventually};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{clients::Http, service::Service};

/// The program whose answers are recorded.
const VERSION: &str =
    "github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36";
/// Random trees of rules in each run, each in its own domain, and random requests to each.
const TREES: u64 = 13;
const REQUESTS: u64 = 40;

/// A variable that turns on the cache of denials, which is in use only with Redis.
const CACHE: &str = "LOCAL_CACHE_SIZE_IN_BYTES";

/// Everything that was recorded.
#[derive(Debug, Deserialize, Serialize)]
struct Recording {
    version: String,
    runs: Vec<Run>,
}

/// Requests to one process.
#[derive(Debug, Deserialize, Serialize)]
struct Run {
    variables: BTreeMap<String, String>,
    /// The text of each file.
    files: Vec<String>,
    steps: Vec<Step>,
}

/// A request and its answer.
#[derive(Debug, Deserialize, Serialize)]
struct Step {
    domain: String,
    /// 0 if it has none.
    hits: u32,
    /// `key=value, key=value`, and after semicolons `hits 3` and `limit 5/YEAR`, or `null` instead of a value.
    ask: Vec<String>,
    /// The status and the code, then one line for each descriptor and each header, and one for the dynamic metadata.
    answer: Vec<String>,
}

/// Random numbers by xorshift, the same in every run.
struct Random(u64);

impl Random {
    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const KEYS: [&str; 4] = ["user", "path", "plan", "region"];
const VALUES: [&str; 6] = ["a", "b", "ab", "abc", "x1", ""];
const RULE_VALUES: [&str; 8] = ["", "", "a", "b", "a*", "ab*", "*", "x*"];
/// Windows that are long enough not to end between recording or repeating two requests.
const UNITS: [&str; 3] = ["week", "month", "year"];
/// The units that the recorded version accepts in requests.
const OVERRIDE_UNITS: [&str; 2] = ["MONTH", "YEAR"];

/// Adds random descriptors at one level of a tree.
fn add_descriptors(random: &mut Random, text: &mut String, depth: usize, names: &mut u64) {
    let indent = "  ".repeat(2 * depth + 1);
    let mut seen = Vec::new();
    for _ in 0..=random.below(4) {
        let (key, value) = (random.pick(&KEYS), random.pick(&RULE_VALUES));
        if seen.contains(&(key, value)) {
            continue;
        }
        seen.push((key, value));
        writeln!(text, "{indent}- key: {key}").unwrap();
        if !value.is_empty() {
            writeln!(text, "{indent}  value: {value:?}").unwrap();
        }
        if value.ends_with('*') && random.percent(30) {
            writeln!(text, "{indent}  share_threshold: true").unwrap();
        }
        if random.percent(80) {
            writeln!(text, "{indent}  rate_limit: {}", random_limit(random, names)).unwrap();
        }
        if random.percent(15) {
            writeln!(text, "{indent}  shadow_mode: true").unwrap();
        }
        if depth < 2 && random.percent(50) {
            writeln!(text, "{indent}  descriptors:").unwrap();
            add_descriptors(random, text, depth + 1, names);
        }
    }
}

fn random_limit(random: &mut Random, names: &mut u64) -> String {
    let mut fields = match random.percent(10) {
        true => vec!["unlimited: true".to_owned()],
        false => vec![
            format!("unit: {}", random.pick(&UNITS)),
            format!("requests_per_unit: {}", random.below(9)),
        ],
    };
    if random.percent(40) {
        *names += 1;
        fields.push(format!("name: n{names}"));
        if *names > 1 && random.percent(50) {
            fields.push(format!("replaces: [{{ name: n{} }}]", random.below(*names - 1) + 1));
        }
    }
    format!("{{ {} }}", fields.join(", "))
}

fn random_request(random: &mut Random, domain: &str) -> Step {
    let mut ask = Vec::new();
    for _ in 0..=random.below(3) {
        let count = 1 + random.below(3);
        let entry =
            |random: &mut Random| format!("{}={}", random.pick(&KEYS), random.pick(&VALUES));
        let entries: Vec<_> = (0..count).map(|_| entry(random)).collect();
        let mut text = entries.join(", ");
        if random.percent(40) {
            write!(text, "; hits {}", random.pick(&[0, 0, 1, 2, 3, 5, 8, 40, 500])).unwrap();
        }
        if random.percent(15) {
            let unit = random.pick(&OVERRIDE_UNITS);
            write!(text, "; limit {}/{unit}", random.below(7)).unwrap();
        }
        ask.push(text);
    }
    let hits = if random.percent(20) { random.below(4) as u32 } else { 0 };
    Step { domain: domain.to_owned(), hits, ask, answer: Vec::new() }
}

/// A case for each difference that was ever seen between the two programs.
fn directed() -> (String, Vec<Step>) {
    let rules = "domain: directed
descriptors:
  - { key: tokens, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: five, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: none, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: shared, value: 'a*', share_threshold: true, rate_limit: { unit: year, requests_per_unit: 3 } }
";
    let mut steps = Vec::new();
    for line in [
        // A check without hits, and the tokens afterwards.
        "tokens=a; hits 0 | tokens=a; hits 4 | tokens=a; hits 0 | tokens=a; hits 4 | tokens=a; hits 0",
        "tokens=a; hits 4 | tokens=a; hits 0",
        // Exactly full, and then exceeded.
        "five=a; hits 5 | five=a; hits 0 | five=a | five=a; hits 0",
        "five=b; hits 3 | five=b; hits 500 | five=b; hits 0",
        "none=a; hits 0 | none=a | none=a; hits 0 | none=b; hits 9",
        // Descriptors are counted although another one denies.
        "none=a & five=c | five=c; hits 0",
        "five=d; hits 9 & five=d & five=d; hits 0",
        "shadow=a & five=e | shadow=a & five=e | shadow=a; hits 3 & none=a",
        "free=a & free=b; hits 9 & five=f | other=a | other=a & five=f",
        // Limits of the same entries and unit share a counter.
        "five=g; limit 2/YEAR | five=g | five=g; limit 2/YEAR | five=g; limit 9/YEAR | five=g; limit 9/MONTH",
        "other=b; limit 2/YEAR | other=b; limit 3/YEAR | other=b; limit 1/YEAR",
        "shared=a1 | shared=a2 | shared=a3 | shared=a4 | shared=b",
        // Fields that are null are absent.
        "five=i; hits null | five=i; limit null; hits 2 | five=i; hits null; limit 4/YEAR",
    ] {
        for request in line.split(" | ") {
            let ask = request.split(" & ").map(str::to_owned).collect();
            steps.push(Step { domain: "directed".into(), hits: 0, ask, answer: Vec::new() });
        }
    }
    steps.push(Step {
        domain: "directed".into(),
        hits: 3,
        ask: vec!["five=h".into()],
        answer: Vec::new(),
    });
    steps.push(Step { domain: "".into(), hits: 0, ask: vec!["five=h".into()], answer: Vec::new() });
    steps.push(Step { domain: "directed".into(), hits: 0, ask: Vec::new(), answer: Vec::new() });
    (rules.to_owned(), steps)
}

/// The names of rules in quota mode begin with this letter, and no others.
const QUOTA: &str = "q";

/// Requests for rules in quota mode, together with others.
fn quota_run(random: &mut Random) -> Run {
    let rules = "domain: quota
descriptors:
  - { key: user, quota_mode: true, rate_limit: { name: q5, unit: year, requests_per_unit: 5 } }
  - { key: path, quota_mode: true, rate_limit: { name: q9, unit: year, requests_per_unit: 9 } }
  - { key: none, quota_mode: true, rate_limit: { name: q0, unit: year, requests_per_unit: 0 } }
  - { key: plan, rate_limit: { name: plain, unit: year, requests_per_unit: 20 } }
  - { key: region, shadow_mode: true, rate_limit: { name: shadow, unit: year, requests_per_unit: 3 } }
  - { key: free, rate_limit: { unlimited: true } }
";
    let keys = ["user", "user", "path", "path", "none", "plan", "region", "free", "other"];
    let request = |random: &mut Random| {
        let mut ask = Vec::new();
        for _ in 0..=random.below(3) {
            let mut text = format!("{}={}", random.pick(&keys), random.pick(&["a", "b"]));
            if random.percent(30) {
                write!(text, "; hits {}", random.pick(&[0, 0, 2, 5])).unwrap();
            }
            ask.push(text);
        }
        Step { domain: "quota".to_owned(), hits: 0, ask, answer: Vec::new() }
    };
    let steps = (0..2 * REQUESTS).map(|_| request(random)).collect();
    Run { variables: BTreeMap::new(), files: vec![rules.to_owned()], steps }
}

/// Converts an answer of ours to that of the recorded version. There, rules in quota mode only report: they never deny,
/// and their status is `OK`. In later versions, and ours, their status is `OVER_LIMIT`, and a request is denied if all
/// of its rules in quota mode are over their limit.
fn without_quotas(mut answer: Vec<String>) -> Vec<String> {
    let is_quota = |line: &str| line.split(' ').nth(2).is_some_and(|name| name.starts_with(QUOTA));
    let is_over = |line: &String| line.starts_with("OVER_LIMIT");
    let quotas: Vec<_> = answer.iter().filter(|line| is_quota(line)).collect();
    let all_are_over = !quotas.is_empty() && quotas.iter().all(|line| is_over(line));
    let denies = |line: &String| is_over(line) && !is_quota(line);
    let other_denies = answer.iter().any(denies);
    let overall = |is_denied: bool| if is_denied { "429 OVER_LIMIT" } else { "200 OK" };
    assert_eq!(answer[0], overall(all_are_over || other_denies), "{answer:?}");
    answer[0] = overall(other_denies).to_owned();
    for line in answer.iter_mut().filter(|line| is_quota(line)) {
        *line = line.replace("OVER_LIMIT", "OK");
    }
    answer
}

fn runs() -> Vec<Run> {
    let mut random = Random(0x005e_ed0f_9ace);
    let variants: [&[(&str, &str)]; 5] = [
        &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")],
        &[("SHADOW_MODE", "true"), ("LIMIT_RESPONSE_HEADERS_ENABLED", "true")],
        &[],
        &[(CACHE, "100000000")],
        &[("RESPONSE_DYNAMIC_METADATA", "true")],
    ];
    let run = |variables: &&[(&str, &str)]| {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let (rules, mut steps) = directed();
        let mut files = vec![rules];
        for tree in 0..TREES {
            let domain = format!("tree{tree}");
            let mut text = format!("domain: {domain}\ndescriptors:\n");
            add_descriptors(&mut random, &mut text, 0, &mut 0);
            files.push(text);
            steps.extend((0..REQUESTS).map(|_| random_request(&mut random, &domain)));
        }
        let variables: BTreeMap<_, _> = variables.iter().map(own).collect();
        if variables.contains_key(CACHE) {
            // Their cache also denies a request with a higher limit than the one that was exceeded; ours does not.
            steps.retain(|step| !step.ask.iter().any(|ask| ask.contains("limit ")));
        }
        Run { variables, files, steps }
    };
    let mut runs: Vec<_> = variants.iter().map(run).collect();
    runs.push(quota_run(&mut random));
    runs
}

/// Returns the body of a request for `POST /json`.
fn body(step: &Step) -> String {
    let descriptor = |text: &String| {
        let mut parts = text.split("; ");
        let entries = parts.next().unwrap().split(", ").map(|pair| {
            let (key, value) = pair.split_once('=').unwrap();
            json!({ "key": key, "value": value })
        });
        let mut descriptor = json!({ "entries": entries.collect::<Vec<_>>() });
        for part in parts {
            match part.split_once(' ').unwrap() {
                ("hits", "null") => descriptor["hitsAddend"] = Value::Null,
                ("limit", "null") => descriptor["limit"] = Value::Null,
                ("hits", hits) => descriptor["hitsAddend"] = json!(hits.parse::<u64>().unwrap()),
                (_, limit) => {
                    let (amount, unit) = limit.split_once('/').unwrap();
                    let amount = amount.parse::<u64>().unwrap();
                    descriptor["limit"] = json!({ "requestsPerUnit": amount, "unit": unit });
                }
            }
        }
        descriptor
    };
    let descriptors: Vec<_> = step.ask.iter().map(descriptor).collect();
    json!({ "domain": step.domain, "hitsAddend": step.hits, "descriptors": descriptors })
        .to_string()
}

/// Sends a request, and describes the answer without the times in it.
fn answer(client: &mut Http<std::net::TcpStream>, step: &Step) -> Vec<String> {
    let answer = client.request("POST", "/json", None, &body(step)).unwrap();
    if ![200, 429].contains(&answer.status) {
        return vec![answer.status.to_string()];
    }
    let answer_json = answer.json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let mut lines = vec![format!("{} {}", answer.status, text(&answer_json["overallCode"]))];
    for status in answer_json["statuses"].as_array().unwrap() {
        let mut line = text(&status["code"]);
        let limit = &status["currentLimit"];
        if !limit.is_null() {
            write!(line, " {}/{}", number(&limit["requestsPerUnit"]), text(&limit["unit"]))
                .unwrap();
            line.push_str(&limit["name"].as_str().map_or(String::new(), |name| format!(" {name}")));
            // The recorded version leaves the time out if a rule in quota mode is over its limit.
            let reset = text(&status["durationUntilReset"]);
            let seconds = reset.strip_suffix('s').map(|seconds| seconds.parse::<u64>().unwrap());
            let is_quota = text(&limit["name"]).starts_with(QUOTA);
            let is_valid = seconds.map_or(is_quota, |seconds| (1..=31_536_000).contains(&seconds));
            assert!(is_valid, "{answer_json}");
        }
        write!(line, " left {}", number(&status["limitRemaining"])).unwrap();
        lines.push(line);
    }
    for header in answer_json["responseHeadersToAdd"].as_array().into_iter().flatten() {
        let (name, value) = (text(&header["key"]), text(&header["value"]));
        let value = if name.ends_with("Reset") { "time".to_owned() } else { value };
        lines.push(format!("{name}: {value}"));
    }
    if let Some(metadata) = answer_json.get("dynamicMetadata") {
        lines.push(format!("metadata {}", comparable(metadata)));
    }
    lines
}

/// Returns dynamic metadata as text, with sorted fields. Leaves out two fields that only the recorded version has, and
/// the second space that its text of a limit may have, at random for each build of the program.
fn comparable(metadata: &Value) -> String {
    match metadata {
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields
                .iter()
                .filter(|(name, _)| !name.starts_with("quotaMode"))
                .map(|(name, value)| (name, comparable(value)))
                .collect();
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(comparable).collect();
            format!("[{}]", items.join(", "))
        }
        // `0` and `0.0` are the same number.
        Value::Number(number) => number.as_f64().unwrap().to_string(),
        other => other.to_string().replace("  ", " "),
    }
}

fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoyproxy-ratelimit.json")
}

/// Writes the files of a run into a folder as `ROOT/config/N.yaml`.
fn write_files(run: &Run, root: &Path) {
    fs::create_dir_all(root.join("config")).unwrap();
    for (number, text) in run.files.iter().enumerate() {
        fs::write(root.join(format!("config/{number}.yaml")), text).unwrap();
    }
}

#[test]
fn answers_are_those_of_envoyproxy_ratelimit() {
    let text = fs::read_to_string(recording()).unwrap();
    let recording: Recording = serde_json::from_str(&text).unwrap();
    assert_eq!(recording.version, VERSION);
    let redis = Server::start(Flavor::Redis);
    let mut count = 0;
    for (number, run) in recording.runs.iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        write_files(run, folder.path());
        let root = folder.path().to_str().unwrap();
        // Two of the runs are on Redis.
        let (address, prefix) = (redis.address(), format!("{number}:"));
        let mut variables = vec![("RUNTIME_ROOT", root)];
        if number == 1 || run.variables.contains_key(CACHE) {
            variables.extend([("REDIS_URL", &*address), ("REDIS_TIMEOUT", "20s")]);
            variables.push(("CACHE_KEY_PREFIX", &*prefix));
        }
        variables.extend(run.variables.iter().map(|(name, value)| (&**name, &**value)));
        let service = Service::start_with(&[], &variables);
        let mut client = Http::connect(service.address("http")).unwrap();
        for (place, step) in run.steps.iter().enumerate() {
            let mut found = answer(&mut client, step);
            if step.domain == "quota" {
                found = without_quotas(found);
            }
            assert_eq!(found, step.answer, "run {number}, step {place}: {step:?}");
            count += 1;
        }
    }
    assert!(count > 1_000, "{count} requests");
}

/// Returns the program, which it builds unless `PACEGATE_RATELIMIT` is its path.
fn build(folder: &Path) -> PathBuf {
    if let Some(program) = std::env::var_os("PACEGATE_RATELIMIT") {
        return program.into();
    }
    let built = Command::new("go").args(["install", VERSION]).env("GOBIN", folder).status();
    assert!(built.unwrap().success());
    folder.join("service_cmd")
}

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
#[ignore = "builds envoyproxy/ratelimit and writes the recording"]
fn record_envoyproxy_ratelimit() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path());
    let mut runs = runs();
    for (number, run) in runs.iter_mut().enumerate() {
        let redis = Server::start(Flavor::Redis);
        let root = folder.path().join(number.to_string());
        write_files(run, &root);
        let ports = [Port::reserve(), Port::reserve(), Port::reserve()];
        let names = ["PORT", "GRPC_PORT", "DEBUG_PORT"];
        let numbers = ports.each_ref().map(|port| port.number().to_string());
        let child = Command::new(&program)
            .envs(names.into_iter().zip(&numbers))
            .envs([("USE_STATSD", "false"), ("REDIS_SOCKET_TYPE", "tcp")])
            .envs([("REDIS_URL", redis.address()), ("RUNTIME_ROOT", root.to_str().unwrap().into())])
            .env("RUNTIME_WATCH_ROOT", "false")
            .env("RUNTIME_SUBDIRECTORY", "")
            .envs(&run.variables)
            .stdout(Stdio::null())
            .spawn();
        let _program = Program(child.unwrap());
        let address = SocketAddr::from(([127, 0, 0, 1], ports[0].number()));
        eventually(Duration::from_secs(20), "envoyproxy/ratelimit answers", || {
            let health = Http::connect(address).and_then(|mut client| client.get("/healthcheck"));
            health.is_ok_and(|answer| answer.status == 200)
        });
        let mut client = Http::connect(address).unwrap();
        for step in &mut run.steps {
            step.answer = answer(&mut client, step);
        }
    }
    let recording_text =
        serde_json::to_string(&Recording { version: VERSION.to_owned(), runs }).unwrap();
    // One request in a line, so that differences are readable.
    let lines = recording_text
        .replace("{\"domain\"", "\n{\"domain\"")
        .replace("{\"variables\"", "\n{\"variables\"");
    fs::write(recording(), lines + "\n").unwrap();
}
