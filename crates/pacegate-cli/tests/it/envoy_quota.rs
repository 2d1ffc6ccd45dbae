//! Real Envoys with the quota filter: they decide with units that the service has assigned to them.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use pacegate::{Clock, SystemClock};
use pacegate_testkit::servers::{Envoy, Flavor, Server, eventually};

use crate::{
    clients::{Folder, Http, PATIENCE},
    guide::{instead, marked},
    service::Service,
};

/// An Envoy with its load.
struct Front {
    envoy: Mutex<Option<Envoy>>,
    /// Requests per second. 0 ends the load.
    rate: AtomicU64,
}

/// Requests that passed, and requests before the [`DENIED_END`] of a window, by window.
#[derive(Default)]
struct Passed {
    by_window: Mutex<BTreeMap<u64, u64>>,
    offered: Mutex<BTreeMap<u64, u64>>,
}

const WINDOW: u64 = 10;
const WINDOW_MICROS: u64 = WINDOW * 1_000_000;
/// The longest end of a window in which requests are denied, in microseconds.
const DENIED_END: u64 = 1_750_000;
const REQUEST: &str = "GET / HTTP/1.1\r\nhost: test\r\nx-user: alice\r\n\r\n";
/// The time between two bursts of requests.
const TICK: Duration = Duration::from_millis(20);
/// The time that the service has to learn the demand: two reports of each Envoy.
const TWO_REPORTS: u64 = 10;

fn now() -> u64 {
    SystemClock::new().now().as_micros()
}

fn seconds_since(start: u64) -> u64 {
    (now() - start) / 1_000_000
}

impl Front {
    /// Starts an Envoy that gets its quotas from `service`. Without an assignment it applies `fallback`.
    fn new(service: &Service, fallback: &str) -> Self {
        let service = service.address("grpc").port().to_string();
        let [_, filters] = guide();
        let filters = instead(&filters, "DENY_ALL", fallback);
        let filters: String = filters.lines().map(|line| format!("          {line}\n")).collect();
        let envoy = Envoy::start(|port, admin| {
            CONFIG
                .replace("@FILTERS", &filters)
                .replace("@PORT", &port.to_string())
                .replace("@ADMIN", &admin.to_string())
                .replace("@SERVICE", &service)
        });
        Self { envoy: Mutex::new(Some(envoy)), rate: AtomicU64::new(0) }
    }

    fn client(&self) -> Http {
        let address = self.envoy.lock().unwrap().as_ref().unwrap().address();
        Http::connect(address.parse().unwrap()).unwrap()
    }

    fn set_rate(&self, rate: u64) {
        self.rate.store(rate, Ordering::SeqCst);
    }

    /// Stops its load, and kills it.
    fn kill(&self) {
        self.set_rate(0);
        drop(self.envoy.lock().unwrap().take());
    }

    /// Sends requests at the current rate, until it is 0.
    fn load(&self, passed: &Passed) {
        let mut client = self.client();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut ticks = {
            let _entered = runtime.enter();
            tokio::time::interval(TICK)
        };
        let mut owed = 0;
        loop {
            let rate = self.rate.load(Ordering::SeqCst);
            if rate == 0 {
                return;
            }
            owed += rate * u64::try_from(TICK.as_millis()).unwrap();
            while owed >= 1_000 {
                owed -= 1_000;
                let Ok(answer) = client.send(REQUEST) else { return };
                assert!([200, 429].contains(&answer.status), "{answer:?}");
                passed.count(answer.status == 200);
            }
            runtime.block_on(ticks.tick());
        }
    }
}

impl Passed {
    fn count(&self, has_passed: bool) {
        let now = now();
        let window = now / WINDOW_MICROS * WINDOW;
        if now % WINDOW_MICROS < WINDOW_MICROS - DENIED_END {
            *self.offered.lock().unwrap().entry(window).or_default() += 1;
        }
        if has_passed {
            // Assignments end before the window does, so the request was decided in the same one.
            *self.by_window.lock().unwrap().entry(window).or_default() += 1;
        }
    }

    /// Returns true if the requests of the window that starts at this instant exceed the limit by 40 %. A busy machine
    /// may send fewer.
    fn has_load(&self, limit: u64, start: u64) -> bool {
        let offered = self.offered.lock().unwrap();
        offered.get(&(start / 1_000_000)).is_some_and(|offered| offered * 10 >= limit * 14)
    }

    /// Asserts that no window is above the limit.
    fn assert_never_above(&self, limit: u64) {
        let windows = self.by_window.lock().unwrap();
        assert!(windows.values().all(|passed| *passed <= limit), "{windows:?}");
    }

    /// Asserts that whole windows between two instants have used 95 % of the limit.
    fn assert_used(&self, limit: u64, from: u64, until: u64) {
        let windows = self.by_window.lock().unwrap();
        let first = from.div_ceil(WINDOW * 1_000_000) * WINDOW;
        let last = until / 1_000_000 / WINDOW * WINDOW;
        assert!(first < last, "no whole window");
        for window in (first..last).step_by(usize::try_from(WINDOW).unwrap()) {
            let passed = windows.get(&window).copied().unwrap_or_default();
            assert!(passed * 100 >= limit * 95, "{window}: {windows:?}");
        }
    }
}

/// Checks every 100 ms until `end` returns true.
fn wait_until(mut end: impl FnMut() -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        while !end() {
            ticks.tick().await;
        }
    });
}

/// Returns the policy and the filters of the guide.
fn guide() -> [String; 2] {
    let blocks = marked("two_envoys_share_a_limit_without_a_call_per_request");
    blocks.into_iter().map(|block| block.text).collect::<Vec<_>>().try_into().unwrap()
}

/// Returns a folder with the policy of the guide, for this store and limit.
fn config(store: &str, limit: u64) -> Folder {
    let [policy, _] = guide();
    let policy = instead(&policy, "limit: 600/10s", &format!("limit: {limit}/{WINDOW}s"));
    Folder::with_config(&format!("{store}{policy}"))
}

/// Returns the sum of a metric over its labels.
fn metric(service: &Service, name: &str) -> u64 {
    let page = Http::connect(service.address("http")).unwrap().get("/metrics").unwrap().body;
    let lines = page.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Asserts that the number of messages since `start` depends on the time only, and that each Envoy made one call.
fn assert_few_messages(services: &[&Service], envoys: u64, start: u64) {
    let sum = |name: &str| services.iter().map(|service| metric(service, name)).sum::<u64>();
    assert_eq!(sum("pacegate_requests_total{listener=\"grpc\""), envoys, "one stream each");
    let [reports, responses] = ["received", "sent"]
        .map(|kind| sum(&format!("pacegate_envoy_quota_messages_total{{direction=\"{kind}\"")));
    let seconds = seconds_since(start);
    assert!((1..=envoys * (seconds / 5 + 2)).contains(&reports), "{reports} in {seconds} s");
    assert!((1..=envoys * (seconds * 2 + 2)).contains(&responses), "{responses} in {seconds} s");
}

#[test]
fn two_envoys_share_a_limit_without_a_call_per_request() {
    const LIMIT: u64 = 600;
    let folder = config("", LIMIT);
    let service = Service::start(&["--config", &folder.config()]);
    let fronts = [Front::new(&service, "DENY_ALL"), Front::new(&service, "DENY_ALL")];
    let (passed, start) = (Passed::default(), now());
    fronts[0].set_rate(108);
    fronts[1].set_rate(12);
    thread::scope(|scope| {
        for front in &fronts {
            scope.spawn(|| front.load(&passed));
        }
        // The first window that begins after the first reports.
        let first = (start + 6_000_000).next_multiple_of(WINDOW_MICROS);
        let loaded = (0..3).map(|number| first + number * WINDOW_MICROS).find(|window| {
            wait_until(|| now() >= window + WINDOW_MICROS);
            passed.has_load(LIMIT, *window)
        });
        fronts.iter().for_each(|front| front.set_rate(0));
        let window = loaded.expect("the machine sends enough requests in one of three windows");
        passed.assert_used(LIMIT, window, window + WINDOW_MICROS);
    });
    passed.assert_never_above(LIMIT);
    assert_few_messages(&[&service], 2, start);
    assert!(!service.log().contains("WARN"), "{}", service.log());
}

#[test]
fn a_filter_that_admits_without_an_assignment_is_reported() {
    let folder = config("", 1_000);
    let service = Service::start(&["--config", &folder.config()]);
    let front = Front::new(&service, "ALLOW_ALL");
    assert_eq!(front.client().send(REQUEST).unwrap().status, 200);
    eventually(PATIENCE, "it is logged", || service.log().contains("without an assignment"));
}

/// The whole scenario, of about 100 seconds:
/// `cargo test -p pacegate-cli --test it three_envoys -- --ignored --nocapture`.
///
/// Three Envoys on two servers with one Redis. The demand of 90 % and 10 % flips in the middle, later an Envoy is
/// killed.
#[test]
#[ignore = "takes 100 seconds"]
fn three_envoys_on_two_servers_never_exceed_a_limit() {
    const LIMIT: u64 = 1_000;
    let redis = Server::start(Flavor::Redis);
    let folder = config(&format!("store: {{ url: '{}', deadline: 2s }}\n", redis.url()), LIMIT);
    let services = [(); 2].map(|()| Service::start(&["--config", &folder.config()]));
    let fronts = [0, 1, 0].map(|place| Front::new(&services[place], "DENY_ALL"));
    let (passed, start) = (Passed::default(), now());
    let [one, other, third] = &fronts;
    one.set_rate(108);
    other.set_rate(12);
    third.set_rate(12);
    thread::scope(|scope| {
        for front in &fronts {
            scope.spawn(|| front.load(&passed));
        }
        let at = |seconds| start + seconds * 1_000_000;
        wait_until(|| seconds_since(start) >= 30);
        one.set_rate(12);
        other.set_rate(108);
        wait_until(|| seconds_since(start) >= 62);
        third.kill();
        wait_until(|| seconds_since(start) >= 95);
        fronts.iter().for_each(|front| front.set_rate(0));
        println!("{:?}", passed.by_window.lock().unwrap());
        passed.assert_used(LIMIT, at(TWO_REPORTS), at(30));
        passed.assert_used(LIMIT, at(30 + TWO_REPORTS), at(62));
        passed.assert_used(LIMIT, at(62 + TWO_REPORTS), at(95));
    });
    passed.assert_never_above(LIMIT);
    assert_few_messages(&services.each_ref(), 3, start);
}

const CONFIG: &str = r#"
admin:
  address: { socket_address: { address: 127.0.0.1, port_value: @ADMIN } }
static_resources:
  listeners:
  - name: http
    address: { socket_address: { address: 127.0.0.1, port_value: @PORT } }
    enable_reuse_port: false
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: { prefix: / }
                direct_response: { status: 200 }
@FILTERS  clusters:
  - name: pacegate
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }
    load_assignment:
      cluster_name: pacegate
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: @SERVICE } } }
"#;
