//! A model of Redis servers: the commands that the store sends, and our scripts in Lua 5.1.
//!
//! It runs on virtual time, in the same thread as everything else. `tests/differential.rs` compares it with real
//! servers.

pub mod cluster;
mod keyspace;
mod packing;
pub mod resp;
mod script;
pub mod sentinel;

use std::sync::Arc;

use pacegate_testkit::slot_of;
use parking_lot::Mutex;

use cluster::{Access, ClusterView};
pub use keyspace::{Keyspace, Value};
use resp::{Args, Reply};
use script::{Interpreter, NotRun};

/// A Redis server.
#[derive(Debug)]
pub struct Redis {
    keyspace: Arc<Mutex<Keyspace>>,
    scripts: Interpreter,
    /// The state that a fault has set.
    pub condition: Condition,
    /// The slots as this node sees them; `None` outside of a cluster.
    pub cluster: Option<ClusterView>,
    /// Commands and their replies, in order of execution.
    recorded: Option<Vec<(Args, Reply)>>,
}

/// Reasons for a server to reject commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// It is reading its data from disk.
    pub is_loading: bool,
    /// It is a replica.
    pub is_replica: bool,
    /// It has reached `maxmemory`, with `noeviction`.
    pub is_out_of_memory: bool,
}

/// The state of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Session {
    /// The client has chosen RESP3.
    pub resp3: bool,
    /// The last command was `ASKING`.
    is_asking: bool,
}

const LOADING: &str = "LOADING Redis is loading the dataset in memory";
const READ_ONLY: &str = "READONLY You can't write against a read only replica.";
const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

impl Redis {
    /// Creates an empty server.
    pub fn new() -> mlua::Result<Self> {
        let keyspace = Arc::<Mutex<Keyspace>>::default();
        let scripts = Interpreter::new(&keyspace)?;
        let condition = Condition::default();
        Ok(Self { keyspace, scripts, condition, cluster: None, recorded: None })
    }

    /// Records commands from now on.
    pub fn record(&mut self) {
        self.recorded = Some(Vec::new());
    }

    /// Returns the slot of a command's keys, or 0 outside of a cluster; `None` if it has no keys.
    pub fn region(&self, args: &[Vec<u8>]) -> Option<u16> {
        let name = args[0].to_ascii_uppercase();
        if !matches!(name.as_slice(), b"EVAL" | b"EVALSHA" | b"UNLINK") {
            return None;
        }
        let keys = keyspace::keys_of(std::str::from_utf8(&name).unwrap_or_default(), &args[1..]);
        let slot = keys.first().map(|key| slot_of(key))?;
        Some(if self.cluster.is_some() { slot } else { 0 })
    }

    /// Returns the number of resets so far.
    pub fn resets(&self) -> u64 {
        self.keyspace.lock().resets()
    }

    /// Returns the commands recorded so far, with their replies.
    pub fn take_recorded(&mut self) -> Vec<(Args, Reply)> {
        self.recorded.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns a copy of all keys.
    pub fn snapshot(&self) -> Keyspace {
        self.keyspace.lock().clone()
    }

    /// Replaces all keys.
    pub fn restore(&mut self, keyspace: Keyspace) {
        *self.keyspace.lock() = keyspace;
    }

    /// Returns the keys of a slot.
    pub fn keys_in_slot(&self, slot: u16) -> Vec<Vec<u8>> {
        let keyspace = self.keyspace.lock();
        let keys = keyspace.dump().map(|(key, ..)| key).filter(|key| slot_of(key) == slot);
        keys.map(<[u8]>::to_vec).collect()
    }

    /// Moves a key to another node. Returns false if it does not exist.
    pub fn move_key(&mut self, key: &[u8], to: &mut Self, now: (u64, u64)) -> bool {
        let (mut from, mut to) = (self.keyspace.lock(), to.keyspace.lock());
        from.set_now(now.0);
        to.set_now(now.1);
        let taken = from.take(key);
        let is_taken = taken.is_some();
        taken.into_iter().for_each(|entry| to.put(key, entry));
        is_taken
    }

    /// Forgets all scripts.
    pub fn flush_scripts(&mut self) {
        self.scripts.flush();
    }

    /// Runs a command at `now`, in microseconds since 1970.
    pub fn execute(&mut self, session: &mut Session, args: Args, now: u64) -> Reply {
        self.keyspace.lock().set_now(now);
        let reply = self.dispatch(session, &args);
        session.is_asking = args[0].eq_ignore_ascii_case(b"ASKING");
        if let Some(recorded) = &mut self.recorded {
            recorded.push((args, reply.clone()));
        }
        reply
    }

    fn dispatch(&mut self, session: &mut Session, args: &[Vec<u8>]) -> Reply {
        let Some((name, args)) = args.split_first() else {
            return Reply::error("ERR empty command");
        };
        let name = String::from_utf8_lossy(name).to_ascii_uppercase();
        if let Err(refusal) = self.admit(&name, args, session.is_asking) {
            return Reply::Error(refusal);
        }
        match (name.as_str(), args) {
            ("HELLO", [version, ..]) => {
                session.resp3 = version == b"3";
                self.hello(session)
            }
            ("INFO", _) => Reply::bulk(self.info()),
            ("CLIENT" | "SELECT" | "ASKING", _) => Reply::ok(),
            ("CLUSTER", [word]) if word.eq_ignore_ascii_case(b"SLOTS") => self.slots(),
            _ if self.condition.is_loading => Reply::error(LOADING),
            ("PING", []) => Reply::Status("PONG".to_owned()),
            ("EVAL", [text, rest @ ..]) => match self.scripts.load(text) {
                Ok(digest) => self.run_script(&digest, rest),
                Err(error) => not_run(error),
            },
            ("EVALSHA", [digest, rest @ ..]) => {
                let digest = String::from_utf8_lossy(digest).to_ascii_lowercase();
                self.run_script(&digest, rest)
            }
            ("SCRIPT", [word, text]) if word.eq_ignore_ascii_case(b"LOAD") => {
                self.scripts.load(text).map_or_else(not_run, Reply::bulk)
            }
            ("SCRIPT", [word, ..]) if word.eq_ignore_ascii_case(b"FLUSH") => {
                self.scripts.flush();
                Reply::ok()
            }
            (name, args) => self.run_command(name, args),
        }
    }

    /// Checks that this node may run a command. Otherwise returns the error reply.
    fn admit(&self, name: &str, args: &[Vec<u8>], is_asking: bool) -> Result<(), String> {
        let mut keyspace = self.keyspace.lock();
        keyspace.access = Access::All;
        let Some(view) = &self.cluster else { return Ok(()) };
        if !matches!(name, "HELLO" | "INFO" | "CLIENT" | "SELECT" | "ASKING" | "CLUSTER") {
            let keys = keyspace::keys_of(name, args);
            keyspace.access = view.admit(&keys, is_asking, |key| keyspace.contains(key))?;
        }
        Ok(())
    }

    fn slots(&self) -> Reply {
        let Some(view) = &self.cluster else {
            return Reply::error("ERR This instance has cluster support disabled");
        };
        let rows = view.ranges().into_iter().map(|(first, last, node)| {
            let (host, port) = view.address(node);
            let id = Reply::bulk(format!("{node:040x}"));
            let metadata = Reply::Array(Vec::new());
            let node = vec![Reply::bulk(host.as_str()), Reply::Int(i64::from(*port)), id, metadata];
            let [first, last] = [first, last].map(|slot| Reply::Int(slot as i64));
            Reply::Array(vec![first, last, Reply::Array(node)])
        });
        Reply::Array(rows.collect())
    }

    fn hello(&self, session: &Session) -> Reply {
        let role = if self.condition.is_replica { "replica" } else { "master" };
        let text = |text: &str| Reply::bulk(text.as_bytes());
        let fields = [
            ("server", text("redis")),
            ("version", text("7.2.4")),
            ("proto", Reply::Int(if session.resp3 { 3 } else { 2 })),
            ("id", Reply::Int(1)),
            ("mode", text(if self.cluster.is_some() { "cluster" } else { "standalone" })),
            ("role", text(role)),
            ("modules", Reply::Array(Vec::new())),
        ];
        Reply::Map(fields.map(|(name, value)| (name.to_owned(), value)).to_vec())
    }

    fn info(&self) -> String {
        let role = if self.condition.is_replica { "slave" } else { "master" };
        format!("# Server\r\nredis_version:7.2.4\r\n# Replication\r\nrole:{role}\r\n")
    }

    /// Runs a script with `numkeys key … arg …`.
    fn run_script(&self, digest: &str, rest: &[Vec<u8>]) -> Reply {
        let count = rest.first().and_then(|count| std::str::from_utf8(count).ok()?.parse().ok());
        let Some((keys, args)) = count.and_then(|count| rest[1..].split_at_checked(count)) else {
            return Reply::error("ERR Number of keys can't be greater than number of args");
        };
        if self.condition.is_replica && self.scripts.knows(digest) {
            return Reply::error(READ_ONLY);
        }
        let out_of_memory = self.condition.is_out_of_memory;
        let reply = self.scripts.run(digest, (keys, args), out_of_memory).unwrap_or_else(not_run);
        if self.scripts.is_reset(digest, args) && !matches!(reply, Reply::Error(_)) {
            self.keyspace.lock().count_reset();
        }
        reply
    }

    fn run_command(&self, name: &str, args: &[Vec<u8>]) -> Reply {
        if self.condition.is_replica && matches!(name, "UNLINK" | "DEL" | "SET") {
            return Reply::error(READ_ONLY);
        }
        match self.keyspace.lock().run(name, args) {
            Some(Ok(reply)) => reply,
            Some(Err(text)) => Reply::Error(text),
            None => Reply::error(format!("ERR unknown command '{name}'")),
        }
    }
}

fn not_run(error: NotRun) -> Reply {
    match error {
        NotRun::Unknown => Reply::error(NO_SCRIPT),
        NotRun::OutOfMemory => Reply::error(OUT_OF_MEMORY),
        NotRun::Invalid(problem) => Reply::error(format!("ERR Error compiling script: {problem}")),
    }
}
