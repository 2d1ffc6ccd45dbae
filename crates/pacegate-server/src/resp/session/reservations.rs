//! `PACEGATE.RESERVE`, `PACEGATE.SETTLE` and `PACEGATE.CANCEL`.

use super::{
    super::{query, throttle::number},
    CommandError, RespSession,
};
use crate::{
    active_config::Revision,
    config::Scope,
    reservations::{parse_id, ttl},
};

const RESERVE_USAGE: &str = "PACEGATE.RESERVE [TTL seconds] [COST n] [DOMAIN name] ATTR name value [name value ...], \
                             or PACEGATE.RESERVE [TTL seconds] [COST n] KEY key LIMIT limit [LIMIT limit ...]";
const SETTLE_USAGE: &str = "PACEGATE.SETTLE reservation used";
const CANCEL_USAGE: &str = "PACEGATE.CANCEL reservation";

impl RespSession {
    /// Charges an estimate, and replies with the decision and the reservation.
    pub(super) async fn reserve(
        &mut self,
        args: &[&[u8]],
        revision: &Revision,
    ) -> Result<(), CommandError> {
        let (seconds, args) = match args {
            [option, seconds, rest @ ..] if option.eq_ignore_ascii_case(b"TTL") => {
                (Some(number("TTL", seconds)?), rest)
            }
            args => (None, args),
        };
        let ttl = ttl(seconds)?;
        let check = self.check(args, revision, Scope::Check)?;
        if check.is_spent() || check.id().is_some() {
            return Err(CommandError::Usage(RESERVE_USAGE));
        }
        let reserved = check.reserve(&revision.engine, ttl).await?;
        let decision = self.count_degraded(Ok(reserved.decision))?;
        query::write_with(&decision, 1, &mut self.replies);
        self.replies.bulk("reservation");
        match reserved.reservation {
            Some(reservation) => self.replies.bulk(reservation.id().to_string()),
            None => self.replies.null(),
        }
        Ok(())
    }

    /// Ends a reservation. Replies with 1, or with 0 if it was not open.
    pub(super) async fn settle(
        &mut self,
        args: &[&[u8]],
        revision: &Revision,
    ) -> Result<(), CommandError> {
        // The id is a secret, so any API key may end its reservation.
        self.access(revision).ok_or(CommandError::NoAuth)?;
        let (reservation, used) = match args {
            [name, reservation] if name.eq_ignore_ascii_case(b"PACEGATE.CANCEL") => {
                (reservation, 0)
            }
            [name, ..] if name.eq_ignore_ascii_case(b"PACEGATE.CANCEL") => {
                return Err(CommandError::Usage(CANCEL_USAGE));
            }
            [_, reservation, used] => (reservation, number("used", used)?),
            _ => return Err(CommandError::Usage(SETTLE_USAGE)),
        };
        let text =
            str::from_utf8(reservation).map_err(|_| CommandError::NotUtf8("the reservation"))?;
        let settled = revision.engine.settle(&parse_id(text)?, used).await?;
        self.replies.integer(i64::from(settled));
        Ok(())
    }
}
