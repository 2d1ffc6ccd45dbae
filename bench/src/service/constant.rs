//! Servers that send the same response to each request: the cost of connections alone, and so the minimum for any
//! server of this kind.

use std::{env, io, net, thread};

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
    /// Returns the number of requests in the bytes of one read.
    count: fn(&[u8]) -> usize,
    response: &'static [u8],
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
    Constant { name: "resp", workers: Workers::One, count: count_stars, response: FIVE_INTEGERS };
pub const STEALING: Constant =
    Constant { name: "resp-stealing", workers: Workers::TwoStealing, ..RESP };
pub const PINNED: Constant = Constant { name: "resp-pinned", workers: Workers::TwoPinned, ..RESP };
/// The generator sends one request at a time over each connection, so each read has one.
pub const HTTP: Constant =
    Constant { name: "http", workers: Workers::One, count: |_| 1, response: HTTP_RESPONSE };

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

/// Each command begins with a star, and the requests of the benchmark contain no other star.
fn count_stars(input: &[u8]) -> usize {
    input.iter().filter(|&&byte| byte == b'*').count()
}

/// Returns the server that this process should be.
pub fn asked_to_serve() -> Option<Constant> {
    let mut words = env::args().skip(1);
    let name = (words.next()? == SERVE).then(|| words.next())??;
    [RESP, STEALING, PINNED, HTTP].into_iter().find(|server| server.name == name)
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

    async fn answer(self, mut connection: TcpStream) -> io::Result<()> {
        let (mut input, mut responses) = (vec![0; 16 * 1024], Vec::new());
        loop {
            let read = connection.read(&mut input).await?;
            if read == 0 {
                return Ok(());
            }
            responses.clear();
            let requests = (self.count)(&input[..read]);
            (0..requests).for_each(|_| responses.extend_from_slice(self.response));
            connection.write_all(&responses).await?;
        }
    }
}
