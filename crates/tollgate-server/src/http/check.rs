//! `POST /v1/check`, and the same for many requests at once.

use http::Request;
use hyper::body::Incoming;
use tollgate::Decision;

use super::{
    Answer, Problem, Shared,
    answer::Decided,
    ask::{self, Form, Subject},
    read_json,
};
use crate::{
    config::{Bounds, Scope},
    engine::Engine,
};

/// Decides one request.
pub(super) async fn check(
    shared: &Shared,
    bounds: &Bounds,
    request: Request<Incoming>,
) -> Result<Answer, Problem> {
    let (head, body) = request.into_parts();
    let body = read_json(&head.headers, body, bounds).await?;
    let asked = ask::parse(&body, Form::Check)?;
    let subject = asked.subject(bounds)?;
    let revision = shared.gate.revision();
    revision.access_to(&head.headers, Scope::Check, subject.domain())?;
    let decision = decide(&revision.engine, &subject).await?;
    let decided = Decided { decision, headers: revision.settings.headers, now: shared.now() };
    Ok(decided.answer(revision.number))
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
