#![doc = include_str!("../README.md")]

mod head;
pub mod headers;
pub mod problem;
pub mod resolve;

pub use head::{Head, PeerAddr};
pub use headers::{HeaderStyle, Headers, ResetStyle};
pub use resolve::{KeyParts, Missing, Resolve, ResolveExt};
