//! Servers that send the same response to each request: the cost of connections alone, and so the minimum for any
//! server of this kind.

use std::{env, io};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime,
};

use super::processes::{Process, Running};

/// A server with a constant response.
#[derive(Clone, Copy)]
pub struct Constant {
    name: &'static str,
    workers: usize,
    /// Returns the number of requests in the bytes of one read.
    count: fn(&[u8]) -> usize,
    response: &'static [u8],
}

pub const RESP: Constant =
    Constant { name: "resp", workers: 1, count: count_stars, response: FIVE_INTEGERS };
pub const TWO_WORKERS: Constant = Constant { name: "resp-2", workers: 2, ..RESP };
/// The generator sends one request at a time over each connection, so each read has one.
pub const HTTP: Constant =
    Constant { name: "http", workers: 1, count: |_| 1, response: HTTP_RESPONSE };

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
    [RESP, TWO_WORKERS, HTTP].into_iter().find(|server| server.name == name)
}

impl Constant {
    /// Starts the server in another process.
    pub fn start(self) -> io::Result<(Running, Process)> {
        Running::this_program(&[SERVE, self.name])
    }

    pub fn serve(self) -> io::Result<()> {
        let mut builder = match self.workers {
            1 => runtime::Builder::new_current_thread(),
            _ => runtime::Builder::new_multi_thread(),
        };
        builder.worker_threads(self.workers).enable_all().build()?.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            println!("{}", listener.local_addr()?);
            loop {
                let (connection, _) = listener.accept().await?;
                connection.set_nodelay(true)?;
                tokio::spawn(self.answer(connection));
            }
        })
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
