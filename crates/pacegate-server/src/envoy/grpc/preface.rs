//! The preface of an HTTP/2 connection, read with a timeout.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    time::timeout,
};

/// A connection that replays its preface to the HTTP/2 server.
#[derive(Debug)]
pub(super) struct Prefaced<I> {
    rest: &'static [u8],
    io: I,
}

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads the preface. Returns `None` on a timeout or other bytes, so that silent clients do not hold connections.
pub(super) async fn read<I: AsyncRead + Unpin>(mut io: I, time: Duration) -> Option<Prefaced<I>> {
    let mut first = [0; PREFACE.len()];
    let read = timeout(time, io.read_exact(&mut first)).await;
    let is_preface = matches!(read, Ok(Ok(_))) && first == *PREFACE;
    is_preface.then_some(Prefaced { rest: PREFACE, io })
}

impl<I: AsyncRead + Unpin> AsyncRead for Prefaced<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rest.is_empty() {
            return Pin::new(&mut self.io).poll_read(context, buffer);
        }
        let (now, later) = self.rest.split_at(buffer.remaining().min(self.rest.len()));
        buffer.put_slice(now);
        self.rest = later;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Prefaced<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
