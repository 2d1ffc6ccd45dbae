//! `cargo xtask bench agree`: checks that `pacegate bench` measures the same as redis-benchmark and wrk, on
//! the same servers.

use std::{
    fs,
    io::{self, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context, ensure};

use crate::command::{cargo, root};

/// Rounds per pair; the two generators of a pair take turns.
const ROUNDS: usize = 11;
/// Length of one measurement, in seconds.
const SECONDS: u64 = 3;
/// Maximum difference that counts as agreement, in thousandths.
const APART: u64 = 100;
const KEYS: u64 = 100_000;
/// Servers and generators each have a dedicated CPU. Otherwise, a generator that needs less CPU leaves more
/// for the server, and the two generators measure different conditions.
const SERVER: &str = "taskset --cpu-list 0";
const GENERATOR: &str = "taskset --cpu-list 1";

/// A server process, which ends when it is dropped.
struct Running(Child);

/// Two load generators for the same server.
struct Pair {
    name: String,
    other: Vec<String>,
    ours: Vec<String>,
}

/// The result of a generator, and its CPU usage.
#[derive(Clone, Copy)]
struct Figures {
    per_second: u64,
    /// CPU usage of the generator, in percent of one core.
    busy: u64,
}

/// CPU usage, in percent of one core, from which on the generator is the bottleneck, so that it does not
/// measure the server.
const BUSY: u64 = 90;

/// Builds the program and measures all pairs. Fails if the medians of a pair differ too much.
pub(crate) fn run() -> anyhow::Result<()> {
    let words = "build --release --package pacegate-cli --target-dir target/bench-build";
    cargo(&words.split(' ').collect::<Vec<_>>(), &[])?;
    run_with(&root().join("target/bench-build/release/pacegate").display().to_string())
}

/// Measures all pairs with a program that is already built.
pub(crate) fn run_with(pacegate: &str) -> anyhow::Result<()> {
    let [redis, http, resp] = [free_port()?, free_port()?, free_port()?];
    let options = format!("--port {redis} --save  --appendonly no");
    let _redis = start(&format!("{SERVER} redis-server {options}"), redis)?;
    let listeners =
        format!("--http 127.0.0.1:{http} --resp 127.0.0.1:{resp} --grpc off --workers 1");
    let _ours = start(&format!("{SERVER} {pacegate} serve {listeners}"), resp)?;
    let mut apart = Vec::new();
    let mut output = io::stdout();
    let [theirs, ours] = ["theirs", "ours"];
    writeln!(
        output,
        "{:<34}{theirs:>14}{:>8}{ours:>14}{:>8}{:>8}",
        "requests per second", "CPU", "CPU", "ratio"
    )?;
    // Remove the data of the previous measurement.
    let clear = || said(&words(&format!("redis-cli -p {redis} FLUSHALL")));
    for pair in pairs(pacegate, redis, http, resp)? {
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            let alone = |words: &[String]| clear().and_then(|_| measure(words));
            // Alternate, because the first generator finds the server cold.
            rounds.push(if round % 2 == 0 {
                let theirs = alone(&pair.other)?;
                (theirs, alone(&pair.ours)?)
            } else {
                let ours = alone(&pair.ours)?;
                (alone(&pair.other)?, ours)
            });
        }
        rounds.sort_by_key(|(theirs, ours)| ours.per_second * 1_000 / theirs.per_second.max(1));
        let (theirs, ours) = rounds[ROUNDS / 2];
        let ratio = ours.per_second * 1_000 / theirs.per_second.max(1);
        let own_pace = theirs.busy.max(ours.busy) >= BUSY;
        let name = if own_pace { format!("({})", pair.name) } else { pair.name.clone() };
        writeln!(
            output,
            "{name:<34}{:>14}{:>7}%{:>14}{:>7}%{:>4}.{:03}",
            theirs.per_second,
            theirs.busy,
            ours.per_second,
            ours.busy,
            ratio / 1_000,
            ratio % 1_000
        )?;
        if !own_pace && ratio.abs_diff(1_000) > APART {
            apart.push(pair.name);
        }
    }
    ensure!(apart.is_empty(), "medians differ by more than 10 %: {}", apart.join(", "));
    Ok(())
}

fn pairs(pacegate: &str, redis: u16, http: u16, resp: u16) -> anyhow::Result<Vec<Pair>> {
    let script = std::env::temp_dir().join("pacegate-agree.lua");
    fs::write(&script, REQUEST)?;
    let ours = format!(
        "{GENERATOR} {pacegate} bench http://127.0.0.1:{http} -c 40 --keys hot -d {SECONDS}s \
         --check 0 --json"
    );
    let other = format!(
        "{GENERATOR} wrk -t1 -c40 -d{SECONDS}s -s {} http://127.0.0.1:{http}",
        script.display()
    );
    let name = "pacegate HTTP, 40".to_owned();
    let mut pairs = vec![Pair { name, other: words(&other), ours: words(&ours) }];

    let limiter = std::env::temp_dir().join("pacegate-agree-limiter.lua");
    fs::write(&limiter, LIMITER)?;
    let load = format!("redis-cli -p {redis} SCRIPT LOAD");
    let mut load = words(&load);
    load.push(LIMITER.to_owned());
    let digest = said(&load)?.trim().to_owned();
    let evalsha = format!("EVALSHA {digest} 1 key:__rand_int__ 60 1000000");
    let dialect = format!(
        "script --script {} --arg 60 --arg 1000000 --limit 1000000/minute",
        limiter.display()
    );
    for (name, port, (connections, depth), dialect, command) in [
        ("redis INCR", redis, (50, 1), "incr", INCR),
        ("redis INCR", redis, (50, 16), "incr", INCR),
        ("redis EVALSHA", redis, (50, 1), &*dialect, &*evalsha),
        ("redis EVALSHA", redis, (50, 16), &*dialect, &*evalsha),
        ("pacegate CL.THROTTLE", resp, (50, 1), "cl.throttle", THROTTLE),
        ("pacegate CL.THROTTLE", resp, (50, 16), "cl.throttle", THROTTLE),
    ] {
        let theirs = |requests: u64| {
            words(&format!(
                "{GENERATOR} redis-benchmark -p {port} -c {connections} -P {depth} -r {KEYS} \
                 -n {requests} --csv {command}"
            ))
        };
        let ours = format!(
            "{GENERATOR} {pacegate} bench resp://127.0.0.1:{port} --dialect {dialect} \
             -c {connections} -P {depth} --keys uniform:{KEYS} -d {SECONDS}s --check 0 --json"
        );
        let other = theirs(measure(&theirs(100_000))?.per_second * SECONDS);
        let name = format!("{name}, {connections} x {depth}");
        pairs.push(Pair { name, other, ours: words(&ours) });
    }
    Ok(pairs)
}

const INCR: &str = "INCR key:__rand_int__";
const THROTTLE: &str = "CL.THROTTLE bench-0000000000-__rand_int__ 999999 1000000 1 1";

/// Slow enough for Redis to be the bottleneck.
const LIMITER: &str = "\
local seconds = tonumber(redis.call('TIME')[1])
local key = KEYS[1] .. ':' .. math.floor(seconds / tonumber(ARGV[1]))
local count = redis.call('INCR', key)
if count == 1 then redis.call('EXPIRE', key, ARGV[1]) end
return { count > tonumber(ARGV[2]) and 0 or 1, count, redis.call('TTL', key) }
";

/// Always the same request. If a script chose among many, its table would evict the server's data from the
/// CPU caches: with 100,000 requests, wrk measured a seventh less.
const REQUEST: &str = r#"
wrk.method = 'POST'
wrk.path = '/v1/check'
wrk.headers['content-type'] = 'application/json'
wrk.body = '{"key":"wrk-00000000000000-000069886","limit":"1000000/second"}'
"#;

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Runs a generator.
fn measure(words: &[String]) -> anyhow::Result<Figures> {
    let (begun, before) = (uptime()?, children()?);
    let said = said(words)?;
    let busy = (children()? - before) * 100 / (uptime()? - begun).max(1);
    let per_second = found(&said);
    let no_figures = || format!("no result in the output of `{}`: {said}", words.join(" "));
    Ok(Figures { per_second: per_second.with_context(no_figures)?, busy })
}

/// Returns the CPU time of all child processes that have exited, in hundredths of a second.
fn children() -> anyhow::Result<u64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, after_name) = stat.rsplit_once(')').context("/proc/self/stat has no name")?;
    let times = after_name.split_whitespace().skip(13).take(2).map(str::parse::<u64>);
    times.sum::<Result<u64, _>>().context("/proc/self/stat has no times")
}

/// Returns the uptime of the machine, in hundredths of a second.
fn uptime() -> anyhow::Result<u64> {
    let uptime = fs::read_to_string("/proc/uptime")?;
    let seconds = uptime.split(' ').next().unwrap_or_default().replace('.', "");
    seconds.parse().context("/proc/uptime has no time")
}

/// Runs a program and returns its output.
fn said(words: &[String]) -> anyhow::Result<String> {
    let (program, args) = words.split_first().context("empty command")?;
    let output = Command::new(program).args(args).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{}` failed: {errors}", words.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Finds the rate in the output of any of the three generators, as a whole number.
fn found(said: &str) -> Option<u64> {
    let whole = |text: &str| text.split('.').next()?.parse().ok();
    if let Some((_, after)) = said.split_once("\"per_second\":") {
        return whole(after.split([',', '}']).next()?);
    }
    if let Some((_, after)) = said.split_once("Requests/sec:") {
        return whole(after.trim().lines().next()?);
    }
    // From the end, because the name of the test may contain anything: max, p99, p95, p50, min, average,
    // rate.
    let line = said.lines().rfind(|line| line.starts_with('"'))?;
    whole(line.trim_matches('"').rsplit("\",\"").nth(6)?)
}

/// Starts a server and waits until it accepts connections.
fn start(line: &str, port: u16) -> anyhow::Result<Running> {
    // Two spaces make an empty argument: `--save ""`.
    let (words, log) = (words(line), Stdio::null);
    let (program, args) = words.split_first().context("empty command")?;
    let child = Command::new(program).args(args).stdout(log()).stderr(log()).spawn();
    let mut running = Running(child.with_context(|| format!("cannot start {program}"))?);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(running.0.try_wait()?.is_none(), "{program} did not start");
        thread::yield_now();
    }
    Ok(running)
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ignore errors: it may have exited already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_in_the_output_of_each_generator() {
        let csv = "\"test\",\"rps\"\n\"INCR a,b\",\"81234.50\",\"0.3\",\"0.1\",\"0.2\",\"0.4\",\"0.5\",\"1.9\"\n";
        assert_eq!(found(csv), Some(81_234));
        assert_eq!(found("Requests/sec:  43210.98\nTransfer/sec: 1MB\n"), Some(43_210));
        assert_eq!(found("{\"pipeline\":1,\"per_second\":777,\"x\":1}"), Some(777));
        assert_eq!(found("nothing"), None);
    }
}
