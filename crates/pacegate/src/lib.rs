#![doc = include_str!("../README.md")]

pub mod algorithm;
#[doc(hidden)]
pub mod attribute;
pub mod clock;
mod decision;
mod key;
mod limit;
mod limiter;
pub mod policy;
pub mod registry;
mod request;
#[cfg(feature = "serde")]
mod serialize;
mod stats;
mod store;

#[cfg(feature = "macros")]
pub use pacegate_macros::rate_limit;

pub use algorithm::{Algorithm, Excess};
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use decision::{CostError, Decision, Denied, ParseSourceError, Source};
pub use key::{Key, KeyBuf, KeyRef};
pub use limit::{Calendar, Limit, LimitError, ParseLimitError};
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub use limiter::seed_permit_ids;
pub use limiter::{
    Admission, BatchDecision, BuildError, Charges, CheckError, Grant, Limiter, LimiterBuilder,
    Permit, Plan, Reservation, ReservationId, ReservationIdError, Reserved, SharedLimiter,
    SharedLimiterBuilder, SharedPermit, SharedReservation, ThresholdEvent, Wait, WaitError,
};
pub use policy::{Policy, PolicyName, PolicySet};
pub use request::{Request, RequestIdError};
pub use stats::{PolicyStats, Stats, TopKey};
pub use store::{
    Charge, ChargeBuf, Claim, Counter, MemoryStore, MemoryUsage, Outcomes, PendingReply, Reply,
    SettledCharge, SettledCharges, ShareUsage, Store, StoreError, Task, Update,
};
