//! Permits of clients that hang up.

use std::{io::Write, time::Duration};

use pacegate_testkit::servers::{Flavor, Proxy, Server, eventually};

use crate::{
    clients::{self, Folder, Http},
    service::Service,
};

const WITHIN: Duration = Duration::from_secs(10);

/// Returns the permits that the server holds.
fn held(server: &Server) -> i64 {
    let keys = server.command(&["KEYS", "pg:*"]);
    keys.items().iter().map(|key| server.command(&["ZCARD", &key.text()]).int()).sum()
}

fn acquire() -> String {
    let body = r#"{"attributes": {"key": "alice"}}"#;
    let head = "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
    format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// The store has admitted the requests, but its answers have not arrived.
#[test]
fn clients_that_hang_up_leave_no_permit_behind() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let proxy = Proxy::start(server.address());
        let folder = Folder::with_config(&format!(
            "store: {{ url: '{}', deadline: 10s }}
policies:
  - {{ name: jobs, per: [key], limit: 10/hour concurrency, failure: closed }}
",
            proxy.url()
        ));
        let service = Service::start(&["--config", &folder.config()]);
        let address = service.address("http");
        // The scripts are now loaded on the server.
        let mut http = Http::connect(address).unwrap();
        assert_eq!(http.send(&acquire()).unwrap().status, 200);
        proxy.set_delay(Duration::from_secs(1));
        for _ in 0..10 {
            let mut client = clients::connect(address).unwrap();
            client.write_all(acquire().as_bytes()).unwrap();
            eventually(WITHIN, "the permit is taken", || held(&server) == 2);
            drop(client);
            eventually(WITHIN, "only the first permit is held", || held(&server) == 1);
        }
    }
}
