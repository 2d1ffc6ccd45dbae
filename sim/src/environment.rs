//! The environment of a simulated host.

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
}

impl SimulatedEnvironment {
    /// Creates the environment of a host.
    pub fn new(host: usize, network: Network, clock: MachineClock, random: Random) -> Self {
        Self { host, network, clock, random: Mutex::new(random) }
    }
}

impl Environment for SimulatedEnvironment {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn random(&self) -> u64 {
        self.random.lock().number()
    }

    fn connect<'a>(&'a self, _: &'a str, _: u16) -> Connecting<'a> {
        Box::pin(async {
            let stream = self.network.connect(self.host).await?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}
