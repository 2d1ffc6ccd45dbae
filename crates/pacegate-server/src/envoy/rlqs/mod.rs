//! Envoy's quota service: Envoy decides by itself, with units that it gets in advance.
//!
//! An Envoy opens a stream and reports the requests of each bucket every five seconds. The server answers with
//! assignments. An assignment is a number of units that have been charged to the policy's limits in the store, so the
//! units of all assignments never exceed a limit, with any number of Envoys, servers and other clients. Units are never
//! returned: a lost report cannot make room for more.
//!
//! The units of a fixed window may only be spent in this window, so an assignment expires before the window ends.
//! Its life starts when Envoy receives it; [`DELIVERY_MARGIN`](charge::DELIVERY_MARGIN) covers the way.

mod bucket;
mod charge;
pub(super) mod proto;
mod registry;
mod session;
mod share;

pub(crate) use charge::MIN_PERIOD;
pub(crate) use registry::QuotaRegistry;
pub(super) use session::{SEND_TIMEOUT, Session, SessionError};
