//! Tests `pacegate bench` with Pacegate, with Redis, and with servers that are wrong on purpose.

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

/// Runs `pacegate bench`; returns its exit code and its JSON output.
fn bench(words: &str) -> (Option<i32>, Value) {
    let words: Vec<&str> = words.split(' ').filter(|word| !word.is_empty()).collect();
    let finished = run(&[&["bench", "--json"][..], &words].concat(), b"");
    let told = serde_json::from_str(&finished.stdout);
    (finished.code, told.unwrap_or_else(|_| panic!("{words:?}: {finished:?}")))
}

/// Returns allowed, denied, over-admitted and wrongly denied requests. All requests must be answered and
/// checked.
fn figures(told: &Value) -> [u64; 4] {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{told}"));
    assert_eq!((number(&told["failed"]), number(&told["lost"])), (0, 0), "{told}");
    assert_eq!(told["check"]["complete"], true, "{told}");
    assert_eq!(told["requests"], told["check"]["checked"], "{told}");
    let check = &told["check"];
    [&told["allowed"], &told["denied"], &check["over_admitted"], &check["wrongly_denied"]]
        .map(number)
}

/// Starts a server with a policy for each algorithm, in a domain with the name of the algorithm: 20 in 15 days, as long
/// as an inline limit of every algorithm may be.
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
fn pacegate_is_correct_with_every_algorithm_and_protocol() {
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
        // At most two tokens are refilled within a second: the burst decides.
        let limit = "--limit 1/hour --burst 20 --keys hot -n 200 -c 4 -P 8";
        let (code, told) = bench(&format!("resp://{resp} --dialect {dialect} {limit}"));
        assert_eq!((code, figures(&told)), (Some(0), [20, 180, 0, 0]), "{dialect}");
    }
}

#[test]
fn pacegate_is_correct_while_limits_reset() {
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
            // More than the capacity of several keys: some units were refilled.
            assert!(told["allowed"].as_u64() > Some(20), "{told}");
            assert!(told["server_cpu_per_decision"].is_f64(), "{told}");
        }
    }
}

/// Starts a server with `CL.THROTTLE` that decides by the number of earlier requests. It waits before the
/// first reply.
fn wrong_server(admits: fn(usize) -> bool, wait: Duration) -> SocketAddr {
    server_of(usize::MAX, admits, wait)
}

/// Starts the same server, but it stops replying after this many replies.
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
    // No message ever arrives, so this waits for the whole time.
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
fn wrong_decisions_are_counted_exactly() {
    let limit = "--limit 10/3660d --burst 10 --keys hot -n 30 -c 3 -P 2";
    type Admits = fn(usize) -> bool;
    let cases: [(Admits, [u64; 4]); 4] = [
        (|place| place < 10, [10, 20, 0, 0]),
        (|place| place < 17, [17, 13, 7, 0]),
        // With six requests in flight, four units were never used: every denial is certainly wrong.
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

/// Returns the CPU time of this process, in hundredths of a second.
fn used() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields = fields.split_ascii_whitespace().skip(11).take(2);
    fields.map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn the_cpu_time_of_the_first_requests_is_reported() {
    let works = |place: usize| {
        let before = used();
        while place == 0 && used() < before + 4 {}
        true
    };
    let address = wrong_server(works, Duration::ZERO);
    let own = std::process::id();
    let (code, told) = bench(&format!("resp://{address} -n 1 -c 1 --check 0 --pid {own}"));
    // The last tick may have begun before.
    assert!(told["server_cpu_per_decision"].as_f64() >= Some(0.03), "{code:?} {told}");
}

#[test]
fn passwords_are_decoded_and_an_empty_key_is_ignored() {
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
    for (password, said) in
        [("p%40s%s", "must be followed by two hex digits"), ("other", "WRONGPASS")]
    {
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
fn a_stalled_server_raises_the_latencies_at_a_fixed_rate() {
    let median = |words: &str| {
        let address = wrong_server(|_| true, Duration::from_millis(300));
        let (_, told) = bench(&format!("resp://{address} -n 300 -c 1 --check 0 {words}"));
        assert_eq!((&told["allowed"], &told["check"]), (&Value::from(300), &Value::Null));
        told["latency"]["p50"].as_f64().unwrap()
    };
    // All but one waited for the first response, from the time they were due.
    let at_a_rate = median("--rate 1000");
    assert!((0.1..0.3).contains(&at_a_rate), "{at_a_rate}");
    let one_by_one = median("");
    assert!(one_by_one < 0.05, "{one_by_one}");
}

#[test]
fn lost_and_unsent_requests_count_in_the_latencies() {
    let address = server_of(100, |_| true, Duration::ZERO);
    let words = "--rate 200 -d 1s --warm-up 0s -c 2 --check 0";
    let (code, told) = bench(&format!("resp://{address} {words}"));
    let counts = ["requests", "lost", "unsent", "per_second"].map(|name| told[name].as_u64());
    assert_eq!((code, counts), (Some(0), [100, 2, 98, 100].map(Some)), "{told}");
    assert_eq!(told["seconds"], 1.0);
    // Half of the due requests were never answered.
    let latency = |name: &str| told["latency"][name].as_f64().unwrap();
    assert!(latency("p50") < 1.0 && latency("p90") > 1.0, "{told}");
}

#[test]
fn a_run_with_a_number_of_requests_ends_without_responses() {
    let address = server_of(100, |_| true, Duration::ZERO);
    let (code, told) = bench(&format!("resp://{address} -n 300 -c 2 --check 0"));
    let counts = ["requests", "lost", "unsent"].map(|name| told[name].as_u64());
    assert_eq!((code, counts), (Some(0), [100, 2, 0].map(Some)), "{told}");
    assert_eq!(told["first_failure"], "no response for 5 s");
    assert!(told["seconds"].as_f64() > Some(4.9), "{told}");
}

/// Starts a server that answers the first request of every connection and resets the connection while a
/// second one is pending.
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
            // Unread input turns the close into a reset.
            let _ = stream.peek(&mut byte);
            let _ = stream.write_all(b"*5\r\n:0\r\n:10\r\n:0\r\n:-1\r\n:1\r\n");
        }
    });
    address
}

#[test]
fn a_new_connection_continues_to_send() {
    let address = resetting_server();
    let (code, told) = bench(&format!("resp://{address} -n 101 -c 1 -P 2 --check 0"));
    let [answered, lost, anew] =
        ["requests", "lost", "reconnected"].map(|name| told[name].as_u64().unwrap());
    assert_eq!((code, answered + lost), (Some(0), 101), "{told}");
    assert!(answered > 20 && anew >= answered - 1, "{told}");
}

#[test]
fn denials_of_possibly_used_keys_are_not_judged() {
    let address = wrong_server(|_| false, Duration::ZERO);
    let words = format!("resp://{address} --limit 10/3660d --burst 10 --keys hot -n 5 -c 1");
    let (code, told) = bench(&words);
    assert_eq!((code, figures(&told)), (Some(1), [0, 5, 0, 5]));
    let (code, told) = bench(&format!("{words} --prefix mine"));
    assert_eq!((code, &told["check"]["wrongly_denied"]), (Some(0), &Value::Null));
}

#[test]
fn bursts_are_sent_at_once() {
    let address = wrong_server(|_| true, Duration::ZERO);
    let words = "--limit 100/second --burst 10 --keys hot --bursts 10 --every 150ms -n 30 -c 10";
    let (code, told) = bench(&format!("resp://{address} {words}"));
    // Three bursts that fit, each with enough time to refill.
    assert_eq!((code, figures(&told)), (Some(0), [30, 0, 0, 0]));
    let seconds = told["seconds"].as_f64().unwrap();
    assert!((0.3..3.0).contains(&seconds), "{seconds}");
}

#[test]
fn a_script_in_redis_is_checked() {
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
    // It charges denied requests: after a cost of 10 that did not fit, a cost of 1 does not fit either.
    let (code, told) = bench(&format!("{script} {limit} -c 1 --cost 1:2,10:1 --seed 5"));
    let [allowed, denied, over, wrongly] = figures(&told);
    assert_eq!((code, allowed + denied, over), (Some(1), 60, 0));
    assert!(wrongly > 0, "{told}");

    let plain = format!("redis://{} --dialect incr -n 500 --keys uniform:10", server.address());
    let (code, told) = bench(&plain);
    assert_eq!((code, figures(&told)), (Some(0), [500, 0, 0, 0]));
}

#[test]
fn failed_measurements_report_the_reason() {
    let service = Service::start(&[]);
    let [http, grpc, resp] = ["http", "grpc", "resp"].map(|name| service.address(name));
    for (words, reason) in [
        (format!("http://{http} --dialect throttle"), "does not support dialect throttle"),
        (format!("http://{http} --cost 5 --limit 4/minute"), "a cost of 5 exceeds the capacity"),
        (
            format!("http://{http} --limit 4/minute --algorithm concurrency"),
            "does not release permits",
        ),
        (format!("grpc://{grpc}"), "--limit is required to check decisions"),
        (format!("http://{http} -n 9 --warm-up 1s"), "cannot be used with"),
        ("ftp://127.0.0.1:1".to_owned(), "invalid server address `ftp://127.0.0.1:1`"),
        ("redis://:secret@127.0.0.1".to_owned(), "invalid server address `127.0.0.1`"),
        ("resp://127.0.0.1:1 -n 1".to_owned(), "cannot connect to 127.0.0.1:1"),
        (
            format!("http://{http} --dialect throttlecrab-http -n 3"),
            "the server made no decision: 404",
        ),
        (
            format!("grpc://{resp} --limit 1/second -n 3"),
            "the server made no decision: invalid response",
        ),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let finished = run(&[&["bench"][..], &words].concat(), b"");
        assert_eq!((finished.code, &*finished.stdout), (Some(2), ""), "{words:?}");
        assert!(finished.stderr.contains(reason), "{words:?}: {}", finished.stderr);
        assert!(!finished.stderr.contains("secret"), "{}", finished.stderr);
    }
}

#[test]
fn the_report_is_printed_as_text() {
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
