//! One connection: its output buffer, its input buffer and the requests in flight.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
};

use super::record::Asked;
use crate::bench::target::{Reply, Target, Wire};

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    wire: Wire,
    out: Vec<u8>,
    /// Number of bytes of `out` already written.
    written: usize,
    input: Vec<u8>,
    /// Number of bytes of `input` already filled.
    filled: usize,
    /// Requests in flight, in send order. A request that was answered before an earlier one leaves a `None`.
    waiting: VecDeque<Option<Asked>>,
    in_flight: usize,
    /// Number of requests at the end of `waiting` without a send time yet.
    unstamped: usize,
}

/// Initial size of the buffers; the input buffer grows for longer responses.
const CHUNK: usize = 64 * 1024;
/// Maximum size of a response.
const MAX_INPUT_BYTES: usize = 4 * 1024 * 1024;

impl Connection {
    pub(super) fn open(target: &Target) -> io::Result<Self> {
        let (stream, wire) = target.connect()?;
        Ok(Self {
            stream,
            wire,
            out: Vec::with_capacity(CHUNK),
            written: 0,
            input: vec![0; CHUNK],
            filled: 0,
            waiting: VecDeque::new(),
            in_flight: 0,
            unstamped: 0,
        })
    }

    /// Returns the number of requests in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    #[inline]
    pub(super) fn has_room(&self, depth: usize) -> bool {
        self.in_flight < depth && self.wire.has_room()
    }

    /// Encodes a request, to be sent with the next [`Self::flush`].
    #[inline]
    pub(super) fn ask(&mut self, target: &Target, asked: Asked) {
        target.write(&mut self.wire, asked.key, asked.cost, &mut self.out);
        self.waiting.push_back(Some(asked));
        self.in_flight += 1;
        self.unstamped += 1;
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.written < self.out.len()
    }

    /// Writes as much as the socket takes. Sets the send time of the requests before their first byte can
    /// leave.
    #[inline]
    pub(super) fn flush(&mut self, now: u64) -> io::Result<()> {
        for asked in self.waiting.iter_mut().rev().take(self.unstamped).flatten() {
            asked.sent = now;
        }
        self.unstamped = 0;
        while self.has_unsent() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads once from the socket. Calls `now` after the read.
    pub(super) fn receive(
        &mut self,
        now: impl FnOnce() -> u64,
        mut answered: impl FnMut(Asked, Reply, u64),
    ) -> io::Result<usize> {
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => self.filled += read,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return Ok(0);
            }
            Err(error) => return Err(error),
        }
        let (now, before) = (now(), self.in_flight);
        let (waiting, in_flight) = (&mut self.waiting, &mut self.in_flight);
        let take = |place: usize, reply| {
            // Ignore responses to requests that are not waiting.
            if let Some(asked) = waiting.get_mut(place).and_then(Option::take) {
                *in_flight -= 1;
                answered(asked, reply, now);
            }
        };
        let done = self.wire.read(&self.input[..self.filled], &mut self.out, take);
        let done = done.map_err(io::Error::other)?;
        self.input.copy_within(done..self.filled, 0);
        self.filled -= done;
        while self.waiting.front().is_some_and(Option::is_none) {
            self.waiting.pop_front();
            self.wire.forget_first();
        }
        self.grow()?;
        Ok(before - self.in_flight)
    }

    fn grow(&mut self) -> io::Result<()> {
        if self.filled < self.input.len() {
            return Ok(());
        }
        if self.input.len() >= MAX_INPUT_BYTES {
            return Err(io::Error::other("response too long"));
        }
        self.input.resize(2 * self.input.len(), 0);
        Ok(())
    }

    /// Gives up on all requests in flight and returns them.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = Asked> {
        self.in_flight = 0;
        self.waiting.drain(..).flatten()
    }
}
