//! Tests of the test kit's servers.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use pacegate_testkit::{
    servers::{Certificates, Client, Cluster, Flavor, Proxy, Reply, Sentinels, Server, eventually},
    slot_of,
};

const LIMIT: Duration = Duration::from_secs(10);

#[test]
fn a_server_can_be_paused_killed_and_restarted() {
    for flavor in Flavor::ALL {
        let mut server = Server::start(flavor);
        assert_eq!(server.command(&["PING"]), Reply::Simple("PONG".to_owned()));
        assert_eq!(server.command(&["SET", "a", "b"]).text(), "OK");
        assert_eq!(server.command(&["GET", "a"]).text(), "b");
        assert_eq!(server.command(&["GET", "none"]), Reply::Nil);
        assert_eq!(server.command(&["DBSIZE"]).int(), 1);
        assert!(server.command(&["GET"]).is_error());
        assert!(server.cpu_micros() > 0);

        server.pause();
        let mut waiting = TcpStream::connect(server.address()).unwrap();
        waiting.write_all(b"PING\r\n").unwrap();
        waiting.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(waiting.read(&mut [0; 8]).is_err(), "it accepts but does not respond");
        server.resume();
        assert_eq!(server.command(&["GET", "a"]).text(), "b");

        let (port, pid) = (server.port(), server.pid());
        server.kill();
        assert!(Client::connect(&server.address()).is_err());
        server.restart();
        assert_eq!(server.port(), port);
        assert_ne!(server.pid(), pid);
        assert_eq!(server.command(&["GET", "a"]), Reply::Nil, "nothing is kept on disk");
    }
}

#[test]
fn options_are_applied() {
    for flavor in Flavor::ALL {
        let options = Server::options(flavor).arg("maxmemory", "8mb").password("secret");
        let master = options.clone().acl("alice on >word ~* +get").unix_socket().start();
        assert_eq!(master.command(&["CONFIG", "GET", "maxmemory"]).items()[1].int(), 8 << 20);
        assert_eq!(master.url(), format!("redis+unix://{}", master.socket().display()));

        let mut client = Client::connect(&master.address()).unwrap();
        assert!(client.command(&["PING"]).unwrap().is_error(), "no password");
        assert_eq!(client.command(&["AUTH", "secret"]).unwrap().text(), "OK");
        assert_eq!(client.command(&["SET", "a", "b"]).unwrap().text(), "OK");
        assert_eq!(client.command(&["AUTH", "alice", "word"]).unwrap().text(), "OK");
        assert!(client.command(&["SET", "a", "c"]).unwrap().is_error(), "no permission");

        let replica = options.replica_of(&master).start();
        assert_eq!(replica.url(), format!("redis://:secret@{}", replica.address()));
        let copied = || replica.command(&["GET", "a"]) == Reply::Bulk(b"b".to_vec());
        eventually(LIMIT, "the replica has the key", copied);
    }
}

#[test]
fn a_server_with_tls_rejects_plain_connections() {
    let certificates = Certificates::new();
    assert!(certificates.ca_pem().contains("BEGIN CERTIFICATE"));
    for flavor in Flavor::ALL {
        let master = Server::options(flavor).tls(&certificates).start();
        assert!(master.url().starts_with("rediss://127.0.0.1:"));
        let plain = Client::connect(&master.address()).and_then(|mut it| it.command(&["PING"]));
        assert!(plain.is_err(), "{plain:?}");
        // Its replica verifies the certificate and presents its own.
        let replica = Server::options(flavor).tls(&certificates).replica_of(&master).start();
        let linked = || replica.info("master_link_status").as_deref() == Some("up");
        eventually(LIMIT, "the replica follows over TLS", linked);
    }
}

#[test]
fn a_cluster_moves_a_slot_and_survives_a_master() {
    for_each_flavor(|flavor| {
        let mut cluster = Cluster::start(flavor, 3, 1);
        let slot = slot_of(b"{tag}");
        let (from, to) = (cluster.owner(slot), (cluster.owner(slot) + 1) % 3);
        for number in 0..5 {
            cluster.nodes()[from].command(&["SET", &format!("{{tag}}{number}"), "x"]);
        }
        cluster.begin_move(slot, to);
        assert_eq!(cluster.migrate_keys(slot, to, 2), 2);
        let count = |node: usize| {
            cluster.nodes()[node].command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).int()
        };
        assert_eq!((count(from), count(to)), (3, 2));
        let absent = cluster.nodes()[from].command(&["GET", "{tag}9"]);
        assert!(absent.text().starts_with("ASK "), "{absent:?}");
        assert_eq!(cluster.owner(slot), from, "until the end");

        assert_eq!(cluster.migrate_keys(slot, to, 100), 3);
        cluster.end_move(slot, to);
        assert_eq!((cluster.owner(slot), count(from), count(to)), (to, 0, 5));
        let moved = cluster.nodes()[from].command(&["GET", "{tag}1"]);
        assert_eq!(moved.text(), format!("MOVED {slot} {}", cluster.nodes()[to].address()));
        cluster.move_slot(slot, from);
        assert_eq!(cluster.owner(slot), from);

        cluster.nodes_mut()[from].kill();
        let replica = &cluster.nodes()[from + 3];
        let promoted = || replica.info("role").as_deref() == Some("master");
        eventually(2 * LIMIT, "the replica is the master", promoted);
        assert_eq!(cluster.owner(slot), from + 3);
    });
}

#[test]
fn sentinels_name_the_master() {
    for_each_flavor(|flavor| {
        let mut all = Sentinels::start(flavor);
        assert_eq!(all.master_address(), all.master().address());
        assert!(all.url().ends_with("/mymaster"));
        all.failover();
        assert_eq!(all.master_address(), all.replica().address());
        assert_eq!(all.replica().command(&["SET", "a", "b"]).text(), "OK");
        assert!(all.master().command(&["SET", "a", "b"]).text().starts_with("READONLY"));

        all.replica_mut().kill();
        let noticed = || all.master_address() == all.master().address();
        eventually(2 * LIMIT, "the sentinels start a failover", noticed);
    });
}

#[test]
fn a_proxy_delays_replies_in_parallel() {
    let server = Server::start(Flavor::Redis);
    let proxy = Proxy::start(server.address());
    let delay = Duration::from_millis(300);
    proxy.set_delay(delay);
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    let took = timed(|| {
        for number in 1..=10 {
            stream.write_all(b"INCR n\r\n").unwrap();
            let done = || server.command(&["GET", "n"]) == Reply::Bulk(number.to_string().into());
            eventually(LIMIT, "the command has passed", done);
        }
        let mut replies = [0; 41];
        stream.read_exact(&mut replies).unwrap();
        assert!(replies.starts_with(b":1\r\n:2\r\n") && replies.ends_with(b":9\r\n:10\r\n"));
    });
    assert!(took >= delay && took < 6 * delay, "ten replies took {took:?}");
    proxy.set_delay(Duration::ZERO);
    let mut client = Client::connect(&proxy.address()).unwrap();
    assert_eq!(client.command(&["GET", "n"]).unwrap().int(), 10);
}

#[test]
fn a_proxy_loses_replies_and_refuses() {
    let server = Server::start(Flavor::Valkey);
    let proxy = Proxy::start(server.address());
    let incr = |client: &mut Client| client.command(&["INCR", "n"]);
    let connect = || Client::connect(&proxy.address());
    let (mut first, mut second) = (connect().unwrap(), connect().unwrap());
    assert_eq!(incr(&mut first).unwrap().int(), 1);

    proxy.cut_replies_after(0);
    assert!(incr(&mut first).is_err());
    assert_eq!(server.command(&["GET", "n"]).int(), 2, "executed, reply lost");
    assert_eq!(incr(&mut second).unwrap().int(), 3, "only once");
    proxy.cut_replies_after(6);
    assert_eq!(incr(&mut second).unwrap().int(), 4);
    assert!(incr(&mut second).is_err(), "half a reply");

    let mut third = connect().unwrap();
    assert_eq!(incr(&mut third).unwrap().int(), 6);
    proxy.refuse(true);
    assert!(incr(&mut third).is_err());
    assert!(connect().is_err());
    proxy.refuse(false);
    let mut last = connect().unwrap();
    assert_eq!(incr(&mut last).unwrap().int(), 7);

    // Not that nothing listens there any more: another test may get the port at once.
    drop(proxy);
    assert!(incr(&mut last).is_err());
    assert_eq!(server.command(&["GET", "n"]).int(), 7);
}

fn for_each_flavor(test: impl Fn(Flavor) + Sync) {
    thread::scope(|scope| {
        for flavor in Flavor::ALL {
            let test = &test;
            scope.spawn(move || test(flavor));
        }
    });
}

#[expect(clippy::disallowed_methods, reason = "measures a real delay")]
fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
