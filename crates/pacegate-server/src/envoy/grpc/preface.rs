//! The preface of an HTTP/2 connection, read with a timeout.

use std::time::Duration;

use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::timeout,
};

pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads the preface. Returns `false` on a timeout or other bytes, so that silent clients do not hold connections.
pub(super) async fn read<I: AsyncRead + Unpin>(io: &mut I, time: Duration) -> bool {
    let mut first = [0; PREFACE.len()];
    let read = timeout(time, io.read_exact(&mut first)).await;
    matches!(read, Ok(Ok(_))) && first == *PREFACE
}
