//! Errors of commands, and their form on the wire.

use pacegate::{CheckError, CostError, LimitError, Request, ReservationIdError, StoreError};

use super::frame::FrameError;
use crate::{
    blocks::{BlockError, BlockTimeError, NameError},
    inline_limits::{InlineLimitError, TooLong},
    reservations::TtlError,
    service::{ADMIN_OFF, INLINE_DENIED},
};

/// Why a command failed. The text begins with the error code of RESP.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("NOAUTH Authentication required.")]
    NoAuth,
    #[error(
        "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
         <pass> option can be used"
    )]
    HelloWithoutAuth,
    #[error("NOPERM the API key does not permit this")]
    NoPermission,
    #[error("NOPERM {ADMIN_OFF}")]
    AdminOff,
    #[error("NOPERM {INLINE_DENIED}")]
    InlineLimits,
    #[error("NOPROTO unsupported protocol version")]
    ProtocolVersion,
    #[error("WRONGPASS invalid username-password pair or user is disabled.")]
    WrongKey,
    #[error("ERR too many wrong API keys from this address: retry in {0} s")]
    TooManyWrongKeys(u128),
    #[error("ERR Protocol error: {0}")]
    Frame(#[from] FrameError),
    #[error("ERR this port speaks the Redis protocol, not HTTP")]
    Http,
    #[error(
        "ERR unknown command '{0}': Pacegate supports CL.THROTTLE, THROTTLE, PACEGATE.CHECK, PACEGATE.PEEK, \
         PACEGATE.RESERVE, PACEGATE.SETTLE, PACEGATE.CANCEL, PACEGATE.RESET, PACEGATE.REFUND, PACEGATE.CLEAR, \
         PACEGATE.BLOCK, PACEGATE.UNBLOCK, PACEGATE.EXPLAIN"
    )]
    UnknownCommand(String),
    #[error("ERR syntax error: expected {0}")]
    Usage(&'static str),
    #[error("ERR {0} is not a whole number of up to 18 digits")]
    NotANumber(&'static str),
    #[error("ERR {0} is not UTF-8")]
    NotUtf8(&'static str),
    #[error("ERR {name} exceeds {max} bytes")]
    TooLong { name: &'static str, max: usize },
    #[error("ERR invalid ID: expected 1 to {max} bytes", max = Request::MAX_ID)]
    InvalidId,
    #[error("ERR more than {0} attributes")]
    TooManyAttributes(usize),
    #[error("ERR duplicate attribute '{0}'")]
    DuplicateAttribute(String),
    #[error("ERR count must be at least 1")]
    ZeroCount,
    #[error("ERR quantity {quantity} exceeds max_burst {burst}")]
    QuantityExceedsBurst { quantity: u64, burst: u64 },
    #[error("ERR invalid TTL: {0}")]
    Ttl(#[from] TtlError),
    #[error("ERR invalid reservation: {0}")]
    Reservation(#[from] ReservationIdError),
    #[error("ERR unknown policy")]
    UnknownPolicy,
    #[error("ERR {0}")]
    Name(NameError),
    #[error("ERR {0}")]
    BlockTime(#[from] BlockTimeError),
    #[error("ERR {0}")]
    Block(#[from] BlockError),
    #[error("ERR {0}")]
    Limit(#[from] LimitError),
    #[error("ERR {0}")]
    InlineLimit(#[from] InlineLimitError),
    #[error("ERR {0}")]
    LimitTooLong(#[from] TooLong),
    #[error("ERR {0}")]
    Cost(#[from] CostError),
    #[error("ERR {0}")]
    Check(#[from] CheckError),
    #[error("ERR {0}")]
    Store(#[from] StoreError),
    #[error("ERR {0}")]
    Json(#[from] serde_json::Error),
}

/// A policy that the API key does not cover is reported as for other commands.
impl From<NameError> for CommandError {
    fn from(error: NameError) -> Self {
        match error {
            NameError::UnknownPolicy => Self::UnknownPolicy,
            NameError::HiddenPolicy => Self::NoPermission,
            error => Self::Name(error),
        }
    }
}
