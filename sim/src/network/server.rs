//! The servers of a network.

use crate::{
    clock::MachineClock,
    ledger::Region,
    redis::{
        Redis, Session,
        resp::{Args, Reply},
        sentinel::Sentinel,
    },
};

/// A machine with a server.
#[derive(Debug)]
pub struct Server {
    /// Name and port.
    pub address: (String, u16),
    /// The program that runs.
    pub program: Program,
    /// The clock of the machine. Servers may share it.
    pub clock: MachineClock,
    /// It refuses connections.
    pub(super) is_down: bool,
    /// It does not read from connections.
    pub(super) is_frozen: bool,
}

/// The program of a server.
#[derive(Debug)]
pub enum Program {
    /// Redis.
    Redis(Redis),
    /// A sentinel.
    Sentinel(Sentinel),
}

impl Server {
    /// Creates a server that runs.
    pub fn new(name: &str, program: Program, clock: MachineClock) -> Self {
        let address = (name.to_owned(), 6_379);
        Self { address, program, clock, is_down: false, is_frozen: false }
    }

    pub(super) fn redis(&mut self) -> &mut Redis {
        match &mut self.program {
            Program::Redis(redis) => redis,
            Program::Sentinel(_) => panic!("{} is a sentinel", self.address.0),
        }
    }

    pub(super) fn resets(&self) -> u64 {
        match &self.program {
            Program::Redis(redis) => redis.resets(),
            Program::Sentinel(_) => 0,
        }
    }

    /// Returns the region of a command's keys; `None` if it has none.
    pub(super) fn region(&self, args: &Args) -> Option<Region> {
        match &self.program {
            Program::Redis(redis) => redis.region(args),
            Program::Sentinel(_) => None,
        }
    }

    pub(super) fn execute(&mut self, session: &mut Session, args: Args, now: u64) -> Reply {
        match &mut self.program {
            Program::Redis(redis) => redis.execute(session, args, now),
            Program::Sentinel(sentinel) => sentinel.execute(session, &args),
        }
    }
}
