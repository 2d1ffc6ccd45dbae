//! The keys of the model, and the commands that read and write them.

use std::collections::{BTreeMap, VecDeque};

use super::{cluster::Access, resp::Reply};

/// All keys of a server, and the time of the command that runs.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    entries: BTreeMap<Vec<u8>, Entry>,
    /// Microseconds since 1970. It does not change while a script runs.
    now: u64,
    /// Number of `UNLINK` commands, also of scripts, and of resets by scripts.
    resets: u64,
    /// The keys that the commands of the script that runs may use.
    pub(super) access: Access,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    /// Milliseconds since 1970.
    expires: Option<u64>,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    String(Vec<u8>),
    /// A list.
    List(VecDeque<Vec<u8>>),
    /// A sorted set: score and member, in order.
    SortedSet(Vec<(f64, Vec<u8>)>),
}

/// The result of a command, where `Err` is an error reply.
pub type Answer = Result<Reply, String>;

/// The score and the name of a member of a sorted set.
type Member = (f64, Vec<u8>);

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const NOT_A_FLOAT: &str = "ERR value is not a valid float";
const SYNTAX: &str = "ERR syntax error";
const NOT_LOCAL: &str = "ERR Script attempted to access a non local key in a cluster node";

impl Keyspace {
    /// Sets the time, and removes expired keys.
    pub fn set_now(&mut self, micros: u64) {
        self.now = micros;
        let now = micros / 1_000;
        self.entries.retain(|_, entry| entry.expires.is_none_or(|expires| now <= expires));
    }

    /// Returns the number of resets so far: `UNLINK` commands, which only resets send, and resets by scripts. One that
    /// does both counts twice.
    pub fn resets(&self) -> u64 {
        self.resets
    }

    /// Counts a reset by a script. It writes a new value to a bucket that has to keep its count of returned tokens.
    pub fn count_reset(&mut self) {
        self.resets += 1;
    }

    /// Returns whether a key exists.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.entries.contains_key(key)
    }

    /// Removes a key, to move it to another node. Returns its value and its remaining milliseconds, if it expires.
    pub fn take(&mut self, key: &[u8]) -> Option<(Value, Option<u64>)> {
        let Entry { value, expires } = self.entries.remove(key)?;
        Some((value, expires.map(|expires| expires.saturating_sub(self.now / 1_000))))
    }

    /// Inserts a key that another node had.
    pub fn put(&mut self, key: &[u8], (value, left): (Value, Option<u64>)) {
        let expires = left.map(|left| self.now / 1_000 + left);
        self.entries.insert(key.to_vec(), Entry { value, expires });
    }

    /// Runs a command of a script, as [`run`](Self::run). In a slot that moves, it can use only some keys.
    pub fn run_in_script(&mut self, name: &str, args: &[Vec<u8>]) -> Option<Answer> {
        let keys = keys_of(name, args);
        let missing = keys.iter().filter(|key| !self.contains(key)).count();
        let is_local = match self.access {
            Access::All => true,
            Access::Existing => missing == 0,
            Access::Single => missing == 0 || keys.iter().all(|key| *key == keys[0]),
        };
        match is_local {
            true => self.run(name, args),
            false => Some(Err(NOT_LOCAL.to_owned())),
        }
    }

    /// Returns every key with its value and its remaining milliseconds, if it expires.
    pub fn dump(&self) -> impl Iterator<Item = (&[u8], &Value, Option<u64>)> {
        self.entries.iter().map(|(key, entry)| {
            let left = entry.expires.map(|expires| expires.saturating_sub(self.now / 1_000));
            (key.as_slice(), &entry.value, left)
        })
    }

    /// Runs a command; `None` if the model does not have it.
    pub fn run(&mut self, name: &str, args: &[Vec<u8>]) -> Option<Answer> {
        let answer = match (name, args) {
            ("TIME", []) => Ok(self.time()),
            ("DEL", keys) => Ok(self.delete(keys)),
            ("UNLINK", keys) => {
                self.resets += 1;
                Ok(self.delete(keys))
            }
            ("EXISTS", keys) => {
                let found = keys.iter().filter(|key| self.entries.contains_key(*key)).count();
                Ok(Reply::Int(found as i64))
            }
            ("TYPE", [key]) => Ok(self.type_of(key)),
            ("PEXPIRE", [key, millis]) => self.expire(key, millis),
            ("PTTL", [key]) => Ok(self.ttl(key)),
            ("GET", [key]) => self.string(key).map(|value| value.map_or(Reply::Nil, Reply::bulk)),
            ("MGET", keys) => Ok(Reply::Array(keys.iter().map(|key| self.any(key)).collect())),
            ("SET", [key, value, options @ ..]) => self.set(key, value, options),
            ("INCRBY", [key, by]) => self.add(key, by, 1),
            ("DECRBY", [key, by]) => self.add(key, by, -1),
            ("LLEN", [key]) => self.list(key).map(|list| count(list.map_or(0, VecDeque::len))),
            ("LINDEX", [key, index]) => self.list_item(key, index),
            ("LSET", [key, index, value]) => self.set_list_item(key, index, value),
            ("LPUSH", [key, values @ ..]) if !values.is_empty() => self.push_front(key, values),
            ("RPUSH", [key, values @ ..]) if !values.is_empty() => self.push(key, values),
            ("RPOP", [key]) => self.pop(key),
            ("LRANGE", [key, first, last]) => self.list_range(key, first, last),
            ("LTRIM", [key, first, last]) => self.trim(key, first, last),
            (name, [key, args @ ..]) if name.starts_with('Z') => {
                return self.sorted_set_command(name, key, args);
            }
            _ => return None,
        };
        Some(answer)
    }

    fn time(&self) -> Reply {
        let [seconds, micros] = [self.now / 1_000_000, self.now % 1_000_000];
        Reply::Array([seconds, micros].map(|part| Reply::bulk(part.to_string())).to_vec())
    }

    fn delete(&mut self, keys: &[Vec<u8>]) -> Reply {
        count(keys.iter().filter(|key| self.entries.remove(*key).is_some()).count())
    }

    fn type_of(&self, key: &[u8]) -> Reply {
        let name = match self.entries.get(key).map(|entry| &entry.value) {
            None => "none",
            Some(Value::String(_)) => "string",
            Some(Value::List(_)) => "list",
            Some(Value::SortedSet(_)) => "zset",
        };
        Reply::Status(name.to_owned())
    }

    fn expire(&mut self, key: &[u8], millis: &[u8]) -> Answer {
        let (millis, now) = (integer(millis)?, self.now / 1_000);
        let Some(entry) = self.entries.get_mut(key) else { return Ok(Reply::Int(0)) };
        match u64::try_from(millis) {
            Ok(millis @ 1..) => entry.expires = Some(now + millis),
            _ => drop(self.entries.remove(key)),
        }
        Ok(Reply::Int(1))
    }

    fn ttl(&self, key: &[u8]) -> Reply {
        let left = self.entries.get(key).map(|entry| entry.expires);
        Reply::Int(match left {
            None => -2,
            Some(None) => -1,
            Some(Some(expires)) => expires.saturating_sub(self.now / 1_000) as i64,
        })
    }

    fn string(&self, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        match self.entries.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value.clone())),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// Returns the value of a string; nil for other types too.
    fn any(&self, key: &[u8]) -> Reply {
        self.string(key).ok().flatten().map_or(Reply::Nil, Reply::Bulk)
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: &[Vec<u8>]) -> Answer {
        let (mut options, mut expires) = (options.iter(), None);
        while let Some(option) = options.next() {
            match option.to_ascii_uppercase().as_slice() {
                b"KEEPTTL" => expires = self.entries.get(key).and_then(|entry| entry.expires),
                b"PX" => match integer(options.next().ok_or(SYNTAX)?)? {
                    millis @ 1.. => expires = Some(self.now / 1_000 + millis as u64),
                    _ => return Err("ERR invalid expire time in 'set' command".to_owned()),
                },
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        self.entries.insert(key.to_vec(), Entry { value: Value::String(value.to_vec()), expires });
        Ok(Reply::ok())
    }

    fn add(&mut self, key: &[u8], by: &[u8], sign: i64) -> Answer {
        let by = integer(by)?.checked_mul(sign).ok_or("ERR decrement would overflow")?;
        let old = self.string(key)?.map_or(Ok(0), |value| integer(&value))?;
        let new = old.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
        let expires = self.entries.get(key).and_then(|entry| entry.expires);
        let value = Value::String(new.to_string().into_bytes());
        self.entries.insert(key.to_vec(), Entry { value, expires });
        Ok(Reply::Int(new))
    }

    fn list(&self, key: &[u8]) -> Result<Option<&VecDeque<Vec<u8>>>, String> {
        match self.entries.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// Changes a list, and removes the key if the list is empty then.
    fn change_list<T>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut VecDeque<Vec<u8>>) -> T,
    ) -> Result<T, String> {
        self.list(key)?;
        let empty = || Entry { value: Value::List(VecDeque::new()), expires: None };
        let entry = self.entries.entry(key.to_vec()).or_insert_with(empty);
        let Value::List(list) = &mut entry.value else { return Err(WRONG_TYPE.to_owned()) };
        let result = change(list);
        if list.is_empty() {
            self.entries.remove(key);
        }
        Ok(result)
    }

    fn list_item(&self, key: &[u8], index: &[u8]) -> Answer {
        let list = self.list(key)?;
        let index = integer(index)?;
        let item = list.and_then(|list| list.get(position(index, list.len())?));
        Ok(item.map_or(Reply::Nil, |item| Reply::bulk(item.clone())))
    }

    fn set_list_item(&mut self, key: &[u8], index: &[u8], value: &[u8]) -> Answer {
        if self.list(key)?.is_none() {
            return Err("ERR no such key".to_owned());
        }
        let index = integer(index)?;
        self.change_list(key, |list| {
            let item = position(index, list.len()).and_then(|place| list.get_mut(place));
            let item = item.ok_or("ERR index out of range")?;
            *item = value.to_vec();
            Ok(Reply::ok())
        })?
    }

    fn push_front(&mut self, key: &[u8], values: &[Vec<u8>]) -> Answer {
        self.change_list(key, |list| {
            values.iter().for_each(|value| list.push_front(value.clone()));
            count(list.len())
        })
    }

    fn push(&mut self, key: &[u8], values: &[Vec<u8>]) -> Answer {
        self.change_list(key, |list| {
            list.extend(values.iter().cloned());
            count(list.len())
        })
    }

    fn pop(&mut self, key: &[u8]) -> Answer {
        self.change_list(key, |list| list.pop_back().map_or(Reply::Nil, Reply::Bulk))
    }

    fn list_range(&self, key: &[u8], first: &[u8], last: &[u8]) -> Answer {
        let (first, last) = (integer(first)?, integer(last)?);
        let Some(list) = self.list(key)? else { return Ok(Reply::Array(Vec::new())) };
        let range = range(first, last, list.len());
        Ok(Reply::Array(list.range(range).map(|item| Reply::bulk(item.clone())).collect()))
    }

    fn trim(&mut self, key: &[u8], first: &[u8], last: &[u8]) -> Answer {
        let (first, last) = (integer(first)?, integer(last)?);
        self.change_list(key, |list| {
            let range = range(first, last, list.len());
            *list = list.range(range).cloned().collect();
            Reply::ok()
        })
    }

    fn sorted_set(&self, key: &[u8]) -> Result<&[Member], String> {
        match self.entries.get(key).map(|entry| &entry.value) {
            None => Ok(&[]),
            Some(Value::SortedSet(members)) => Ok(members),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn sorted_set_command(&mut self, name: &str, key: &[u8], args: &[Vec<u8>]) -> Option<Answer> {
        let read = |keyspace: &Self, answer: fn(&[Member], &[Vec<u8>]) -> Answer| {
            // Invalid arguments are reported before a wrong type.
            answer(&[], args)?;
            keyspace.sorted_set(key).and_then(|members| answer(members, args))
        };
        Some(match (name, args) {
            ("ZCARD", []) => self.sorted_set(key).map(|members| count(members.len())),
            ("ZCOUNT", [_, _]) => {
                read(self, |members, args| Ok(count(within(members, &args[0], &args[1])?.count())))
            }
            ("ZRANGEBYSCORE", [_, _]) => read(self, |members, args| {
                let found = within(members, &args[0], &args[1])?;
                Ok(Reply::Array(found.map(|(_, member)| Reply::bulk(member.clone())).collect()))
            }),
            ("ZRANGE", [_, _, ..]) => read(self, ranked),
            ("ZSCORE", [_]) => read(self, |members, args| {
                let found = members.iter().find(|(_, member)| *member == args[0]);
                Ok(found.map_or(Reply::Nil, |(score, _)| Reply::bulk(format_score(*score))))
            }),
            ("ZADD", [_, _, ..]) => self.add_members(key, args),
            ("ZREM", [_, ..]) => {
                self.remove_members(key, |_, member| args.iter().any(|it| it == member))
            }
            ("ZREMRANGEBYSCORE", [low, high]) => match (bound(low), bound(high)) {
                (Some(low), Some(high)) => {
                    self.remove_members(key, |score, _| low.is_below(score) && high.is_above(score))
                }
                _ => Err("ERR min or max is not a float".to_owned()),
            },
            ("ZPOPMAX", [most]) => self.pop_highest(key, most),
            _ => return None,
        })
    }

    /// Changes a sorted set, restores its order, and removes the key if the set is empty then.
    fn change_set<T>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut Vec<Member>) -> T,
    ) -> Result<T, String> {
        self.sorted_set(key)?;
        let empty = || Entry { value: Value::SortedSet(Vec::new()), expires: None };
        let entry = self.entries.entry(key.to_vec()).or_insert_with(empty);
        let Value::SortedSet(members) = &mut entry.value else { return Err(WRONG_TYPE.to_owned()) };
        let result = change(members);
        members.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        if members.is_empty() {
            self.entries.remove(key);
        }
        Ok(result)
    }

    fn add_members(&mut self, key: &[u8], args: &[Vec<u8>]) -> Answer {
        let only_new = args[0].eq_ignore_ascii_case(b"NX");
        let pairs = &args[usize::from(only_new)..];
        if pairs.is_empty() || pairs.len() % 2 == 1 {
            return Err(SYNTAX.to_owned());
        }
        let pairs: Vec<(f64, &Vec<u8>)> = pairs
            .chunks(2)
            .map(|pair| Ok((float(&pair[0]).ok_or(NOT_A_FLOAT)?, &pair[1])))
            .collect::<Result<_, &str>>()?;
        self.change_set(key, |members| {
            let mut added = 0;
            for (score, member) in pairs {
                match members.iter_mut().find(|(_, known)| known == member) {
                    Some(_) if only_new => {}
                    Some(known) => known.0 = score,
                    None => {
                        members.push((score, member.clone()));
                        added += 1;
                    }
                }
            }
            count(added)
        })
    }

    fn remove_members(&mut self, key: &[u8], is_removed: impl Fn(f64, &Vec<u8>) -> bool) -> Answer {
        self.change_set(key, |members| {
            let before = members.len();
            members.retain(|(score, member)| !is_removed(*score, member));
            count(before - members.len())
        })
    }

    fn pop_highest(&mut self, key: &[u8], most: &[u8]) -> Answer {
        let most = usize::try_from(integer(most)?).map_err(|_| "ERR value is out of range")?;
        self.change_set(key, |members| {
            let popped = members.split_off(members.len().saturating_sub(most));
            Reply::Array(popped.into_iter().rev().flat_map(with_score).collect())
        })
    }
}

/// Returns the keys of a command.
pub(super) fn keys_of<'a>(name: &str, args: &'a [Vec<u8>]) -> Vec<&'a [u8]> {
    let count = match name {
        "TIME" | "PING" | "SCRIPT" => 0,
        "DEL" | "UNLINK" | "EXISTS" | "MGET" => args.len(),
        "EVAL" | "EVALSHA" => {
            let count = args.get(1).and_then(|count| std::str::from_utf8(count).ok()?.parse().ok());
            let keys = args.get(2..).unwrap_or_default().iter();
            return keys.take(count.unwrap_or(0)).map(Vec::as_slice).collect();
        }
        _ => 1,
    };
    args.iter().take(count).map(Vec::as_slice).collect()
}

/// A bound of a range of scores.
#[derive(Clone, Copy)]
struct Bound {
    score: f64,
    excluded: bool,
}

impl Bound {
    fn is_below(self, score: f64) -> bool {
        if self.excluded { self.score < score } else { self.score <= score }
    }

    fn is_above(self, score: f64) -> bool {
        if self.excluded { score < self.score } else { score <= self.score }
    }
}

fn bound(text: &[u8]) -> Option<Bound> {
    match text.strip_prefix(b"(") {
        Some(rest) => Some(Bound { score: float(rest)?, excluded: true }),
        None => Some(Bound { score: float(text)?, excluded: false }),
    }
}

fn within<'a>(
    members: &'a [Member],
    low: &[u8],
    high: &[u8],
) -> Result<impl Iterator<Item = &'a Member>, String> {
    let not_a_float = || "ERR min or max is not a float".to_owned();
    let low = bound(low).ok_or_else(not_a_float)?;
    let high = bound(high).ok_or_else(not_a_float)?;
    Ok(members.iter().filter(move |(score, _)| low.is_below(*score) && high.is_above(*score)))
}

/// Returns the members from one rank to another, with scores if asked for.
fn ranked(members: &[Member], args: &[Vec<u8>]) -> Answer {
    let with_scores = match &args[2..] {
        [] => false,
        [option] if option.eq_ignore_ascii_case(b"WITHSCORES") => true,
        _ => return Err(SYNTAX.to_owned()),
    };
    let found = members[range(integer(&args[0])?, integer(&args[1])?, members.len())].iter();
    Ok(Reply::Array(match with_scores {
        true => found.cloned().flat_map(with_score).collect(),
        false => found.map(|(_, member)| Reply::bulk(member.clone())).collect(),
    }))
}

fn with_score((score, member): Member) -> [Reply; 2] {
    [Reply::Bulk(member), Reply::bulk(format_score(score))]
}

/// Formats a score as the server does. Scores are integers below 2^53 here.
fn format_score(score: f64) -> String {
    match score {
        f64::INFINITY => "inf".to_owned(),
        f64::NEG_INFINITY => "-inf".to_owned(),
        score => score.to_string(),
    }
}

fn float(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Parses an integer strictly, as the server does.
fn integer(text: &[u8]) -> Result<i64, String> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
    parsed.filter(|number| number.to_string().as_bytes() == text).ok_or(NOT_AN_INTEGER.to_owned())
}

fn count(number: usize) -> Reply {
    Reply::Int(number as i64)
}

/// Converts an index, which counts from the end if it is negative.
fn position(index: i64, length: usize) -> Option<usize> {
    let index = if index < 0 { index + length as i64 } else { index };
    usize::try_from(index).ok().filter(|place| *place < length)
}

fn range(first: i64, last: i64, length: usize) -> std::ops::Range<usize> {
    let absolute = |index: i64| if index < 0 { index + length as i64 } else { index };
    let first = absolute(first).max(0) as usize;
    let end = (absolute(last) + 1).clamp(0, length as i64) as usize;
    first.min(end)..end
}
