//! Web servers behind proxies, and clients of the proxies.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use crate::clients::{Answer, Http};

/// A web server that answers every request with 200 and counts them. It runs until the tests end.
pub(crate) struct Upstream {
    address: SocketAddr,
    served: Arc<AtomicU64>,
}

/// Answers by status.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) limited: u64,
    pub(crate) other: u64,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, served) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
        let count = served.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, count) = (stream.unwrap(), count.clone());
                thread::spawn(move || serve(stream, &count));
            }
        });
        Self { address, served }
    }

    /// `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns the number of requests so far.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::SeqCst)
    }
}

/// Answers requests without bodies until the client closes the connection.
fn serve(stream: TcpStream, count: &AtomicU64) {
    stream.set_nodelay(true).unwrap();
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
        if line == "\r\n" {
            count.fetch_add(1, Ordering::SeqCst);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nupstream";
            if stream.get_mut().write_all(answer).is_err() {
                return;
            }
        }
        line.clear();
    }
}

impl Tally {
    pub(crate) fn add(&mut self, answer: &Answer) {
        match answer.status {
            200 => self.passed += 1,
            429 => self.limited += 1,
            _ => self.other += 1,
        }
    }
}

/// Sends a request this often, from eight clients with one connection each. Calls `look` with each answer.
pub(crate) fn crowd(
    address: &str,
    request: &str,
    times: u64,
    look: impl Fn(&Answer) + Sync,
) -> Tally {
    const CLIENTS: u64 = 8;
    let address: SocketAddr = address.parse().unwrap();
    let client = || {
        let (mut client, mut tally) = (Http::connect(address).unwrap(), Tally::default());
        for _ in 0..times / CLIENTS {
            let answer = client.send(request).unwrap();
            look(&answer);
            tally.add(&answer);
        }
        tally
    };
    let tallies: Vec<Tally> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    tallies.iter().fold(Tally::default(), |sum, one| Tally {
        passed: sum.passed + one.passed,
        limited: sum.limited + one.limited,
        other: sum.other + one.other,
    })
}
