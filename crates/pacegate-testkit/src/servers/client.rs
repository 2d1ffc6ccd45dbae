use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
};

use super::wait::SERVER_TIMEOUT;

/// A RESP2 connection that sends one command after the other.
///
/// It examines servers independently of the code under test. Every read and write times out after ten
/// seconds.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Box<dyn Stream>>,
}

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A short text, such as `OK`.
    Simple(String),
    /// An error, with its code first.
    Error(String),
    /// An integer.
    Int(i64),
    /// A byte string.
    Bulk(Vec<u8>),
    /// A null reply, for a string or an array.
    Nil,
    /// An array.
    Array(Vec<Self>),
}

trait Stream: Read + Write + Send + fmt::Debug {}

impl Stream for TcpStream {}
impl Stream for UnixStream {}

impl Client {
    /// Connects to an address such as `127.0.0.1:6379`.
    ///
    /// # Errors
    ///
    /// If the connection fails.
    pub fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SERVER_TIMEOUT))?;
        stream.set_write_timeout(Some(SERVER_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(Box::new(stream)) })
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    ///
    /// If the connection fails.
    pub fn connect_unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(SERVER_TIMEOUT))?;
        stream.set_write_timeout(Some(SERVER_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(Box::new(stream)) })
    }

    /// Sends a command and reads the reply. An error reply is returned as [`Reply::Error`].
    ///
    /// # Errors
    ///
    /// If the connection breaks or the reply is not RESP2. The client cannot be used afterwards.
    pub fn command(&mut self, words: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        self.stream.get_mut().write_all(&encode(words))?;
        self.read()
    }

    fn read(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| garbled(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| garbled(&line));
        match kind {
            "+" => Ok(Reply::Simple(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Int(number()?)),
            "$" => self.bulk(number()?),
            "*" => self.array(number()?),
            _ => Err(garbled(&line)),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let end =
            || io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed by the server");
        Ok(line.strip_suffix("\r\n").ok_or_else(end)?.to_owned())
    }

    fn bulk(&mut self, length: i64) -> io::Result<Reply> {
        let Ok(length) = usize::try_from(length) else { return Ok(Reply::Nil) };
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Reply::Bulk(bytes))
    }

    fn array(&mut self, length: i64) -> io::Result<Reply> {
        let Ok(length) = usize::try_from(length) else { return Ok(Reply::Nil) };
        Ok(Reply::Array((0..length).map(|_| self.read()).collect::<io::Result<_>>()?))
    }
}

impl Reply {
    /// Returns the text of a reply; invalid UTF-8 is replaced.
    ///
    /// # Panics
    ///
    /// Panics for a null reply and for an array.
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Nil | Self::Array(_) => panic!("not a text: {self:?}"),
        }
    }

    /// Returns the number, also if it is sent as text.
    ///
    /// # Panics
    ///
    /// Panics if it is not a number.
    pub fn int(&self) -> i64 {
        self.text().parse().unwrap_or_else(|_| panic!("not a number: {self:?}"))
    }

    /// Returns the elements of an array.
    ///
    /// # Panics
    ///
    /// Panics if it is not an array.
    pub fn items(&self) -> &[Self] {
        let Self::Array(items) = self else { panic!("not an array: {self:?}") };
        items
    }

    /// Returns true for an error reply.
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }
}

fn encode(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words.iter().map(AsRef::as_ref) {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn garbled(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP2: {line:?}"))
}
