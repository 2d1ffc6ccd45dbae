//! From a request to its answer.

use pacegate::{Charge, CheckError, Decision, Source, StoreError};
use prost::Message;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    answer,
    ask::{self, Asked, Bill, Limits, Part},
    proto::{RateLimitRequest, RateLimitResponse},
};
use crate::{
    config::Descriptors,
    engine::Engine,
    gate::{Gate, Revision},
};

/// Why there is no answer. A denial is none of these.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AskError {
    #[error("the domain is empty: name one")]
    EmptyDomain,
    #[error("there is no descriptor: send at least one")]
    NoDescriptors,
    #[error("the limit of a descriptor has no known unit")]
    Unit,
    #[error("a domain or key is not UTF-8")]
    NotText,
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What became of one descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finding {
    /// The tightest of its limits: its place among them, and what was decided.
    pub(super) spoken: Option<(usize, Decision)>,
    /// More was asked for than is left.
    pub(super) is_over: bool,
    /// Somebody denies it by hand. Nothing was taken then.
    pub(super) is_blocked: bool,
    /// A failure mode decided, because the store did not answer.
    pub(super) is_degraded: bool,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) response: RateLimitResponse,
    /// Whether a failure mode decided about any of its descriptors.
    pub(crate) is_degraded: bool,
}

/// Decides a request by one revision.
pub(crate) async fn decide(
    revision: &Revision,
    request: &RateLimitRequest,
) -> Result<Decided, AskError> {
    decide_by(&revision.engine, revision, request).await
}

/// [`decide`] for a caller that stops waiting at this instant.
pub(super) async fn decide_in_time(
    revision: &Revision,
    request: &RateLimitRequest,
    deadline: Instant,
) -> Result<Decided, AskError> {
    decide_by(&revision.engine.answering_by(deadline), revision, request).await
}

async fn decide_by(
    engine: &Engine,
    revision: &Revision,
    request: &RateLimitRequest,
) -> Result<Decided, AskError> {
    let settings = &*revision.settings;
    ask::check(request)?;
    if ask::is_too_much(request, &settings.bounds) {
        tracing::debug!(descriptors = request.descriptors.len(), "more than a request may bring");
        let response = answer::refusal(request.descriptors.len(), settings.shadow);
        return Ok(Decided { response, is_degraded: false });
    }
    let asked = ask::find(revision, request)?;
    let mut bill = Bill::new(&asked);
    give_back(engine, &asked, &mut bill).await?;
    let is_apart = settings.descriptors == Descriptors::Apart;
    let findings = if is_apart {
        apart(engine, &asked, &bill).await?
    } else {
        together(engine, &asked, &mut bill, settings.shadow).await?
    };
    let is_over = is_over(&asked, &findings);
    let is_blocked = findings.iter().any(|finding| finding.is_blocked);
    if is_over && !is_blocked && !settings.shadow && !is_apart {
        undo(engine, &asked, &bill, &findings).await?;
    }
    let options = &settings.rules.options;
    let denies = is_blocked || (is_over && !settings.shadow);
    let is_degraded = findings.iter().any(|finding| finding.is_degraded);
    let response = answer::response(engine, options, &asked, &findings, denies);
    Ok(Decided { response, is_degraded })
}

/// Gives back what is to be given back. From then on those charges only ask what is left.
async fn give_back(
    engine: &Engine,
    asked: &[Asked<'_>],
    bill: &mut Bill<'_>,
) -> Result<(), StoreError> {
    for (asked, part) in asked.iter().zip(&bill.parts) {
        let charges = &mut bill.charges[part.range.clone()];
        if !asked.refund || charges.is_empty() {
            continue;
        }
        if asked.cost > 0 {
            engine.refund(charges).await?;
        }
        charges.iter_mut().for_each(|charge| (charge.cost, charge.enforced) = (0, false));
    }
    Ok(())
}

/// Charges all descriptors or none.
async fn together(
    engine: &Engine,
    asked: &[Asked<'_>],
    bill: &mut Bill<'_>,
    shadow: bool,
) -> Result<SmallVec<[Finding; 4]>, CheckError> {
    let several_quotas = asked.iter().filter(|asked| asked.is_quota()).count() > 1;
    let denies =
        |asked: &Asked<'_>| !(shadow || asked.is_shadow() || (asked.is_quota() && several_quotas));
    let mut is_blocked = false;
    for (asked, part) in asked.iter().zip(&bill.parts) {
        is_blocked |= part.never && denies(asked);
        // Policies of our own say themselves whether they deny.
        if !matches!(asked.limits, Limits::Native(_)) {
            let enforced = denies(asked) && !part.never;
            bill.charges[part.range.clone()].iter_mut().for_each(|it| it.enforced = enforced);
        }
    }
    if is_blocked {
        bill.charges.iter_mut().for_each(|charge| charge.cost = 0);
    }
    if bill.charges.is_empty() {
        return Ok(findings(asked, bill, &[]));
    }
    let decisions = decide_together(engine, asked, bill).await?;
    Ok(findings(asked, bill, &decisions))
}

/// Those that give back are looked at by themselves: if the key of one is blocked, that denies nobody else.
async fn decide_together(
    engine: &Engine,
    asked: &[Asked<'_>],
    bill: &Bill<'_>,
) -> Result<Vec<Decision>, CheckError> {
    if asked.iter().all(|asked| !asked.refund) {
        return Ok(engine.verdict(&bill.charges, None).await?.each);
    }
    let both = || asked.iter().zip(&bill.parts);
    let decide = async |refund: bool| {
        let parts = both().filter(|(asked, _)| asked.refund == refund);
        let charges = parts.flat_map(|(_, part)| &bill.charges[part.range.clone()]);
        let charges: SmallVec<[Charge<'_>; 4]> = charges.copied().collect();
        let each = match charges.is_empty() {
            true => Vec::new(),
            false => engine.verdict(&charges, None).await?.each,
        };
        Ok::<_, CheckError>(each.into_iter())
    };
    let (mut looked, mut taken) = (decide(true).await?, decide(false).await?);
    let mut decisions = Vec::with_capacity(bill.charges.len());
    for (asked, part) in both() {
        let own = if asked.refund { &mut looked } else { &mut taken };
        decisions.extend(own.take(part.range.len()));
    }
    Ok(decisions)
}

/// Charges each descriptor by itself, as envoyproxy/ratelimit does.
async fn apart(
    engine: &Engine,
    asked: &[Asked<'_>],
    bill: &Bill<'_>,
) -> Result<SmallVec<[Finding; 4]>, CheckError> {
    let mut decisions = Vec::with_capacity(bill.charges.len());
    // One by itself is told only what it depends on.
    let is_plain = bill.charges.iter().all(|charge| charge.enforced)
        && bill.parts.iter().all(|part| part.range.len() <= 1);
    if is_plain {
        let mut answers = Vec::new();
        engine.check_each(&bill.charges, &mut answers).await;
        for answer in answers {
            decisions.push(answer?);
        }
    } else {
        for part in &bill.parts {
            let charges = &bill.charges[part.range.clone()];
            if !charges.is_empty() {
                decisions.extend(engine.verdict(charges, None).await?.each);
            }
        }
    }
    let mut findings = findings(asked, bill, &decisions);
    use_up(engine, asked, bill, &mut findings).await;
    Ok(findings)
}

/// Theirs counts what it denies: hits that are more than what is left use that up, and are told so.
async fn use_up(engine: &Engine, asked: &[Asked<'_>], bill: &Bill<'_>, findings: &mut [Finding]) {
    let mut rest: SmallVec<[Charge<'_>; 4]> = SmallVec::new();
    let mut told: SmallVec<[&mut Finding; 4]> = SmallVec::new();
    for ((asked, part), finding) in asked.iter().zip(&bill.parts).zip(findings) {
        let theirs =
            asked.rule().is_none_or(|rule| rule.bounds.iter().all(|bound| !bound.is_extension));
        if let (Some((_, decision)), [charge]) = (finding.spoken, &bill.charges[part.range.clone()])
            && finding.is_over
            && asked.cost > 0
            && decision.remaining() > 0
            && theirs
        {
            // In shadow mode as well: otherwise it would not be told.
            rest.push(charge.cost(decision.remaining()).enforced(true));
            told.push(finding);
        }
    }
    if rest.is_empty() {
        return;
    }
    let mut answers = Vec::new();
    engine.check_each(&rest, &mut answers).await;
    for (finding, answer) in told.into_iter().zip(answers) {
        // Without an answer, or if somebody else was faster, it is still over.
        if let Ok(decision) = answer {
            finding.spoken = Some((0, decision));
        }
    }
}

/// Several quotas deny only together, which the store cannot know: what it took is given back.
async fn undo(
    engine: &Engine,
    asked: &[Asked<'_>],
    bill: &Bill<'_>,
    findings: &[Finding],
) -> Result<(), StoreError> {
    let others = asked.iter().zip(findings).filter(|(asked, _)| !asked.is_quota());
    let denied_otherwise =
        others.into_iter().any(|(asked, finding)| finding.is_over && !asked.is_shadow());
    if denied_otherwise || asked.iter().filter(|asked| asked.is_quota()).count() < 2 {
        return Ok(());
    }
    for ((asked, part), finding) in asked.iter().zip(&bill.parts).zip(findings) {
        if !finding.is_over && !asked.refund && !part.never {
            engine.refund(&bill.charges[part.range.clone()]).await?;
        }
    }
    Ok(())
}

/// Any descriptor that denies by itself, or all that deny only together.
fn is_over(asked: &[Asked<'_>], findings: &[Finding]) -> bool {
    let both = || asked.iter().zip(findings);
    let alone =
        both().any(|(asked, finding)| finding.is_over && !asked.is_quota() && !asked.is_shadow());
    let mut quotas = both().filter(|(asked, _)| asked.is_quota()).peekable();
    alone || (quotas.peek().is_some() && quotas.all(|(_, finding)| finding.is_over))
}

fn findings(
    asked: &[Asked<'_>],
    bill: &Bill<'_>,
    decisions: &[Decision],
) -> SmallVec<[Finding; 4]> {
    let finding = |(asked, part): (&Asked<'_>, &Part)| {
        let charges = bill.charges[part.range.clone()].iter();
        let own = decisions.get(part.range.clone()).unwrap_or_default();
        let mut finding = Finding {
            spoken: None,
            is_over: part.never,
            is_blocked: false,
            is_degraded: own.iter().any(Decision::is_degraded),
        };
        let mut has_counted = false;
        for (place, (charge, decision)) in charges.zip(own).enumerate() {
            let cost = if asked.refund { 0 } else { asked.cost };
            let is_over =
                !decision.is_allowed() || (charge.cost < cost && decision.remaining() < cost);
            let is_blocked = decision.source() == Source::Blocked;
            // A policy of our own in shadow mode is charged, but never denies, and speaks only if no other does.
            let counts =
                charge.enforced || is_blocked || !matches!(asked.limits, Limits::Native(_));
            finding.is_blocked |= is_blocked && !asked.refund;
            finding.is_over |= is_over && counts;
            let speaks = finding.spoken.is_none_or(|(_, other)| {
                counts && !has_counted || counts == has_counted && decision.is_tighter_than(&other)
            });
            if speaks {
                finding.spoken = Some((place, *decision));
                has_counted = counts;
            }
        }
        finding
    };
    asked.iter().zip(&bill.parts).map(finding).collect()
}

/// Decides arbitrary bytes as a message and as JSON, for fuzzing.
pub(crate) async fn decide_bytes(gate: &Gate, bytes: &[u8]) {
    let revision = gate.revision();
    if let Ok(request) = RateLimitRequest::decode(bytes) {
        // Only panics and hangs matter here.
        let _ = decide(&revision, &request).await;
    }
    if let Ok(request) = serde_json::from_slice::<super::JsonRequest>(bytes) {
        let _ = super::JsonRequest::decide(&revision, &request.into_message()).await;
    }
}
