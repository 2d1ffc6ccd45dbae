//! The documented ACL rules permit exactly the commands that the store needs.

use pacegate_redis::{ACL_RULES, SENTINEL_ACL_RULES};
use pacegate_testkit::{
    conformance,
    servers::{Client, Cluster, Flavor, Sentinels, Server, ServerOptions},
};

use crate::kit::Timed;

const HISTORIES: u64 = 30;

#[test]
fn everything_works_with_the_documented_rules() {
    for flavor in Flavor::ALL {
        let server = guarded(Server::options(flavor)).start();
        let url = format!("redis://pacegate:secret@{}/3", server.address());
        conformance(&Timed::new(&url, |builder| builder), HISTORIES);
        assert_eq!(refusals(&server), [""; 0], "{flavor}");
    }
}

#[test]
fn everything_works_with_the_documented_rules_in_a_cluster() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start_with(flavor, 3, 0, guarded);
        let url = cluster.url().replace("://", "://pacegate:secret@");
        conformance(&Timed::new(&url, |builder| builder), HISTORIES);
        for node in cluster.nodes() {
            // Sent only while slots migrate.
            let mut client = Client::connect(&node.address()).unwrap();
            assert_eq!(client.command(&["AUTH", "pacegate", "secret"]).unwrap().text(), "OK");
            assert_eq!(client.command(&["ASKING"]).unwrap().text(), "OK");
            assert_eq!(refusals(node), [""; 0], "{flavor}");
        }
    }
}

#[test]
fn sentinels_work_with_the_documented_rules() {
    for flavor in Flavor::ALL {
        let sentinels = Sentinels::start(flavor);
        for sentinel in sentinels.sentinels() {
            let rules = format!("ACL SETUSER watcher reset on >word {SENTINEL_ACL_RULES}");
            let words: Vec<&str> = rules.split_whitespace().collect();
            assert_eq!(sentinel.command(&words).text(), "OK", "{flavor}");
        }
        let url = sentinels.url() + "?sentinel_user=watcher&sentinel_password=word";
        conformance(&Timed::new(&url, |builder| builder), 3);
        for sentinel in sentinels.sentinels() {
            assert_eq!(refusals(sentinel), [""; 0], "{flavor}");
        }
    }
}

#[test]
fn other_commands_are_rejected() {
    for flavor in Flavor::ALL {
        let server = guarded(Server::options(flavor)).start();
        let mut client = Client::connect(&server.address()).unwrap();
        let first = client.command(&["PING"]).unwrap().text();
        assert!(first.starts_with("NOAUTH"), "the default user is off: {first}");
        assert_eq!(client.command(&["AUTH", "pacegate", "secret"]).unwrap().text(), "OK");
        assert_eq!(client.command(&["SET", "pg:a", "1"]).unwrap().text(), "OK");
        for words in [
            &["FLUSHALL"][..],
            &["FLUSHDB"],
            &["KEYS", "*"],
            &["SCAN", "0"],
            &["CONFIG", "SET", "maxmemory", "1"],
            &["CONFIG", "GET", "maxmemory"],
            &["SCRIPT", "FLUSH"],
            &["SHUTDOWN"],
            &["ACL", "LIST"],
            &["GET", "foreign"],
            &["SET", "foreign", "1"],
            &["EVAL", "return redis.call('GET', KEYS[1])", "1", "foreign"],
            &["EVAL", "return redis.call('GET', 'foreign')", "0"],
            &["EVAL", "return redis.call('FLUSHALL')", "0"],
        ] {
            let answer = client.command(words).unwrap();
            assert!(answer.is_error(), "{flavor} allows {words:?}: {answer:?}");
            let text = answer.text();
            let refused = ["NOPERM", "ACL", "permission", "can't access", "can't run"];
            assert!(refused.iter().any(|word| text.contains(word)), "{words:?}: {text}");
        }
        assert_eq!(server.command(&["EXISTS", "pg:a"]).int(), 1);
    }
}

/// Options for a server with a user for the store and one for the test kit.
fn guarded(options: ServerOptions) -> ServerOptions {
    options.acl("default off").acl(&format!("pacegate on >secret ~pg:* {ACL_RULES}"))
}

/// Returns the commands that a server rejected for lack of permission.
fn refusals(server: &Server) -> Vec<String> {
    let log = server.command(&["ACL", "LOG"]);
    log.items().iter().map(|entry| format!("{entry:?}")).collect()
}

#[test]
fn the_documentation_has_these_rules() {
    let page = include_str!("../../../../docs/redis-acl.md");
    let line = format!("ACL SETUSER pacegate reset on >PASSWORD ~pg:* {ACL_RULES}\n");
    assert!(page.contains(&line), "write {line}");
    assert!(page.contains(&format!("on >PASSWORD {SENTINEL_ACL_RULES}\n")));
}
