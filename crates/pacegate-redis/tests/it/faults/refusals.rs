//! A server that rejects commands: nothing runs, failure modes apply, and the store recovers by itself.

use std::{fs, thread, time::Duration};

use pacegate_testkit::servers::{Cluster, Flavor, Server, eventually};

use super::{Limiters, connection::outage};
use crate::kit::PATIENT;

const WHILE: Duration = Duration::from_millis(500);

fn must(server: &Server, words: &[&str]) {
    let reply = server.command(words);
    assert!(!reply.is_error(), "{words:?}: {reply:?}");
}

/// A foreign script that does not end.
#[test]
fn busy_with_a_script() {
    for flavor in Flavor::ALL {
        let server = Server::options(flavor).arg("busy-reply-threshold", "30").start();
        let limiters = Limiters::connect(&server.url());
        thread::scope(|scope| {
            let begin = &mut || {
                scope.spawn(|| server.command(&["EVAL", "while true do end", "0"]));
                let refuses = || server.command(&["GET", "a"]).is_error();
                eventually(PATIENT, "it is busy", refuses);
            };
            outage(&limiters, "busy", WHILE, [begin, &mut || must(&server, &["SCRIPT", "KILL"])]);
        });
        limiters.assert_window_exact(&server);
    }
}

/// A disk that rejects writes.
#[test]
fn writes_to_disk_fail() {
    for flavor in Flavor::ALL {
        let server = Server::options(flavor).arg("save", "3600 1").start();
        let limiters = Limiters::connect(&server.url());
        let file = server.socket().with_file_name("dump.rdb");
        let save = |status: &str| {
            must(&server, &["BGSAVE"]);
            let last = || server.info("rdb_last_bgsave_status").unwrap();
            eventually(PATIENT, status, || last().trim() == status);
        };
        let begin = &mut || {
            fs::create_dir(&file).unwrap();
            save("err");
        };
        let end = &mut || {
            fs::remove_dir(&file).unwrap();
            save("ok");
        };
        outage(&limiters, "no disk", WHILE, [begin, end]);
        limiters.assert_window_exact(&server);
    }
}

#[test]
fn too_few_replicas() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let limiters = Limiters::connect(&server.url());
        let need = |count: &str| must(&server, &["CONFIG", "SET", "min-replicas-to-write", count]);
        outage(&limiters, "too few replicas", WHILE, [&mut || need("1"), &mut || need("0")]);
        limiters.assert_window_exact(&server);
    }
}

/// The password was changed and connected clients were disconnected.
#[test]
fn the_password_changes() {
    for flavor in Flavor::ALL {
        let server = Server::options(flavor).acl("somebody on nopass ~* +@all").start();
        let limiters = Limiters::connect(&server.url());
        let ask_for = |password: &str| must(&server, &["CONFIG", "SET", "requirepass", password]);
        let begin = &mut || {
            ask_for("secret");
            must(&server, &["CLIENT", "KILL", "USER", "default"]);
        };
        outage(&limiters, "another password", WHILE, [begin, &mut || ask_for("")]);
        limiters.assert_window_exact(&server);
    }
}

/// A slot without a server: the cluster then rejects all slots.
#[test]
fn a_slot_without_a_server() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start(flavor, 3, 0);
        let limiters = Limiters::connect(&cluster.url());
        let owner = &cluster.nodes()[cluster.owner(0)];
        let state = |state: &str| {
            let is_so = |node: &Server| {
                let info = node.command(&["CLUSTER", "INFO"]).text();
                info.contains(&format!("cluster_state:{state}"))
            };
            eventually(PATIENT, state, || cluster.nodes().iter().all(is_so));
        };
        let begin = &mut || {
            cluster.nodes().iter().for_each(|node| must(node, &["CLUSTER", "DELSLOTS", "0"]));
            state("fail");
        };
        let end = &mut || {
            must(owner, &["CLUSTER", "ADDSLOTS", "0"]);
            state("ok");
        };
        outage(&limiters, "a slot without a server", WHILE, [begin, end]);
    }
}
