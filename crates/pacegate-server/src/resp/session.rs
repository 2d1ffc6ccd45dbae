//! One connection's commands, decided as they come: those that need the engine together, the rest in between.

mod auth;
mod general;

use std::{net::IpAddr, sync::Arc};

use futures_util::future::join_all;
use pacegate::{Charge, CheckError, Decision, PolicyName};
use smallvec::SmallVec;

use super::{
    frame::{self, FrameBounds, Words},
    query::{self, Query},
    reply::Replies,
    throttle::{self, Dialect, Form, LimitCache, Repeated},
};
use crate::{
    config::Scope,
    engine::{ClearTarget, Engine},
    explain,
    gate::{Gate, Revision},
    service::{Access, Guesses, INLINE_DENIED, Keys},
};

/// What a connection remembers.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) replies: Replies,
    /// Set once nothing more can be read.
    pub(super) is_over: bool,
    /// Whether that is because the client has sent a request of HTTP.
    pub(super) spoke_http: bool,
    /// Commands answered, and those among them that got an error.
    pub(super) answered: (u64, u64),
    /// Commands that a failure mode decided.
    pub(super) degraded: u64,
    id: u64,
    name: Vec<u8>,
    /// The hash of the key that the client has shown.
    digest: Option<[u8; 32]>,
    /// Where the client is, and the limit on API keys that it may get wrong.
    peer: Option<(IpAddr, Arc<Guesses>)>,
    /// API keys that the client got wrong.
    wrong_keys: u32,
    limits: LimitCache,
    repeated: Repeated,
    decisions: Vec<Result<Decision, CheckError>>,
}

/// Commands that wait to be decided together: all of one kind, so that they are decided in the order they came.
#[derive(Default)]
struct Pending<'a> {
    charges: SmallVec<[Charge<'a>; 2]>,
    forms: SmallVec<[Form; 2]>,
    queries: Vec<Query<'a>>,
}

impl<'a> Pending<'a> {
    fn push(&mut self, charge: Charge<'a>, form: Form) {
        if self.charges.len() == self.charges.inline_size() {
            // A pipeline: more will come.
            self.charges.reserve(PIPELINE);
            self.forms.reserve(PIPELINE);
        }
        self.charges.push(charge);
        self.forms.push(form);
    }
}

impl Session {
    pub(super) fn new(id: u64) -> Self {
        Self {
            replies: Replies::new(),
            is_over: false,
            spoke_http: false,
            answered: (0, 0),
            degraded: 0,
            id,
            name: Vec::new(),
            digest: None,
            peer: None,
            wrong_keys: 0,
            limits: LimitCache::default(),
            repeated: Repeated::default(),
            decisions: Vec::new(),
        }
    }

    /// Answers whole commands at the beginning of `input`, under one revision, and tells how many bytes they were. Ends
    /// once there are so many answers that they should be written first.
    pub(super) async fn answer(&mut self, gate: &Gate, input: &[u8]) -> usize {
        let revision = gate.revision();
        let bounds = &revision.settings.bounds;
        let mut pending = Pending::default();
        let (mut at, mut commands, mut words) = (0, 0, Words::new());
        while commands < bounds.batch && !self.is_over && self.replies.bytes.len() < MOST_AT_ONCE {
            let rest = &input[at..];
            if pending.queries.is_empty()
                && let Some((charge, form, length)) = self.repeated(rest, &revision)
            {
                at += length;
                commands += 1;
                pending.push(charge, form);
                continue;
            }
            match frame::read(rest, self.frames(&revision), &mut words) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    at += length;
                    let Some(name) = words.first() else { continue };
                    commands += 1;
                    match Dialect::of(name) {
                        Some(dialect) if pending.queries.is_empty() => {
                            match self.throttle(dialect, &words, &revision) {
                                Ok((charge, form)) => {
                                    self.repeated.remember(rest, &words, (charge, form));
                                    pending.push(charge, form);
                                }
                                Err(error) => {
                                    self.flush(&revision.engine, &mut pending).await;
                                    self.fail(error);
                                }
                            }
                        }
                        None if is_http(rest, name) => {
                            self.flush(&revision.engine, &mut pending).await;
                            self.fail("this is the protocol of Redis, and not HTTP".to_owned());
                            (self.spoke_http, self.is_over) = (true, true);
                        }
                        _ => self.command(&words, gate, &revision, &mut pending).await,
                    }
                }
                Err(error) => {
                    self.flush(&revision.engine, &mut pending).await;
                    self.fail(format!("Protocol error: {error}"));
                    self.is_over = true;
                }
            }
        }
        self.flush(&revision.engine, &mut pending).await;
        self.answered.0 += commands as u64;
        at
    }

    /// What a command may have. A client that has shown no API key can only say AUTH or HELLO.
    fn frames(&self, revision: &Revision) -> FrameBounds {
        let bounds = &revision.settings.bounds;
        let words = 2 * bounds.attributes + 16;
        match self.lacks_key(revision) {
            false => FrameBounds { words, bytes: bounds.request_bytes },
            true => FrameBounds { words, bytes: bounds.request_bytes.min(UNAUTHENTICATED_BYTES) },
        }
    }

    /// Whether the client has to show an API key first.
    pub(super) fn lacks_key(&self, revision: &Revision) -> bool {
        self.digest.is_none() && !revision.settings.security.credentials.is_empty()
    }

    /// Whether the client has shown an API key.
    pub(super) fn is_authenticated(&self) -> bool {
        self.digest.is_some()
    }

    async fn command<'a>(
        &mut self,
        words: &[&'a [u8]],
        gate: &Gate,
        revision: &Revision,
        pending: &mut Pending<'a>,
    ) {
        let name = words[0];
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if let Some(dialect) = Dialect::of(name) {
            self.flush(&revision.engine, pending).await;
            match self.throttle(dialect, words, revision) {
                Ok((charge, form)) => pending.push(charge, form),
                Err(error) => self.fail(error),
            }
            return;
        }
        if is("PACEGATE.CHECK") {
            match self.query(&words[1..], revision, Scope::Check) {
                Ok(query) => {
                    if !pending.charges.is_empty() {
                        self.flush(&revision.engine, pending).await;
                    }
                    pending.queries.push(query);
                }
                Err(error) => {
                    self.flush(&revision.engine, pending).await;
                    self.fail(error);
                }
            }
            return;
        }
        self.flush(&revision.engine, pending).await;
        if !self.own_command(words, gate, revision).await {
            self.small_talk(words, gate, revision);
        }
    }

    fn throttle<'a>(
        &mut self,
        dialect: Dialect,
        words: &[&'a [u8]],
        revision: &Revision,
    ) -> Result<(Charge<'a>, Form), String> {
        self.permits_inline(revision, Scope::Check)?;
        let read = throttle::read(dialect, words, &mut self.limits)?;
        match revision.settings.bounds.key_bytes {
            most if words[1].len() > most => Err(format!("the key has more than {most} bytes")),
            _ => Ok(read),
        }
    }

    /// A command like the last one. What may not be, or is too long, is left to those who say so.
    #[inline]
    fn repeated<'a>(
        &self,
        input: &'a [u8],
        revision: &Revision,
    ) -> Option<(Charge<'a>, Form, usize)> {
        let bounds = &revision.settings.bounds;
        let read = self.repeated.read(input, bounds.key_bytes)?;
        let fits = read.2 <= bounds.request_bytes;
        (fits && self.permits_inline(revision, Scope::Check).is_ok()).then_some(read)
    }

    fn query<'a>(
        &self,
        words: &[&'a [u8]],
        revision: &Revision,
        scope: Scope,
    ) -> Result<Query<'a>, String> {
        let query = Query::read(words, &revision.settings.bounds)?;
        match query.is_inline() {
            true => self.permits_inline(revision, scope)?,
            false => self.permits(revision, scope, query.domain())?,
        }
        Ok(query)
    }

    /// Decides what waits, and answers it.
    async fn flush(&mut self, engine: &Engine, pending: &mut Pending<'_>) {
        if !pending.charges.is_empty() {
            self.decisions.clear();
            engine.check_each(&pending.charges, &mut self.decisions).await;
            for (form, decision) in pending.forms.iter().zip(&self.decisions) {
                match decision {
                    Ok(decision) => {
                        self.degraded += u64::from(decision.is_degraded());
                        form.write(decision, &mut self.replies);
                    }
                    Err(error) => {
                        self.answered.1 += 1;
                        self.replies.error(error.to_string());
                    }
                }
            }
            pending.charges.clear();
            pending.forms.clear();
        }
        if !pending.queries.is_empty() {
            let queries = std::mem::take(&mut pending.queries);
            for decision in decide(engine, &queries).await {
                match decision {
                    Ok(decision) => {
                        self.degraded += u64::from(decision.is_degraded());
                        query::write(&decision, &mut self.replies);
                    }
                    Err(error) => self.fail(error.to_string()),
                }
            }
        }
    }

    /// `PACEGATE.*`, but for the one that is decided together with others. `false` if it is none of them.
    async fn own_command(&mut self, words: &[&[u8]], gate: &Gate, revision: &Revision) -> bool {
        let is = |other: &str| words[0].eq_ignore_ascii_case(other.as_bytes());
        let engine = &revision.engine;
        let done = if is("PACEGATE.PEEK") {
            match self.query(&words[1..], revision, Scope::Check) {
                Ok(query) => {
                    let query = query.peeking();
                    let decided = decide_one(engine, &query).await;
                    decided.map_err(|error| error.to_string()).map(|decision| {
                        self.degraded += u64::from(decision.is_degraded());
                        query::write(&decision, &mut self.replies);
                    })
                }
                Err(error) => Err(error),
            }
        } else if is("PACEGATE.EXPLAIN") {
            match self.query(&words[1..], revision, Scope::Check) {
                Ok(query) => {
                    explanation(revision, &query).await.map(|text| self.replies.bulk(text))
                }
                Err(error) => Err(error),
            }
        } else if is("PACEGATE.RESET") || is("PACEGATE.REFUND") {
            let reset = is("PACEGATE.RESET");
            match self.query(&words[1..], revision, Scope::Admin) {
                Ok(query) => {
                    let given = self.give_back(gate, revision, &query, reset).await;
                    given.map(|()| self.replies.simple("OK"))
                }
                Err(error) => Err(error),
            }
        } else if is("PACEGATE.CLEAR") {
            let cleared = self.clear(&words[1..], gate, revision).await;
            cleared.map(|keys| self.replies.integer(i64::try_from(keys).unwrap_or(i64::MAX)))
        } else {
            return false;
        };
        if let Err(error) = done {
            self.fail(error);
        }
        true
    }

    /// Forgets all keys of a policy or a domain, and returns how many there were.
    async fn clear(
        &self,
        words: &[&[u8]],
        gate: &Gate,
        revision: &Revision,
    ) -> Result<u64, String> {
        let access = self.access(revision).ok_or("-NOAUTH")?;
        let (kind, name) = match *words {
            [kind, name] => (kind, String::from_utf8_lossy(name)),
            _ => return Err(CLEAR_USAGE.to_owned()),
        };
        let (target, domain) = if kind.eq_ignore_ascii_case(b"DOMAIN") {
            (ClearTarget::Domain(&name), &*name)
        } else if kind.eq_ignore_ascii_case(b"POLICY") {
            let mut policies = revision.engine.policies().policies().iter();
            let (policy, domain) = match policies.find(|policy| policy.name.as_str() == name) {
                Some(policy) => (policy.name, &*policy.domain),
                None if name == PolicyName::AD_HOC.as_str() => (PolicyName::AD_HOC, ""),
                None if access.allows_everywhere(Scope::Check) => {
                    return Err("no policy has this name".to_owned());
                }
                None => return Err("-NOPERM".to_owned()),
            };
            (ClearTarget::Policy(policy), domain)
        } else {
            return Err(CLEAR_USAGE.to_owned());
        };
        self.permits(revision, Scope::Admin, domain)?;
        let cleared = revision.engine.clear(target).await.map_err(|error| error.to_string())?;
        gate.audit().clear(&access, target, cleared);
        Ok(cleared)
    }

    async fn give_back(
        &self,
        gate: &Gate,
        revision: &Revision,
        query: &Query<'_>,
        reset: bool,
    ) -> Result<(), String> {
        let engine = &revision.engine;
        let (own, cost) = (query.own_charges(), if reset { 0 } else { query.cost });
        let plan = query.request().map(|request| engine.plan_counted(&request));
        let charges = match &plan {
            Some(plan) => plan.charges(cost).map_err(|error| error.to_string())?,
            None => own.to_vec(),
        };
        let done = match reset {
            true => engine.reset(&charges).await,
            false => engine.refund(&charges).await,
        };
        done.map_err(|error| error.to_string())?;
        if let Some(access) = self.access(revision) {
            let action = if reset { "reset" } else { "refund" };
            gate.audit().charges(action, &access, &charges);
        }
        Ok(())
    }

    fn fail(&mut self, error: String) {
        self.answered.1 += 1;
        match error.strip_prefix('-') {
            Some("NOAUTH") => self.replies.coded_error("NOAUTH Authentication required."),
            Some("INLINE") => self.replies.coded_error(&format!("NOPERM {INLINE_DENIED}")),
            Some(_) => self.replies.coded_error("NOPERM this key may not do that"),
            None => self.replies.error(error),
        }
    }

    /// What the client may do.
    fn access<'r>(&self, revision: &'r Revision) -> Option<Access<'r>> {
        Keys(&revision.settings.security.credentials).access_by_digest(self.digest.as_ref())
    }

    fn permits(&self, revision: &Revision, scope: Scope, domain: &str) -> Result<(), String> {
        match self.access(revision) {
            None => Err("-NOAUTH".to_owned()),
            Some(access) if access.allows(scope, domain) => Ok(()),
            Some(_) => Err("-NOPERM".to_owned()),
        }
    }

    /// [`Session::permits`] for limits that come with the command, which are in no domain.
    fn permits_inline(&self, revision: &Revision, scope: Scope) -> Result<(), String> {
        self.permits(revision, scope, "")?;
        match self.access(revision) {
            Some(access) if access.allows_inline() => Ok(()),
            _ => Err("-INLINE".to_owned()),
        }
    }
}

const CLEAR_USAGE: &str = "PACEGATE.CLEAR takes: POLICY name, or: DOMAIN name";
/// The longest command of a client that has shown no API key.
const UNAUTHENTICATED_BYTES: usize = 4 << 10;
/// The most bytes of replies that wait to be written, before those of the next command: some replies are a thousand
/// times as long as their command.
pub(super) const MOST_AT_ONCE: usize = 64 * 1024;
/// Room for as many commands as are often sent together.
const PIPELINE: usize = 62;

/// Words that lines of a request over HTTP begin with.
const HTTP: [&str; 8] = ["POST", "GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "Host:"];

/// Whether a command is a line of HTTP. A web page can make a browser send a request here, and some services send one
/// wherever they are told to: the commands in its body are not theirs to give. A list of words is none of that.
fn is_http(input: &[u8], name: &[u8]) -> bool {
    let is_line = input.first() != Some(&b'*');
    is_line && HTTP.iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()))
}

/// Over a store all are asked at once, so that they travel together.
async fn decide(engine: &Engine, queries: &[Query<'_>]) -> Vec<Result<Decision, CheckError>> {
    match queries {
        [_, _, ..] if engine.waits() => {
            join_all(queries.iter().map(|query| decide_one(engine, query))).await
        }
        _ => {
            let mut decisions = Vec::with_capacity(queries.len());
            for query in queries {
                decisions.push(decide_one(engine, query).await);
            }
            decisions
        }
    }
}

async fn decide_one(engine: &Engine, query: &Query<'_>) -> Result<Decision, CheckError> {
    match query.request() {
        Some(request) => engine.check(&request).await,
        None => Ok(engine.verdict(&query.own_charges(), query.id).await?.decision),
    }
}

/// Which policies decide about a request and why, as JSON.
async fn explanation(revision: &Revision, query: &Query<'_>) -> Result<String, String> {
    let request =
        query.request().ok_or("PACEGATE.EXPLAIN takes: [DOMAIN name] ATTR name value ...")?;
    let told = explain::explain(&revision.engine, revision.number, &request).await;
    let told = told.map_err(|error| error.to_string())?;
    serde_json::to_string(&told).map_err(|error| error.to_string())
}
