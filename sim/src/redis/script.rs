//! Runs Lua scripts against the keys of the model.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mlua::{Error, Function, Lua, LuaOptions, MultiValue, Result, StdLib, Table, Value};
use parking_lot::Mutex;

use super::{keyspace::Keyspace, packing, resp::Reply};

/// A Lua interpreter with the library of Redis.
#[derive(Debug)]
pub(super) struct Interpreter {
    lua: Lua,
    /// Compiled scripts by digest. They are kept even if the server forgets a script.
    compiled: BTreeMap<String, Script>,
    /// The digests that the server knows.
    known: BTreeSet<String>,
    /// The error reply that ended the script.
    error: Arc<Mutex<Option<String>>>,
}

#[derive(Clone, Debug)]
struct Script {
    function: Function,
    allows_out_of_memory: bool,
    /// It is `update.lua`, which can reset a key.
    can_reset: bool,
}

/// The reason why a script was not run.
pub(super) enum NotRun {
    /// The server does not know the digest.
    Unknown,
    /// The server is out of memory, and the script has no flag for this case.
    OutOfMemory,
    /// It does not compile.
    Invalid(String),
}

/// The test of `update.lua` for a reset, which no other script that the simulator runs has.
const RESET_BRANCH: &[u8] = b"if action == RESET then";

/// The action of `update.lua` that resets a key.
const RESET: u64 = 3;

impl Interpreter {
    pub(super) fn new(keyspace: &Arc<Mutex<Keyspace>>) -> Result<Self> {
        let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, LuaOptions::new())?;
        let error = Arc::new(Mutex::new(None));
        let redis = lua.create_table()?;
        for (name, is_protected) in [("call", false), ("pcall", true)] {
            let (keyspace, error) = (keyspace.clone(), error.clone());
            let call = lua.create_function(move |lua, args: MultiValue| {
                let reply = call(&mut keyspace.lock(), lua, args)?;
                match reply {
                    Reply::Error(text) if !is_protected => {
                        *error.lock() = Some(text.clone());
                        Err(Error::runtime(text))
                    }
                    reply => to_lua(lua, reply),
                }
            })?;
            redis.set(name, call)?;
        }
        for (name, field) in [("error_reply", "err"), ("status_reply", "ok")] {
            let reply = lua.create_function(move |lua, text: mlua::LuaString| {
                let table = lua.create_table()?;
                table.set(field, text)?;
                Ok(table)
            })?;
            redis.set(name, reply)?;
        }
        lua.globals().set("redis", redis)?;
        lua.globals().set("struct", packing::table(&lua)?)?;
        Ok(Self { lua, compiled: BTreeMap::new(), known: BTreeSet::new(), error })
    }

    /// Forgets all scripts.
    pub(super) fn flush(&mut self) {
        self.known.clear();
    }

    pub(super) fn knows(&self, digest: &str) -> bool {
        self.known.contains(digest)
    }

    /// Compiles a script, and returns its digest.
    pub(super) fn load(&mut self, text: &[u8]) -> std::result::Result<String, NotRun> {
        let digest = sha1_smol::Sha1::from(text).digest().to_string();
        if !self.compiled.contains_key(&digest) {
            let (header, body) = match text.starts_with(b"#!") {
                true => {
                    let end = text.iter().position(|&byte| byte == b'\n').unwrap_or(text.len());
                    text.split_at(end)
                }
                false => (&[][..], text),
            };
            let header = String::from_utf8_lossy(header);
            let function = self.lua.load(body).set_name("@user_script").into_function();
            let function = function.map_err(|error| NotRun::Invalid(error.to_string()))?;
            let allows_out_of_memory = header.contains("allow-oom");
            let can_reset = body.windows(RESET_BRANCH.len()).any(|part| part == RESET_BRANCH);
            let script = Script { function, allows_out_of_memory, can_reset };
            self.compiled.insert(digest.clone(), script);
        }
        self.known.insert(digest.clone());
        Ok(digest)
    }

    /// Returns whether a script with these arguments resets a key. The action is the third number of `update.lua`.
    pub(super) fn is_reset(&self, digest: &str, args: &[Vec<u8>]) -> bool {
        let action = args.first().and_then(|program| program.get(16..24));
        self.compiled.get(digest).is_some_and(|script| script.can_reset)
            && action == Some(&RESET.to_le_bytes()[..])
    }

    /// Runs a script that the server knows.
    pub(super) fn run(
        &self,
        digest: &str,
        (keys, args): (&[Vec<u8>], &[Vec<u8>]),
        out_of_memory: bool,
    ) -> std::result::Result<Reply, NotRun> {
        if !self.knows(digest) {
            return Err(NotRun::Unknown);
        }
        let script = &self.compiled[digest];
        if out_of_memory && !script.allows_out_of_memory {
            return Err(NotRun::OutOfMemory);
        }
        let run = || -> Result<Reply> {
            self.lua.globals().set("KEYS", strings(&self.lua, keys)?)?;
            self.lua.globals().set("ARGV", strings(&self.lua, args)?)?;
            to_reply(script.function.call(())?)
        };
        *self.error.lock() = None;
        Ok(run().unwrap_or_else(|error| {
            let text = self.error.lock().take();
            // The first line, without the stack of calls.
            let other = || error.to_string().lines().next().unwrap_or_default().to_owned();
            Reply::Error(text.unwrap_or_else(|| format!("ERR {}", other())))
        }))
    }
}

fn strings(lua: &Lua, items: &[Vec<u8>]) -> Result<Table> {
    let table = lua.create_table_with_capacity(items.len(), 0)?;
    for item in items {
        table.raw_push(lua.create_string(item)?)?;
    }
    Ok(table)
}

/// Runs one command of a script.
fn call(keyspace: &mut Keyspace, lua: &Lua, args: MultiValue) -> Result<Reply> {
    let mut words = Vec::with_capacity(args.len());
    for arg in args {
        words.push(match arg {
            Value::String(text) => text.as_bytes().to_vec(),
            Value::Integer(number) => number.to_string().into_bytes(),
            Value::Number(number) => format_number(number).into_bytes(),
            _ => {
                return Ok(Reply::error(
                    "ERR Lua redis lib command arguments must be strings or integers",
                ));
            }
        });
    }
    let _ = lua;
    let Some((name, args)) = words.split_first() else {
        return Ok(Reply::error("ERR Please specify at least one argument for this redis.call()"));
    };
    let name = String::from_utf8_lossy(name).to_ascii_uppercase();
    Ok(match keyspace.run_in_script(&name, args) {
        Some(Ok(reply)) => reply,
        Some(Err(text)) => Reply::Error(text),
        // A gap of the model: a seed that needs the command must not pass.
        None => panic!("the model does not have the command {name}"),
    })
}

/// Formats a number as Redis passes it to a command: integers with all digits.
fn format_number(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 9.3e18 {
        return (number as i64).to_string();
    }
    number.to_string()
}

fn to_lua(lua: &Lua, reply: Reply) -> Result<Value> {
    let field = |name: &str, text: String| -> Result<Value> {
        let table = lua.create_table()?;
        table.set(name, text)?;
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Int(number) => Ok(Value::Number(number as f64)),
        Reply::Bulk(bytes) => Ok(Value::String(lua.create_string(bytes)?)),
        Reply::Nil => Ok(Value::Boolean(false)),
        Reply::Status(text) => field("ok", text),
        Reply::Error(text) => field("err", text),
        Reply::Array(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for item in items {
                table.raw_push(to_lua(lua, item)?)?;
            }
            Ok(Value::Table(table))
        }
        Reply::Map(_) => Err(Error::runtime("no command of the model returns a map")),
    }
}

fn to_reply(value: Value) -> Result<Reply> {
    Ok(match value {
        Value::Nil | Value::Boolean(false) => Reply::Nil,
        Value::Boolean(true) => Reply::Int(1),
        Value::Integer(number) => Reply::Int(number),
        // As in C: the fraction is dropped.
        Value::Number(number) => Reply::Int(number as i64),
        Value::String(text) => Reply::bulk(text.as_bytes().to_vec()),
        Value::Table(table) => {
            if let Some(text) = table.raw_get::<Option<String>>("err")? {
                return Ok(Reply::Error(text));
            }
            if let Some(text) = table.raw_get::<Option<String>>("ok")? {
                return Ok(Reply::Status(text));
            }
            let mut items = Vec::new();
            for index in 1.. {
                match table.raw_get(index)? {
                    Value::Nil => break,
                    value => items.push(to_reply(value)?),
                }
            }
            Reply::Array(items)
        }
        _ => Reply::Nil,
    })
}
