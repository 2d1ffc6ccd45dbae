//! What `fuzz/` feeds with hostile bytes. Not for users: it may change at any time.

/// What arrives on a connection that speaks the protocol of Redis.
pub fn resp(_bytes: &[u8]) {}

/// The body of a check over HTTP.
pub fn json(_bytes: &[u8]) {}

/// The message of a request by Envoy.
pub fn rls(_bytes: &[u8]) {}

/// A file with policies.
pub fn policies(_bytes: &[u8]) {}
