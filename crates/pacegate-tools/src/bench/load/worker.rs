//! One thread with its connections: a loop that polls, reads and writes.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use super::{
    Length, Load, LoadError, Timer,
    connection::Connection,
    record::{Asked, Record},
    schedule::Schedule,
};
use crate::bench::{keys::Draw, target::Target};

#[derive(Debug)]
pub(super) struct Worker {
    load: Load,
    target: Arc<Target>,
    connections: Vec<Connection>,
    costs: Vec<u32>,
    draw: Draw,
    schedule: Schedule,
    record: Record,
    /// Index of the next connection to use in an open loop.
    turn: usize,
    /// Indexes of the connections with input.
    ready: Vec<usize>,
}

/// Timeout in nanoseconds for the outstanding responses after the last request. In a run without an end time, it is
/// also the timeout for the next response.
const RESPONSE_TIMEOUT: u64 = 5_000_000_000;
/// Maximum time of one poll, in nanoseconds.
const MAX_POLL: u64 = 100_000_000;
/// Maximum number of reconnects.
const MAX_RECONNECTS: u64 = 10_000;

impl Worker {
    pub(super) fn new(
        load: Load,
        turn: (u64, u64),
        draw: Draw,
        target: Arc<Target>,
    ) -> Result<Self, LoadError> {
        let most = match load.length {
            Length::Requests(most) => Some(most),
            Length::Time(_) => None,
        };
        let connect = |_| {
            Connection::open(&target).map_err(|error| LoadError::Connect(target.address(), error))
        };
        let connections = (0..load.connections).map(connect).collect::<Result<_, _>>()?;
        let costs = load.costs.shares.iter().map(|share| share.cost).collect();
        let schedule = Schedule::new(load.rate, turn, most);
        let record = Record::new(load.keep);
        let ready = Vec::new();
        Ok(Self { load, target, connections, costs, draw, schedule, record, turn: 0, ready })
    }

    /// Sends requests until the end of the run, then waits for the outstanding responses.
    pub(super) fn run(&mut self, timer: Timer, done: &AtomicU64) -> Result<Record, LoadError> {
        sharpen();
        self.ready.extend(0..self.connections.len());
        let (mut ended, mut heard) = (None, 0);
        loop {
            let now = timer.now();
            let mut next = self.schedule.due(now).filter(|_| now < timer.end);
            if next.is_some() {
                next = self.ask(&timer)?;
            }
            let in_flight = self.connections.iter().any(|one| one.in_flight() > 0);
            let over = timer.now() >= timer.end || self.schedule.due(0).is_none();
            if over {
                let since = *ended.get_or_insert(now);
                if !in_flight || now.saturating_sub(since) > RESPONSE_TIMEOUT {
                    break;
                }
            }
            if !in_flight {
                heard = now;
            }
            if !timer.has_end() && now.saturating_sub(heard) > RESPONSE_TIMEOUT {
                let silent = || format!("no response for {} s", RESPONSE_TIMEOUT / 1_000_000_000);
                self.record.first_failure.get_or_insert_with(silent);
                break;
            }
            self.wait(&timer, next.filter(|_| !over))?;
            let answers = self.receive(&timer)?;
            if answers > 0 {
                heard = timer.now();
            }
            done.fetch_add(answers, Ordering::Relaxed);
        }
        self.give_up(&timer);
        Ok(std::mem::replace(&mut self.record, Record::new(0)))
    }

    /// Sends due requests on connections that have room. Returns the due time of the next request, or `None` if the
    /// worker waits only for responses.
    fn ask(&mut self, timer: &Timer) -> Result<Option<u64>, LoadError> {
        match self.schedule.is_open() {
            true => self.ask_in_turn(timer),
            false => self.ask_again(timer),
        }
    }

    /// Closed loop: refills every connection that has room.
    fn ask_again(&mut self, timer: &Timer) -> Result<Option<u64>, LoadError> {
        for place in 0..self.ready.len() {
            let which = self.ready[place];
            loop {
                let now = timer.now();
                let depth = self.load.depth;
                while self.connections[which].has_room(depth) && self.schedule.due(now).is_some() {
                    self.put(which, now);
                }
                // A new connection has no response to wait for, so it must send a request first.
                if self.flush(which, timer, now)? {
                    break;
                }
            }
        }
        Ok(None)
    }

    /// Open loop: the connections take turns. If none has room, due requests wait, and their latency counts
    /// from the due time.
    fn ask_in_turn(&mut self, timer: &Timer) -> Result<Option<u64>, LoadError> {
        let now = timer.now();
        self.ready.clear();
        let mut next = self.schedule.due(now);
        while let Some(due) = next.filter(|&due| due <= now && due < timer.end) {
            let all = self.connections.len();
            let places = (0..all).map(|step| (self.turn + step) % all);
            let free = { places }.find(|&one| self.connections[one].has_room(self.load.depth));
            let Some(which) = free else {
                next = None;
                break;
            };
            self.turn = (which + 1) % all;
            self.put(which, due);
            if !self.ready.contains(&which) {
                self.ready.push(which);
            }
            next = self.schedule.due(now);
        }
        for place in 0..self.ready.len() {
            self.flush(self.ready[place], timer, now)?;
        }
        Ok(next)
    }

    #[inline]
    fn put(&mut self, which: usize, due: u64) {
        let (key, cost) = self.draw.next();
        self.schedule.advance();
        self.connections[which].ask(&self.target, Asked { key, cost, sent: due, due });
    }

    /// Sends the pending output. Returns false if the connection was replaced.
    #[inline]
    fn flush(&mut self, which: usize, timer: &Timer, now: u64) -> Result<bool, LoadError> {
        match self.connections[which].flush(now) {
            Ok(()) => Ok(true),
            Err(error) => self.reconnect(which, timer, &error).map(|()| false),
        }
    }

    /// Waits for a response, for room to write, or until the next request is due.
    fn wait(&mut self, timer: &Timer, next: Option<u64>) -> Result<(), LoadError> {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(self.connections.len());
        for connection in &self.connections {
            let interest = match connection.has_unsent() {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            fds.push(PollFd::new(&connection.stream, interest));
        }
        let now = timer.now();
        let until = next.unwrap_or(u64::MAX).min(now + MAX_POLL);
        let until = if now < timer.end { until.min(timer.end) } else { until };
        // Less than a second. The type of the nanoseconds depends on the operating system.
        let wait = Timespec { tv_sec: 0, tv_nsec: until.saturating_sub(now) as _ };
        self.ready.clear();
        match poll(&mut fds, Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(LoadError::Wait(error.into())),
        }
        let happened = fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty());
        self.ready.extend(happened.map(|(which, _)| which));
        Ok(())
    }

    /// Reads from all ready connections; returns the number of responses.
    fn receive(&mut self, timer: &Timer) -> Result<u64, LoadError> {
        let mut answers = 0;
        for place in 0..self.ready.len() {
            let which = self.ready[place];
            let (record, costs) = (&mut self.record, &self.costs);
            let connection = &mut self.connections[which];
            let read = connection.receive(
                || timer.now(),
                |asked, reply, now| record.answer(timer, asked, costs[asked.cost], reply, now),
            );
            let now = timer.now();
            match read {
                Ok(read) => answers += read as u64,
                Err(error) => self.reconnect(which, timer, &error)?,
            }
            // Protocol messages such as acknowledgements, or output that did not fit before.
            if self.connections[which].has_unsent() {
                self.flush(which, timer, now)?;
            }
        }
        Ok(answers)
    }

    /// Replaces a broken connection. Its requests in flight are lost; nothing is sent twice.
    fn reconnect(
        &mut self,
        which: usize,
        timer: &Timer,
        error: &io::Error,
    ) -> Result<(), LoadError> {
        self.lose(which, timer);
        self.record.reconnected += 1;
        self.record.first_failure.get_or_insert_with(|| error.to_string());
        let address = self.target.address();
        if self.record.reconnected > MAX_RECONNECTS {
            let error = io::Error::new(
                error.kind(),
                format!("gave up after {MAX_RECONNECTS} reconnects: {error}"),
            );
            return Err(LoadError::Lost(address, error));
        }
        let connection = Connection::open(&self.target);
        self.connections[which] = connection.map_err(|error| LoadError::Lost(address, error))?;
        Ok(())
    }

    fn lose(&mut self, which: usize, timer: &Timer) {
        let now = timer.now();
        for asked in self.connections[which].abandon() {
            self.record.lose(timer, asked, self.costs[asked.cost], now);
        }
    }

    /// Records unanswered and unsent requests with the time that they have waited so far.
    fn give_up(&mut self, timer: &Timer) {
        for which in 0..self.connections.len() {
            self.lose(which, timer);
        }
        let (now, record) = (timer.now(), &mut self.record);
        let left = |count, due| record.leave(timer, count, due, now);
        self.schedule.skip_until(timer.end.min(now), left);
    }
}

/// Sets the timer slack of this thread to 1 ns, so that it does not wake up to 50 µs late.
fn sharpen() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
