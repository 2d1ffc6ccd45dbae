//! The environment of a simulated host.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pacegate::{Clock, Timestamp};
use pacegate_redis::{ByteStream, Connecting, Environment};
use pacegate_testkit::Random;
use parking_lot::Mutex;

use crate::{clock::MachineClock, network::Network};

/// The environment of the store of one host.
#[derive(Debug)]
pub struct SimulatedEnvironment {
    host: usize,
    network: Network,
    clock: MachineClock,
    random: Mutex<Random>,
    /// Set when the host has crashed. Relaxed: everything runs in one thread.
    has_crashed: Arc<AtomicBool>,
}

impl SimulatedEnvironment {
    /// Creates the environment of a host. It cannot connect any more once `has_crashed` is set.
    pub fn new(
        host: usize,
        network: Network,
        clock: MachineClock,
        random: Random,
        has_crashed: Arc<AtomicBool>,
    ) -> Self {
        Self { host, network, clock, random: Mutex::new(random), has_crashed }
    }
}

impl Environment for SimulatedEnvironment {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn random(&self) -> u64 {
        self.random.lock().number()
    }

    fn connect<'a>(&'a self, name: &'a str, _: u16) -> Connecting<'a> {
        Box::pin(async move {
            let has_crashed = || self.has_crashed.load(Ordering::Relaxed);
            if has_crashed() {
                return Err(io::ErrorKind::NetworkDown.into());
            }
            let stream = self.network.connect(self.host, name).await?;
            if has_crashed() {
                return Err(io::ErrorKind::NetworkDown.into());
            }
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}
