//! The load generators and the parsing of their output.

use std::{
    fs,
    io::{self, Error},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{
    KEYS,
    processes::{Process, folder},
};

/// A load generator for one server.
pub trait Load {
    /// Generates load for a while. Keys may differ from round to round.
    fn run(&self, stretch: Stretch, round: usize) -> io::Result<Slice>;
}

/// Length of a slice. Each generator uses the field that it supports.
#[derive(Clone, Copy)]
pub struct Stretch {
    pub decisions: u64,
    pub seconds: f64,
}

/// The result of a slice of load.
#[derive(Clone, Copy)]
pub struct Slice {
    /// Decisions per second.
    pub rate: f64,
    /// In microseconds, if the generator reports it.
    pub p99: Option<f64>,
    /// Server CPU time per decision, in microseconds.
    pub cpu: f64,
    /// The same for the Redis server that it uses.
    pub redis_cpu: Option<f64>,
}

/// redis-benchmark with 50 connections.
pub struct Resp {
    process: Process,
    pipeline: usize,
    words: Vec<String>,
}

impl Resp {
    pub fn new(process: &Process, pipeline: usize, words: &str) -> Self {
        let words = words.split(' ').map(str::to_owned).collect();
        Self { process: process.clone(), pipeline, words }
    }
}

impl Load for Resp {
    fn run(&self, Stretch { decisions, .. }: Stretch, _round: usize) -> io::Result<Slice> {
        let mut command = Command::new("redis-benchmark");
        let port = self.process.address.rsplit(':').next().unwrap_or_default();
        command.args(["-p", port, "-c", "50", "--csv", "-r", &KEYS.to_string()]);
        command.args(["-n", &decisions.to_string(), "-P", &self.pipeline.to_string()]);
        let (said, cpu) = timed(&self.process, command.args(&self.words))?;
        let line = said.lines().rfind(|line| line.starts_with('"')).unwrap_or_default();
        let fields = line.rsplit("\",\"").map(|field| field.trim_matches('"').parse::<f64>());
        let fields: Vec<f64> = fields.take(7).filter_map(Result::ok).collect();
        // From the end, because the name of the test may contain anything: max, p99, p95, p50, min, average,
        // rate.
        let [_, p99, _, _, _, _, rate] = fields[..] else {
            return Err(strange(&command, &said));
        };
        Ok(Slice { rate, p99: Some(p99 * 1_000.0), cpu: cpu / decisions as f64, redis_cpu: None })
    }
}

/// wrk with 40 connections.
pub struct Http {
    process: Process,
    path: &'static str,
    body: &'static str,
}

impl Http {
    /// Creates the load. The `@` in the body is replaced with a number.
    pub fn new(process: &Process, path: &'static str, body: &'static str) -> Self {
        Self { process: process.clone(), path, body }
    }

    /// Returns the wrk script. It prepares all requests in advance, because the generator shares two CPUs
    /// with the server.
    fn script(&self) -> String {
        let (before, after) = self.body.split_once('@').unwrap_or((self.body, ""));
        format!(
            "local requests = {{}}\n\
             function init()\n\
             \x20 local headers = {{ ['Content-Type'] = 'application/json' }}\n\
             \x20 for key = 1, {KEYS} do\n\
             \x20   local body = '{before}' .. key .. '{after}'\n\
             \x20   requests[key] = wrk.format('POST', '{}', headers, body)\n\
             \x20 end\n\
             end\n\
             function request() return requests[math.random({KEYS})] end\n",
            self.path
        )
    }
}

impl Load for Http {
    fn run(&self, Stretch { seconds, .. }: Stretch, _round: usize) -> io::Result<Slice> {
        let script = folder("wrk")?.join("script.lua");
        fs::write(&script, self.script())?;
        // wrk supports only whole seconds.
        let seconds = seconds.ceil();
        let mut command = Command::new("wrk");
        command.args(["-t1", "-c40", "--latency", &format!("-d{seconds}s"), "-s"]).arg(script);
        command.arg(format!("http://{}", self.process.address));
        let (said, cpu) = timed(&self.process, &mut command)?;
        let lines = || said.lines().map(str::trim);
        let done = lines().find_map(|line| line.split_once(" requests in "));
        let done = done.and_then(|(count, _)| count.parse::<f64>().ok());
        let rate = lines().find_map(|line| line.strip_prefix("Requests/sec:"));
        let rate = rate.and_then(|rate| rate.trim().parse().ok());
        let p99 = lines().find_map(|line| line.strip_prefix("99%")).and_then(micros);
        let refused = said.contains("Non-2xx") || said.contains("Socket errors");
        let (Some(done), Some(rate), false) = (done, rate, refused) else {
            return Err(strange(&command, &said));
        };
        Ok(Slice { rate, p99, cpu: cpu / done, redis_cpu: None })
    }
}

/// h2load with 10 connections of 10 streams.
pub struct Grpc {
    process: Process,
    path: &'static str,
    /// Creates the message for a key.
    message: Box<dyn Fn(&str) -> Vec<u8> + Sync>,
}

impl Grpc {
    /// Creates load of Envoy requests, with one descriptor of one entry.
    pub fn pacegate(process: &Process, domain: &'static str) -> Self {
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let message = move |key: &str| {
            let entry = [text(1, "user"), text(2, key)].concat();
            [text(1, domain), bytes(2, &bytes(1, &entry))].concat()
        };
        Self { process: process.clone(), path, message: Box::new(message) }
    }

    pub fn throttlecrab(process: &Process) -> Self {
        Self::throttlecrab_with(process, [1_000_000, 1_000_000, 60])
    }

    /// Creates load with a limit: burst, amount and period.
    pub fn throttlecrab_with(process: &Process, limit: [u32; 3]) -> Self {
        let path = "/throttlecrab.RateLimiter/Throttle";
        let message = move |key: &str| {
            let numbers = (2..).zip(limit.into_iter().chain([1]));
            let numbers = numbers.flat_map(|(field, value)| number(field, value));
            [text(1, key), numbers.collect()].concat()
        };
        Self { process: process.clone(), path, message: Box::new(message) }
    }

    /// Makes `calls` calls for one key; returns the server's CPU time and the rate.
    pub fn call(&self, calls: u64, key: &str) -> io::Result<Slice> {
        let body = self.body(key)?;
        let mut command = Command::new("h2load");
        command.args(["-t1", "-c10", "-m10", &format!("-n{calls}"), "-d"]).arg(body);
        command.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
        command.arg(format!("http://{}{}", self.process.address, self.path));
        let (said, cpu) = timed(&self.process, &mut command)?;
        let rate = said.lines().find_map(|line| {
            let rate = line.strip_prefix("finished in ")?.split(", ").nth(1)?;
            rate.strip_suffix(" req/s")?.parse().ok()
        });
        let all = said.contains(&format!(" {calls} succeeded, 0 failed"));
        let (Some(rate), true) = (rate, all) else {
            return Err(strange(&command, &said));
        };
        Ok(Slice { rate, p99: None, cpu: cpu / calls as f64, redis_cpu: None })
    }

    /// Returns the responses to `calls` calls with a body.
    pub fn answers(&self, calls: usize, body: &Path) -> io::Result<Vec<Vec<u8>>> {
        let mut command = Command::new("nghttp");
        command.args([&format!("-m{calls}"), "-H", "content-type: application/grpc"]);
        command.args(["-H", "te: trailers", "-d"]).arg(body);
        command.arg(format!("http://{}{}", self.process.address, self.path));
        let said = output(&mut command)?;
        let answers = frames(&said.stdout);
        if answers.len() != calls {
            return Err(strange(&command, &String::from_utf8_lossy(&said.stderr)));
        }
        Ok(answers)
    }

    /// Writes a file with the gRPC prefix and the message.
    pub fn body(&self, key: &str) -> io::Result<PathBuf> {
        let message = (self.message)(key);
        let length = (message.len() as u32).to_be_bytes();
        let file = folder("h2load")?.join("body");
        fs::write(&file, [&[0], &length[..], &message].concat())?;
        Ok(file)
    }
}

impl Load for Grpc {
    fn run(&self, stretch: Stretch, round: usize) -> io::Result<Slice> {
        self.call(stretch.decisions, &format!("user{round}"))
    }
}

/// Runs a generator; returns its output and the CPU time of the server.
fn timed(process: &Process, command: &mut Command) -> io::Result<(String, f64)> {
    let before = process.cpu_micros()?;
    let said = output(command)?;
    let cpu = process.cpu_micros()? - before;
    Ok((String::from_utf8_lossy(&said.stdout).into_owned(), cpu as f64))
}

pub fn output(command: &mut Command) -> io::Result<Output> {
    let output = command.output().map_err(|error| {
        Error::new(error.kind(), format!("cannot run {:?}: {error}", command.get_program()))
    })?;
    match output.status.success() {
        true => Ok(output),
        false => Err(strange(command, &String::from_utf8_lossy(&output.stderr))),
    }
}

pub fn strange(command: &Command, said: &str) -> Error {
    let said: String = said.chars().take(2_000).collect();
    Error::other(format!("no result in the output of {command:?}:\n{said}"))
}

/// Splits a gRPC stream into messages. Each is preceded by a flag and its length.
fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some((&[0, a, b, c, d], rest)) = bytes.split_first_chunk() {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let Some((message, rest)) = rest.split_at_checked(length) else { break };
        frames.push(message.to_owned());
        bytes = rest;
    }
    frames
}

/// Parses `12.34us`, `1.23ms` or `1.23s` into microseconds.
fn micros(text: &str) -> Option<f64> {
    let text = text.trim();
    let units = [("us", 1.0), ("ms", 1_000.0), ("s", 1_000_000.0)];
    units.into_iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(number * factor)
    })
}

/// Encoders for the three Protocol Buffers field types that are needed here.
fn text(field: u8, value: &str) -> Vec<u8> {
    bytes(field, value.as_bytes())
}

fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    [&[field << 3 | 2, value.len() as u8], value].concat()
}

fn number(field: u8, mut value: u32) -> Vec<u8> {
    let mut bytes = vec![field << 3];
    while value > 127 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_protocol_buffers() {
        assert_eq!(text(1, "edge"), b"\x0a\x04edge");
        assert_eq!(number(3, 300), [0x18, 0xac, 0x02]);
        assert_eq!(number(2, 1), [0x10, 1]);
    }

    #[test]
    fn a_stream_is_split_into_messages() {
        let stream = b"\0\0\0\0\x02\x08\x01\0\0\0\0\0\0\0\0\0\x01x\0\0\0\0\x09half";
        assert_eq!(frames(stream), [b"\x08\x01".to_vec(), b"".to_vec(), b"x".to_vec()]);
    }

    #[test]
    fn times_with_units_are_parsed() {
        assert_eq!(micros(" 12.50us"), Some(12.5));
        assert_eq!(micros("1.50ms"), Some(1_500.0));
        assert_eq!(micros("2.00s"), Some(2_000_000.0));
        assert_eq!(micros("none"), None);
    }
}
