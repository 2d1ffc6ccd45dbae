//! The commands of one connection. Consecutive checks are decided together.

mod auth;
mod blocks;
mod general;
mod reservations;

use std::{net::IpAddr, sync::Arc};

use futures_util::future::join_all;
use pacegate::{Charge, CheckError, Decision, Grant};
use smallvec::SmallVec;

use super::{
    error::CommandError,
    frame::{self, Args, FrameBounds},
    query::{self, Query},
    reply::Replies,
    throttle::{self, Dialect, LimitCache, RepeatedCommand, ThrottleReply},
};
use crate::{
    active_config::{ActiveConfig, Revision},
    blocks::find_name,
    check::Check,
    config::Scope,
    engine::{ClearTarget, Engine},
    explain,
    listeners::ListenerId,
    service::{Access, Guesses, Keys},
};

/// State of a connection.
#[derive(Debug)]
pub(super) struct RespSession {
    pub(super) replies: Replies,
    /// True if the connection ends after the pending replies.
    pub(super) is_closing: bool,
    /// True if it ends because the client sent an HTTP request.
    pub(super) received_http: bool,
    /// Commands answered, and how many of them with an error.
    pub(super) answered: (u64, u64),
    /// Commands that a failure mode decided.
    pub(super) degraded: u64,
    id: u64,
    name: Vec<u8>,
    /// Hash of the API key that authenticated the client.
    digest: Option<[u8; 32]>,
    /// Address of the client, and the limit of wrong API keys.
    peer: Option<(IpAddr, Arc<Guesses>)>,
    wrong_keys: u32,
    limits: LimitCache,
    repeated: RepeatedCommand,
    decisions: Vec<Result<Decision, CheckError>>,
}

/// Commands to decide together. All are of one kind, so that they are decided in the order they arrived.
#[derive(Default)]
struct Pending<'a> {
    charges: SmallVec<[Charge<'a>; 2]>,
    /// The reply to each charge.
    throttles: SmallVec<[ThrottleReply; 2]>,
    checks: Vec<Check<'a>>,
}

impl<'a> Pending<'a> {
    fn push(&mut self, charge: Charge<'a>, reply: ThrottleReply) {
        if self.charges.len() == self.charges.inline_size() {
            // More than two commands are a pipeline.
            self.charges.reserve(PIPELINE);
            self.throttles.reserve(PIPELINE);
        }
        self.charges.push(charge);
        self.throttles.push(reply);
    }
}

impl RespSession {
    pub(super) fn new(id: u64) -> Self {
        Self {
            replies: Replies::new(),
            is_closing: false,
            received_http: false,
            answered: (0, 0),
            degraded: 0,
            id,
            name: Vec::new(),
            digest: None,
            peer: None,
            wrong_keys: 0,
            limits: LimitCache::default(),
            repeated: RepeatedCommand::default(),
            decisions: Vec::new(),
        }
    }

    /// Answers the complete commands at the start of `input` under one revision, and returns their length in bytes.
    /// Stops early once [`MAX_PENDING_BYTES`] of replies wait to be written.
    pub(super) async fn answer(&mut self, active: &ActiveConfig, input: &[u8]) -> usize {
        let revision = active.revision();
        let max_commands = revision.settings.bounds.batch;
        let mut pending = Pending::default();
        let (mut at, mut commands, mut args) = (0, 0, Args::new());
        while commands < max_commands
            && !self.is_closing
            && self.replies.bytes.len() < MAX_PENDING_BYTES
        {
            let rest = &input[at..];
            if pending.checks.is_empty()
                && let Some((charge, reply, length)) = self.repeated(rest, &revision)
            {
                at += length;
                commands += 1;
                pending.push(charge, reply);
                continue;
            }
            let result = match frame::read(rest, self.frame_bounds(&revision), &mut args) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    at += length;
                    if args.is_empty() {
                        continue;
                    }
                    commands += 1;
                    self.command(rest, &args, active, &revision, &mut pending).await
                }
                Err(error) => {
                    self.is_closing = true;
                    Err(error.into())
                }
            };
            if let Err(error) = result {
                self.flush(&revision.engine, &mut pending).await;
                self.fail(&error);
            }
        }
        self.flush(&revision.engine, &mut pending).await;
        self.answered.0 += commands as u64;
        at
    }

    /// Returns the bounds of a command, which are lower before authentication.
    fn frame_bounds(&self, revision: &Revision) -> FrameBounds {
        let bounds = &revision.settings.bounds;
        let args = 2 * bounds.attributes + 16;
        match self.lacks_key(revision) {
            false => FrameBounds { args, bytes: bounds.request_bytes },
            true => FrameBounds { args, bytes: bounds.request_bytes.min(UNAUTHENTICATED_BYTES) },
        }
    }

    /// Returns whether the client has to authenticate first.
    pub(super) fn lacks_key(&self, revision: &Revision) -> bool {
        self.digest.is_none() && !revision.settings.security.credentials.is_empty()
    }

    pub(super) fn is_authenticated(&self) -> bool {
        self.digest.is_some()
    }

    /// Runs the command at the start of `input`. Checks wait in `pending`; all others are answered after those.
    async fn command<'a>(
        &mut self,
        input: &[u8],
        args: &[&'a [u8]],
        active: &ActiveConfig,
        revision: &Revision,
        pending: &mut Pending<'a>,
    ) -> Result<(), CommandError> {
        let engine = &revision.engine;
        if let Some(dialect) = Dialect::of(args[0]) {
            let (charge, reply) = self.throttle(dialect, args, revision)?;
            self.repeated.remember(input, args, (charge, reply));
            if !pending.checks.is_empty() {
                self.flush(engine, pending).await;
            }
            pending.push(charge, reply);
            return Ok(());
        }
        if is_http(input, args[0]) {
            (self.received_http, self.is_closing) = (true, true);
            return Err(CommandError::Http);
        }
        if args[0].eq_ignore_ascii_case(b"PACEGATE.CHECK") {
            let query = Query::read(&args[1..], &revision.settings.bounds)?;
            let up_to = query.up_to;
            let check = self.permitted(query, revision, Scope::Check)?;
            if up_to || !pending.charges.is_empty() {
                self.flush(engine, pending).await;
            }
            if up_to {
                return self.grant(engine, &check).await;
            }
            pending.checks.push(check);
            return Ok(());
        }
        self.flush(engine, pending).await;
        self.immediate_command(args, active, revision).await
    }

    fn throttle<'a>(
        &mut self,
        dialect: Dialect,
        args: &[&'a [u8]],
        revision: &Revision,
    ) -> Result<(Charge<'a>, ThrottleReply), CommandError> {
        self.check_inline(revision, Scope::Check)?;
        let throttle = throttle::read(dialect, args, &mut self.limits)?;
        query::check_length("the key", args[1], &revision.settings.bounds)?;
        Ok(throttle)
    }

    /// Parses a command that differs from the last one by its key only. Returns `None` for any other command, and for
    /// one that fails.
    #[inline]
    fn repeated<'a>(
        &self,
        input: &'a [u8],
        revision: &Revision,
    ) -> Option<(Charge<'a>, ThrottleReply, usize)> {
        let bounds = &revision.settings.bounds;
        let read = self.repeated.read(input, bounds.key_bytes)?;
        let fits = read.2 <= bounds.request_bytes;
        (fits && self.check_inline(revision, Scope::Check).is_ok()).then_some(read)
    }

    /// Parses the arguments of a command, and checks the permissions of the client.
    fn check<'a>(
        &self,
        args: &[&'a [u8]],
        revision: &Revision,
        scope: Scope,
    ) -> Result<Check<'a>, CommandError> {
        let query = Query::read(args, &revision.settings.bounds)?;
        match query.up_to {
            true => Err(CommandError::Usage(UP_TO_USAGE)),
            false => self.permitted(query, revision, scope),
        }
    }

    fn permitted<'a>(
        &self,
        query: Query<'a>,
        revision: &Revision,
        scope: Scope,
    ) -> Result<Check<'a>, CommandError> {
        let check = query.into_check()?;
        match check.is_inline() {
            true => self.check_inline(revision, scope)?,
            false => self.check_access(revision, scope, check.domain())?,
        }
        Ok(check)
    }

    /// Decides the pending commands, and writes their replies.
    async fn flush(&mut self, engine: &Engine, pending: &mut Pending<'_>) {
        if !pending.charges.is_empty() {
            let mut decisions = std::mem::take(&mut self.decisions);
            decisions.clear();
            engine.check_each(&pending.charges, &mut decisions).await;
            for (reply, decision) in pending.throttles.iter().zip(decisions.drain(..)) {
                match self.count_degraded(decision) {
                    Ok(decision) => reply.write(&decision, &mut self.replies),
                    Err(error) => self.fail(&error),
                }
            }
            self.decisions = decisions;
            pending.charges.clear();
            pending.throttles.clear();
        }
        if !pending.checks.is_empty() {
            let checks = std::mem::take(&mut pending.checks);
            for decision in decide(engine, &checks).await {
                match self.count_degraded(decision) {
                    Ok(decision) => query::write(&decision, &mut self.replies),
                    Err(error) => self.fail(&error),
                }
            }
        }
    }

    /// Takes as many units as there are, up to the cost of a check.
    async fn grant(&mut self, engine: &Engine, check: &Check<'_>) -> Result<(), CommandError> {
        let Grant { units, decision } = check.decide_up_to(engine).await?;
        let decision = self.count_degraded(Ok(decision))?;
        query::write_with(&decision, 1, &mut self.replies);
        self.replies.bulk("granted");
        self.replies.integer(i64::try_from(units).unwrap_or(i64::MAX));
        Ok(())
    }

    fn count_degraded(
        &mut self,
        decision: Result<Decision, CheckError>,
    ) -> Result<Decision, CommandError> {
        let decision = decision?;
        self.degraded += u64::from(decision.is_degraded());
        Ok(decision)
    }

    /// Runs a command that is answered at once.
    async fn immediate_command(
        &mut self,
        args: &[&[u8]],
        active: &ActiveConfig,
        revision: &Revision,
    ) -> Result<(), CommandError> {
        let is = |other: &str| args[0].eq_ignore_ascii_case(other.as_bytes());
        if is("PACEGATE.PEEK") {
            let query = Query::read(&args[1..], &revision.settings.bounds)?.peeking();
            let check = self.permitted(query, revision, Scope::Check)?;
            let decision = check.decide(&revision.engine).await;
            query::write(&self.count_degraded(decision)?, &mut self.replies);
        } else if is("PACEGATE.EXPLAIN") {
            let check = self.check(&args[1..], revision, Scope::Check)?;
            self.replies.bulk(explanation(revision, &check).await?);
        } else if is("PACEGATE.RESET") {
            let check = self.check(&args[1..], revision, Scope::Admin)?;
            self.change(active, revision, &check, Change::Reset).await?;
        } else if is("PACEGATE.REFUND") {
            let check = self.check(&args[1..], revision, Scope::Admin)?;
            self.change(active, revision, &check, Change::Refund).await?;
        } else if is("PACEGATE.RESERVE") {
            self.reserve(&args[1..], revision).await?;
        } else if is("PACEGATE.SETTLE") || is("PACEGATE.CANCEL") {
            self.settle(args, revision).await?;
        } else if is("PACEGATE.BLOCK") {
            self.block(&args[1..], active, revision).await?;
        } else if is("PACEGATE.UNBLOCK") {
            self.unblock(&args[1..], active, revision).await?;
        } else if is("PACEGATE.CLEAR") {
            let keys = self.clear(&args[1..], active, revision).await?;
            self.replies.integer(i64::try_from(keys).unwrap_or(i64::MAX));
        } else {
            return self.general_command(args, active, revision);
        }
        Ok(())
    }

    /// Clears all keys of a policy or a domain, and returns their number.
    async fn clear(
        &self,
        args: &[&[u8]],
        active: &ActiveConfig,
        revision: &Revision,
    ) -> Result<u64, CommandError> {
        let access = self.access(revision).ok_or(CommandError::NoAuth)?;
        let [kind, name] = args else { return Err(CommandError::Usage(CLEAR_USAGE)) };
        let name = String::from_utf8_lossy(name);
        let (target, domain) = if kind.eq_ignore_ascii_case(b"DOMAIN") {
            (ClearTarget::Domain(&name), &*name)
        } else if kind.eq_ignore_ascii_case(b"POLICY") {
            let (policy, domain) = find_name(&name, revision, access)?;
            (ClearTarget::Policy(policy), domain)
        } else {
            return Err(CommandError::Usage(CLEAR_USAGE));
        };
        self.check_access(revision, Scope::Admin, domain)?;
        let cleared = revision.engine.clear(target).await?;
        active.audit.clear(&access, target, cleared);
        Ok(cleared)
    }

    async fn change(
        &mut self,
        active: &ActiveConfig,
        revision: &Revision,
        check: &Check<'_>,
        change: Change,
    ) -> Result<(), CommandError> {
        let engine = &revision.engine;
        let limits = check.charged_limits(engine);
        let charges = limits.charges(if change == Change::Reset { 0 } else { check.cost() })?;
        let action = match change {
            Change::Reset => {
                engine.charges().reset(&charges).await?;
                "reset"
            }
            Change::Refund => {
                engine.refund(&charges).await?;
                "refund"
            }
        };
        if let Some(access) = self.access(revision) {
            active.audit.charges(action, &access, &charges);
        }
        self.replies.simple("OK");
        Ok(())
    }

    fn fail(&mut self, error: &CommandError) {
        self.answered.1 += 1;
        self.replies.error(error);
    }

    /// Returns the permissions of the client, or `None` if it must authenticate.
    fn access<'r>(&self, revision: &'r Revision) -> Option<Access<'r>> {
        Keys(&revision.settings.security.credentials).access_by_digest(self.digest.as_ref())
    }

    fn check_access(
        &self,
        revision: &Revision,
        scope: Scope,
        domain: &str,
    ) -> Result<(), CommandError> {
        if scope == Scope::Admin && revision.settings.is_admin_off(ListenerId::Resp) {
            return Err(CommandError::AdminOff);
        }
        match self.access(revision) {
            None => Err(CommandError::NoAuth),
            Some(access) if access.allows(scope, domain) => Ok(()),
            Some(_) => Err(CommandError::NoPermission),
        }
    }

    /// Checks access for inline limits, which belong to the unnamed domain.
    fn check_inline(&self, revision: &Revision, scope: Scope) -> Result<(), CommandError> {
        self.check_access(revision, scope, "")?;
        match self.access(revision) {
            Some(access) if access.allows_inline() => Ok(()),
            _ => Err(CommandError::InlineLimits),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Reset,
    Refund,
}

const CLEAR_USAGE: &str = "PACEGATE.CLEAR POLICY name, or PACEGATE.CLEAR DOMAIN name";
const UP_TO_USAGE: &str = "COST n: UPTO is for PACEGATE.CHECK only";
const EXPLAIN_USAGE: &str = "PACEGATE.EXPLAIN [DOMAIN name] ATTR name value ...";
/// Maximum size of a command before authentication.
const UNAUTHENTICATED_BYTES: usize = 4 << 10;
/// Size of the replies after which they are written before the next command: a reply can be a thousand times as long as
/// its command.
pub(super) const MAX_PENDING_BYTES: usize = 64 * 1024;
/// Usual number of commands in a pipeline, less those stored inline.
const PIPELINE: usize = 62;

/// First words of the lines of an HTTP request.
const HTTP_WORDS: [&str; 8] = ["POST", "GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "Host:"];

/// Returns whether a command is a line of HTTP. Web pages and some services can be made to send HTTP requests here; the
/// commands in their bodies must not run. Arrays of words are never HTTP.
fn is_http(input: &[u8], name: &[u8]) -> bool {
    let is_line = input.first() != Some(&b'*');
    is_line && HTTP_WORDS.iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()))
}

/// Decides checks: concurrently over a remote store, so that they share round trips.
async fn decide(engine: &Engine, checks: &[Check<'_>]) -> Vec<Result<Decision, CheckError>> {
    match checks {
        [_, _, ..] if engine.waits() => {
            join_all(checks.iter().map(|check| check.decide(engine))).await
        }
        _ => {
            let mut decisions = Vec::with_capacity(checks.len());
            for check in checks {
                decisions.push(check.decide(engine).await);
            }
            decisions
        }
    }
}

/// Returns the explanation of a check as JSON.
async fn explanation(revision: &Revision, check: &Check<'_>) -> Result<String, CommandError> {
    let Check::Policies(request) = check else { return Err(CommandError::Usage(EXPLAIN_USAGE)) };
    let explanation = explain::explain(&revision.engine, revision.number, request).await?;
    Ok(serde_json::to_string(&explanation)?)
}
