//! Sends counters to a statsd server. Decisions never wait for it.

use std::{collections::HashMap, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, UdpSocket, lookup_host},
    sync::oneshot,
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    counters, prefer_ipv4,
    settings::{StatsdProtocol, StatsdSettings},
};
use crate::active_config::ActiveConfig;

/// A task that sends counters.
#[derive(Debug)]
pub(crate) struct Statsd {
    task: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

/// Sends the difference of each counter since it was last sent.
struct StatsdSender {
    settings: StatsdSettings,
    /// The values that were sent.
    sent: HashMap<String, u64>,
    /// The connection over TCP.
    stream: Option<TcpStream>,
    is_failing: bool,
}

/// The deadline for connecting, and for each packet.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of a packet: not fragmented in an Ethernet network.
const UDP_BYTES: usize = 1432;
const TCP_BYTES: usize = 16 << 10;

impl Statsd {
    /// Starts to send.
    pub(crate) fn start(active: Arc<ActiveConfig>, settings: StatsdSettings) -> Self {
        let (end, mut ended) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut ticks = interval(settings.interval);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut sender = StatsdSender::new(settings);
            loop {
                let is_last = tokio::select! {
                    _ = ticks.tick() => false,
                    _ = &mut ended => true,
                };
                sender.send(counters(&active)).await;
                if is_last {
                    return;
                }
            }
        });
        Self { task, end }
    }

    /// Sends the last differences, within [`SEND_TIMEOUT`].
    pub(crate) async fn finish(mut self) {
        // An error means that the task has ended.
        let _ = self.end.send(());
        if timeout(SEND_TIMEOUT, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

impl StatsdSender {
    fn new(settings: StatsdSettings) -> Self {
        Self { settings, sent: HashMap::new(), stream: None, is_failing: false }
    }

    /// Sends the counters that have changed. After a failure, the next call sends the rest.
    async fn send(&mut self, counters: Vec<(String, u64)>) {
        let result = self.send_changes(counters).await;
        let StatsdSettings { address: (host, port), is_explicit, .. } = &self.settings;
        match &result {
            Ok(()) if self.is_failing => {
                tracing::info!("connected to statsd at {host}:{port} again");
            }
            Err(error) if !self.is_failing && *is_explicit => {
                tracing::warn!("cannot send statistics to statsd at {host}:{port}: {error}");
            }
            Err(error) => {
                tracing::debug!("cannot send statistics to statsd at {host}:{port}: {error}");
            }
            Ok(()) => {}
        }
        self.is_failing = result.is_err();
    }

    async fn send_changes(&mut self, counters: Vec<(String, u64)>) -> io::Result<()> {
        let max = match self.settings.protocol {
            StatsdProtocol::Tcp => TCP_BYTES,
            StatsdProtocol::Udp | StatsdProtocol::Dogstatsd => UDP_BYTES,
        };
        let (mut packet, mut packed) = (String::new(), Vec::new());
        for (name, value) in counters {
            let change = value - self.sent.get(&name).copied().unwrap_or_default().min(value);
            if change == 0 {
                continue;
            }
            let line = self.settings.line(&name, change);
            if !packet.is_empty() && packet.len() + line.len() > max {
                self.send_packet(&packet).await?;
                packet.clear();
                self.sent.extend(packed.drain(..));
            }
            packet.push_str(&line);
            packed.push((name, value));
        }
        if !packet.is_empty() {
            self.send_packet(&packet).await?;
            self.sent.extend(packed);
        }
        Ok(())
    }

    async fn send_packet(&mut self, packet: &str) -> io::Result<()> {
        let sent = timeout(SEND_TIMEOUT, async {
            match self.settings.protocol {
                StatsdProtocol::Udp | StatsdProtocol::Dogstatsd => {
                    let address = self.settings.address().await?;
                    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                    UdpSocket::bind(any).await?.send_to(packet.as_bytes(), address).await?;
                }
                StatsdProtocol::Tcp => {
                    // After an error or a timeout, the connection stays taken, and is closed.
                    let mut stream = match self.stream.take().filter(is_open) {
                        Some(stream) => stream,
                        None => TcpStream::connect(self.settings.address().await?).await?,
                    };
                    stream.write_all(packet.as_bytes()).await?;
                    self.stream = Some(stream);
                }
            }
            Ok(())
        });
        sent.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Returns false if the server has closed the connection, for example because it restarted. The first packet after that
/// would be lost without an error.
fn is_open(stream: &TcpStream) -> bool {
    let mut ignored = [0; 256];
    loop {
        match stream.try_read(&mut ignored) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

impl StatsdSettings {
    async fn address(&self) -> io::Result<SocketAddr> {
        let found = lookup_host((&*self.address.0, self.address.1)).await?;
        prefer_ipv4(found).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    fn line(&self, name: &str, change: u64) -> String {
        let each = |prefix: &str, between: char, separator: &str| {
            let tags =
                self.tags.iter().map(|(name, value)| format!("{prefix}{name}{between}{value}"));
            tags.collect::<Vec<_>>().join(separator)
        };
        match self.protocol {
            StatsdProtocol::Dogstatsd if self.tags.is_empty() => format!("{name}:{change}|c\n"),
            StatsdProtocol::Dogstatsd => format!("{name}:{change}|c|#{}\n", each("", ':', ",")),
            StatsdProtocol::Tcp | StatsdProtocol::Udp => {
                format!("{name}{}:{change}|c\n", each(".__", '=', ""))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;

    fn settings(protocol: StatsdProtocol, port: u16) -> StatsdSettings {
        StatsdSettings {
            address: ("127.0.0.1".to_owned(), port),
            protocol,
            tags: BTreeMap::new(),
            interval: Duration::from_secs(10),
            is_explicit: true,
        }
    }

    async fn read(listener: &TcpListener) -> (TcpStream, String) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 100];
        let length = stream.read(&mut buffer).await.unwrap();
        (stream, String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    #[tokio::test]
    async fn differences_are_sent_over_tcp_and_kept_while_the_server_is_down() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut sender = StatsdSender::new(settings(StatsdProtocol::Tcp, address.port()));
        let counters = |a, b| vec![("a".to_owned(), a), ("b".to_owned(), b)];
        sender.send(counters(2, 0)).await;
        let (stream, first) = read(&listener).await;
        assert_eq!(first, "a:2|c\n");
        drop((stream, listener));
        sender.stream.as_ref().unwrap().readable().await.unwrap();
        sender.send(counters(3, 1)).await;
        assert!(sender.is_failing);
        let listener = TcpListener::bind(address).await.unwrap();
        sender.send(counters(5, 1)).await;
        let (stream, second) = read(&listener).await;
        assert_eq!((&*second, sender.is_failing), ("a:3|c\nb:1|c\n", false));
        drop(stream);
        sender.stream.as_ref().unwrap().readable().await.unwrap();
        sender.send(counters(6, 1)).await;
        let (_stream, third) = read(&listener).await;
        assert_eq!((&*third, sender.is_failing), ("a:1|c\n", false), "after a restart");
    }

    #[tokio::test]
    async fn packets_over_udp_are_small() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let mut sender = StatsdSender::new(settings(StatsdProtocol::Udp, port));
        sender.send((0..100).map(|number| (format!("{number:0>60}"), 1)).collect()).await;
        let (mut lines, mut buffer) = (0, [0; 9_000]);
        while lines < 100 {
            let length = socket.recv(&mut buffer).await.unwrap();
            assert!(length <= UDP_BYTES);
            lines += buffer[..length].iter().filter(|byte| **byte == b'\n').count();
        }
    }

    #[test]
    fn tags_follow_the_format_of_the_server() {
        let tags = [("env", "a"), ("zone", "b")].map(|(name, value)| (name.into(), value.into()));
        let mut settings = StatsdSettings { tags: tags.into(), ..settings(StatsdProtocol::Tcp, 1) };
        assert_eq!(settings.line("x.hits", 7), "x.hits.__env=a.__zone=b:7|c\n");
        settings.protocol = StatsdProtocol::Dogstatsd;
        assert_eq!(settings.line("x.hits", 7), "x.hits:7|c|#env:a,zone:b\n");
    }
}
