//! Servers that send the same response to each request: the cost of connections alone, and so the minimum for any
//! server of this kind.

use std::{convert::Infallible, env, io, net, thread};

use axum::http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime,
    sync::mpsc::{UnboundedSender, unbounded_channel},
};

use super::processes::{Process, Running};

/// A server with a constant response.
#[derive(Clone, Copy)]
pub struct Constant {
    name: &'static str,
    workers: Workers,
    protocol: Protocol,
    response: &'static [u8],
}

/// The way to answer requests.
#[derive(Clone, Copy)]
enum Protocol {
    /// Without a library. The function returns the number of requests in the bytes of one read.
    Bytes(fn(&[u8]) -> usize),
    /// With hyper, as Pacegate.
    Grpc,
}

/// The threads of a server.
#[derive(Clone, Copy)]
enum Workers {
    One,
    /// Two threads, either of which continues a connection.
    TwoStealing,
    /// Two threads. A connection stays on one of them, as in Pacegate.
    TwoPinned,
}

pub const RESP: Constant =
    Constant { name: "resp", workers: Workers::One, protocol: STARS, response: FIVE_INTEGERS };
pub const STEALING: Constant =
    Constant { name: "resp-stealing", workers: Workers::TwoStealing, ..RESP };
pub const PINNED: Constant = Constant { name: "resp-pinned", workers: Workers::TwoPinned, ..RESP };
/// The generator sends one request at a time over each connection, so each read has one.
pub const HTTP: Constant =
    Constant { name: "http", protocol: Protocol::Bytes(|_| 1), response: HTTP_RESPONSE, ..RESP };
pub const GRPC: Constant =
    Constant { name: "grpc", protocol: Protocol::Grpc, response: GRPC_RESPONSE, ..RESP };

const STARS: Protocol = Protocol::Bytes(count_stars);

const SERVE: &str = "serve-constant";
const FIVE_INTEGERS: &[u8] = b"*5\r\n:1\r\n:100\r\n:99\r\n:1\r\n:0\r\n";
/// As long as a response of Pacegate.
const HTTP_RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    ratelimit: \"per-user\";r=999999;t=32\r\n\
    ratelimit-policy: \"per-user\";q=1000000;w=60\r\n\
    x-ratelimit-limit: 1000000\r\n\
    x-ratelimit-remaining: 999999\r\n\
    x-ratelimit-reset: 1795063800\r\n\
    content-type: application/json\r\n\
    content-length: 192\r\n\
    date: Thu, 19 Nov 2026 04:49:28 GMT\r\n\r\n\
    {\"allowed\":true,\"policy\":\"per-user\",\"limit\":\"1000000/minute\",\"remaining\":999999,\"retry_after\":null,\
    \"reset_after\":31.341391,\"source\":\"store\",\"shadow_denied\":false,\"degraded\":false,\"revision\":1}";

/// The response of Pacegate to one descriptor, with its prefix.
const GRPC_RESPONSE: &[u8] =
    b"\0\0\0\0\x1c\x08\x01\x12\x18\x08\x01\x12\x0c\x08\xc0\x84\x3d\x10\x02\
    \x1a\x04edge\x18\xbf\x84\x3d\x22\x02\x08\x27";

/// Each command begins with a star, and the requests of the benchmark contain no other star.
fn count_stars(input: &[u8]) -> usize {
    input.iter().filter(|&&byte| byte == b'*').count()
}

/// Returns the server that this process should be.
pub fn asked_to_serve() -> Option<Constant> {
    let mut words = env::args().skip(1);
    let name = (words.next()? == SERVE).then(|| words.next())??;
    [RESP, STEALING, PINNED, HTTP, GRPC].into_iter().find(|server| server.name == name)
}

impl Constant {
    /// Starts the server in another process.
    pub fn start(self) -> io::Result<(Running, Process)> {
        Running::this_program(&[SERVE, self.name])
    }

    pub fn serve(self) -> io::Result<()> {
        let mut builder = match self.workers {
            Workers::TwoStealing => runtime::Builder::new_multi_thread(),
            Workers::One | Workers::TwoPinned => runtime::Builder::new_current_thread(),
        };
        let runtime = builder.worker_threads(2).enable_all().build()?;
        let pinned = match self.workers {
            Workers::TwoPinned => vec![self.worker()?, self.worker()?],
            Workers::One | Workers::TwoStealing => Vec::new(),
        };
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            println!("{}", listener.local_addr()?);
            for turn in 0_usize.. {
                let (connection, _) = listener.accept().await?;
                connection.set_nodelay(true)?;
                match pinned.get(turn % pinned.len().max(1)) {
                    Some(worker) => drop(worker.send(connection.into_std()?)),
                    None => drop(tokio::spawn(self.answer(connection))),
                }
            }
            Ok(())
        })
    }

    /// Starts a thread that serves the connections it is sent.
    fn worker(self) -> io::Result<UnboundedSender<net::TcpStream>> {
        let (sender, mut connections) = unbounded_channel();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        thread::spawn(move || {
            runtime.block_on(async {
                while let Some(connection) = connections.recv().await {
                    tokio::spawn(self.answer(TcpStream::from_std(connection)?));
                }
                io::Result::Ok(())
            })
        });
        Ok(sender)
    }

    async fn answer(self, connection: TcpStream) -> io::Result<()> {
        match self.protocol {
            Protocol::Bytes(count) => self.answer_bytes(connection, count).await,
            Protocol::Grpc => {
                let service = service_fn(|request| self.answer_call(request));
                let builder = http2::Builder::new(TokioExecutor::new());
                let serving = builder.serve_connection(TokioIo::new(connection), service);
                serving.await.map_err(io::Error::other)
            }
        }
    }

    async fn answer_call(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, hyper::Error>
    {
        request.into_body().collect().await?;
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let body = Full::new(Bytes::from_static(self.response));
        let body = body.with_trailers(async { Some(Ok(trailers)) });
        let mut response = Response::new(body);
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert("content-type", grpc);
        Ok(response)
    }

    async fn answer_bytes(
        self,
        mut connection: TcpStream,
        count: fn(&[u8]) -> usize,
    ) -> io::Result<()> {
        let (mut input, mut responses) = (vec![0; 16 * 1024], Vec::new());
        loop {
            let read = connection.read(&mut input).await?;
            if read == 0 {
                return Ok(());
            }
            responses.clear();
            let requests = count(&input[..read]);
            (0..requests).for_each(|_| responses.extend_from_slice(self.response));
            connection.write_all(&responses).await?;
        }
    }
}
