//! Reservations: units that are charged in advance, and settled once their real number is known.

use axum::extract::Request;

use super::{
    Context, HttpResult, ProblemDetails, Shared,
    bodies::{ReserveResponse, SettleResponse},
    read_request,
    request::{self, CancelBody, ReserveBody, SettleBody},
    response::{DecisionResponse, json},
};
use crate::{config::Scope, reservations::parse_id};

/// `POST /v1/reserve`: charges an estimate, all or nothing.
pub(super) async fn reserve(shared: Context, request: Request) -> HttpResult {
    let (head, body) = read_request(&shared, request).await?;
    let (ttl, body) = request::parse::<ReserveBody<'_>>(&body)?.split()?;
    let revision = shared.active.revision();
    let check = body.validate(&revision.settings.bounds)?;
    revision.access_for(&head.headers, Scope::Check, &check)?;
    let now = shared.now();
    let reserved = check.reserve(&revision.engine, ttl).await?;
    let decision = reserved.decision;
    let response = DecisionResponse { decision, headers: revision.settings.headers, now };
    response.json(&ReserveResponse {
        decision,
        revision: revision.number,
        reservation: reserved.reservation.map(|reservation| reservation.id().to_string()),
    })
}

/// `POST /v1/settle`: ends a reservation with the units that were used.
pub(super) async fn settle(shared: Context, request: Request) -> HttpResult {
    let (head, body) = read_request(&shared, request).await?;
    shared.active.revision().access(&head.headers)?;
    let body: SettleBody = request::parse(&body)?;
    end(&shared, &body.reservation, body.used).await
}

/// `POST /v1/cancel`: ends a reservation of which nothing was used.
pub(super) async fn cancel(shared: Context, request: Request) -> HttpResult {
    let (head, body) = read_request(&shared, request).await?;
    shared.active.revision().access(&head.headers)?;
    let body: CancelBody = request::parse(&body)?;
    end(&shared, &body.reservation, 0).await
}

/// Ends a reservation. Its id is a secret, so any API key may end it.
async fn end(shared: &Shared, reservation: &str, used: u64) -> HttpResult {
    let id = parse_id(reservation)
        .map_err(|error| ProblemDetails::request(format!("invalid `reservation`: {error}")))?;
    let revision = shared.active.revision();
    let settled = revision.engine.settle(&id, used).await?;
    json(&SettleResponse { settled })
}
