//! What all listeners have in common: sockets, threads, bounds, certificates, credentials, and an orderly end.

mod accept;
mod access;
mod drain;
mod exposure;
mod files;
mod rejections;
mod tls;
mod workers;

pub(crate) use accept::{Listener, Protocol};
pub(crate) use access::{Access, INLINE_DENIED, Keys};
pub(crate) use drain::{Drain, DrainSwitch, GRACE};
pub(crate) use exposure::{Exposed, check_exposure, missing};
pub(crate) use files::connections_each;
pub(crate) use rejections::{Guesses, RejectionLog};
pub(crate) use tls::{Tls, TlsError};
pub(crate) use workers::Workers;
