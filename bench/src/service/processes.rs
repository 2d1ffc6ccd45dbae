//! The servers, each in a separate process.

use std::{
    env,
    fs::{self, File},
    io::{self, Error},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use pacegate_testkit::servers::{Client, Flavor, Server, eventually};

use super::constant;

pub const PATIENCE: Duration = Duration::from_secs(10);
/// The program under test.
pub const PROGRAM: &str = "target/bench-build/release/pacegate";

pub struct Servers {
    pub pacegate: Pacegate,
    /// The same with two worker threads.
    pub two_workers: Pacegate,
    pub throttlecrab: Throttlecrab,
    pub redis: Process,
    pub constant: ConstantServers,
    /// Digest of the seed's script, which is loaded in Redis.
    pub script: String,
    _children: Vec<Running>,
    _redis: Server,
}

/// Servers with a constant response.
pub struct ConstantServers {
    pub resp: Process,
    pub stealing: Process,
    pub pinned: Process,
    pub http: Process,
    pub grpc: Process,
}

/// One address of a server.
#[derive(Clone)]
pub struct Process {
    pub address: String,
    pub pid: u32,
}

pub struct Pacegate {
    pub http: Process,
    pub grpc: Process,
    pub resp: Process,
}

pub struct Throttlecrab {
    pub http: Process,
    pub grpc: Process,
    pub resp: Process,
}

/// A child process with a separate directory, which ends when it is dropped.
pub struct Running {
    child: Child,
    pub folder: PathBuf,
}

/// The fixed-window script of seed 000, which its users run for each request. Its arguments are the seconds
/// of a window and the limit; it returns the decision, the remaining units and the reset time.
const SCRIPT: &str = "
local size, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local seconds = tonumber(redis.call('TIME')[1])
local key = KEYS[1] .. ':' .. math.floor(seconds / size)
local count = redis.call('INCR', key)
if count == 1 then redis.call('EXPIRE', key, size) end
local left = redis.call('TTL', key)
return { count > limit and 0 or 1, count, left }
";

/// The same limits over HTTP and gRPC, which deny nothing, and one for the check of over-admission.
const POLICIES: &str = "
policies:
  - name: per-user
    per: [user]
    limit: 1000000/minute
  - name: edge
    domain: edge
    per: [user]
    limit: 1000000/minute
  - name: exact
    domain: exact
    per: [user]
    limit: 100/hour
    algorithm: token-bucket
";

impl Servers {
    pub fn start() -> io::Result<Self> {
        let redis = Server::start(Flavor::Redis);
        let script = redis.command(&["SCRIPT", "LOAD", SCRIPT]).text();
        let (crab, throttlecrab) = throttlecrab()?;
        let (mut children, constant) = ConstantServers::start()?;
        let config = folder("pacegate")?.join("pacegate.yaml");
        fs::write(&config, POLICIES)?;
        // One thread, like redis-server: it shares the CPUs with the generator.
        let (one, pacegate) = Pacegate::start("pacegate", &config, 1)?;
        let (two, two_workers) = Pacegate::start("pacegate-2", &config, 2)?;
        let process = Process { address: redis.address(), pid: redis.pid() };
        children.extend([crab, one, two]);
        Ok(Self {
            pacegate,
            two_workers,
            throttlecrab,
            redis: process,
            constant,
            script,
            _children: children,
            _redis: redis,
        })
    }
}

impl ConstantServers {
    fn start() -> io::Result<(Vec<Running>, Self)> {
        let (first, resp) = constant::RESP.start()?;
        let (second, stealing) = constant::STEALING.start()?;
        let (third, pinned) = constant::PINNED.start()?;
        let (fourth, http) = constant::HTTP.start()?;
        let (fifth, grpc) = constant::GRPC.start()?;
        let children = vec![first, second, third, fourth, fifth];
        Ok((children, Self { resp, stealing, pinned, http, grpc }))
    }
}

fn throttlecrab() -> io::Result<(Running, Throttlecrab)> {
    let own = Path::new("target/servers/throttlecrab/bin/throttlecrab-server");
    let found = if own.exists() { own } else { Path::new("throttlecrab-server") };
    let binary = env::var_os("PACEGATE_THROTTLECRAB").unwrap_or_else(|| found.into());
    let ports = [free_port()?, free_port()?, free_port()?];
    let mut command = Command::new(binary);
    for (listener, port) in ["http", "grpc", "redis"].iter().zip(ports) {
        command.arg(format!("--{listener}"));
        command.args([format!("--{listener}-host"), "127.0.0.1".to_owned()]);
        command.args([format!("--{listener}-port"), port.to_string()]);
    }
    command.args(["--log-level", "error"]);
    let child = Running::start(&mut command, "throttlecrab")?;
    for port in ports {
        let accepts = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        eventually(PATIENCE, "throttlecrab accepts connections", accepts);
    }
    let [http, grpc, resp] = ports.map(|port| child.listener(&format!("127.0.0.1:{port}")));
    Ok((child, Throttlecrab { http, grpc, resp }))
}

/// Starts Pacegate as a user would, with free ports for these listeners; it logs their addresses. Returns those of
/// HTTP, gRPC and RESP.
pub fn start_pacegate(
    name: &str,
    config: &Path,
    workers: u8,
    options: &[&str],
) -> io::Result<(Running, [Option<Process>; 3])> {
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--workers", &workers.to_string()]).arg("--config").arg(config);
    for listener in options {
        command.args([listener, "127.0.0.1:0"]);
    }
    let mut child = Running::start(&mut command, name)?;
    let log = child.folder.join("log");
    let mut found = [None, None, None];
    eventually(PATIENCE, "pacegate logs its addresses or exits", || {
        found = listeners(&fs::read_to_string(&log).unwrap_or_default());
        let count = found.iter().flatten().count();
        count == options.len() || !matches!(child.child.try_wait(), Ok(None))
    });
    if found.iter().flatten().count() != options.len() {
        let said = fs::read_to_string(&log)?;
        return Err(Error::other(format!("pacegate failed to start: {said}")));
    }
    let found = found.map(|address| Some(child.listener(&address?)));
    Ok((child, found))
}

impl Pacegate {
    /// Starts Pacegate with all listeners.
    pub fn start(name: &str, config: &Path, workers: u8) -> io::Result<(Running, Self)> {
        let (child, found) =
            start_pacegate(name, config, workers, &["--http", "--grpc", "--resp"])?;
        let [Some(http), Some(grpc), Some(resp)] = found else {
            return Err(Error::other("pacegate has no listener"));
        };
        Ok((child, Self { http, grpc, resp }))
    }
}

/// Finds the addresses of HTTP, gRPC and RESP in the log so far. The name of the listener is before its address, on
/// the same line.
fn listeners(said: &str) -> [Option<String>; 3] {
    let mut found = [None, None, None];
    for line in said.lines() {
        let parts: Vec<&str> = line.split("127.0.0.1:").collect();
        for (before, after) in parts.iter().zip(parts.iter().skip(1)) {
            let named = ["http", "grpc", "resp"].iter().enumerate();
            let named = named.filter_map(|(index, name)| Some((before.find(name)?, index)));
            let port: String = after.chars().take_while(char::is_ascii_digit).collect();
            if let Some((_, index)) = named.min() {
                found[index].get_or_insert(format!("127.0.0.1:{port}"));
            }
        }
    }
    found
}

impl Process {
    /// Returns the CPU time of all threads of the process, in microseconds. The kernel rounds it to ticks of
    /// ten milliseconds, so a measurement has to take much longer.
    pub fn cpu_micros(&self) -> io::Result<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        // The name in parentheses may contain anything; the state follows it, and the times are the 12th and
        // 13th field after that.
        let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
        let ticks = after.split(' ').skip(11).take(2).filter_map(|word| word.parse::<u64>().ok());
        Ok(ticks.sum::<u64>() * 10_000)
    }

    /// Returns the CPU time of all live threads, in nanoseconds.
    pub fn cpu_nanos(&self) -> io::Result<u64> {
        let mut sum = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let stat = fs::read_to_string(task?.path().join("schedstat"))?;
            sum += stat.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(sum)
    }

    /// Returns the largest amount of memory that the process has used, in bytes.
    pub fn peak_memory(&self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| Error::other("no VmHWM in the status of a process"))
    }

    pub fn connect(&self) -> io::Result<Client> {
        Client::connect(&self.address)
    }
}

impl Running {
    pub fn start(command: &mut Command, name: &str) -> io::Result<Self> {
        let folder = folder(name)?;
        let log = File::create(folder.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().map_err(|error| {
            Error::new(error.kind(), format!("cannot run {:?}: {error}", command.get_program()))
        })?;
        Ok(Self { child, folder })
    }

    /// Starts this program again as a server that prints its address.
    pub fn this_program(words: &[&str]) -> io::Result<(Self, Process)> {
        let mut command = Command::new(env::current_exe()?);
        let running = Self::start(command.args(words), &words.join("-").replace(' ', "-"))?;
        let log = running.folder.join("log");
        let said = || fs::read_to_string(&log).unwrap_or_default();
        eventually(PATIENCE, "the server prints its address", || said().ends_with('\n'));
        let process = running.listener(said().trim());
        Ok((running, process))
    }

    pub fn listener(&self, address: &str) -> Process {
        Process { address: address.to_owned(), pid: self.child.id() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns a directory for the files of a server.
pub fn folder(name: &str) -> io::Result<PathBuf> {
    let folder = Path::new("target/bench/service").join(name);
    fs::create_dir_all(&folder)?;
    folder.canonicalize()
}

pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_in_different_log_formats() {
        let all = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"].map(|it| Some(it.to_owned()));
        for said in [
            "http listens on http://127.0.0.1:1\ngrpc listens on 127.0.0.1:2\nresp  127.0.0.1:3\n",
            "listening: http=127.0.0.1:1 grpc=127.0.0.1:2 resp=127.0.0.1:3\ntry: curl http://127.0.0.1:1/v1/check",
            "grpc listens on http://127.0.0.1:2\nresp listens on 127.0.0.1:3\nhttp listens on 127.0.0.1:1",
        ] {
            assert_eq!(listeners(said), all, "{said}");
        }
        assert_eq!(listeners("error: unknown option --http"), [None, None, None]);
    }
}
