//! The same answers as the model, and so as the memory store, on every kind of server.

use tollgate_testkit::{
    conformance,
    servers::{Cluster, Flavor, Sentinels, Server},
};

use crate::kit::Timed;

#[test]
fn one_redis() {
    let server = Server::start(Flavor::Redis);
    conformance(&Timed::new(&server.url(), |builder| builder), 100);
}

#[test]
fn one_valkey() {
    let server = Server::start(Flavor::Valkey);
    conformance(&Timed::new(&server.url(), |builder| builder), 100);
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
