//! Opens the connection; explains failures.

use redis::RedisError;

use super::{Finding, findings as table};
use crate::link::{Access, Address, Link};

/// Number of attempts, so that a busy server is not reported as unreachable.
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
        "the server requires a password: use redis://USER:PASSWORD@HOST".to_owned()
    } else if has("WRONGPASS") || has("AuthenticationFailed") || has("invalid username") {
        "check user and password in the address; percent-encode everything except letters, digits and -._~"
            .to_owned()
    } else if has("certificate") || has("Certificate") {
        "check the certificate; for a private CA, add ?ca=FILE to the address".to_owned()
    } else {
        format!(
            "check that a server is running at {address}, that firewalls allow it, and that rediss:// is used for TLS"
        )
    };
    table::UNREACHABLE.with(&[address, &said, &advice])
}
