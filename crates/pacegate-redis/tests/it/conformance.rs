//! Compares the store with the model on every kind of server.

use pacegate::Algorithm;
use pacegate_testkit::{
    conformance, follow_calendar_histories, follow_histories,
    servers::{Cluster, Flavor, Sentinels, Server},
};

use crate::kit::{Timed, is_long};

/// The deny cache is on in half of the runs and must not change any answer.
fn histories(algorithm: Algorithm) {
    let histories = if is_long() { 1_000_000 } else { 10_000 };
    let server = Server::start(Flavor::Redis);
    let plain = Timed::new(&server.url(), |builder| builder.deny_cache(0));
    let cached = Timed::new(&server.url(), |builder| builder);
    follow_histories(&plain, algorithm, 0..histories / 2);
    follow_histories(&cached, algorithm, histories / 2..histories);
}

#[test]
fn fixed_window() {
    histories(Algorithm::FixedWindow);
}

#[test]
fn sliding_window() {
    histories(Algorithm::SlidingWindow);
}

#[test]
fn sliding_log() {
    histories(Algorithm::SlidingLog);
}

#[test]
fn token_bucket() {
    histories(Algorithm::TokenBucket);
}

#[test]
fn concurrency() {
    histories(Algorithm::Concurrency);
}

/// The clock of this host differs from the clock of the histories, so the script often rejects a window.
#[test]
fn calendar_periods() {
    let histories = if is_long() { 1_000_000 } else { 10_000 };
    let server = Server::start(Flavor::Redis);
    let plain = Timed::new(&server.url(), |builder| builder.deny_cache(0));
    let cached = Timed::new(&server.url(), |builder| builder);
    follow_calendar_histories(&plain, 0..histories / 2);
    follow_calendar_histories(&cached, histories / 2..histories);
}

#[test]
fn one_server() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        conformance(&Timed::new(&server.url(), |builder| builder), 300);
    }
}

#[test]
fn clusters() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start(flavor, 3, 0);
        conformance(&Timed::new(&cluster.url(), |builder| builder), 100);
    }
}

#[test]
fn sentinels() {
    for flavor in Flavor::ALL {
        let sentinels = Sentinels::start(flavor);
        conformance(&Timed::new(&sentinels.url(), |builder| builder), 100);
    }
}
