use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
};

use super::wait::PATIENCE;

/// A connection that speaks RESP2, one command after the other.
///
/// It is there to look at servers from outside the code under test. Every read and write fails after ten seconds.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Box<dyn Stream>>,
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A short text, such as `OK`.
    Simple(String),
    /// A refusal, with its code at the front.
    Error(String),
    /// A number.
    Int(i64),
    /// Any bytes.
    Bulk(Vec<u8>),
    /// Nothing, be it for a text or for a list.
    Nil,
    /// A list.
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
    /// If nobody listens there.
    pub fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(Box::new(stream)) })
    }

    /// Connects to a socket in the file system.
    ///
    /// # Errors
    ///
    /// If nobody listens there.
    pub fn connect_unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(Box::new(stream)) })
    }

    /// Sends a command and reads the answer. A refusal is an answer, [`Reply::Error`].
    ///
    /// # Errors
    ///
    /// If the connection breaks or the answer is no RESP2. The client is of no use then.
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
        let end = || io::Error::new(io::ErrorKind::UnexpectedEof, "the server hung up");
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
    /// The text of anything but nothing and a list; bytes that are no UTF-8 are replaced.
    ///
    /// # Panics
    ///
    /// For nothing and for a list.
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Nil | Self::Array(_) => panic!("no text: {self:?}"),
        }
    }

    /// The number, also when it comes as text.
    ///
    /// # Panics
    ///
    /// If it is none.
    pub fn int(&self) -> i64 {
        self.text().parse().unwrap_or_else(|_| panic!("no number: {self:?}"))
    }

    /// What is in the list.
    ///
    /// # Panics
    ///
    /// If it is none.
    pub fn items(&self) -> &[Self] {
        let Self::Array(items) = self else { panic!("no list: {self:?}") };
        items
    }

    /// Whether the server refused.
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
    io::Error::new(io::ErrorKind::InvalidData, format!("no RESP2: {line:?}"))
}
