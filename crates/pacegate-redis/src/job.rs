//! Jobs: what a lane sends, one command each, and what becomes of the reply.

use std::time::Duration;

use pacegate::StoreError;
use redis::{Cmd, ServerError, Value};
use tokio::time::Instant;

use crate::{
    batch::Batch,
    cell::{Names, Want},
    layout::{Tally, Told},
    replay::Known,
    script::{Scripts, Source},
    waiter::Waiter,
    wire::{Action, Program, Settings, amendment},
};

/// Something to be done in one command.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) work: Work,
    /// Whether the slot is on its way here from another server.
    pub(crate) asking: bool,
    /// The script's text goes along, since the server did not know it.
    text: bool,
    /// The server has no memory left: nothing new may be made.
    full: bool,
}

#[derive(Debug)]
pub(crate) enum Work {
    Batch(Batch),
    Amend(Amend),
    Tally(Tally),
}

/// A change to one cell other than a charge.
#[derive(Debug)]
pub(crate) struct Amend {
    pub(crate) want: Want,
    /// `None`: forgets everything.
    pub(crate) action: Option<Action>,
    pub(crate) waiter: Waiter<bool>,
}

/// What became of a job.
#[derive(Debug)]
pub(crate) enum Next {
    /// It is answered.
    Done,
    /// Nothing ran: it can be sent again as it now is.
    Again(Job),
    /// Nothing ran: it has another key now, which may be elsewhere.
    Renamed(Job),
    /// Nothing ran: it belongs elsewhere.
    Elsewhere(Job, Redirect),
    /// Nothing ran: the server cannot take it, and its connection had better be made anew.
    Refused(Job, String),
}

/// Where a cluster says a slot is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// For good.
    Moved(String),
    /// For this once.
    Ask(String),
    /// Here, but not yet all of it.
    TryAgain,
}

impl Job {
    pub(crate) fn new(work: Work) -> Self {
        Self { work, asking: false, text: false, full: false }
    }

    /// The same in parts, each for other cells: a cluster that refuses keys together may take them one by one.
    pub(crate) fn split(self) -> Vec<Self> {
        match self.work {
            Work::Batch(batch) => {
                let parts = batch.split().into_iter();
                parts.map(|part| Self { work: Work::Batch(part), ..self }).collect()
            }
            work @ (Work::Amend(_) | Work::Tally(_)) => vec![Self { work, ..self }],
        }
    }

    /// The same without those that nobody waits for any more, unless that is all: nothing ran, and what has been given
    /// up since had better not run.
    pub(crate) fn awaited(self) -> Option<Self> {
        let work = match self.work {
            Work::Batch(batch) => Work::Batch(batch.awaited()?),
            Work::Tally(tally) => Work::Tally(tally.awaited()?),
            Work::Amend(amend) => Work::Amend(amend.waiter.since().map(|_| amend)?),
        };
        Some(Self { work, ..self })
    }

    /// Since when somebody waits for it, if anybody does.
    pub(crate) fn since(&self) -> Option<Instant> {
        match &self.work {
            Work::Batch(batch) => batch.since(),
            Work::Amend(amend) => amend.waiter.since(),
            Work::Tally(tally) => tally.since(),
        }
    }

    /// Answers all who have waited for too long. How many that were.
    pub(crate) fn expire(&mut self, deadline: Duration) -> usize {
        match &mut self.work {
            Work::Batch(batch) => batch.expire(deadline),
            Work::Amend(amend) => usize::from(amend.waiter.expire(deadline)),
            Work::Tally(tally) => tally.expire(deadline),
        }
    }

    pub(crate) fn slot(&self) -> Option<u16> {
        match &self.work {
            Work::Batch(batch) => batch.cells().first().map(|cell| cell.id.slot()),
            Work::Amend(amend) => Some(amend.want.cell.slot()),
            Work::Tally(tally) => Some(tally.slot()),
        }
    }

    /// How many requests it decides, over how many cells.
    pub(crate) fn size(&self) -> (usize, usize) {
        match &self.work {
            Work::Batch(batch) => (batch.len(), batch.cells().len()),
            Work::Amend(_) => (0, 0),
            Work::Tally(tally) => (tally.len(), 1),
        }
    }

    pub(crate) fn command(&self, names: &Names, scripts: &Scripts, settings: Settings) -> Cmd {
        match &self.work {
            Work::Batch(batch) => {
                let (script, program) = match (self.full, batch.is_simple()) {
                    (false, true) => (&scripts.each, Program::simple(batch, settings)),
                    (false, false) => (&scripts.charge, Program::general(batch, settings)),
                    (true, _) => {
                        let settings = Settings { create: false, ..settings };
                        (&scripts.charge_full, Program::general(batch, settings))
                    }
                };
                batch.command(self.call(script), names, program)
            }
            Work::Amend(Amend { want, action: Some(action), .. }) => {
                let mut command = self.call(&scripts.amend);
                command.arg(1).arg(names.key(want.cell)).arg(amendment(want, *action, settings));
                command
            }
            Work::Amend(Amend { want, action: None, .. }) => {
                let mut command = redis::cmd("UNLINK");
                command.arg(names.key(want.cell));
                command
            }
            Work::Tally(tally) => {
                let scripts = &scripts.layouts;
                let script = match (tally.is_log(), self.full) {
                    (false, false) => &scripts.window,
                    (false, true) => &scripts.window_full,
                    (true, false) => &scripts.log,
                    (true, true) => &scripts.log_full,
                };
                let settings = Settings { create: settings.create && !self.full, ..settings };
                tally.command(self.call(script), settings)
            }
        }
    }

    fn call(&self, script: &Source) -> Cmd {
        if self.text { script.load_and_call() } else { script.call() }
    }

    /// Reads the reply to what was sent then. `learn` is told what is now known of the cells.
    pub(crate) fn finish(
        self,
        reply: Value,
        sent: Instant,
        learn: impl FnMut(crate::mark::Mark, Known),
    ) -> Next {
        match (self.work, reply) {
            (work, Value::ServerError(error)) => Self { work, ..self }.refused(&error),
            (Work::Batch(batch), Value::BulkString(bytes)) => {
                batch.settle(&bytes, learn);
                Next::Done
            }
            (Work::Amend(mut amend), Value::Int(changed)) => {
                amend.waiter.answer(Ok(changed > 0));
                Next::Done
            }
            (Work::Tally(tally), Value::Array(reply)) => {
                match tally.finish(&numbers(&reply), sent, learn) {
                    Told::Settled => Next::Done,
                    Told::Missed(tally) => Next::Renamed(Self { work: Work::Tally(tally), ..self }),
                }
            }
            (work, other) => {
                let problem = format!("an unexpected reply of type {}", type_of(&other));
                Self { work, ..self }.fail(|| StoreError::Failed(problem.clone()));
                Next::Done
            }
        }
    }

    /// Replies that prove that nothing ran lead on; all others are answers.
    fn refused(mut self, error: &ServerError) -> Next {
        let (code, details) = reason(error);
        let target = || details.split(' ').nth(1).unwrap_or_default().to_owned();
        match code {
            "NOSCRIPT" if !self.text => {
                self.text = true;
                Next::Again(self)
            }
            "OOM" if !self.full && !matches!(self.work, Work::Amend(_)) => {
                (self.full, self.text) = (true, false);
                Next::Again(self)
            }
            "MOVED" => Next::Elsewhere(self, Redirect::Moved(target())),
            "ASK" => Next::Elsewhere(self, Redirect::Ask(target())),
            "TRYAGAIN" => Next::Elsewhere(self, Redirect::TryAgain),
            code @ ("READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "BUSY" | "MISCONF"
            | "NOREPLICAS" | "NOAUTH" | "NOPERM") => {
                Next::Refused(self, format!("{code} {details}"))
            }
            code => {
                let problem = format!("{code} {details}");
                self.fail(|| StoreError::Failed(problem.clone()));
                Next::Done
            }
        }
    }

    pub(crate) fn fail(self, error: impl Fn() -> StoreError) {
        match self.work {
            Work::Batch(batch) => batch.fail(error),
            Work::Amend(mut amend) => amend.waiter.answer(Err(error())),
            Work::Tally(tally) => tally.fail(error),
        }
    }
}

/// The code of a refusal, and the rest. Redis 6.2 refuses the first command of a script that would write, not the
/// script, and puts that into words of its own: `ERR Error running script (call to …): @user_script:…: -READONLY …`.
fn reason(error: &ServerError) -> (&str, &str) {
    let details = error.details().unwrap_or_default();
    let inside = details.split_once(": -").and_then(|(_, inside)| inside.split_once(' '));
    match inside {
        Some(("READONLY" | "MISCONF", _)) if error.code() == "ERR" => inside.unwrap_or_default(),
        _ => (error.code(), details),
    }
}

/// The numbers of a reply that holds nothing else; otherwise none.
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

    /// What becomes of a refund to which the server says this.
    fn answered(reply: &str) -> String {
        let key = KeyRef::new(b"key");
        let charge = Charge::new("api".parse().unwrap(), key, Limit::per_minute(9));
        let want = Names::new("", b"").want(&charge).unwrap();
        let (waiter, mut answer) = Waiter::new(Instant::now());
        let action = Some(Action::Refund);
        let job = Job::new(Work::Amend(Amend { want, action, waiter }));
        let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
        match job.finish(reply, Instant::now(), |_, _| {}) {
            Next::Refused(_, why) => why,
            Next::Done => format!("done: {}", answer.try_recv().unwrap().unwrap_err()),
            other => panic!("{other:?}"),
        }
    }

    /// Otherwise a connection to a server that has become a replica would be kept for ever.
    #[test]
    fn redis_6_says_inside_of_a_script_that_nothing_may_be_written() {
        let script = "Error running script (call to f_1028a5db): @user_script:4: @user_script: 4: ";
        let readonly = "READONLY You can't write against a read only replica.";
        assert_eq!(answered(readonly), readonly);
        assert_eq!(answered(&format!("ERR {script}-{readonly}")), readonly);
        let disk = "MISCONF Redis is configured to save RDB snapshots, but it cannot.";
        assert_eq!(answered(&format!("ERR {script}-{disk}")), disk);
        for other in ["WRONGTYPE Operation against a key", "ERR value is not an integer: -5"] {
            let text = format!("ERR {script}-{other}");
            assert_eq!(answered(&text), format!("done: the store failed: {text}"));
        }
    }
}
