use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::net;

use super::{
    port::Port,
    wait::{now, wait_until},
};

/// A TCP proxy between a client and a server that injects faults. It ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
    /// The thread that accepts connections; `None` while they are refused.
    door: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    target: String,
    /// False asks the accepting thread to stop.
    open: AtomicBool,
    /// Delay of replies, in microseconds.
    delay: AtomicU64,
    /// Remaining bytes of replies before a connection is cut, if one is to be cut.
    cut: Mutex<Option<u64>>,
    /// Both ends of every connection, to close them from outside.
    connections: Mutex<HashMap<u64, [TcpStream; 2]>>,
    /// Id of the next connection.
    next: AtomicU64,
}

/// Bytes of a reply, and the time at which to forward them.
type Chunk = (Instant, Vec<u8>);

impl Proxy {
    /// Listens on a free port and forwards everything to an address such as `127.0.0.1:6379`.
    ///
    /// # Panics
    ///
    /// Panics if no port is free.
    pub fn start(target: impl Into<String>) -> Self {
        let shared = Shared {
            target: target.into(),
            open: AtomicBool::new(false),
            delay: AtomicU64::new(0),
            cut: Mutex::new(None),
            connections: Mutex::new(HashMap::new()),
            next: AtomicU64::new(0),
        };
        let proxy =
            Self { port: Port::reserve(), shared: Arc::new(shared), door: Mutex::new(None) };
        proxy.open();
        proxy
    }

    /// Returns `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    /// Returns `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Delays everything from the server by this time from now on. Each chunk is delayed independently, so
    /// many can be in flight; chunks of one connection stay in order.
    pub fn set_delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).expect("delay fits into u64");
        self.shared.delay.store(micros, SeqCst);
    }

    /// Lets this many more bytes of replies pass, counted over all connections, then closes both sides of the
    /// connection with the next byte. With 0, the next command is executed and its reply is lost. This
    /// happens once; other connections continue, and new ones are accepted.
    pub fn cut_replies_after(&self, bytes: u64) {
        *lock(&self.shared.cut) = Some(bytes);
    }

    /// Closes all connections and refuses new ones, or listens again.
    pub fn refuse(&self, refuse: bool) {
        if refuse {
            self.close();
        } else {
            self.open();
        }
    }

    fn open(&self) {
        let mut door = lock(&self.door);
        if door.is_none() {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port.number()));
            let listener = listener.expect("bind to the reserved port");
            self.shared.open.store(true, SeqCst);
            let shared = Arc::clone(&self.shared);
            *door = Some(thread::spawn(move || shared.accept(&listener)));
        }
    }

    fn close(&self) {
        if let Some(thread) = lock(&self.door).take() {
            self.shared.open.store(false, SeqCst);
            // Connect to wake up the thread, which blocks in `accept`.
            drop(TcpStream::connect(self.address()));
            thread.join().expect("join the accepting thread");
        }
        self.shared.close_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if !self.open.load(SeqCst) {
                // A process that another thread is starting has a copy of the listener until it runs its program.
                // Closing this one alone would let clients connect meanwhile.
                let _ = net::shutdown(listener, net::Shutdown::Both);
                return;
            }
            // If the server is down, the client sees a connection that is closed immediately.
            drop(client.and_then(|client| self.serve(client)));
        }
    }

    fn serve(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(&self.target)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let name = self.next.fetch_add(1, SeqCst);
        let ends = [client.try_clone()?, server.try_clone()?];
        lock(&self.connections).insert(name, ends);
        let (requests, replies) = ((client.try_clone()?, server.try_clone()?), (server, client));
        let (sender, receiver) = channel();
        let (reading, writing) = (Arc::clone(self), Arc::clone(self));
        thread::spawn(move || pass_requests(requests.0, requests.1));
        thread::spawn(move || reading.read_replies(replies.0, &sender));
        thread::spawn(move || writing.write_replies(name, replies.1, &receiver));
        Ok(())
    }

    fn read_replies(&self, mut server: TcpStream, chunks: &Sender<Chunk>) {
        let mut buffer = vec![0; 16 * 1_024];
        while let Ok(length @ 1..) = server.read(&mut buffer) {
            let due = now() + Duration::from_micros(self.delay.load(SeqCst));
            if chunks.send((due, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    }

    fn write_replies(&self, name: u64, mut client: TcpStream, chunks: &Receiver<Chunk>) {
        for (due, bytes) in chunks {
            wait_until(due);
            let passing = self.passing(bytes.len());
            if client.write_all(&bytes[..passing]).is_err() || passing < bytes.len() {
                break;
            }
        }
        if let Some(ends) = lock(&self.connections).remove(&name) {
            shut(&ends);
        }
    }

    /// Returns how many of `length` bytes may pass; fewer if the connection is to be cut.
    fn passing(&self, length: usize) -> usize {
        let mut cut = lock(&self.cut);
        let Some(left) = *cut else { return length };
        let passing = length.min(usize::try_from(left).unwrap_or(usize::MAX));
        *cut = (passing == length).then_some(left - passing as u64);
        passing
    }

    fn close_all(&self) {
        for (_, ends) in lock(&self.connections).drain() {
            shut(&ends);
        }
    }
}

fn pass_requests(mut client: TcpStream, mut server: TcpStream) {
    // If one end fails, close the other too.
    drop(io::copy(&mut client, &mut server));
    drop(server.shutdown(Shutdown::Write));
}

fn shut(ends: &[TcpStream]) {
    for end in ends {
        drop(end.shutdown(Shutdown::Both));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
