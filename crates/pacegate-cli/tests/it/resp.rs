//! The Redis protocol, with stock clients and with invalid bytes.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::Duration,
};

use pacegate_testkit::servers::python;

use crate::{clients::Http, service::Service};

fn resp_only(args: &[&str]) -> Service {
    Service::start(&[&["--http", "off", "--grpc", "off"], args].concat())
}

fn connect(service: &Service) -> TcpStream {
    let stream = TcpStream::connect(service.address("resp")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends bytes, and reads until the server closes the connection.
fn until_the_end(service: &Service, bytes: &[u8]) -> String {
    let mut stream = connect(service);
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend([*word, b"\r\n"].concat());
    }
    bytes
}

/// Sends commands in one write, then `QUIT`, and returns the bytes of the answers.
fn talk(service: &Service, commands: &[&[&[u8]]]) -> String {
    let mut bytes: Vec<u8> = commands.iter().flat_map(|words| command(words)).collect();
    bytes.extend(command(&[b"QUIT"]));
    let answer = until_the_end(service, &bytes);
    answer
        .strip_suffix("+OK\r\n")
        .unwrap_or_else(|| panic!("no answer to QUIT: {answer:?}"))
        .to_owned()
}

fn redis_cli(service: &Service, args: &[&str]) -> String {
    let address = service.address("resp");
    let output = Command::new("redis-cli")
        .args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()])
        .args(args)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn redis_cli_throttles_as_with_redis_cell() {
    let service = resp_only(&[]);
    let throttle = |version: &str, key: &str| {
        redis_cli(&service, &[version, "CL.THROTTLE", key, "2", "30", "60", "1"])
            .lines()
            .map(|line| line.parse().unwrap())
            .collect::<Vec<i64>>()
    };
    for (version, key) in [("-2", "two"), ("-3", "three")] {
        assert_eq!(throttle(version, key), [0, 3, 2, -1, 2], "the burst and one more");
        assert_eq!(throttle(version, key), [0, 3, 1, -1, 4]);
        assert_eq!(throttle(version, key), [0, 3, 0, -1, 6]);
        assert_eq!(throttle(version, key), [1, 3, 0, 2, 6], "denied, to be retried in 2 s");
    }
    assert_eq!(redis_cli(&service, &["PING"]), "PONG\n");
}

#[test]
fn each_dialect_has_its_own_answers() {
    let service = resp_only(&[]);
    let crab = |quantity: &'static [u8]| -> [&'static [u8]; 6] {
        [b"THROTTLE", b"k", b"3", b"30", b"60", quantity]
    };
    let cell = |quantity: &'static [u8]| -> [&'static [u8]; 6] {
        [b"CL.THROTTLE", b"k", b"2", b"30", b"60", quantity]
    };
    let answers = talk(&service, &[&crab(b"2"), &cell(b"1"), &cell(b"1"), &crab(b"1")]);
    let one_budget = "*5\r\n:1\r\n:3\r\n:1\r\n:4\r\n:0\r\n\
                      *5\r\n:0\r\n:3\r\n:0\r\n:-1\r\n:6\r\n\
                      *5\r\n:1\r\n:3\r\n:0\r\n:2\r\n:6\r\n\
                      *5\r\n:0\r\n:3\r\n:0\r\n:6\r\n:2\r\n";
    assert_eq!(answers, one_budget);
    let peeks = talk(&service, &[&cell(b"0"), &crab(b"0"), &cell(b"4"), &crab(b"4")]);
    let nothing_taken = "*5\r\n:0\r\n:3\r\n:0\r\n:-1\r\n:6\r\n\
                         *5\r\n:1\r\n:3\r\n:0\r\n:6\r\n:0\r\n\
                         *5\r\n:1\r\n:3\r\n:0\r\n:-1\r\n:6\r\n\
                         -ERR quantity 4 exceeds max_burst 3\r\n";
    assert_eq!(peeks, nothing_taken);
}

#[test]
fn a_mixed_pipeline_is_answered_in_order() {
    let service = resp_only(&[]);
    let throttle: &[&[u8]] = &[b"cl.throttle", b"p", b"99", b"1", b"3600"];
    let check: &[&[u8]] = &[b"PACEGATE.CHECK", b"KEY", b"q", b"LIMIT", b"9/hour token-bucket"];
    let ping: &[&[u8]] = &[b"PING", b"here"];
    let bad: &[&[u8]] = &[b"CL.THROTTLE", b"p", b"x", b"1", b"1"];
    let commands: Vec<_> = [throttle, check, throttle, ping, bad, check, throttle].repeat(400);
    let answers = talk(&service, &commands);
    let remaining: Vec<&str> = answers.split("*5\r\n:").skip(1).collect();
    assert_eq!(remaining.len(), 1200);
    for (place, answer) in remaining.iter().enumerate() {
        let left = 99_usize.checked_sub(place);
        let limited = usize::from(left.is_none());
        let expected = format!("{limited}\r\n:100\r\n:{}\r\n", left.unwrap_or(0));
        assert!(answer.starts_with(&expected), "{place}: {answer:?}");
    }
    assert_eq!(answers.matches("$4\r\nhere\r\n").count(), 400);
    assert_eq!(answers.matches("-ERR max_burst is not a whole number").count(), 400);
    assert_eq!(answers.matches("$7\r\nallowed\r\n:1\r\n").count(), 9);
    assert_eq!(answers.matches("$7\r\nallowed\r\n:0\r\n").count(), 791);
}

#[test]
fn requests_are_decided_by_policies() {
    let service = resp_only(&[]);
    let check: &[&[u8]] = &[b"PACEGATE.CHECK", b"COST", b"60", b"ATTR", b"key", b"alice"];
    let peek: &[&[u8]] = &[b"PACEGATE.PEEK", b"ATTR", b"key", b"alice"];
    let refund: &[&[u8]] = &[b"PACEGATE.REFUND", b"COST", b"60", b"ATTR", b"key", b"alice"];
    let reset: &[&[u8]] = &[b"PACEGATE.RESET", b"ATTR", b"key", b"alice"];
    let answers = talk(&service, &[check, peek, check, refund, check, reset, check]);
    let allowed: Vec<_> =
        answers.split("$7\r\nallowed\r\n:").skip(1).map(|rest| &rest[..1]).collect();
    assert_eq!(allowed, ["1", "1", "0", "1", "1"]);
    let remaining: Vec<_> = answers
        .split("$9\r\nremaining\r\n:")
        .skip(1)
        .map(|rest| rest.split('\r').next().unwrap())
        .collect();
    assert_eq!(remaining, ["40", "40", "40", "40", "40"]);
    assert_eq!(answers.matches("+OK\r\n").count(), 2);
    assert_eq!(answers.matches("$7\r\ndefault\r\n$5\r\nlimit\r\n$10\r\n100/minute\r\n").count(), 5);
}

#[test]
fn a_reservation_is_settled_once() {
    let service = resp_only(&[]);
    let reserve: &[&[u8]] =
        &[b"PACEGATE.RESERVE", b"TTL", b"60", b"COST", b"60", b"ATTR", b"key", b"alice"];
    let answers = talk(&service, &[reserve, reserve]);
    let (_, id) = answers.split_once("$11\r\nreservation\r\n$").unwrap();
    let id = id.split("\r\n").nth(1).unwrap();
    assert!(answers.ends_with("$11\r\nreservation\r\n$-1\r\n"), "denied: {answers}");
    let settle: &[&[u8]] = &[b"pacegate.settle", id.as_bytes(), b"25"];
    let cancel: &[&[u8]] = &[b"PACEGATE.CANCEL", id.as_bytes()];
    let peek: &[&[u8]] = &[b"PACEGATE.PEEK", b"ATTR", b"key", b"alice"];
    let answers = talk(&service, &[settle, settle, cancel, peek]);
    assert!(answers.starts_with(":1\r\n:0\r\n:0\r\n"), "{answers}");
    assert!(answers.contains("remaining\r\n:75\r\n"), "{answers}");
    for (command, error) in [
        (&[&b"PACEGATE.SETTLE"[..], b"x", b"1"][..], "-ERR invalid reservation: "),
        (&[b"PACEGATE.SETTLE", id.as_bytes()], "-ERR syntax error: expected PACEGATE.SETTLE "),
        (&[b"PACEGATE.SETTLE", id.as_bytes(), b"-1"], "-ERR used is not a whole number"),
        (
            &[b"PACEGATE.CANCEL", id.as_bytes(), b"1"],
            "-ERR syntax error: expected PACEGATE.CANCEL ",
        ),
        (
            &[b"PACEGATE.RESERVE", b"TTL", b"0", b"ATTR", b"a", b"b"],
            "-ERR invalid TTL: expected 1 to",
        ),
        (
            &[b"PACEGATE.RESERVE", b"SPENT", b"1", b"ATTR", b"a", b"b"],
            "-ERR syntax error: expected",
        ),
        (&[b"PACEGATE.RESERVE"], "-ERR syntax error: expected"),
    ] {
        let answer = talk(&service, &[command]);
        assert!(answer.starts_with(error), "{answer}");
    }
}

#[test]
fn invalid_commands_get_errors() {
    let service = resp_only(&[]);
    let usage = "-ERR syntax error: expected [COST n | SPENT n | UPTO n]";
    for (words, answer) in [
        (&[&b"CL.THROTTLE"[..], b"k"][..], "-ERR syntax error: expected CL.THROTTLE key max_burst"),
        (&[b"THROTTLE", b"k", b"0", b"1", b"1"], "-ERR a burst must be at least 1"),
        (&[b"THROTTLE", b"k", b"1", b"0", b"1"], "-ERR count must be at least 1"),
        (&[b"THROTTLE", b"k", b"1", b"1", b"0"], "-ERR "),
        (&[b"THROTTLE", b"k", b"1", b"-1", b"1"], "-ERR count is not a whole number"),
        (&[b"THROTTLE", b"k", b"1", b"1", b"1", b"1.5"], "-ERR quantity is not a whole number"),
        (&[b"CL.THROTTLE", b"k", b"999999999999999999", b"1", b"99999999"], "-ERR "),
        (&[b"PACEGATE.CHECK"], usage),
        (&[b"PACEGATE.CHECK", b"ATTR", b"a"], "-ERR syntax error: expected ATTR name value"),
        (&[b"PACEGATE.CHECK", b"KEY", b"k"], usage),
        (&[b"PACEGATE.CHECK", b"KEY", b"k", b"LIMIT", b"often"], "-ERR "),
        (
            &[b"PACEGATE.CHECK", b"COST", b"-1", b"ATTR", b"a", b"b"],
            "-ERR COST is not a whole number",
        ),
        (&[b"PACEGATE.CHECK", b"ID", b"x", b"ATTR", b"a", b"b"], "-ERR the store cannot do this"),
        (
            &[b"PACEGATE.CHECK", b"ATTR", b"\xff", b"b"],
            "-ERR the name of an attribute is not UTF-8",
        ),
        (
            &[b"PACEGATE.CHECK", b"ATTR", b"a", b"1", b"b", b"2", b"a", b"3"],
            "-ERR duplicate attribute 'a'",
        ),
        (&[b"PACEGATE.CHECK", b"COST", b"1", b"cost", b"2", b"ATTR", b"a", b"b"], usage),
        (&[b"PACEGATE.CHECK", b"COST", b"1", b"SPENT", b"2", b"ATTR", b"a", b"b"], usage),
        (&[b"PACEGATE.CHECK", b"DOMAIN", b"a", b"DOMAIN", b"b", b"ATTR", b"a", b"b"], usage),
        (&[b"PACEGATE.PEEK", b"KEY", b"a", b"LIMIT", b"1/day", b"KEY", b"b"], usage),
        (&[b"SET", b"a", b"b"], "-ERR unknown command 'SET'"),
        (&[b"a\r\nb"], "-ERR unknown command 'a\\r\\nb'"),
        (&[b"HELLO", b"4"], "-NOPROTO"),
        (&[b"SELECT", b"1"], "-ERR unknown command"),
    ] {
        let answers = talk(&service, &[words, &[b"PING"]]);
        assert!(answers.starts_with(answer), "{words:?}: {answers:?}");
        assert!(answers.ends_with("\r\n+PONG\r\n"), "the connection stays open: {answers:?}");
        assert_eq!(answers.matches("\r\n").count(), 2, "one line each: {answers:?}");
    }
}

#[test]
fn invalid_bytes_close_only_their_connection() {
    let service = resp_only(&[]);
    let mut healthy = connect(&service);
    let long = [b"*2\r\n$70000\r\n".to_vec(), vec![b'x'; 100]].concat();
    for bytes in [
        &b"*1\r\n:1\r\n"[..],
        b"*-1\r\n",
        b"*100000\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\0\r\n",
        &long,
    ] {
        let answer = until_the_end(&service, bytes);
        assert!(answer.starts_with("-ERR Protocol error: "), "{bytes:?}: {answer:?}");
    }
    healthy.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    healthy.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[test]
fn hostile_keys_are_only_keys() {
    let service = resp_only(&[]);
    for key in
        [&b"a\r\n+OK\r\n"[..], b"{x}", b"\0", b"<script>alert(1)</script>", b"", &[0xff; 1024]]
    {
        let once: &[&[u8]] = &[b"THROTTLE", key, b"1", b"1", b"3600"];
        let answers = talk(&service, &[once, once]);
        assert_eq!(
            answers,
            "*5\r\n:1\r\n:1\r\n:0\r\n:3600\r\n:0\r\n*5\r\n:0\r\n:1\r\n:0\r\n:3600\r\n:3600\r\n"
        );
    }
    let long = [b'x'; 1025];
    let answers = talk(&service, &[&[b"THROTTLE", &long, b"1", b"1", b"60"]]);
    assert_eq!(answers, "-ERR the key exceeds 1024 bytes\r\n");
}

#[test]
fn a_command_may_arrive_byte_by_byte() {
    let service = resp_only(&[]);
    let mut stream = connect(&service);
    for byte in command(&[b"PING", b"slow"]) {
        stream.write_all(&[byte]).unwrap();
    }
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"$4\r\nslow\r\n");
}

#[test]
fn redis_py_connects() {
    let service = resp_only(&[]);
    let script = r#"
import sys, redis
port = int(sys.argv[1])
for protocol in (2, 3):
    client = redis.Redis(port=port, protocol=protocol, client_name="test")
    assert client.ping() is True
    key = f"py{protocol}"
    throttle = ("CL.THROTTLE", key, 2, 30, 60)
    assert client.execute_command(*throttle) == [0, 3, 2, -1, 2]
    with client.pipeline(transaction=False) as pipe:
        for _ in range(3):
            pipe.execute_command(*throttle)
        answers = pipe.execute()
    assert [a[0] for a in answers] == [0, 0, 1], answers
    reply = client.execute_command("PACEGATE.CHECK", "KEY", key, "LIMIT", "1/hour")
    if protocol == 2:
        reply = dict(zip(reply[::2], reply[1::2]))
    assert reply[b"allowed"] in (1, True) and reply[b"remaining"] == 0, reply
    assert reply[b"limit"] == b"1/hour" and reply[b"retry_after_ms"] is None
    try:
        client.set("a", "b")
        raise SystemExit("SET was taken")
    except redis.ResponseError as error:
        assert "unknown command" in str(error)
    assert client.client_getname() in ("test", b"test")
    assert client.info()["pacegate_version"]
print("done")
"#;
    let port = service.address("resp").port().to_string();
    let output = Command::new(python()).args(["-c", script, &port]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{errors}");
}

#[test]
fn an_explanation_is_json() {
    let service = resp_only(&[]);
    let explain = ["PACEGATE.EXPLAIN", "ATTR", "key", "alice"];
    let told: serde_json::Value = serde_json::from_str(&redis_cli(&service, &explain)).unwrap();
    assert_eq!(told["policies"][0]["policy"], "default");
    assert_eq!(told["policies"][0]["key"], serde_json::json!(["alice"]));
    assert_eq!(told["policies"][0]["limits"][0]["remaining"], 100, "nothing was charged");
}

#[test]
fn an_http_request_closes_the_connection() {
    let service = resp_only(&[]);
    let check: &[&[u8]] = &[b"PACEGATE.CHECK", b"COST", b"60", b"ATTR", b"key", b"alice"];
    talk(&service, &[check]);
    let words =
        ["POST", "GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "get", "Host:", "host:"];
    for word in words {
        let request = format!(
            "{word} /secret HTTP/1.1\r\nAccept: */*\r\n\r\nPACEGATE.RESET ATTR key alice\r\n"
        );
        let told = until_the_end(&service, request.as_bytes());
        assert_eq!(told, "-ERR this port speaks the Redis protocol, not HTTP\r\n", "{word}");
    }
    let header = until_the_end(&service, b"PING\r\nFOO / HTTP/1.1\r\nHost: a\r\nPING\r\n");
    assert_eq!(header.matches("+PONG\r\n").count(), 1, "{header}");
    let remaining = talk(&service, &[check]);
    assert!(remaining.contains("$9\r\nremaining\r\n:40\r\n"), "nothing was reset: {remaining}");
    let log = service.log();
    let told = "received HTTP on the RESP listener; closed the connection";
    assert!(
        (1..words.len()).contains(&log.matches(told).count()),
        "not one line per request: {log}"
    );
    assert!(!log.contains("secret") && !log.contains("RESET"), "{log}");
    // A Redis client may send an unknown command.
    assert!(talk(&service, &[&[b"GET", b"a"]]).starts_with("-ERR unknown command 'GET'"));
}

#[test]
fn limits_that_would_count_twice_are_rejected() {
    let service = resp_only(&[]);
    let check = |command: &'static [u8], second: &'static [u8]| {
        talk(&service, &[&[command, b"KEY", b"k", b"LIMIT", b"5/minute", b"LIMIT", second]])
    };
    let alike = "-ERR `5/minute` and `6/minute` have one algorithm and period\r\n";
    for command in [&b"PACEGATE.CHECK"[..], b"PACEGATE.PEEK", b"PACEGATE.RESET", b"PACEGATE.REFUND"]
    {
        assert_eq!(check(command, b"6/minute"), alike);
    }
    assert!(check(b"PACEGATE.CHECK", b"6/hour").starts_with("*18\r\n$7\r\nallowed\r\n:1\r\n"));
}

#[test]
fn resets_and_refunds_are_audited() {
    let service = Service::start(&["--grpc", "off"]);
    let reset: &[&[u8]] = &[b"PACEGATE.RESET", b"ATTR", b"key", b"alice"];
    let refund: &[&[u8]] = &[b"PACEGATE.REFUND", b"ATTR", b"key", b"alice"];
    let own: &[&[u8]] = &[b"PACEGATE.RESET", b"KEY", b"k", b"LIMIT", b"5/minute"];
    assert_eq!(talk(&service, &[reset, refund, own]), "+OK\r\n".repeat(3));
    let mut http = Http::connect(service.address("http")).unwrap();
    let answer = http.request("DELETE", "/v1/state?attribute=key:alice", None, "").unwrap();
    assert_eq!(answer.status, 200);
    let log = service.log();
    let audits: Vec<_> = log
        .lines()
        .filter_map(|line| line.split_once("changed state "))
        .map(|(_, told)| told)
        .collect();
    assert_eq!(audits.len(), 4, "{log}");
    let mark = |audit: &str| audit.split("key=\"").nth(1).unwrap()[..8].to_owned();
    let of_alice = mark(audits[0]);
    let told = |action: &str, mark: &str, policies: &str| {
        format!("action=\"{action}\" credential=\"anybody\" key=\"{mark}\" policies=\"{policies}\"")
    };
    assert_eq!(audits[0], told("reset", &of_alice, "default"));
    assert_eq!(audits[1], told("refund", &of_alice, "default"));
    assert_eq!(audits[2], told("reset", &mark(audits[2]), "inline"));
    assert_eq!(audits[3], audits[0], "HTTP writes the same audit line");
    assert!(!log.contains("alice"), "{log}");
}

#[test]
fn a_refund_above_the_limit_is_rejected() {
    let service = Service::start(&["--grpc", "off"]);
    let refund =
        |words: &[&'static [u8]]| talk(&service, &[&[&[&b"PACEGATE.REFUND"[..]], words].concat()]);
    let too_much =
        "a cost of 1000 can never be admitted: policy `default` takes at most 100 at once";
    let refused = refund(&[b"COST", b"1000", b"ATTR", b"key", b"alice"]);
    assert_eq!(refused, format!("-ERR {too_much}\r\n"));
    assert_eq!(refund(&[b"COST", b"100", b"ATTR", b"key", b"alice"]), "+OK\r\n");
    let mut http = Http::connect(service.address("http")).unwrap();
    let body = r#"{"attributes": {"key": "alice"}, "cost": 1000}"#;
    let answer = http.request("POST", "/v1/refund", None, body).unwrap();
    assert_eq!((answer.status, &answer.json()["detail"]), (400, &too_much.into()));
}

#[test]
fn requests_without_a_policy_have_no_remaining_units() {
    let service = resp_only(&[]);
    let check: &[&[u8]] = &[b"PACEGATE.CHECK", b"DOMAIN", b"nowhere", b"ATTR", b"key", b"alice"];
    let answer = talk(&service, &[check]);
    assert!(answer.contains("$9\r\nremaining\r\n$-1\r\n"), "{answer:?}");
    let answer = talk(&service, &[&[b"HELLO", b"3"], check]);
    assert!(answer.contains("$9\r\nremaining\r\n_\r\n"), "{answer:?}");
}
