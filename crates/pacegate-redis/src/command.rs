//! Commands: a worker sends one per script call, and reads the reply.

use std::time::Duration;

use pacegate::{Algorithm, StoreError, Timestamp};
use redis::{Cmd, ServerError, Value};
use tokio::time::Instant;

use crate::{
    batch::Batch,
    cell::{CellCharge, Names, slot_of},
    fingerprint::Fingerprint,
    layout::CounterBatch,
    replay::Snapshot,
    responder::{Answer, Responder},
    script::{Scripts, Source},
    settlement::{self, Settlement},
    store::BlocksCommand,
    wire::{
        self, Action, Program, ScriptParams, encode_settlements, encode_simple_settlements,
        encode_update,
    },
};

/// A command for one server.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) payload: Payload,
    /// The slot is migrating to this server: send ASKING first.
    pub(crate) asking: bool,
    /// Send the text of the script, because the server does not know its digest.
    with_text: bool,
    /// The server is out of memory: create no keys.
    out_of_memory: bool,
    /// The server's time, if it rejected the window of a calendar period. The next attempt uses the window of this
    /// time.
    pub(crate) server_time: Option<Timestamp>,
}

#[derive(Debug)]
pub(crate) enum Payload {
    Charges(Batch),
    Update(UpdateCommand),
    Settlements(Vec<Settlement>),
    Counter(CounterBatch),
    Blocks(BlocksCommand),
}

/// A change of one cell other than a charge.
#[derive(Debug)]
pub(crate) struct UpdateCommand {
    pub(crate) charge: CellCharge,
    pub(crate) action: Action,
    pub(crate) responder: Responder,
}

/// What to do with a command after its reply.
#[derive(Debug)]
pub(crate) enum Disposition {
    /// All requests are answered.
    Done,
    /// Nothing ran: send it again.
    Retry(Command),
    /// Nothing ran: its key has changed, so another server may have it.
    Renamed(Command),
    /// Nothing ran: send it to another server.
    Redirect(Command, Redirect),
    /// Nothing ran: the server rejects such commands. Reconnect.
    Reconnect(Command, String),
}

/// A redirection by a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The slot has moved to this server.
    Moved(String),
    /// The key has moved to this server, the slot not yet.
    Ask(String),
    /// Only some keys of the command have moved.
    TryAgain,
}

impl Command {
    pub(crate) fn new(payload: Payload) -> Self {
        Self { payload, asking: false, with_text: false, out_of_memory: false, server_time: None }
    }

    /// Splits the command by cells: a cluster that rejects several keys of a migrating slot accepts single ones.
    pub(crate) fn split(self) -> Vec<Self> {
        match self.payload {
            Payload::Charges(batch) => {
                let parts = batch.split().into_iter();
                parts.map(|part| Self { payload: Payload::Charges(part), ..self }).collect()
            }
            Payload::Settlements(settlements) => {
                let parts = settlements.into_iter().map(|part| Payload::Settlements(vec![part]));
                parts.map(|payload| Self { payload, ..self }).collect()
            }
            payload => vec![Self { payload, ..self }],
        }
    }

    /// Drops cancelled requests; `None` if none is left.
    pub(crate) fn awaited(self) -> Option<Self> {
        let payload = match self.payload {
            Payload::Charges(batch) => Payload::Charges(batch.awaited()?),
            Payload::Counter(batch) => Payload::Counter(batch.awaited()?),
            Payload::Update(update) => {
                Payload::Update(update.responder.is_awaited().then_some(update)?)
            }
            Payload::Settlements(mut settlements) => {
                settlements.retain(|settlement| settlement.responder.is_awaited());
                Payload::Settlements(Some(settlements).filter(|rest| !rest.is_empty())?)
            }
            Payload::Blocks(blocks) => {
                Payload::Blocks(blocks.responder.is_awaited().then_some(blocks)?)
            }
        };
        Some(Self { payload, ..self })
    }

    fn responders_mut(&mut self) -> Box<dyn Iterator<Item = &mut Responder> + '_> {
        match &mut self.payload {
            Payload::Charges(batch) => Box::new(batch.responders_mut()),
            Payload::Update(update) => Box::new(std::iter::once(&mut update.responder)),
            Payload::Settlements(settlements) => {
                Box::new(settlements.iter_mut().map(|settlement| &mut settlement.responder))
            }
            Payload::Counter(batch) => Box::new(batch.responders_mut()),
            Payload::Blocks(blocks) => Box::new(std::iter::once(&mut blocks.responder)),
        }
    }

    /// Returns the start of the oldest request whose caller is still waiting.
    pub(crate) fn since(&mut self) -> Option<Instant> {
        self.responders_mut().filter_map(|responder| responder.since()).min()
    }

    /// Times out requests past the deadline, and returns their number.
    pub(crate) fn expire(&mut self, deadline: Duration) -> usize {
        self.responders_mut().map(|responder| usize::from(responder.expire(deadline))).sum()
    }

    /// Answers every request with the error.
    pub(crate) fn fail(mut self, error: &StoreError) {
        self.responders_mut().for_each(|responder| responder.answer(Err(error.clone())));
    }

    pub(crate) fn slot(&self) -> Option<u16> {
        match &self.payload {
            Payload::Charges(batch) => batch.cells().first().map(|cell| cell.id.slot()),
            Payload::Update(update) => Some(update.charge.cell.slot()),
            Payload::Settlements(settlements) => settlements.first().map(|first| first.key.slot()),
            Payload::Counter(batch) => Some(batch.slot()),
            Payload::Blocks(blocks) => Some(slot_of(&blocks.key)),
        }
    }

    /// Returns the numbers of requests and of cells.
    pub(crate) fn size(&self) -> (usize, usize) {
        match &self.payload {
            Payload::Charges(batch) => (batch.requests().len(), batch.cells().len()),
            Payload::Update(_) | Payload::Settlements(_) | Payload::Blocks(_) => (0, 0),
            Payload::Counter(batch) => (batch.len(), 1),
        }
    }

    pub(crate) fn encode(&self, names: &Names, scripts: &Scripts, params: ScriptParams) -> Cmd {
        let params = ScriptParams {
            create: params.create && !self.out_of_memory,
            estimate: self.server_time.unwrap_or(params.estimate),
            ..params
        };
        match &self.payload {
            Payload::Charges(batch) => {
                let (script, program) = match (self.out_of_memory, batch.is_simple()) {
                    (false, true) => (&scripts.charge_simple, Program::simple(batch, params)),
                    (false, false) => (&scripts.charge_batch, Program::general(batch, params)),
                    (true, _) => (&scripts.charge_batch_full, Program::general(batch, params)),
                };
                batch.command(self.call(script), names, program)
            }
            Payload::Update(UpdateCommand { charge, action: Action::Reset, .. })
                if charge.limit.algorithm() != Algorithm::TokenBucket && !charge.returns =>
            {
                redis::cmd("UNLINK").arg(names.key(charge.cell)).take()
            }
            Payload::Update(UpdateCommand {
                charge,
                action: Action::Claim { owner, at, ends },
                ..
            }) => {
                let [high, low] = owner;
                let mut call = self.call(&scripts.claim);
                call.arg(1).arg(names.key(charge.cell)).arg(format!("{high:016x}{low:016x}"));
                let lives = (ends - at).div_ceil(1_000) + params.slack.max(1);
                call.arg(*at).arg(*ends).arg(lives).take()
            }
            Payload::Update(UpdateCommand { charge, action, .. }) => {
                let mut keys = vec![names.key(charge.cell)];
                keys.extend(charge.returns.then(|| names.due(charge.cell)));
                let program = encode_update(charge, *action, params);
                self.call(&scripts.update).arg(keys.len()).arg(keys).arg(program).take()
            }
            Payload::Settlements(settlements) => {
                let (script, keys, program) = match settlement::is_simple(settlements) {
                    true => {
                        let keys = settlement::simple_keys(settlements, names);
                        (
                            &scripts.settle_simple,
                            keys,
                            encode_simple_settlements(settlements, params),
                        )
                    }
                    false => {
                        let keys = settlement::keys(settlements, names);
                        (&scripts.settle, keys, encode_settlements(settlements, params))
                    }
                };
                self.call(script).arg(keys.len()).arg(keys).arg(program).take()
            }
            Payload::Counter(batch) => {
                let script = match (batch.is_log(), self.out_of_memory) {
                    (false, false) => &scripts.window,
                    (false, true) => &scripts.window_full,
                    (true, false) => &scripts.log,
                    (true, true) => &scripts.log_full,
                };
                batch.command(self.call(script), params)
            }
            Payload::Blocks(blocks) => blocks.command(self.call(&scripts.blocks), params),
        }
    }

    fn call(&self, script: &Source) -> Cmd {
        if self.with_text { script.load_and_call() } else { script.call() }
    }

    /// Reads the reply to a command sent at `sent`. Passes the new states of the cells to `learn`.
    pub(crate) fn finish(
        self,
        reply: Value,
        sent: Instant,
        learn: impl FnMut(Fingerprint, Snapshot),
    ) -> Disposition {
        match (self.payload, reply) {
            (payload, Value::ServerError(error)) => {
                return Self { payload, ..self }.rejected(&error);
            }
            (
                payload @ (Payload::Charges(_) | Payload::Update(_) | Payload::Settlements(_)),
                Value::BulkString(bytes),
            ) if bytes.len() == 8 => {
                let now = wire::read(&bytes).next().map(Timestamp::from_micros);
                return Self { payload, ..self }.outside_window(now);
            }
            (Payload::Charges(batch), Value::BulkString(bytes)) => batch.finish(&bytes, learn),
            (Payload::Update(mut update), Value::Int(changed)) => {
                let granted = u64::from(changed > 0);
                update.responder.answer(Ok(Answer { granted, ..Answer::default() }));
            }
            (Payload::Settlements(settlements), Value::Array(reply)) => {
                settlement::finish(settlements, &numbers(&reply));
            }
            (Payload::Counter(batch), Value::Array(reply)) => {
                if let Some(batch) = batch.finish(&numbers(&reply), sent, learn) {
                    let payload = Payload::Counter(batch);
                    return Disposition::Renamed(Self { payload, ..self });
                }
            }
            (Payload::Blocks(blocks), Value::BulkString(bytes)) => blocks.finish(&bytes),
            (payload, other) => {
                let problem = format!("unexpected reply of type {}", type_of(&other));
                Self { payload, ..self }.fail(&StoreError::Failed(problem));
            }
        }
        Disposition::Done
    }

    /// Handles a reply that proves that nothing ran, because the server's time is not in the window of a calendar
    /// period. The command is sent once more, with the window of that time.
    fn outside_window(mut self, now: Option<Timestamp>) -> Disposition {
        if self.server_time.is_some() {
            let problem = "the server's clock left the window of a calendar period twice";
            self.fail(&StoreError::Failed(problem.to_owned()));
            return Disposition::Done;
        }
        self.server_time = now;
        Disposition::Retry(self)
    }

    /// Returns whether another script of the payload creates no keys.
    fn can_run_without_memory(&self) -> bool {
        matches!(self.payload, Payload::Charges(_) | Payload::Counter(_))
    }

    /// Handles an error reply. Some of them prove that nothing ran.
    fn rejected(mut self, error: &ServerError) -> Disposition {
        let (code, details) = reason(error);
        let target = || details.split(' ').nth(1).unwrap_or_default().to_owned();
        if matches!(code, "MOVED" | "ASK") {
            // Another server has another clock.
            self.server_time = None;
        }
        match code {
            "NOSCRIPT" if !self.with_text => {
                self.with_text = true;
                Disposition::Retry(self)
            }
            "OOM" if !self.out_of_memory && self.can_run_without_memory() => {
                (self.out_of_memory, self.with_text) = (true, false);
                self.without_reservations(&StoreError::Unavailable(format!("{code} {details}")))
            }
            // A user of a layout may lack the permission for the key of the blocks, and needs no other connection.
            "NOPERM" if matches!(self.payload, Payload::Blocks(_)) => {
                self.fail(&StoreError::Unsupported(format!("{code} {details}")));
                Disposition::Done
            }
            "MOVED" => Disposition::Redirect(self, Redirect::Moved(target())),
            "ASK" => Disposition::Redirect(self, Redirect::Ask(target())),
            "TRYAGAIN" => Disposition::Redirect(self, Redirect::TryAgain),
            "READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "BUSY" | "MISCONF"
            | "NOREPLICAS" | "NOAUTH" | "NOPERM" => {
                Disposition::Reconnect(self, format!("{code} {details}"))
            }
            code => {
                self.fail(&StoreError::Failed(format!("{code} {details}")));
                Disposition::Done
            }
        }
    }

    /// Answers requests that open a reservation, which needs a new key, with the error. Sends the others again.
    fn without_reservations(self, error: &StoreError) -> Disposition {
        let Payload::Charges(batch) = self.payload else { return Disposition::Retry(self) };
        match batch.fail_reservations(error) {
            Some(batch) => Disposition::Retry(Self { payload: Payload::Charges(batch), ..self }),
            None => Disposition::Done,
        }
    }
}

/// Returns code and details of an error. Redis 6.2 reports an error inside of a script as
/// `ERR Error running script (call to …): @user_script:…: -READONLY …`.
fn reason(error: &ServerError) -> (&str, &str) {
    let details = error.details().unwrap_or_default();
    let inside = details.split_once(": -").and_then(|(_, inside)| inside.split_once(' '));
    match inside {
        Some(("READONLY" | "MISCONF", _)) if error.code() == "ERR" => inside.unwrap_or_default(),
        _ => (error.code(), details),
    }
}

/// Returns the numbers of a reply; empty if it has anything else.
fn numbers(reply: &[Value]) -> Vec<i64> {
    let number = |value: &Value| if let Value::Int(number) = value { Some(*number) } else { None };
    reply.iter().map(number).collect::<Option<_>>().unwrap_or_default()
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Int(_) => "integer",
        Value::BulkString(_) => "string",
        Value::Array(_) => "array",
        _ => "another kind",
    }
}

#[cfg(test)]
mod tests {
    use pacegate::{Charge, KeyRef, Limit};

    use super::*;

    /// Returns the consequence of an error reply to a refund.
    fn consequence(reply: &str) -> String {
        let key = KeyRef::new(b"key");
        let charge = Charge::new("api".parse().unwrap(), key, Limit::per_minute(9));
        let charge = Names::new("", b"").cell_charge(&charge).unwrap();
        let (responder, mut answer) = Responder::new();
        let update = UpdateCommand { charge, action: Action::Refund, responder };
        let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
        let command = Command::new(Payload::Update(update));
        match command.finish(reply, Instant::now(), |_, _| {}) {
            Disposition::Reconnect(_, reason) => reason,
            Disposition::Done => format!("done: {}", answer.try_recv().unwrap().unwrap_err()),
            other => panic!("{other:?}"),
        }
    }

    /// Otherwise a connection to a server that has become a replica would be kept for ever.
    #[test]
    fn redis_6_reports_readonly_inside_of_a_script_error() {
        let script = "Error running script (call to f_1028a5db): @user_script:4: @user_script: 4: ";
        let readonly = "READONLY You can't write against a read only replica.";
        assert_eq!(consequence(readonly), readonly);
        assert_eq!(consequence(&format!("ERR {script}-{readonly}")), readonly);
        let disk = "MISCONF Redis is configured to save RDB snapshots, but it cannot.";
        assert_eq!(consequence(&format!("ERR {script}-{disk}")), disk);
        for other in ["WRONGTYPE Operation against a key", "ERR value is not an integer: -5"] {
            let text = format!("ERR {script}-{other}");
            assert_eq!(consequence(&text), format!("done: the store failed: {text}"));
        }
    }
}
