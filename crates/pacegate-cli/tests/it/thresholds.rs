//! Threshold events: their detection over several servers, and their delivery.

use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use pacegate_testkit::servers::{Flavor, Server, eventually, python};
use serde_json::{Value, json};

use crate::{
    clients::{Folder, Http},
    guide::{blocks, instead},
    service::Service,
};

const PATIENT: Duration = Duration::from_secs(60);
const SECRET: (&str, &str) = ("WEBHOOK_SECRET", "the-secret-of-the-webhook");

/// A webhook receiver. It returns 503 while it fails.
struct Receiver {
    address: SocketAddr,
    fails: Arc<AtomicBool>,
    /// Attempts that failed.
    refused: Arc<AtomicUsize>,
    events: mpsc::Receiver<Value>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (fails, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (sender, events) = mpsc::channel();
        let (failing, counted) = (fails.clone(), refused.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (sender, fails, refused) = (sender.clone(), failing.clone(), counted.clone());
                thread::spawn(move || drop(serve(&stream.unwrap(), &sender, &fails, &refused)));
            }
        });
        Self { address, fails, refused, events }
    }
}

/// Answers the requests of one connection.
fn serve(
    mut stream: &TcpStream,
    events: &mpsc::Sender<Value>,
    fails: &AtomicBool,
    refused: &AtomicUsize,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        if fails.load(Ordering::Relaxed) {
            refused.fetch_add(1, Ordering::Relaxed);
            stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")?;
            continue;
        }
        events.send(serde_json::from_slice(&body).unwrap()).unwrap();
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
    }
}

fn config(store: &str, receiver: SocketAddr, notify: &str) -> Folder {
    Folder::with_config(&format!(
        "store: {store}\n\
         policies:\n\
         - {{ name: plan, per: account, limit: 10/day, notify: {notify} }}\n\
         notifications:\n  \
           webhook: {{ url: 'http://{receiver}/hook?token=t', secret_env: WEBHOOK_SECRET, queue: 100000 }}\n"
    ))
}

/// Charges units to accounts, in one batch.
fn charge(service: &Service, accounts: impl Iterator<Item = usize>, cost: u64) {
    let mut http = Http::connect(service.address("http")).unwrap();
    let requests: Vec<_> = accounts
        .map(|account| json!({ "attributes": { "account": format!("a{account}") }, "cost": cost }))
        .collect();
    let body = json!({ "requests": requests }).to_string();
    let answer = http.request("POST", "/v1/check/batch", None, &body).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Returns the sum of the samples of a metric.
fn metric(service: &Service, name: &str) -> u64 {
    let mut http = Http::connect(service.address("http")).unwrap();
    let text = http.get("/metrics").unwrap().body;
    let samples = text.lines().filter(|line| line.starts_with(name));
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Three servers charge 10,000 keys, while the receiver of events fails and comes back.
#[test]
fn three_servers_detect_each_event_once_and_deliver_all_of_them() {
    const KEYS: usize = 10_000;
    const EVENTS: usize = 2 * KEYS;
    let (redis, receiver) = (Server::start(Flavor::Redis), Receiver::start());
    let store = format!("{{ url: '{}', deadline: 10s }}", redis.url());
    let folder = config(&store, receiver.address, "[80%, 100%]");
    let arguments = ["--config", &folder.config()];
    let services = [(); 3].map(|()| Service::start_with(&arguments, &[SECRET]));
    receiver.fails.store(true, Ordering::Relaxed);
    // 12 units are more than the limit, so each key gets to 9 or 10 units and a denial.
    thread::scope(|scope| {
        for service in &services {
            scope.spawn(move || {
                for first in (0..KEYS).step_by(500) {
                    charge(service, first..first + 500, 3);
                    charge(service, first..first + 500, 1);
                }
            });
        }
    });
    eventually(PATIENT, "the receiver has failed", || receiver.refused.load(Ordering::Relaxed) > 5);
    receiver.fails.store(false, Ordering::Relaxed);
    let mut delivered = Vec::new();
    eventually(PATIENT, "all events are delivered", || {
        delivered.extend(receiver.events.try_iter());
        let ids: HashSet<_> = delivered.iter().map(|event| event["id"].to_string()).collect();
        ids.len() >= EVENTS
    });
    let distinct = |fields: &[&str]| {
        let parts = |event: &Value| fields.iter().map(|field| event[field].to_string()).collect();
        delivered.iter().map(parts).collect::<HashSet<Vec<String>>>().len()
    };
    assert_eq!(distinct(&["key", "threshold"]), EVENTS);
    assert_eq!(distinct(&["id"]), EVENTS, "an event and its repetitions have one id");
    let detected = services.each_ref().map(|one| metric(one, "pacegate_threshold_events_total"));
    assert_eq!(detected.iter().sum::<u64>(), EVENTS as u64, "{detected:?}");
    let dropped = services.each_ref().map(|one| metric(one, "pacegate_webhook_dropped_total"));
    assert_eq!(dropped, [0; 3]);
}

#[test]
fn events_are_logged_without_keys_listed_and_delivered_at_the_shutdown() {
    let receiver = Receiver::start();
    let folder = config("memory", receiver.address, "50%");
    let service = Service::start_with(&["--config", &folder.config()], &[SECRET]);
    charge(&service, 7..8, 5);
    let event = receiver.events.recv_timeout(PATIENT).unwrap();
    assert_eq!((&event["key"], &event["policy"]), (&json!("a7"), &json!("plan")));
    assert_eq!((&event["threshold"], &event["used"]), (&json!(50), &json!(5)));
    assert_eq!((&event["capacity"], &event["limit"]), (&json!(10), &json!("10/day")));
    let mut http = Http::connect(service.address("http")).unwrap();
    assert_eq!(http.get("/v1/events").unwrap().json()["events"], json!([event]));
    assert_eq!(http.get("/v1/live").unwrap().json()["thresholds"], json!([event]));
    let policies = http.get("/v1/policies").unwrap().json();
    assert_eq!(policies["policies"][0]["notify"], json!(["50%"]));
    let line = "keys have reached a threshold of their limit";
    eventually(PATIENT, "the event is logged", || service.log().contains(line));
    charge(&service, 8..20, 5);
    service.signal("TERM");
    let (status, log) = service.wait();
    assert!(status.success(), "{log}");
    assert_eq!(receiver.events.try_iter().count(), 12);
    assert!(!log.contains("a7") && !log.contains("token=t"), "{log}");
}

#[test]
fn new_events_are_streamed() {
    let receiver = Receiver::start();
    let folder = config("memory", receiver.address, "50%");
    let service = Service::start_with(&["--config", &folder.config()], &[SECRET]);
    let mut stream = TcpStream::connect(service.address("http")).unwrap();
    let request = "GET /v1/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("200"));
    assert!(lines.any(|line| line == "content-type: text/event-stream"));
    assert!(lines.any(|line| line.is_empty()));
    charge(&service, 7..8, 5);
    let data = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned)).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&data).unwrap()["key"], "a7");
    // An open stream does not delay the shutdown.
    service.signal("TERM");
    assert!(service.wait().0.success());
}

/// A program that is stopped at the end of the test.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Runs the receiver of the guide.
#[test]
fn the_python_receiver_accepts_signed_events_only() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let program =
        instead(&blocks("notifications.md", "python")[0], "9000", &free.port().to_string());
    let mut command = Command::new(python());
    let command = command.args(["-c", &program]).env(SECRET.0, SECRET.1);
    let mut receiver =
        Stopped(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut lines = BufReader::new(receiver.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    eventually(PATIENT, "the receiver listens", || TcpStream::connect(free).is_ok());
    let folder = config("memory", free, "50%");
    let arguments = ["--config", &folder.config()];
    let stranger = Service::start_with(&arguments, &[(SECRET.0, "another-secret-of-16-bytes")]);
    charge(&stranger, 6..7, 5);
    eventually(PATIENT, "the wrong signature is rejected", || {
        metric(&stranger, "pacegate_webhook_failed_attempts_total") > 0
    });
    let service = Service::start_with(&arguments, &[SECRET]);
    charge(&service, 7..8, 5);
    let line = lines.next().unwrap();
    assert!(line.ends_with(" a7 50"), "{line}");
    eventually(PATIENT, "the event is confirmed", || {
        metric(&service, "pacegate_webhook_delivered_total") == 1
    });
}
