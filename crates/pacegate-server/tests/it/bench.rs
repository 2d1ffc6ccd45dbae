//! The load generator, on a real service, on Redis, and on servers that are wrong on purpose.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use pacegate_testkit::servers::{Flavor, Server};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    program::{run, run_with},
    service::Service,
};

const ALGORITHMS: [&str; 4] = ["fixed-window", "sliding-window", "sliding-log", "token-bucket"];

/// Runs `pacegate bench`: its exit code, and what it tells.
fn bench(words: &str) -> (Option<i32>, Value) {
    let words: Vec<&str> = words.split(' ').filter(|word| !word.is_empty()).collect();
    let finished = run(&[&["bench", "--json"][..], &words].concat(), b"");
    let told = serde_json::from_str(&finished.stdout);
    (finished.code, told.unwrap_or_else(|_| panic!("{words:?}: {finished:?}")))
}

/// Allowed, denied, over-admitted and wrongly denied. Everything was answered and checked.
fn figures(told: &Value) -> [u64; 4] {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{told}"));
    assert_eq!((number(&told["failed"]), number(&told["lost"])), (0, 0), "{told}");
    assert_eq!(told["check"]["complete"], true, "{told}");
    assert_eq!(told["requests"], told["check"]["checked"], "{told}");
    let check = &told["check"];
    [&told["allowed"], &told["denied"], &check["over_admitted"], &check["wrongly_denied"]]
        .map(number)
}

/// A service with a policy for each algorithm, in a domain of its name: 20 in 15 days, as long as an inline limit
/// of every algorithm may be.
fn service(folder: &TempDir) -> Service {
    let policies = ALGORITHMS.map(|algorithm| {
        format!(
            "  - {{ name: {algorithm}, domain: {algorithm}, per: [user], limit: 20/15d, \
             algorithm: {algorithm} }}\n"
        )
    });
    let file = folder.path().join("pacegate.yaml");
    fs::write(&file, format!("policies:\n{}", policies.concat())).unwrap();
    Service::start(&["--config", file.to_str().unwrap()])
}

#[test]
fn ours_is_right_by_every_algorithm_over_every_protocol() {
    let folder = TempDir::new().unwrap();
    let service = service(&folder);
    let [http, resp, grpc] = ["http", "resp", "grpc"].map(|name| service.address(name));
    for algorithm in ALGORITHMS {
        let limit = format!("--limit 20/15d --algorithm {algorithm} --keys hot -n 200");
        let policy = format!("--domain {algorithm} --attribute user {limit}");
        for words in [
            format!("http://{http} -c 8 {limit}"),
            format!("http://{http} -c 8 {policy}"),
            format!("resp://{resp} --dialect pacegate -c 4 -P 8 {limit}"),
            format!("resp://{resp} --dialect pacegate -c 4 -P 8 {policy}"),
            format!("grpc://{grpc} -c 4 -P 8 {policy}"),
        ] {
            let (code, told) = bench(&words);
            assert_eq!((code, figures(&told)), (Some(0), [20, 180, 0, 0]), "{words}");
        }
    }
    for dialect in ["cl.throttle", "throttle"] {
        // Two tokens come back within a second at most: the burst is what counts.
        let limit = "--limit 1/hour --burst 20 --keys hot -n 200 -c 4 -P 8";
        let (code, told) = bench(&format!("resp://{resp} --dialect {dialect} {limit}"));
        assert_eq!((code, figures(&told)), (Some(0), [20, 180, 0, 0]), "{dialect}");
    }
}

#[test]
fn ours_is_right_while_budgets_come_back() {
    let folder = TempDir::new().unwrap();
    let service = service(&folder);
    let (http, resp) = (service.address("http"), service.address("resp"));
    let pid = service.pid();
    for algorithm in ALGORITHMS {
        let words = format!(
            "--limit 10/50ms --algorithm {algorithm} --keys zipf:4,1 --cost 1:3,4:1 \
             -d 200ms --warm-up 50ms --skew 5ms --pid {pid}"
        );
        let first = format!("http://{http} -c 8 {words}");
        let second = format!("resp://{resp} --dialect pacegate --rate 2000 -t 2 -c 4 -P 4 {words}");
        for words in [first, second] {
            let (code, told) = bench(&words);
            let check = &told["check"];
            let wrong = [&check["over_admitted"], &check["wrongly_denied"], &told["failed"]];
            assert_eq!((code, wrong.map(Value::as_u64)), (Some(0), [Some(0); 3]), "{told}");
            // More than fits at once, of several keys: some was given back meanwhile.
            assert!(told["allowed"].as_u64() > Some(20), "{told}");
            assert!(told["server_cpu_per_decision"].is_f64(), "{told}");
        }
    }
}

/// Speaks `CL.THROTTLE`, and admits or not by how many came before. Waits before the first answer.
fn wrong_server(admits: fn(usize) -> bool, wait: Duration) -> SocketAddr {
    server_of(usize::MAX, admits, wait)
}

/// The same, and silent after so many answers.
fn server_of(answers: usize, admits: fn(usize) -> bool, wait: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, asked) = (stream.unwrap(), asked.clone());
            thread::spawn(move || answer(stream, answers, admits, &asked, wait));
        }
    });
    address
}

fn answer(
    mut stream: TcpStream,
    answers: usize,
    admits: fn(usize) -> bool,
    asked: &AtomicUsize,
    wait: Duration,
) {
    // Nobody ever sends: it takes as long as it should.
    let (_sender, nothing) = mpsc::channel::<()>();
    let (mut input, mut part) = (Vec::new(), [0; 4_096]);
    while let Ok(read @ 1..) = stream.read(&mut part) {
        input.extend_from_slice(&part[..read]);
        while input.iter().filter(|&&byte| byte == b'\n').count() >= 13 {
            let lines = input.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
            let (end, _) = { lines }.nth(12).unwrap();
            assert!(input.starts_with(b"*6\r\n$11\r\nCL.THROTTLE\r\n"));
            input.drain(..=end);
            let place = asked.fetch_add(1, Ordering::SeqCst);
            if place == 0 && !wait.is_zero() {
                let _ = nothing.recv_timeout(wait);
            }
            if place >= answers {
                continue;
            }
            let limited = u8::from(!admits(place));
            let five = format!("*5\r\n:{limited}\r\n:10\r\n:0\r\n:-1\r\n:1\r\n");
            stream.write_all(five.as_bytes()).unwrap();
        }
    }
}

#[test]
fn what_a_server_does_wrong_is_told_to_the_request() {
    let limit = "--limit 10/3660d --burst 10 --keys hot -n 30 -c 3 -P 2";
    type Admits = fn(usize) -> bool;
    let cases: [(Admits, [u64; 4]); 4] = [
        (|place| place < 10, [10, 20, 0, 0]),
        (|place| place < 17, [17, 13, 7, 0]),
        // With six on the way at once, four more than that were never used: every denial is certain.
        (|place| place < 4, [4, 26, 0, 26]),
        (|_| true, [30, 0, 20, 0]),
    ];
    for (admits, expected) in cases {
        let address = wrong_server(admits, Duration::ZERO);
        let (code, told) = bench(&format!("resp://{address} {limit}"));
        let wrong = expected[2] + expected[3] > 0;
        assert_eq!((code, figures(&told)), (Some(i32::from(wrong)), expected), "{told}");
    }
}

/// Hundredths of a second of processors that this program has used.
fn used() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields = fields.split_ascii_whitespace().skip(11).take(2);
    fields.map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn the_processor_time_of_the_first_requests_is_told() {
    let works = |place: usize| {
        let before = used();
        while place == 0 && used() < before + 4 {}
        true
    };
    let address = wrong_server(works, Duration::ZERO);
    let own = std::process::id();
    let (code, told) = bench(&format!("resp://{address} -n 1 -c 1 --check 0 --pid {own}"));
    // The last of them may have begun before.
    assert!(told["server_cpu_per_decision"].as_f64() >= Some(0.03), "{code:?} {told}");
}

#[test]
fn a_password_is_what_the_address_says_and_an_empty_key_is_none() {
    let url = format!("resp://{}", wrong_server(|_| true, Duration::ZERO));
    let finished = run_with(&["bench", &url, "-n", "3"], &[("PACEGATE_KEY", "")]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let server = Server::start(Flavor::Redis);
    let _ = server.command(&["CONFIG", "SET", "requirepass", "p@s%s"]);
    let bench = |password: &str| {
        let url = server.url().replace("redis://", &format!("redis://:{password}@"));
        run(&["bench", &url, "--dialect", "incr", "-n", "3", "--check", "0"], b"")
    };
    let known = bench("p%40s%25s");
    assert_eq!(known.code, Some(0), "{}", known.stderr);
    for (password, said) in [("p%40s%s", "a % stands before two digits"), ("other", "WRONGPASS")] {
        let refused = bench(password);
        assert_eq!(refused.code, Some(2));
        assert!(
            refused.stderr.contains(said) && !refused.stderr.contains("p%"),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn a_server_that_stands_still_cannot_hide_it_at_a_rate() {
    let median = |words: &str| {
        let address = wrong_server(|_| true, Duration::from_millis(300));
        let (_, told) = bench(&format!("resp://{address} -n 300 -c 1 --check 0 {words}"));
        assert_eq!((&told["allowed"], &told["check"]), (&Value::from(300), &Value::Null));
        told["latency"]["p50"].as_f64().unwrap()
    };
    // All but one of them were waiting for the first, in the order in which they should have been sent.
    let at_a_rate = median("--rate 1000");
    assert!((0.1..0.3).contains(&at_a_rate), "{at_a_rate}");
    let one_by_one = median("");
    assert!(one_by_one < 0.05, "{one_by_one}");
}

#[test]
fn a_server_that_stops_for_good_cannot_hide_it_either() {
    let address = server_of(100, |_| true, Duration::ZERO);
    let words = "--rate 200 -d 1s --warm-up 0s -c 2 --check 0";
    let (code, told) = bench(&format!("resp://{address} {words}"));
    let counts = ["requests", "lost", "unsent", "per_second"].map(|name| told[name].as_u64());
    assert_eq!((code, counts), (Some(0), [100, 2, 98, 100].map(Some)), "{told}");
    assert_eq!(told["seconds"], 1.0);
    // Half of all that was due was never answered.
    let latency = |name: &str| told["latency"][name].as_f64().unwrap();
    assert!(latency("p50") < 1.0 && latency("p90") > 1.0, "{told}");
}

#[test]
fn a_number_of_requests_ends_although_no_answer_comes() {
    let address = server_of(100, |_| true, Duration::ZERO);
    let (code, told) = bench(&format!("resp://{address} -n 300 -c 2 --check 0"));
    let counts = ["requests", "lost", "unsent"].map(|name| told[name].as_u64());
    assert_eq!((code, counts), (Some(0), [100, 2, 0].map(Some)), "{told}");
    assert_eq!(told["first_failure"], "no answer came for 5 s");
    assert!(told["seconds"].as_f64() > Some(4.9), "{told}");
}

/// Answers the first request of every connection, and resets it while a second one is there.
fn resetting_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut byte, mut lines) = ([0], 0);
            while lines < 13 && stream.read(&mut byte).unwrap_or(0) > 0 {
                lines += usize::from(byte == *b"\n");
            }
            // What is not read is what makes it a reset.
            let _ = stream.peek(&mut byte);
            let _ = stream.write_all(b"*5\r\n:0\r\n:10\r\n:0\r\n:-1\r\n:1\r\n");
        }
    });
    address
}

#[test]
fn a_connection_that_is_made_anew_asks_again() {
    let address = resetting_server();
    let (code, told) = bench(&format!("resp://{address} -n 101 -c 1 -P 2 --check 0"));
    let [answered, lost, anew] =
        ["requests", "lost", "reconnected"].map(|name| told[name].as_u64().unwrap());
    assert_eq!((code, answered + lost), (Some(0), 101), "{told}");
    assert!(answered > 20 && anew >= answered - 1, "{told}");
}

#[test]
fn keys_that_may_have_been_used_are_not_judged_by_denials() {
    let address = wrong_server(|_| false, Duration::ZERO);
    let words = format!("resp://{address} --limit 10/3660d --burst 10 --keys hot -n 5 -c 1");
    let (code, told) = bench(&words);
    assert_eq!((code, figures(&told)), (Some(1), [0, 5, 0, 5]));
    let (code, told) = bench(&format!("{words} --prefix mine"));
    assert_eq!((code, &told["check"]["wrongly_denied"]), (Some(0), &Value::Null));
}

#[test]
fn bursts_come_at_once_and_then_nothing() {
    let address = wrong_server(|_| true, Duration::ZERO);
    let words = "--limit 100/second --burst 10 --keys hot --bursts 10 --every 150ms -n 30 -c 10";
    let (code, told) = bench(&format!("resp://{address} {words}"));
    // Three bursts of what fits, with all the time that it takes to come back.
    assert_eq!((code, figures(&told)), (Some(0), [30, 0, 0, 0]));
    let seconds = told["seconds"].as_f64().unwrap();
    assert!((0.3..3.0).contains(&seconds), "{seconds}");
}

#[test]
fn a_script_in_redis_is_checked_as_well() {
    let server = Server::start(Flavor::Redis);
    let folder = TempDir::new().unwrap();
    let script = folder.path().join("limiter.lua");
    let text = "local count = redis.call('INCRBY', KEYS[1], ARGV[2])\n\
                if count == tonumber(ARGV[2]) then redis.call('EXPIRE', KEYS[1], ARGV[1]) end\n\
                return { count }\n";
    fs::write(&script, text).unwrap();
    let script = format!(
        "redis://{} --dialect script --script {} --arg {{seconds}} --arg {{cost}} --reply count",
        server.address(),
        script.display()
    );
    let limit = "--limit 10/hour --windows anchored --keys hot -n 60";
    let (code, told) = bench(&format!("{script} {limit} -c 4 -P 3"));
    assert_eq!((code, figures(&told)), (Some(0), [10, 50, 0, 0]));
    // It charges for what it denies: after a cost of 10 that did not fit, nothing that costs 1 does.
    let (code, told) = bench(&format!("{script} {limit} -c 1 --cost 1:2,10:1"));
    let [allowed, denied, over, wrongly] = figures(&told);
    assert_eq!((code, allowed + denied, over), (Some(1), 60, 0));
    assert!(wrongly > 0, "{told}");

    let plain = format!("redis://{} --dialect incr -n 500 --keys uniform:10", server.address());
    let (code, told) = bench(&plain);
    assert_eq!((code, figures(&told)), (Some(0), [500, 0, 0, 0]));
}

#[test]
fn what_cannot_be_measured_says_why() {
    let service = Service::start(&[]);
    let [http, grpc, resp] = ["http", "grpc", "resp"].map(|name| service.address(name));
    for (words, reason) in [
        (format!("http://{http} --dialect throttle"), "does not speak throttle"),
        (format!("http://{http} --cost 5 --limit 4/minute"), "a cost of 5 can never be admitted"),
        (format!("http://{http} --limit 4/minute --algorithm concurrency"), "gives permits back"),
        (format!("grpc://{grpc}"), "--limit must say what the server is configured to hold"),
        (format!("http://{http} -n 9 --warm-up 1s"), "cannot be used with"),
        ("ftp://127.0.0.1:1".to_owned(), "is not an address"),
        ("redis://:secret@127.0.0.1".to_owned(), "`127.0.0.1` is not an address"),
        ("resp://127.0.0.1:1 -n 1".to_owned(), "cannot connect to 127.0.0.1:1"),
        (format!("http://{http} --dialect throttlecrab-http -n 3"), "nothing was decided: 404"),
        (format!("grpc://{resp} --limit 1/second -n 3"), "nothing was decided: cannot read"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let finished = run(&[&["bench"][..], &words].concat(), b"");
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""), "{words:?}");
        assert!(finished.stderr.contains(reason), "{words:?}: {}", finished.stderr);
        assert!(!finished.stderr.contains("secret"), "{}", finished.stderr);
    }
}

#[test]
fn figures_are_told_in_words() {
    let address = wrong_server(|place| place < 17, Duration::ZERO);
    let url = format!("resp://{address}");
    let words = ["--limit", "10/3660d", "--burst", "10", "--keys", "hot", "-n", "30", "-c", "1"];
    let finished = run(&[&["bench", &url][..], &words].concat(), b"");
    assert_eq!((finished.code, &*finished.stderr), (Some(1), ""));
    for line in [
        "dialect     cl.throttle",
        "17 allowed, 13 denied",
        "latency     p50 ",
        "check       30 requests: 7 over-admitted, 0 wrongly denied, on 1 key",
    ] {
        assert!(finished.stdout.contains(line), "{line}: {}", finished.stdout);
    }
    assert!(!finished.stdout.contains('\u{1b}'), "{}", finished.stdout);
}
