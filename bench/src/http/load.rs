//! Load from wrk, with 40 connections.

use std::{fs, io, path::PathBuf, process::Command};

use crate::service::{
    load::{output, strange},
    processes::{Process, folder},
};

/// The client addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// The peer address, which is always the same.
    One,
    /// One of 100,000 addresses in `X-Forwarded-For`.
    Many,
}

pub struct Load {
    script: PathBuf,
}

impl Load {
    /// Creates the wrk script. It prepares all requests in advance, because the generator shares two CPUs
    /// with the server.
    pub fn new(keys: Keys) -> io::Result<Self> {
        let count = if keys == Keys::One { 1 } else { 100_000 };
        let script = folder("http")?.join(format!("{count}.lua"));
        let text = format!(
            "local requests = {{}}\n\
             function init()\n\
             \x20 for key = 1, {count} do\n\
             \x20   local a, b, c = math.floor(key / 65536), math.floor(key / 256) % 256, key % 256\n\
             \x20   local address = '20.' .. a .. '.' .. b .. '.' .. c\n\
             \x20   local headers = {{ ['X-Forwarded-For'] = address }}\n\
             \x20   requests[key] = wrk.format('GET', '/', headers)\n\
             \x20 end\n\
             end\n\
             function request() return requests[math.random({count})] end\n"
        );
        fs::write(&script, text)?;
        Ok(Self { script })
    }

    /// Returns the server's CPU time per request, in microseconds.
    pub fn run(&self, process: &Process, seconds: u64) -> io::Result<f64> {
        let mut command = Command::new("wrk");
        command.args(["-t1", "-c40", &format!("-d{seconds}s"), "-s"]).arg(&self.script);
        command.arg(format!("http://{}/", process.address));
        let before = process.cpu_nanos()?;
        let said = output(&mut command)?;
        let nanos = process.cpu_nanos()? - before;
        let said = String::from_utf8_lossy(&said.stdout);
        let done = said.lines().find_map(|line| line.trim().split_once(" requests in "));
        let done = done.and_then(|(count, _)| count.parse::<f64>().ok());
        let refused = said.contains("Non-2xx") || said.contains("Socket errors");
        match (done, refused) {
            (Some(done), false) => Ok(nanos as f64 / 1_000.0 / done),
            _ => Err(strange(&command, &said)),
        }
    }
}
