//! The kit's servers are what tests take them for.

use tollgate_testkit::servers::{Client, Flavor, Reply, Server};

#[test]
fn a_server_is_started_paused_killed_and_started_again() {
    for flavor in Flavor::ALL {
        let mut server = Server::start(flavor);
        assert_eq!(server.command(&["PING"]), Reply::Simple("PONG".to_owned()));
        assert_eq!(server.command(&["SET", "a", "b"]).text(), "OK");
        assert_eq!(server.command(&["GET", "a"]).text(), "b");
        assert_eq!(server.command(&["GET", "none"]), Reply::Nil);
        assert!(server.command(&["GET"]).is_error());
        assert!(server.cpu_micros() > 0);

        server.pause();
        assert!(!server.is_running());
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
