//! A real nginx with `auth_request`, with the configuration of the guide.

use std::time::Duration;

use pacegate_testkit::servers::{Nginx, Port, eventually};

use crate::{
    clients::{Answer, Folder, Http},
    guide::{blocks, instead},
    service::Service,
    upstream::{Tally, Upstream, crowd},
};

const REQUESTS: u64 = 1_000;
const AMOUNT: u64 = 300;
const WITHIN: Duration = Duration::from_secs(10);

struct Front {
    upstream: Upstream,
    nginx: Nginx,
    service: Option<Service>,
    /// The port of the service, reserved while the service is down.
    port: Port,
    folder: Folder,
}

impl Front {
    /// Starts nginx with the guide's configuration, edited by `change`, and the service with the guide's policies.
    fn start(change: impl FnOnce(String) -> String) -> Self {
        let (upstream, port) = (Upstream::start(), Port::reserve());
        // A window that does not end while the test runs.
        let policies = instead(&blocks("nginx.md", "yaml")[0], "5/minute", "5/365d");
        let policies = instead(&policies, "10/second burst 20", &format!("{AMOUNT}/365d"));
        let folder = Folder::with_config(&policies);
        let nginx = Nginx::start(|listen| {
            let text = change(blocks("nginx.md", "nginx").remove(0));
            let text = instead(&text, "listen 80;", &format!("listen 127.0.0.1:{listen};"));
            let text = instead(&text, "127.0.0.1:8080", &format!("127.0.0.1:{}", port.number()));
            instead(&text, "127.0.0.1:3000", &upstream.address())
        });
        let mut front = Self { upstream, nginx, service: None, port, folder };
        front.restart();
        front
    }

    fn restart(&mut self) {
        let address = format!("127.0.0.1:{}", self.port.number());
        let args = ["--config", &self.folder.config(), "--http", &address];
        self.service = Some(Service::start(&args));
    }

    fn get(&self, path: &str) -> Answer {
        let address = self.nginx.address().parse().unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
        Http::connect(address).unwrap().send(&request).unwrap()
    }
}

/// On a busy machine nginx must not time out and let requests pass.
fn patient(text: String) -> String {
    let text = instead(&text, "proxy_connect_timeout 100ms", "proxy_connect_timeout 20s");
    instead(&text, "proxy_read_timeout 200ms", "proxy_read_timeout 20s")
}

fn assert_denied(answer: &Answer, policy: &str) {
    assert_eq!((answer.status, &*answer.body), (429, r#"{"error":"too many requests"}"#));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let retry: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=31_536_000).contains(&retry), "{answer:?}");
    let state = answer.header("ratelimit").unwrap();
    assert!(state.starts_with(&format!("\"{policy}\";r=0;t=")), "{answer:?}");
}

#[test]
fn with_the_guides_configuration_exactly_the_amount_passes() {
    let front = Front::start(patient);
    // Another spelling is the same path.
    for (place, path) in
        ["/login", "//login", "/%6Cogin", "/a/../login?x", "/login"].iter().enumerate()
    {
        let answer = front.get(path);
        assert_eq!((answer.status, &*answer.body), (200, "upstream"), "{}", front.nginx.log());
        let left = 4 - place;
        assert!(answer.header("ratelimit").unwrap().starts_with(&format!("\"login\";r={left};t=")));
        assert_eq!(answer.header("ratelimit-policy"), Some("\"login\";q=5;w=31536000"));
        assert_eq!(answer.header("retry-after"), None);
    }
    for path in ["/login", "/login/", "/LOGIN", "/login;x=1", "/x/..;/login", "/login%2F"] {
        assert_denied(&front.get(path), "login");
    }

    // Headers of the client are not trusted.
    let request = "GET / HTTP/1.1\r\nhost: test\r\nx-real-ip: 203.0.113.7\r\nx-original-uri: /b\r\n\
                   x-forwarded-for: 203.0.113.7\r\nx-pacegate-ip: 203.0.113.7\r\n\r\n";
    let tally = crowd(&front.nginx.address(), request, REQUESTS, |answer| {
        if answer.status == 429 {
            assert_denied(answer, "shop");
        } else {
            let state = answer.header("ratelimit").unwrap_or_default();
            assert!(state.starts_with("\"shop\";r="), "{answer:?}");
        }
    });
    let left = AMOUNT - 5;
    let expected = Tally { passed: left, limited: REQUESTS - left, other: 0 };
    assert_eq!(tally, expected, "{}", front.nginx.log());
    assert_eq!(front.upstream.served(), AMOUNT, "denied requests did not reach the web server");
}

#[test]
fn with_the_guides_configuration_an_outage_lets_requests_pass() {
    let mut front = Front::start(|text| text);
    eventually(WITHIN, "it asks", || front.get("/").header("ratelimit").is_some());
    for signal in ["KILL", "TERM"] {
        let service = front.service.take().unwrap();
        service.signal(signal);
        service.wait();
        let answer = front.get("/");
        assert_eq!((answer.status, &*answer.body), (200, "upstream"), "{}", front.nginx.log());
        assert_eq!(answer.header("ratelimit"), None);
        front.restart();
        eventually(WITHIN, "it asks again", || front.get("/").header("ratelimit").is_some());
    }
}

#[test]
fn without_an_error_page_an_outage_is_a_500() {
    let mut front = Front::start(|text| instead(&text, "error_page 502 504 = @open;", ""));
    drop(front.service.take());
    assert_eq!(front.get("/").status, 500);
    assert_eq!(front.upstream.served(), 0);
}
