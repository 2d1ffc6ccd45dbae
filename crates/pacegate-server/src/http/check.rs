//! `POST /v1/check`, and the same for many requests at once.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use axum::extract::{Request, State};
use bytes::Bytes;
use http::{StatusCode, request::Parts};
use hyper::body::Body;
use pacegate::{CheckError, Decision};

use super::{
    Answer, Problem, Shared,
    answer::{Decided, degraded_if, key_of, typed, write_decision},
    ask::{self, Budgets, Form, Subject},
    posted, read_json,
};
use crate::{config::Scope, engine::Engine, gate::Gate, trace};

/// Decides one request.
pub(super) async fn check<B>(shared: &Shared, head: &Parts, body: B) -> Result<Answer, Problem>
where
    B: Body<Data = Bytes> + Unpin,
{
    let bounds = shared.bounds();
    let body = read_json(shared, head, body).await?;
    let asked = ask::parse(&body, Form::Check)?;
    let subject = asked.subject(&bounds)?;
    let revision = shared.gate.revision();
    revision.access_for(&head.headers, Scope::Check, &subject)?;
    let now = shared.now();
    let decision = decide(&revision.engine, &subject).await?;
    trace::decided(&decision);
    let decided = Decided { decision, headers: revision.settings.headers, now };
    if revision.settings.problem_details && !decision.is_allowed() {
        let key = match &subject {
            Subject::Policies(request) => key_of(&revision, &decision, request),
            Subject::AdHoc { key, .. } => (*key).to_owned(),
        };
        return Ok(decided.problem(StatusCode::TOO_MANY_REQUESTS, &key, revision.number));
    }
    Ok(decided.answer(revision.number))
}

/// `POST /v1/check/batch`: decides each request by itself, in their order.
pub(super) async fn batch(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let (head, body) = posted(&shared, request).await?;
    let revision = shared.gate.revision();
    let bounds = &revision.settings.bounds;
    let asked = ask::parse_batch(&body, bounds.batch)?;
    let access = revision.access(&head.headers)?;
    let subjects = asked.iter().map(|asked| {
        let subject = asked.subject(bounds)?;
        if !access.allows(Scope::Check, subject.domain()) {
            return Err(Problem::forbidden("it is not for this domain"));
        }
        if subject.is_inline() && !access.allows_inline() {
            return Err(Problem::inline());
        }
        Ok(subject)
    });
    let subjects: Vec<_> = subjects.collect();
    let mut out = b"{\"answers\":[".to_vec();
    let decisions = decide_each(&revision.engine, subjects).await;
    let is_degraded = decisions.iter().flatten().any(Decision::is_degraded);
    for (place, decision) in decisions.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        match decision {
            Ok(decision) => write_decision(&mut out, *decision, revision.number),
            Err(problem) => {
                out.extend_from_slice(b"{\"error\":");
                problem.write(&mut out);
                out.push(b'}');
            }
        }
    }
    out.extend_from_slice(b"]}");
    Ok(degraded_if(is_degraded, typed(StatusCode::OK, "application/json", out.into())))
}

/// Charges what was asked, all or nothing.
pub(super) async fn decide(engine: &Engine, subject: &Subject<'_>) -> Result<Decision, Problem> {
    match subject {
        Subject::Policies(request) => Ok(engine.check(request).await?),
        Subject::AdHoc { cost, id, .. } => {
            let budgets = subject.budgets(engine);
            let charges = budgets.charges(*cost)?;
            Ok(engine.verdict(&charges, *id).await?.decision)
        }
    }
}

type Decisions = Vec<Result<Decision, Problem>>;

/// Requests with one plain limit each go down to the store together. All others are asked for at the same time.
async fn decide_each(engine: &Engine, subjects: Vec<Result<Subject<'_>, Problem>>) -> Decisions {
    let budgets: Vec<_> = subjects.iter().flatten().map(|one| (one, one.budgets(engine))).collect();
    let charges = budgets.iter().map(|(subject, budgets)| plain_charge(subject, budgets));
    if let Some(charges) = charges.collect::<Option<Vec<_>>>() {
        let mut decisions = Vec::new();
        engine.check_each(&charges, &mut decisions).await;
        return merge(&subjects, decisions.into_iter().map(|one| one.map_err(from_check)));
    }
    let decisions = subjects.iter().flatten().map(|subject| decide(engine, subject));
    merge(&subjects, join_all(decisions).await.into_iter())
}

/// The one charge of a request that is nothing but that.
fn plain_charge<'a>(
    subject: &Subject<'_>,
    budgets: &'a Budgets<'_, '_>,
) -> Option<pacegate::Charge<'a>> {
    match &*budgets.charges(subject.cost()).ok()? {
        [charge] if charge.enforced && subject.id().is_none() => Some(*charge),
        _ => None,
    }
}

fn from_check(error: CheckError) -> Problem {
    error.into()
}

/// The decisions, each where its subject is.
fn merge(
    subjects: &[Result<Subject<'_>, Problem>],
    mut decisions: impl Iterator<Item = Result<Decision, Problem>>,
) -> Decisions {
    let merged = subjects.iter().filter_map(|subject| match subject {
        Ok(_) => decisions.next(),
        Err(problem) => Some(Err(problem.clone())),
    });
    merged.collect()
}

/// Polls all of them, in their order, until all are ready.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<Option<Pin<Box<F>>>> = futures.map(|one| Some(Box::pin(one))).collect();
    let mut outputs: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (place, output) in pending.iter_mut().zip(&mut outputs) {
            let polled = place.as_mut().map(|future| future.as_mut().poll(cx));
            if let Some(Poll::Ready(ready)) = polled {
                (*place, *output) = (None, Some(ready));
            }
        }
        if pending.iter().any(Option::is_some) { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// Decides by bodies that may be anything: one request, and many.
pub(crate) async fn check_bytes(gate: &Gate, body: &[u8]) {
    let revision = gate.revision();
    let bounds = &revision.settings.bounds;
    let many = ask::parse_batch(body, bounds.batch).unwrap_or_default();
    for asked in many.iter().chain(&ask::parse(body, Form::Check)) {
        if let Ok(subject) = asked.subject(bounds) {
            // Whatever comes of it, it came to an end.
            let _ = decide(&revision.engine, &subject).await;
        }
    }
}
