//! Checks for over-admission: many connections request one key with a limit of 100.

use std::{
    io::{self, Error, Read, Write},
    net::TcpStream,
};

use super::{
    SEED, THROTTLECRAB,
    load::Grpc,
    processes::{Pacegate, Process, Servers},
};
use crate::{report::Row, row};

const CONNECTIONS: usize = 16;
const EACH: usize = 125;
const KEYS: usize = 5;
const BUDGET: f64 = 100.0;

/// Reports the worst of several new keys for every subject and protocol.
pub fn over_admitted(servers: &Servers) -> io::Result<Vec<Row>> {
    eprintln!("exactness");
    let crab = &servers.throttlecrab;
    let mut rows = Vec::new();
    let mut resp = |name, process: &Process, words: &str, allowed: i64| -> io::Result<()> {
        let over = over(|key| over_resp(process, &words.replace('@', key), allowed))?;
        rows.push(row("RESP 100 of 2000", name, "over-admitted", over));
        Ok(())
    };
    for (name, Pacegate { resp: process, .. }) in
        [("pacegate", &servers.pacegate), ("pacegate, 2 workers", &servers.two_workers)]
    {
        resp(name, process, "THROTTLE @ 100 1 3600 1", 1)?;
        resp(name, process, "CL.THROTTLE cl-@ 99 1 3600 1", 0)?;
    }
    resp(SEED, &servers.redis, &format!("EVALSHA {} 1 @ 3600 100", servers.script), 1)?;
    resp(THROTTLECRAB, &crab.resp, "THROTTLE @ 100 1 3600 1", 1)?;

    let case = "HTTP 100 of 2000";
    let Pacegate { http, grpc, .. } = &servers.pacegate;
    let body = r#"{"domain":"exact","attributes":{"user":"http-@"}}"#;
    let ours = over(|key| over_http(http, "/v1/check", &body.replace('@', key)))?;
    rows.push(row(case, "pacegate", "over-admitted", ours));
    let body = r#"{"key":"http-@","max_burst":100,"count_per_period":1,"period":3600}"#;
    let theirs = over(|key| over_http(&crab.http, "/throttle", &body.replace('@', key)))?;
    rows.push(row(case, THROTTLECRAB, "over-admitted", theirs));

    let case = "gRPC 100 of 2000";
    let load = Grpc::pacegate(grpc, "exact");
    let ours = over(|key| over_grpc(&load, &format!("grpc-{key}")))?;
    rows.push(row(case, "pacegate", "over-admitted", ours));
    let load = Grpc::throttlecrab_with(&crab.grpc, [100, 1, 3600]);
    let theirs = over(|key| over_grpc(&load, &format!("grpc-{key}")))?;
    rows.push(row(case, THROTTLECRAB, "over-admitted", theirs));
    Ok(rows)
}

/// Returns the units admitted beyond the limit. Fewer than the limit means a broken harness or server.
fn over(admitted: impl Fn(&str) -> io::Result<f64>) -> io::Result<Vec<f64>> {
    (0..KEYS)
        .map(|round| {
            let admitted = admitted(&format!("exact-{round}"))?;
            if admitted < BUDGET {
                return Err(Error::other(format!("only {admitted} of {BUDGET} were admitted")));
            }
            Ok(admitted - BUDGET)
        })
        .collect()
}

fn over_resp(process: &Process, words: &str, allowed: i64) -> io::Result<f64> {
    let words: Vec<&str> = words.split(' ').collect();
    at_once(|| {
        let mut client = process.connect()?;
        let mut admitted = 0;
        for _ in 0..EACH {
            let reply = client.command(&words)?;
            if reply.is_error() {
                return Err(Error::other(reply.text()));
            }
            admitted += usize::from(reply.items()[0].int() == allowed);
        }
        Ok(admitted)
    })
}

/// Pacegate denies with status 429, throttlecrab in the body.
fn over_http(process: &Process, path: &str, body: &str) -> io::Result<f64> {
    at_once(|| {
        let mut stream = TcpStream::connect(&process.address)?;
        stream.set_nodelay(true)?;
        let mut admitted = 0;
        for _ in 0..EACH {
            let (status, answer) = post(&mut stream, path, body)?;
            match status {
                200 => admitted += usize::from(answer.contains("\"allowed\":true")),
                429 => {}
                _ => return Err(Error::other(format!("{status}: {answer}"))),
            }
        }
        Ok(admitted)
    })
}

/// Uses nghttp, which shows the responses. For both servers, the first field is 1 if the request is allowed.
fn over_grpc(load: &Grpc, key: &str) -> io::Result<f64> {
    let body = load.body(key)?;
    at_once(|| {
        let answers = load.answers(EACH, &body)?;
        Ok(answers.iter().filter(|answer| answer.starts_with(&[0x08, 0x01])).count())
    })
}

/// Returns the number of admitted requests of all connections together.
fn at_once(ask: impl Fn() -> io::Result<usize> + Sync) -> io::Result<f64> {
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(&ask)).collect();
        let mut admitted = 0;
        for thread in asking {
            admitted += thread.join().expect("no panic")?;
        }
        Ok(admitted as f64)
    })
}

/// Sends a request; returns the status and the body of the response.
fn post(stream: &mut TcpStream, path: &str, body: &str) -> io::Result<(u16, String)> {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    loop {
        let mut part = [0; 4096];
        let read = stream.read(&mut part)?;
        answer.extend(&part[..read]);
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.and_then(|length| length.parse().ok()).unwrap_or(0) {
                let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
                return Ok((status.unwrap_or(0), body.to_owned()));
            }
        }
        if read == 0 {
            return Err(Error::other("connection closed"));
        }
    }
}
