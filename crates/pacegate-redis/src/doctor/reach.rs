//! The connection; why there is none, and what to do.

use redis::RedisError;

use super::Finding;
use crate::link::{Access, Address, Link};

/// A server that is only busy deserves to be told so, and not that it is away.
const TRIES: usize = 3;

pub(super) async fn open(address: &Address, access: &Access) -> Result<Link, RedisError> {
    let mut opened = Link::open(address, access, false).await;
    for _ in 1..TRIES {
        match &opened {
            Err(error) if error.is_io_error() => {}
            _ => break,
        }
        opened = Link::open(address, access, false).await;
    }
    opened
}

pub(super) fn unreachable(address: &Address, error: &RedisError) -> Finding {
    let said = error.to_string();
    let has = |word: &str| said.contains(word);
    let advice = if has("NOAUTH") || has("HELLO must be called") {
        "the server wants a password: write redis://USER:PASSWORD@HOST".to_owned()
    } else if has("WRONGPASS") || has("AuthenticationFailed") || has("invalid username") {
        "check user and password in the address; all but letters, digits and -._~ is written as % and two digits"
            .to_owned()
    } else if has("certificate") || has("Certificate") {
        "check the certificates: ?ca=FILE in the address names who vouches for the server"
            .to_owned()
    } else {
        format!(
            "check that a server runs at {address} and is let through, with TLS exactly if the address says so"
        )
    };
    Finding::problem("reach", format!("no connection to {address}: {said}"), advice)
}
