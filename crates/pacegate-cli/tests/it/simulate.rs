//! Compares `pacegate simulate` with a simple reference implementation on the same traffic.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use pacegate_testkit::{Random, servers::Chromium};
use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Finished, run};

const SECOND: u64 = 1_000_000;

/// Runs `pacegate simulate` on files and returns the JSON report.
fn report(args: &[&str]) -> Value {
    let finished = simulate(&[args, &["--json"]].concat(), b"");
    assert_eq!((finished.code, &*finished.stderr), (Some(0), ""), "{args:?}");
    serde_json::from_str(&finished.stdout).unwrap()
}

fn simulate(args: &[&str], input: &[u8]) -> Finished {
    run(&[&["simulate"], args].concat(), input)
}

/// A generated log in a temporary directory.
struct Log {
    folder: TempDir,
    path: String,
}

impl Log {
    fn generate(what: &str, patterns: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log").to_str().unwrap().to_owned();
        let patterns = patterns.iter().flat_map(|pattern| ["--pattern", pattern]);
        let args: Vec<&str> =
            ["--generate", what, "-o", &path].into_iter().chain(patterns).collect();
        let finished = simulate(&args, b"");
        assert_eq!((finished.code, &*finished.stderr), (Some(0), ""));
        Self { folder, path }
    }

    fn busy(lines: &str) -> Self {
        Self::generate(
            &format!("combined:{lines}"),
            &[
                "diurnal clients=300 rate=300/minute",
                "greedy clients=20 rate=1/second greedy=2/second",
                "bursts clients=15 size=40 every=5m",
            ],
        )
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.path).unwrap()
    }
}

/// A parsed line of a combined log.
#[derive(Clone, Debug)]
struct Line {
    at: u64,
    ip: String,
    method: String,
    path: String,
}

fn lines(text: &str) -> Vec<Line> {
    let line = |line: &str| {
        let (ip, rest) = line.split_once(' ').unwrap();
        let (_, rest) = rest.split_once('[').unwrap();
        let (time, rest) = rest.split_once(']').unwrap();
        let request = rest.split('"').nth(1).unwrap();
        let mut words = request.split(' ');
        let (method, uri) = (words.next().unwrap(), words.next().unwrap());
        // 01/Jan/2026:00:00:00 +0000
        let number = |range: std::ops::Range<usize>| time[range].parse::<u64>().unwrap();
        assert_eq!(&time[2..12], "/Jan/2026:");
        let days = 20_454 + number(0..2) - 1;
        let seconds = days * 86_400 + number(12..14) * 3_600 + number(15..17) * 60 + number(18..20);
        Line {
            at: seconds * SECOND,
            ip: ip.to_owned(),
            method: method.to_owned(),
            path: uri.split('?').next().unwrap().to_owned(),
        }
    };
    text.lines().map(line).collect()
}

/// One counter, by the definition of each algorithm.
#[derive(Debug, Default)]
struct Budget {
    /// Times of admitted requests.
    admitted: VecDeque<u64>,
    /// Debt of a token bucket in units × period, and its time.
    debt: (u128, u64),
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    algorithm: &'static str,
    amount: u64,
    period: u64,
    burst: u64,
}

impl Budget {
    fn has_room(&self, rule: &Rule, now: u64) -> bool {
        let (period, window) = (rule.period, now / rule.period);
        let count =
            |wanted: u64| self.admitted.iter().filter(|at| **at / period == wanted).count() as u64;
        match rule.algorithm {
            "fixed-window" => count(window) < rule.amount,
            "sliding-window" => {
                let weighted =
                    count(window - 1) * (period - now % period) + (count(window) + 1) * period;
                weighted <= rule.amount * period
            }
            "sliding-log" => {
                let recent = self.admitted.iter().filter(|at| **at + period > now).count();
                (recent as u64) < rule.amount
            }
            "token-bucket" => {
                let full = u128::from(rule.burst) * u128::from(period);
                self.owed(rule, now) + u128::from(period) <= full
            }
            other => panic!("{other}"),
        }
    }

    fn owed(&self, rule: &Rule, now: u64) -> u128 {
        let (debt, since) = self.debt;
        debt.saturating_sub(u128::from(now - since) * u128::from(rule.amount))
    }

    fn take(&mut self, rule: &Rule, now: u64) {
        self.debt = (self.owed(rule, now) + u128::from(rule.period), now);
        self.admitted.push_back(now);
        while self.admitted.front().is_some_and(|at| at + 2 * rule.period < now) {
            self.admitted.pop_front();
        }
    }
}

/// Allowed and denied requests of each key.
type Counts = BTreeMap<String, [u64; 2]>;

fn counted(lines: &[Line], rule: &Rule) -> Counts {
    let mut budgets: HashMap<&str, Budget> = HashMap::new();
    let mut counts = Counts::new();
    for line in lines {
        let budget = budgets.entry(&line.ip).or_default();
        let admitted = budget.has_room(rule, line.at);
        if admitted {
            budget.take(rule, line.at);
        }
        counts.entry(line.ip.clone()).or_default()[usize::from(!admitted)] += 1;
    }
    counts
}

/// Returns the counts of a report that lists all keys.
fn told(policy: &Value) -> Counts {
    let keys = policy["busiest"].as_array().unwrap().iter();
    keys.map(|key| {
        let counts = ["allowed", "denied"].map(|name| key[name].as_u64().unwrap());
        (key["key"].as_str().unwrap().to_owned(), counts)
    })
    .collect()
}

fn sum(counts: &Counts) -> [u64; 2] {
    let all = counts.values().fold([0, 0], |[a, b], [c, d]| [a + c, b + d]);
    assert!(all[0] > 0 && all[1] > 0, "something is allowed and something denied: {all:?}");
    all
}

#[test]
fn every_algorithm_matches_the_reference_exactly() {
    let log = Log::busy("100k");
    let lines = lines(&log.text());
    assert_eq!(lines.len(), 100_000);
    let rules = ["fixed-window", "sliding-window", "sliding-log", "token-bucket"]
        .map(|algorithm| Rule { algorithm, amount: 30, period: 60 * SECOND, burst: 30 });
    let algorithms = rules.iter().flat_map(|rule| ["--algorithm", rule.algorithm]);
    let mut args = vec![&*log.path, "--limit", "30/minute", "--top", "100000"];
    args.extend(algorithms);
    let report = report(&args);
    assert_eq!(report["traffic"]["requests"], 100_000);
    for (place, rule) in rules.iter().enumerate() {
        let expected = counted(&lines, rule);
        let variant = &report["variants"][place];
        let policy = &variant["policies"][0];
        assert_eq!(told(policy), expected, "{rule:?}");
        let [allowed, denied] = sum(&expected);
        assert_eq!((&variant["allowed"], &variant["denied"]), (&allowed.into(), &denied.into()));
        let touched = expected.values().filter(|[_, denied]| *denied > 0).count();
        assert_eq!(policy["keys"]["touched"], touched);
        assert_eq!(policy["keys"]["seen"], expected.len());
        let column = |name: &str| -> u64 {
            let values = policy["timeline"][name].as_array().unwrap();
            values.iter().map(|value| value.as_u64().unwrap()).sum()
        };
        assert_eq!([column("allowed"), column("denied")], [allowed, denied], "by time");
    }
}

const POLICIES: &str = "
policies:
  - name: login
    match: { path: /login, method: POST }
    per: ip
    limit: 2/minute sliding-log
  - name: api
    match: { path: /api/** }
    per: ip
    limit: [20/10s burst 25, 100/minute]
  - name: all-users
    limit: 90/10s
  - name: pages
    match: { path: /pages/** }
    limit: 20/minute
    mode: shadow
";

/// Returns the reference result of the policies above, charged all or nothing: allowed, denied, shadow-denied
/// and denied elsewhere.
fn counted_together(lines: &[Line]) -> [[u64; 4]; 4] {
    let rule = |algorithm, amount, seconds: u64, burst| {
        [Rule { algorithm, amount, period: seconds * SECOND, burst }].to_vec()
    };
    let api = [rule("token-bucket", 20, 10, 25), rule("fixed-window", 100, 60, 100)].concat();
    let rules = [
        rule("sliding-log", 2, 60, 2),
        api,
        rule("fixed-window", 90, 10, 90),
        rule("fixed-window", 20, 60, 20),
    ];
    let mut budgets: HashMap<(usize, usize, &str), Budget> = HashMap::new();
    let mut counts = [[0; 4]; 4];
    for line in lines {
        let keys = [Some(&*line.ip), Some(&*line.ip), Some(""), Some("")];
        let covers = [
            line.path == "/login" && line.method == "POST",
            line.path.starts_with("/api/"),
            true,
            line.path.starts_with("/pages/"),
        ];
        let room: Vec<bool> = (0..4)
            .map(|policy| {
                rules[policy].iter().enumerate().all(|(place, rule)| {
                    let budget = budgets.entry((policy, place, keys[policy].unwrap())).or_default();
                    budget.has_room(rule, line.at)
                })
            })
            .collect();
        let allowed = (0..3).all(|policy| !covers[policy] || room[policy]);
        for policy in (0..4).filter(|policy| covers[*policy]) {
            let event = match (room[policy], policy == 3) {
                (true, _) if allowed => 0,
                (true, _) => 3,
                (false, false) => 1,
                (false, true) => 2,
            };
            counts[policy][event] += 1;
            if allowed && room[policy] {
                for (place, rule) in rules[policy].iter().enumerate() {
                    let budget = budgets.get_mut(&(policy, place, keys[policy].unwrap()));
                    budget.unwrap().take(rule, line.at);
                }
            }
        }
    }
    counts
}

fn told_together(report: &Value) -> [[u64; 4]; 4] {
    std::array::from_fn(|place| {
        let policy = &report["variants"][0]["policies"][place];
        ["allowed", "denied", "shadow_denied", "denied_elsewhere"]
            .map(|name| policy[name].as_u64().unwrap())
    })
}

#[test]
fn policies_match_the_reference_with_shuffled_and_merged_logs() {
    let log = Log::busy("30k");
    let config = log.file("pacegate.yaml");
    fs::write(&config, POLICIES).unwrap();
    let config = config.to_str().unwrap();
    let whole = report(&[&log.path, "--config", config]);
    let expected = counted_together(&lines(&log.text()));
    assert_eq!(told_together(&whole), expected);
    for (place, event) in [(0, 1), (1, 1), (2, 1), (3, 2), (0, 3), (1, 3), (2, 3)] {
        assert!(expected[place][event] > 0, "all outcomes occur: {expected:?}");
    }

    // Three files, each out of order by up to eight seconds. Lines of the same second are ordered by file.
    let mut random = Random::new(7);
    let mut files = [const { Vec::new() }; 3];
    for line in log.text().lines() {
        let at = lines(line)[0].at;
        files[usize::try_from(random.below(3)).unwrap()].push((at, line.to_owned()));
    }
    let mut sorted = Vec::new();
    let mut args = vec!["--config".to_owned(), config.to_owned()];
    for (place, file) in files.iter_mut().enumerate() {
        file.sort_by_cached_key(|(at, _)| at / SECOND + random.below(9));
        let text: String = file.iter().map(|(_, line)| format!("{line}\n")).collect();
        let path = log.file(&format!("{place}.log"));
        fs::write(&path, &text).unwrap();
        args.push(path.to_str().unwrap().to_owned());
        sorted.extend(lines(&text));
    }
    sorted.sort_by_key(|line| line.at);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let merged = report(&args);
    assert_eq!(merged["traffic"]["late"], 0);
    assert_eq!(told_together(&merged), counted_together(&sorted));
}

#[test]
fn late_lines_are_reported_and_count_at_the_time_before_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("late.log");
    let mut file = fs::File::create(&path).unwrap();
    // More than one batch, with every eight lines in reverse order, and at the end a line from hours ago.
    for second in (0..60_000_u64).map(|number| number ^ 7) {
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        writeln!(
            file,
            "10.0.0.1 - - [01/Jan/2026:{hour:02}:{minute:02}:{second:02} +0000] \"GET /{} HTTP/1.1\" 200 1",
            "x".repeat(100)
        )
        .unwrap();
    }
    writeln!(file, "10.0.0.2 - - [01/Jan/2026:01:00:00 +0000] \"GET / HTTP/1.1\" 200 1").unwrap();
    let report = report(&[path.to_str().unwrap(), "--limit", "1/day"]);
    assert_eq!(
        (&report["traffic"]["late"], &report["traffic"]["requests"]),
        (&1.into(), &60_001.into())
    );
    let timeline = &report["variants"][0]["timeline"];
    let in_bin =
        |bin: usize| ["allowed", "denied"].map(|name| timeline[name][bin].as_u64().unwrap());
    assert_eq!(timeline["step"], 300);
    assert_eq!(in_bin(12), [0, 300], "not at its timestamp");
    assert_eq!(report["traffic"]["to"], "2026-01-01T16:39:59Z");
    assert_eq!(report["variants"][0]["allowed"], 2);
}

#[test]
fn the_same_traffic_has_the_same_result_in_every_format() {
    let patterns = ["bursts clients=5 size=30 every=1m"];
    let limit = ["--limit", "20/minute sliding-log", "--per", "user_agent"];
    let counts = |report: &Value| -> Vec<Value> {
        let names = ["requests", "denied", "timeline", "policies"];
        names.iter().map(|name| report["variants"][0][name].clone()).collect()
    };
    let of = |log: &str| report(&[&[log], &limit[..]].concat());

    let json = Log::generate("json:2k", &patterns);
    let expected = counts(&of(&json.path));
    assert_eq!(expected[0], 2_000);
    assert!(expected[1].as_u64() > Some(100), "{}", expected[1]);
    let csv = Log::generate("csv:2k", &patterns);
    assert_eq!(counts(&of(&csv.path)), expected);

    let (plain, gzip) = (fs::read(&csv.path).unwrap(), csv.file("csv.gz"));
    // Two members, as in concatenated logs.
    let halves = plain.split_at(plain.len() / 2);
    let compressed = [halves.0, halves.1].map(|half| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(half).unwrap();
        encoder.finish().unwrap()
    });
    fs::write(&gzip, compressed.concat()).unwrap();
    assert_eq!(counts(&of(gzip.to_str().unwrap())), expected);

    let zstd = csv.file("csv.zst");
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let frames = [halves.0, halves.1].map(|half| ruzstd::encoding::compress_to_vec(half, level));
    let skipped = [&[0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    fs::write(&zstd, [&frames[0][..], &skipped, &frames[1]].concat()).unwrap();
    assert_eq!(counts(&of(zstd.to_str().unwrap())), expected);

    let mapped = "when,who\n2026-01-01T00:00:00Z,\"a \"\"b\"\",\nc\"\n1767225601.5,x\n";
    let args = [
        "-",
        "--limit",
        "1/day",
        "--per",
        "who",
        "--map",
        "time=when",
        "--format",
        "csv",
        "--json",
    ];
    let finished = simulate(&args, mapped.as_bytes());
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    let busiest = &report["variants"][0]["policies"][0]["busiest"];
    assert_eq!(busiest[1]["key"], "a \\\"b\\\",\\nc", "{}", finished.stderr);
    assert_eq!((&report["traffic"]["lines"], &busiest[0]["key"]), (&4.into(), &"x".into()));

    let finished = simulate(&[&["--json"], &limit[..]].concat(), &fs::read(&json.path).unwrap());
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["traffic"]["source"], "standard input");
    assert_eq!(counts(&report), expected);
}

#[test]
fn fields_are_mapped_by_name_and_columns_by_number() {
    let nested = br#"{"ts":1767225600.25,"client":{"addr":"::ffff:10.0.0.1"},"request":{"uri":"//a/%62?x"}}"#;
    let args = ["--limit", "5/minute", "--per", "ip,path", "--json"];
    let finished = simulate(&[&args[..], &["--map", "ip=client.addr"]].concat(), nested);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    let busiest = &report["variants"][0]["policies"][0]["busiest"];
    assert_eq!(busiest[0]["key"], "10.0.0.1, /a/b", "normalised as in the server");
    assert_eq!(report["traffic"]["from"], "2026-01-01T00:00:00Z");

    let bare = b"10.0.0.1;x;1767225600\n10.0.0.2;y;1767225601\n";
    let map = ["--map", "ip=1,time=3", "--format", "csv", "--limit", "5/minute", "--json"];
    let finished = simulate(&map, bare);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(only(&report)["keys"]["seen"], 2);
}

/// A single policy uses a fast path; an additional policy that covers nothing forces the general path.
#[test]
fn the_fast_path_matches_the_general_path() {
    let log = Log::busy("20k");
    let config = log.file("pacegate.yaml");
    for limit in ["25/minute", "25/minute sliding-window", "10/minute burst 200"] {
        let alone = format!(
            "policies:\n  - {{ name: a, per: ip, match: {{ path: /api/** }}, limit: {limit} }}\n"
        );
        let mut told =
            [alone.clone(), format!("{alone}  - {{ name: b, domain: x, limit: 1/day }}\n")].map(
                |text| {
                    fs::write(&config, text).unwrap();
                    report(&[&log.path, "--config", config.to_str().unwrap(), "--keys", "1"])
                },
            );
        let [one, several] = told.each_mut().map(|report| {
            report["variants"][0]["policies"].as_array_mut().unwrap().truncate(1);
            report["variants"][0].clone()
        });
        assert!(one["denied"].as_u64() > Some(50), "{one}");
        assert_eq!(one, several, "{limit}");
    }
}

const THREE: &str = "\
10.0.0.1 - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1
what is this
10.0.0.1 - - [01/Foo/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1

10.0.0.1 - - [01/Jan/2026:00:00:01 +0000] \"\\x16\\x03\\\"\" 400 1
";

#[test]
fn malformed_lines_are_counted_and_the_first_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    fs::write(&path, THREE).unwrap();
    let path = path.to_str().unwrap();
    let told = &report(&[path, "--limit", "5/minute"])["traffic"];
    assert_eq!(
        (&told["requests"], &told["malformed"], &told["lines"]),
        (&2.into(), &2.into(), &5.into())
    );
    let finished = simulate(&[path, "--limit", "5/minute"], b"");
    let shown = format!(
        "2 of 5 lines could not be parsed:\n  {path}:2: not in the common or combined format\n  \
         {path}:3: invalid timestamp\n"
    );
    assert!(finished.stdout.contains(&shown), "{}", finished.stdout);

    fs::write(path, "what\nis\n").unwrap();
    let finished = simulate(&[path, "--limit", "5/minute", "--format", "combined"], b"");
    assert_eq!((finished.code, &*finished.stdout), (Some(2), ""));
    assert!(finished.stderr.contains("none of 2 lines could be parsed"), "{}", finished.stderr);
    let finished = simulate(&[path, "--limit", "5/minute"], b"");
    assert!(finished.stderr.contains("unknown log format"), "{}", finished.stderr);
}

/// Returns the only policy of a report.
fn only(report: &Value) -> &Value {
    &report["variants"][0]["policies"][0]
}

#[test]
fn a_suggested_limit_is_the_tightest() {
    let log = Log::busy("4k");
    for algorithm in ["fixed-window", "token-bucket"] {
        let args = [&*log.path, "--algorithm", algorithm, "--suggest", "deny at most 2.5%"];
        let found = report(&args);
        let denied = only(&found)["denied"].as_u64().unwrap();
        let amount = only(&found)["amount"].as_u64().unwrap();
        assert!(denied <= 100 && amount > 1, "{algorithm} {amount} {denied}");
        let limit = format!("{}/minute {algorithm}", amount - 1);
        let less = report(&[&log.path, "--limit", &limit]);
        assert!(only(&less)["denied"].as_u64().unwrap() > 100, "{algorithm} {amount}");
        let suggestion = &found["suggestion"];
        assert_eq!(suggestion["next"][1]["denied"], only(&less)["denied"]);
        assert_eq!(suggestion["outcome"]["denied"], denied);
    }
    let finished = simulate(&[&log.path, "--suggest", "deny at most 2.5%"], b"");
    assert!(finished.stdout.contains("(target: deny at most 2.5%)"), "{}", finished.stdout);
    let finished = simulate(&["-", "--suggest", "deny at most 2.5%"], log.text().as_bytes());
    assert!(finished.stderr.contains("can be read only once"), "{}", finished.stderr);
    let finished = simulate(&[&log.path, "--suggest", "fewer"], b"");
    assert!(finished.stderr.contains("invalid target `fewer`"), "{}", finished.stderr);
}

#[test]
fn a_search_covers_all_possible_amounts() {
    // The requests are one period apart, so that one per minute is enough, however large the amount.
    let mut text = String::new();
    for minute in 0..30 {
        text.push_str(&format!(
            "10.0.0.1 - - [01/Jan/2026:00:{minute:02}:00 +0000] \"GET / HTTP/1.1\" 200 1\n"
        ));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let args = [path, "--suggest", "no client above 5/minute", "--top", "0"];
    let finished = simulate(&args, b"");
    let said = "\nevery limit meets the target: no client sends more (no client above 5/minute)\n";
    assert!(finished.stdout.contains(said), "{} {}", finished.stdout, finished.stderr);
    let told = report(&args);
    assert_eq!(
        (&told["suggestion"]["any"], &told["suggestion"]["limit"]),
        (&true.into(), &Value::Null)
    );

    // A bucket of one that has to refill within a minute: 3650 days have this many minutes.
    let limit = ["--limit", "1000000000000/3650d burst 1", "--suggest", "deny at most 0%"];
    let told = report(&[&[path], &limit[..]].concat());
    assert_eq!(only(&told)["amount"], 3_650 * 1_440);
    assert_eq!(told["suggestion"]["next"][1]["denied"], 15);

    let finished = simulate(&[path, "--suggest", "deny at most 100%"], b"");
    let said = "  it was replayed over all traffic; ";
    assert!(finished.stdout.contains(said), "{}", finished.stdout);
}

/// Returns the most that any key is admitted within any minute.
fn highest(lines: &[Line], rule: &Rule) -> usize {
    let mut budgets: HashMap<&str, Budget> = HashMap::new();
    let mut admitted: HashMap<&str, Vec<u64>> = HashMap::new();
    for line in lines {
        let budget = budgets.entry(&line.ip).or_default();
        if budget.has_room(rule, line.at) {
            budget.take(rule, line.at);
            admitted.entry(&line.ip).or_default().push(line.at);
        }
    }
    let within = |instants: &Vec<u64>| {
        let before = |at: &u64| {
            instants.iter().filter(|other| *other <= at && **other + 60 * SECOND > *at).count()
        };
        instants.iter().map(before).max().unwrap()
    };
    admitted.values().map(within).max().unwrap()
}

#[test]
fn no_client_exceeds_the_target_of_a_search() {
    let log = Log::busy("4k");
    let lines = lines(&log.text());
    let found = report(&[&log.path, "--suggest", "no client above 50/minute"]);
    let amount = only(&found)["amount"].as_u64().unwrap();
    let rule =
        |amount| Rule { algorithm: "fixed-window", amount, period: 60 * SECOND, burst: amount };
    assert!(highest(&lines, &rule(amount)) <= 50, "{amount}");
    assert!(highest(&lines, &rule(amount + 1)) > 50, "{amount}");
    assert!((25..50).contains(&amount), "fixed windows admit up to twice as much: {amount}");
    let found = report(&[
        &log.path,
        "--algorithm",
        "sliding-log",
        "--suggest",
        "no client above 50/minute",
    ]);
    assert_eq!(only(&found)["amount"], 50, "a sliding log admits exactly the amount");
}

#[test]
fn a_report_has_one_exact_peak() {
    let log = Log::busy("4k");
    let report = report(&[&log.path, "--limit", "20/minute", "--top", "1000"]);
    let rule = Rule { algorithm: "fixed-window", amount: 20, period: 60 * SECOND, burst: 20 };
    let exact = highest(&lines(&log.text()), &rule) as u64;
    let policy = only(&report);
    let most = |values: &Value| values.as_array().unwrap().iter().map(Value::as_u64).max().unwrap();
    assert_eq!(policy["peak_admitted"], exact);
    assert_eq!(most(&policy["timeline"]["admitted"]), Some(exact));
    assert_eq!(policy["worst_bursts"][0]["admitted"], exact);
    let busiest = policy["busiest"].as_array().unwrap();
    let busiest = busiest.iter().map(|key| key["peak_admitted"].as_u64()).max().unwrap();
    assert_eq!(busiest, Some(exact));
}

#[test]
fn a_suggestion_states_its_headroom_and_a_valid_policy() {
    let log = Log::generate("combined:1k", &["bursts clients=15 size=7 every=5m"]);
    let found = report(&[&log.path, "--suggest", "touch at most 0 % of clients"]);
    let suggestion = &found["suggestion"];
    assert_eq!(suggestion["headroom"]["amount"], only(&found)["amount"]);
    let file = log.file("suggested.yaml");
    fs::write(&file, suggestion["yaml"].as_str().unwrap()).unwrap();
    let again = report(&[&log.path, "--config", file.to_str().unwrap()]);
    assert_eq!(only(&again)["limits"][0], suggestion["limit"]);
    let title = found["finding"].as_str().unwrap();
    assert!(title.starts_with("suggested limit: "), "{title}");
}

#[test]
fn several_logs_and_policies_have_totals() {
    let log = Log::busy("1k");
    let file = log.file("two.yaml");
    let policies = "policies:\n  - { name: a, per: ip, limit: 20/minute }\n  - { name: b, limit: 90/minute }\n";
    fs::write(&file, policies).unwrap();
    let file = file.to_str().unwrap();
    let args = [&*log.path, &*log.path, "--config", file, "--against", file];
    let finished = simulate(&args, b"");
    let total = finished.stdout.lines().filter(|line| line.trim_start().starts_with("total "));
    assert_eq!(total.count(), 2, "{}", finished.stdout);
    let each = format!("  {}: 1,000 requests", log.path);
    assert_eq!(finished.stdout.matches(&each).count(), 2, "{}", finished.stdout);
}

#[test]
fn bursts_across_window_boundaries_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let mut text = String::new();
    for (time, count) in [("00:00:59", 10), ("00:01:00", 10), ("00:05:30", 10)] {
        let line = format!("10.0.0.1 - - [01/Jan/2026:{time} +0000] \"GET / HTTP/1.1\" 200 1\n");
        text.push_str(&line.repeat(count));
    }
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let args =
        ["--limit", "10/minute", "--algorithm", "fixed-window", "--algorithm", "sliding-log"];
    let report = report(&[&[path], &args[..]].concat());
    let [fixed, log] = [0, 1].map(|place| &report["variants"][place]["policies"][0]);
    assert_eq!(
        (&fixed["bursts"], &fixed["peak_admitted"], &fixed["denied"]),
        (&1.into(), &20.into(), &0.into())
    );
    let worst = &fixed["worst_bursts"][0];
    assert_eq!((&worst["admitted"], &worst["at"]), (&20.into(), &"2026-01-01T00:01:00Z".into()));
    assert_eq!(
        (&log["bursts"], &log["peak_admitted"], &log["denied"]),
        (&0.into(), &10.into(), &10.into())
    );
}

#[test]
fn overrides_do_not_count_as_bursts() {
    let folder = tempfile::tempdir().unwrap();
    let [log, config] = ["access.log", "pacegate.yaml"].map(|name| folder.path().join(name));
    let line = |time: u64, path: &str| {
        let (minute, second) = (time / 60, time % 60);
        format!(
            "10.0.0.1 - - [01/Jan/2026:00:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 1\n"
        )
    };
    let login = |from: u64| (from..from + 3).map(|time| line(time, "/login"));
    // Three under the override, then everything that the limit admits, and three more in the next window.
    let mut text: String = login(0).collect();
    text.extend((0..47).map(|number| line(5 + number / 2, "/a")));
    text.extend(login(61));
    fs::write(&log, text).unwrap();
    let policies = "policies:\n  - name: a\n    per: ip\n    limit: 50/minute\n    overrides:\n      \
                    - { match: { path: /login }, limit: 3/minute }\n";
    fs::write(&config, policies).unwrap();
    let [log, config] = [&log, &config].map(|path| path.to_str().unwrap());
    let report = report(&[log, "--config", config]);
    let policy = only(&report);
    assert_eq!((&policy["denied"], &policy["bursts"]), (&0.into(), &0.into()), "{policy}");
    assert_eq!((&policy["peak_admitted"], &policy["requests"]), (&47.into(), &53.into()));
}

#[test]
fn variants_of_synthetic_traffic_share_one_time_axis() {
    let pattern = "retry-storm clients=300 every=1h for=2h obey=no";
    let args = ["--pattern", pattern, "--per", "", "--limit", "10/10s", "--limit", "1000/10s"];
    let report = report(&args);
    let [first, second] = [0, 1].map(|place| &report["variants"][place]);
    assert_ne!(first["requests"], second["requests"]);
    assert_eq!(report["traffic"]["requests"], first["requests"]);
    let note = "the traffic summary is that of 10/10s";
    assert!(report["notes"].to_string().contains(note), "{}", report["notes"]);
    for name in ["start", "step"] {
        assert_eq!(first["timeline"][name], second["timeline"][name], "{name}");
    }
    let length = |variant: &Value| variant["timeline"]["denied"].as_array().unwrap().len();
    assert_eq!(length(first), length(second));
}

#[test]
fn a_fast_pattern_has_the_given_rate() {
    for kind in ["steady", "diurnal", "greedy greedy=1/hour"] {
        let pattern = format!("{kind} clients=10 rate=700000/second for=10ms");
        let told = report(&["--pattern", &pattern, "--limit", "1/day"]);
        let requests = told["traffic"]["requests"].as_u64().unwrap();
        // The diurnal rate is lower at midnight.
        let expected = if kind == "diurnal" { 7_000 * 45 / 100 } else { 7_000 };
        assert!(requests.abs_diff(expected) < expected / 20, "{kind}: {requests}");
    }
}

#[test]
fn conflicting_options_are_rejected() {
    let log = Log::busy("1k");
    let config = log.file("pacegate.yaml");
    fs::write(&config, POLICIES).unwrap();
    let config = ["--config", config.to_str().unwrap()];
    let said = |args: &[&str]| {
        let finished = simulate(&[&[&*log.path], &config[..], args].concat(), b"");
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""), "{args:?}");
        finished.stderr
    };
    let refused = said(&["--per", "ip"]);
    assert!(refused.contains("cannot be used with '--per <ATTRIBUTES>'"), "{refused}");
    let suggest = ["--suggest", "deny at most 1%"];
    let refused = said(&[&suggest[..], &["--policy", "nosuch"]].concat());
    let names = "one of login, api, all-users, pages";
    assert!(refused.contains(&format!("unknown policy `nosuch`: expected {names}")), "{refused}");
    let refused = said(&suggest);
    assert!(refused.contains(&format!("choose a policy with --policy: {names}")), "{refused}");
}

#[test]
fn options_for_config_files_require_one() {
    let log = Log::busy("1k");
    for (option, value) in [("--domain", "shop"), ("--against", "x.yaml"), ("--policy", "api")] {
        for instead in
            [&["--limit", "1/day"][..], &["--per", "ip"], &["--algorithm", "sliding-log"], &[]]
        {
            let suggest = [&*log.path, "--suggest", "deny at most 1%", option, value];
            let finished = simulate(&[&suggest[..], instead].concat(), b"");
            assert_eq!((finished.code, &*finished.stdout), (Some(2), ""), "{option} {instead:?}");
            assert!(finished.stderr.contains(option), "{}", finished.stderr);
        }
    }
}

#[test]
fn invalid_pattern_settings_are_rejected() {
    for (pattern, said) in [
        ("steady clients=900001", "invalid `clients=900001`: expected 1 to 900000"),
        ("steady clients=0", "invalid `clients=0`: expected 1 to 900000"),
        ("bursts size=0", "invalid `size=0`: expected 1 to "),
    ] {
        let finished = simulate(&["--pattern", pattern, "--limit", "1/day"], b"");
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""), "{pattern}");
        assert!(finished.stderr.contains(said), "{}", finished.stderr);
    }
}

#[test]
fn invalid_percentages_are_rejected() {
    let log = Log::busy("1k");
    for share in ["100.0001%", "1844674407370955.2%", "9999999999999999999%", "1%%", "%", "-1%"] {
        let finished = simulate(&[&log.path, "--suggest", &format!("deny at most {share}")], b"");
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""), "{share}");
        assert!(finished.stderr.contains("invalid target "), "{}", finished.stderr);
    }
}

#[test]
fn envoy_rules_are_not_supported() {
    let log = Log::busy("1k");
    let config = log.file("edge.yaml");
    let text = "domain: edge\ndescriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 1 } }]\n";
    fs::write(&config, text).unwrap();
    let folder = log.file("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("edge.yaml"), text).unwrap();
    for config in [config, folder] {
        let finished = simulate(&[&*log.path, "--config", config.to_str().unwrap()], b"");
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""));
        let said = "match descriptors, which logs do not have";
        assert!(finished.stderr.contains(said), "{}", finished.stderr);
    }
}

#[test]
fn files_are_compared_and_missing_attributes_are_reported() {
    let log = Log::busy("10k");
    let write = |name: &str, text: &str| {
        let path = log.file(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let now = write("now.yaml", "policies: [{ name: a, per: ip, limit: 40/minute }]");
    let then = write(
        "then.yaml",
        "policies:\n  - { name: a, per: ip, limit: 20/minute }\n  - { name: b, per: tenant, limit: 9/second }\n  \
         - { name: c, per: ip, limit: 5/minute concurrency }\n",
    );
    let finished = simulate(&[&log.path, "--config", &now, "--against", &then, "--json"], b"");
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    let denied = [0, 1].map(|place| report["variants"][place]["denied"].clone());
    assert!(denied[1].as_u64() > denied[0].as_u64(), "{denied:?}");
    let change = &report["changes"][0];
    assert_eq!(change["denied"], Value::from(denied.to_vec()));
    assert_eq!(change["policies"][1]["limits"], serde_json::json!([null, "9/second"]));
    let worse = &change["policies"][0]["worse"][0];
    assert!(worse["denied"][1].as_u64() > worse["denied"][0].as_u64(), "{worse}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("no request has the attribute `tenant`, which `b` needs"), "{notes}");
    assert!(notes.contains("policy `c` is skipped: it limits concurrency"), "{notes}");

    let finished = simulate(&[&log.path, "--config", &now, "--against", &then], b"");
    assert!(finished.stdout.contains("40/minute → 20/minute"), "{}", finished.stdout);
    let finished = simulate(&[&log.path], b"");
    assert!(finished.stderr.contains("no limits given"), "{}", finished.stderr);
}

#[test]
fn clients_that_ignore_retry_after_send_more_requests() {
    let run = |obey: &str| {
        let pattern = format!("retry-storm clients=200 every=10m for=5m obey={obey}");
        report(&["--pattern", &pattern, "--limit", "10/10s", "--per", ""])
    };
    let (obeying, ignoring) = (run("yes"), run("no"));
    let figures = |report: &Value| {
        let variant = &report["variants"][0];
        ["allowed", "denied"].map(|name| variant[name].as_u64().unwrap())
    };
    let ([got, waited], [got_too, stormed]) = (figures(&obeying), figures(&ignoring));
    assert_eq!([got, got_too], [200, 200], "every client succeeds");
    assert!(stormed > 5 * waited, "{stormed} {waited}");
    assert_eq!(run("no"), ignoring, "the same seed generates the same traffic");
}

#[test]
fn the_number_of_keys_is_estimated_beyond_the_maximum() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.log");
    let mut text = String::new();
    for number in 0..60_000_u64 {
        let (hour, minute, second) = (number / 3_600, number / 60 % 60, number % 60);
        let time = format!("01/Jan/2026:{hour:02}:{minute:02}:{second:02} +0000");
        text.push_str(&format!("k{number} - - [{time}] \"GET / HTTP/1.1\" 200 1\n"));
        if number % 100 == 0 {
            text.push_str(&format!("greedy - - [{time}] \"GET / HTTP/1.1\" 200 1\n"));
        }
    }
    fs::write(&path, text).unwrap();
    let report =
        report(&[path.to_str().unwrap(), "--limit", "1/hour", "--keys", "1", "--top", "1"]);
    let policy = only(&report);
    assert_eq!((&policy["allowed"], &policy["denied"]), (&60_017.into(), &583.into()));
    assert_eq!(policy["denied_most"][0]["key"], "greedy");
    assert_eq!(policy["denied_most"][0]["requests"], 600);
    assert_eq!(policy["keys"]["exact"], false);
    let seen = policy["keys"]["seen"].as_u64().unwrap();
    assert!(seen.abs_diff(60_001) < 3_000, "{seen}");
    assert!(report["notes"].to_string().contains("an estimate"));
}

const HOSTILE: &str = "</script><img src=x onerror=alert(1)><script>alert(1)</script>";

#[test]
fn the_html_report_opens_from_disk_and_escapes_keys() {
    let folder = tempfile::tempdir().unwrap();
    let (log, html) = (folder.path().join("log.json"), folder.path().join("report.html"));
    let mut text = String::new();
    for second in 0..400 {
        for (user, times) in [(HOSTILE, 3), ("alice", 1)] {
            let line = serde_json::json!({"time": 1_767_225_600 + second, "user": user});
            text.push_str(&format!("{line}\n").repeat(times));
        }
    }
    fs::write(&log, text).unwrap();
    let [log, html] = [&log, &html].map(|path: &PathBuf| path.to_str().unwrap());
    let args = [log, "--per", "user", "--limit", "100/minute", "--limit", "90/minute sliding-log"];
    let finished = simulate(&[&args[..], &["--html", html]].concat(), b"");
    assert_eq!((finished.code, &*finished.stderr), (Some(0), ""));
    let page = fs::read_to_string(html).unwrap();
    assert!(!page.contains("<img") && page.contains("u003cimg src=x"), "keys are escaped");
    assert_eq!(page.matches("</script>").count(), 2, "the data and the script");

    let page = open(html);
    page.wait_until("document.querySelectorAll('.chart svg path').length > 4");
    assert!(page.text("main").contains(HOSTILE));
    assert_eq!(page.evaluate("document.querySelectorAll('main img, main script').length"), 0);
    let title = page.text("h1");
    assert!(title.starts_with("denied: 100/minute ") && title.contains(", 90/minute"), "{title}");
    page.click(".tabs button:nth-child(2)");
    page.wait_until("document.querySelector('.pill').textContent === '90/minute sliding-log'");
    assert_eq!(page.complaints(), Vec::<String>::new());
    let asked = page.requests();
    assert!(asked.iter().all(|address| address.starts_with("file://")), "{asked:?}");
}

fn open(path: &str) -> pacegate_testkit::servers::Page {
    let page = Chromium::shared().page();
    page.open(&format!("file://{}", Path::new(path).display()));
    page
}

#[test]
fn the_guide_shows_the_actual_output() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    let text = crate::guide::text("simulate.md");
    let mut tried = 0;
    for (command, shown) in console(&text) {
        let words = words(&command);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ["pacegate", "simulate", args @ ..] = &*words else { continue };
        let finished = crate::program::run_in(&data, &[&["simulate"], args].concat());
        assert_eq!((finished.code, &*finished.stderr), (Some(0), ""), "{command}");
        assert_eq!(trimmed(&finished.stdout), trimmed(&shown), "{command}");
        tried += 1;
    }
    assert!(tried >= 4, "{tried}");
}

/// Removes trailing spaces and trailing empty lines.
fn trimmed(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_end().to_owned()
}

/// Returns the commands of the `console` blocks and their output.
fn console(text: &str) -> Vec<(String, String)> {
    let blocks =
        text.split("\n```console\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
    let command = |block: &str| {
        let block = block.strip_prefix("$ ").unwrap();
        let (command, shown) = block.split_once('\n').unwrap_or((block, ""));
        (command.to_owned(), shown.to_owned())
    };
    blocks.map(command).collect()
}

/// Splits a command into words, like a shell.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for char in command.chars() {
        match char {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            char => word.push(char),
        }
    }
    words.push(word);
    words
}
