//! Config servers: one in this process, and one in Go with the library that Envoy Gateway uses.

use std::{
    convert::Infallible,
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    path::PathBuf,
    pin::Pin,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    task::{Context, Poll},
    thread,
};

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::{
    body::{Body, Frame, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pacegate_testkit::servers::Port;
use prost::Message;
use rustls::ServerConfig;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket},
    runtime::Runtime,
    sync::{mpsc as channel, watch},
};
use tokio_rustls::TlsAcceptor;

use crate::clients::PATIENCE;

/// A config server in this process. It sends each published response at once, without waiting for answers.
pub(crate) struct ControlPlane {
    address: SocketAddr,
    published: Arc<watch::Sender<Option<Bytes>>>,
    requests: mpsc::Receiver<DiscoveryRequest>,
    /// Connections that were accepted.
    connections: Arc<AtomicU64>,
    nonce: AtomicU64,
    /// Its end closes all connections.
    runtime: Option<Runtime>,
}

/// A config server in Go.
pub(crate) struct GoControlPlane {
    child: Child,
    input: ChildStdin,
    /// The requests that it received.
    pub(crate) events: mpsc::Receiver<Event>,
}

/// A line that the config server in Go prints.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    listening: String,
    pub(crate) node: String,
    pub(crate) version: String,
    pub(crate) nonce: String,
    pub(crate) error: String,
}

/// A resource: `RateLimitConfig`.
#[derive(Clone, PartialEq, Message, Serialize)]
pub(crate) struct Resource {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) descriptors: Vec<ResourceDescriptor>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(crate) struct ResourceDescriptor {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "3")]
    rate_limit: Option<ResourceLimit>,
}

#[derive(Clone, Copy, PartialEq, Message, Serialize)]
pub(crate) struct ResourceLimit {
    /// 6 is a year.
    #[prost(int32, tag = "1")]
    unit: i32,
    #[prost(uint32, tag = "2")]
    requests_per_unit: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DiscoveryRequest {
    #[prost(string, tag = "1")]
    pub(crate) version_info: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) node: Option<Node>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) response_nonce: String,
    #[prost(message, optional, tag = "6")]
    pub(crate) error_detail: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, Message)]
struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    version_info: String,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<Any>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

pub(crate) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
const PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// Creates a resource with a yearly limit for each key.
pub(crate) fn resource(domain: &str, limits: &[(&str, u32)]) -> Resource {
    let descriptor = |&(key, requests_per_unit): &(&str, u32)| ResourceDescriptor {
        key: key.to_owned(),
        rate_limit: Some(ResourceLimit { unit: 6, requests_per_unit }),
    };
    Resource {
        name: domain.to_owned(),
        domain: domain.to_owned(),
        descriptors: limits.iter().map(descriptor).collect(),
    }
}

/// Creates a resource whose limit has no unit.
pub(crate) fn invalid_resource(domain: &str) -> Resource {
    let mut invalid = resource(domain, &[("user", 1)]);
    invalid.descriptors[0].rate_limit = Some(ResourceLimit { unit: 0, requests_per_unit: 1 });
    invalid
}

impl ControlPlane {
    pub(crate) fn start() -> Self {
        Self::start_at(0, None)
    }

    /// Starts on a port of the loopback address; 0 for a free one.
    pub(crate) fn start_at(port: u16, tls: Option<ServerConfig>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            // The port may be reserved, or have connections of the server before it.
            socket.set_reuseaddr(true).unwrap();
            socket.bind(([127, 0, 0, 1], port).into()).unwrap();
            socket.listen(64).unwrap()
        });
        let address = listener.local_addr().unwrap();
        let (received, requests) = mpsc::channel();
        let published = Arc::new(watch::Sender::new(None));
        let connections = Arc::new(AtomicU64::new(0));
        let shared = (published.clone(), Arc::new(Mutex::new(received)), connections.clone());
        let tls = tls.map(|mut config| {
            config.alpn_protocols = vec![b"h2".to_vec()];
            TlsAcceptor::from(Arc::new(config))
        });
        runtime.spawn(accept(listener, tls, shared));
        let nonce = AtomicU64::new(0);
        Self { address, published, requests, connections, nonce, runtime: Some(runtime) }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Sends resources to all clients, now and when they connect. Returns the nonce.
    pub(crate) fn publish(&self, version: &str, resources: &[Resource]) -> String {
        let nonce = self.nonce.fetch_add(1, Ordering::Relaxed).to_string();
        let any = |resource: &Resource| Any {
            type_url: TYPE_URL.to_owned(),
            value: resource.encode_to_vec(),
        };
        let response = DiscoveryResponse {
            version_info: version.to_owned(),
            resources: resources.iter().map(any).collect(),
            type_url: TYPE_URL.to_owned(),
            nonce: nonce.clone(),
        };
        let message = response.encode_to_vec();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        self.publish_bytes(&[&[0][..], &length, &message].concat());
        nonce
    }

    /// Sends bytes to all clients.
    pub(crate) fn publish_bytes(&self, bytes: &[u8]) {
        self.published.send_replace(Some(Bytes::copy_from_slice(bytes)));
    }

    /// Returns the next request of a client.
    pub(crate) fn request(&self) -> DiscoveryRequest {
        self.requests.recv_timeout(PATIENCE).unwrap()
    }

    /// Waits for the answer to a response: the error, or an empty text if it was accepted.
    pub(crate) fn answer(&self, nonce: &str) -> String {
        loop {
            let request = self.request();
            if request.response_nonce == nonce {
                return request.error_detail.map(|status| status.message).unwrap_or_default();
            }
        }
    }

    /// Publishes resources and waits until they are accepted.
    pub(crate) fn apply(&self, version: &str, resources: &[Resource]) {
        let nonce = self.publish(version, resources);
        assert_eq!(self.answer(&nonce), "");
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

type Shared =
    (Arc<watch::Sender<Option<Bytes>>>, Arc<Mutex<mpsc::Sender<DiscoveryRequest>>>, Arc<AtomicU64>);

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Shared) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        shared.2.fetch_add(1, Ordering::Relaxed);
        match tls.clone() {
            None => drop(tokio::spawn(serve(stream, shared.clone()))),
            Some(tls) => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, shared).await;
                    }
                });
            }
        }
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, shared: Shared) {
    let service = service_fn(move |request: http::Request<Incoming>| {
        assert_eq!(request.uri().path(), PATH);
        let (sender, body) = channel::channel(1);
        tokio::spawn(send(shared.0.subscribe(), sender));
        tokio::spawn(receive(request.into_body(), shared.1.clone()));
        let response = http::Response::builder().header("content-type", "application/grpc");
        let response = response.body(ResponseBody(body)).unwrap();
        async move { Ok::<_, Infallible>(response) }
    });
    let connection =
        http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
    // A client may close it.
    drop(connection.await);
}

async fn send(mut published: watch::Receiver<Option<Bytes>>, sender: channel::Sender<Bytes>) {
    published.mark_changed();
    while published.changed().await.is_ok() {
        let message = published.borrow_and_update().clone();
        if let Some(message) = message
            && sender.send(message).await.is_err()
        {
            return;
        }
    }
}

async fn receive(mut body: Incoming, received: Arc<Mutex<mpsc::Sender<DiscoveryRequest>>>) {
    let mut buffer = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        buffer.extend_from_slice(&frame.into_data().unwrap_or_default());
        while let Some(mut prefix) = buffer.get(1..5) {
            let length = prefix.get_u32() as usize;
            if buffer.len() < 5 + length {
                break;
            }
            let message = buffer.split_to(5 + length).freeze().slice(5..);
            let request = DiscoveryRequest::decode(message).unwrap();
            assert_eq!(request.type_url, TYPE_URL);
            // The test may have ended.
            drop(received.lock().unwrap().send(request));
        }
    }
}

/// The responses of a stream.
struct ResponseBody(channel::Receiver<Bytes>);

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|message| message.map(|data| Ok(Frame::data(data))))
    }
}

impl GoControlPlane {
    /// Returns the program that `cargo xtask servers` builds. `None` if it could not.
    pub(crate) fn program() -> Option<PathBuf> {
        let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/control-plane");
        program.exists().then_some(program)
    }

    /// Starts it, and waits until it listens.
    pub(crate) fn start(program: &PathBuf, port: &Port, args: &[&str]) -> Self {
        let listen = format!("127.0.0.1:{}", port.number());
        let mut child = Command::new(program)
            .args(["-listen", &listen])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, events) = mpsc::channel();
        thread::spawn(move || {
            let parsed = lines.map_while(Result::ok).map(|line| serde_json::from_str(&line));
            // The test may have ended.
            parsed.map_while(Result::ok).for_each(|event: Event| drop(sender.send(event)));
        });
        let input = child.stdin.take().unwrap();
        let plane = Self { child, input, events };
        assert_eq!(plane.event().listening, listen);
        plane
    }

    /// Serves a snapshot.
    pub(crate) fn publish(&mut self, version: &str, resources: &[Resource]) {
        writeln!(self.input, "{}", json!({ "version": version, "resources": resources })).unwrap();
    }

    /// Returns the next request of a client.
    pub(crate) fn event(&self) -> Event {
        self.events.recv_timeout(PATIENCE).unwrap()
    }
}

impl Drop for GoControlPlane {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
