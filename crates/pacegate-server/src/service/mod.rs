//! The parts that all listeners share: sockets, threads, bounds, certificates, API keys and shutdown.

mod accept;
mod access;
mod drain;
mod executor;
mod files;
mod in_flight;
mod pace;
mod quiet;
mod rejections;
mod source;
mod tls;
mod watch;
mod workers;

pub(crate) use accept::{Listener, Protocol};
pub(crate) use access::{ADMIN_OFF, Access, INLINE_DENIED, Keys, bearer};
pub(crate) use drain::{Drain, DrainSwitch, GRACE};
pub(crate) use executor::InlineExecutor;
pub(crate) use files::connections_each;
pub(crate) use in_flight::{Held, InFlight, Share, TooMuch, Unread};
pub(crate) use pace::unauthenticated_turn;
pub(crate) use quiet::Quiet;
pub(crate) use rejections::{Guesses, RejectionLog};
pub(crate) use source::{Peer, Sources};
pub(crate) use tls::{Tls, TlsError, certificates};
pub(crate) use watch::{Open, Watch, describe, is_violation, run_connection};
pub(crate) use workers::Workers;
