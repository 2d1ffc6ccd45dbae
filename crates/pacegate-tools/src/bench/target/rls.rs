//! Envoy's rate limit service: the minimum of HTTP/2 and gRPC that a client needs.
//!
//! Requests use no HPACK dynamic table, and the settings forbid the server to use one, so response headers
//! need not be decoded: a response with a message is a decision, and one without is an error.

use std::collections::VecDeque;

use bytes::Bytes;
use prost::Message;

use super::proto::{
    Code, DescriptorEntry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use super::{
    Greeting, InvalidReply, Prepared, Reply, TargetOptions, Template, Url, Wire, sample_key,
};

/// The state of one HTTP/2 connection.
#[derive(Clone, Debug)]
pub struct Session {
    /// Open streams, in order.
    waiting: VecDeque<Stream>,
    /// Stream id of the first of them.
    first: u32,
    /// Send window of the connection, in bytes.
    room: i64,
    /// Maximum number of concurrent streams that the server allows.
    most: usize,
    open: usize,
    /// Bytes of data received since the last WINDOW_UPDATE.
    taken: u32,
}

#[derive(Clone, Debug, Default)]
struct Stream {
    /// The message received so far.
    message: Vec<u8>,
    answered: bool,
}

/// A frame header.
#[derive(Clone, Copy, Debug)]
struct Frame {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// Length of a frame header.
const HEAD: usize = 9;
/// Length of the gRPC message prefix.
const PREFIX: usize = 5;
/// Maximum flow-control window.
const ALL: u32 = 0x7fff_ffff;
/// Initial flow-control window.
const AT_FIRST: u32 = 65_535;
/// Maximum frame size; we never announce a larger one.
const MAX_FRAME_BYTES: usize = 16_384;
/// Maximum message size.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// A send window large enough for any request written here.
const SOME_ROOM: i64 = 8_192;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

pub(super) fn prepare<'a>(options: &'a TargetOptions<'_>, url: &Url<'_>) -> Prepared<'a> {
    let headers = headers(url.host, options.api_key);
    let greeting = Greeting { bytes: greeting(), replies: 0 };
    let write = move |cost| {
        let key = sample_key(options.prefix);
        let message = request(options, &key, cost).encode_to_vec();
        let mut bytes = Vec::new();
        frame(&mut bytes, HEADERS, END_HEADERS, &headers);
        let mut data = vec![0];
        data.extend_from_slice(&(message.len() as u32).to_be_bytes());
        data.extend_from_slice(&message);
        frame(&mut bytes, DATA, END_STREAM, &data);
        Template { data: data.len(), ..Template::new(&bytes, key.as_bytes()) }
    };
    (Wire::Rls(Box::default()), greeting, Box::new(write))
}

fn request(options: &TargetOptions<'_>, key: &str, cost: u32) -> RateLimitRequest {
    let name = options.attribute.unwrap_or("key").as_bytes();
    let entry = DescriptorEntry {
        key: Bytes::copy_from_slice(name),
        value: Bytes::copy_from_slice(key.as_bytes()),
    };
    RateLimitRequest {
        domain: Bytes::copy_from_slice(options.domain.as_bytes()),
        descriptors: vec![RateLimitDescriptor { entries: vec![entry] }],
        hits_addend: cost,
    }
}

/// Builds the connection preface and our settings: no header table, no server push, the largest windows.
fn greeting() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let settings = [(1_u16, 0_u32), (2, 0), (4, ALL)];
    let settings: Vec<u8> = settings
        .iter()
        .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    frame(&mut bytes, SETTINGS, 0, &settings);
    frame(&mut bytes, WINDOW, 0, &(ALL - AT_FIRST).to_be_bytes());
    bytes
}

/// Encodes the request headers: names by index into the HPACK static table, values as literals.
fn headers(host: &str, api_key: Option<&str>) -> Vec<u8> {
    // `:method: POST` and `:scheme: http`.
    let mut block = vec![0x83, 0x86];
    let mut literal = |name: &[u8], value: &str| {
        block.extend_from_slice(name);
        text(&mut block, value);
    };
    literal(&[0x04], PATH);
    literal(&[0x01], host);
    literal(&[0x0f, 0x10], "application/grpc");
    literal(b"\x00\x02te", "trailers");
    if let Some(key) = api_key {
        literal(&[0x1f, 0x08], &format!("Bearer {key}"));
    }
    block
}

/// Writes an HPACK string literal without Huffman coding.
fn text(block: &mut Vec<u8>, text: &str) {
    let mut length = text.len();
    if length < 127 {
        block.push(length as u8);
    } else {
        block.push(127);
        length -= 127;
        while length > 127 {
            block.push(length as u8 | 128);
            length >>= 7;
        }
        block.push(length as u8);
    }
    block.extend_from_slice(text.as_bytes());
}

fn frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, payload: &[u8]) {
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind, flags, 0, 0, 0, 0]);
    bytes.extend_from_slice(payload);
}

impl Default for Session {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            first: 1,
            room: i64::from(AT_FIRST),
            most: 100,
            open: 0,
            taken: 0,
        }
    }
}

impl Session {
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.room >= SOME_ROOM && self.open < self.most
    }

    /// Sets the stream id in both frames of a request.
    pub(super) fn open(&mut self, data: usize, bytes: &mut [u8]) {
        let stream = (self.first + 2 * self.waiting.len() as u32).to_be_bytes();
        let second = bytes.len() - data - HEAD;
        bytes[5..HEAD].copy_from_slice(&stream);
        bytes[second + 5..second + HEAD].copy_from_slice(&stream);
        self.waiting.push_back(Stream::default());
        self.open += 1;
        self.room -= data as i64;
    }

    pub(super) fn forget_first(&mut self) {
        self.waiting.pop_front();
        self.first += 2;
    }

    /// Parses one frame.
    pub(super) fn read(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        answered: &mut impl FnMut(usize, Reply),
    ) -> Result<Option<usize>, InvalidReply> {
        let Some(frame) = Frame::read(input) else { return Ok(None) };
        if frame.length > MAX_FRAME_BYTES {
            return Err(InvalidReply("frame too long"));
        }
        let end = HEAD + frame.length;
        let Some(payload) = input.get(HEAD..end) else { return Ok(None) };
        match frame.kind {
            DATA => self.data(frame, payload, out)?,
            SETTINGS if frame.flags & ACK == 0 => self.settings(payload, out),
            PING if frame.flags & ACK == 0 => self::frame(out, PING, ACK, payload),
            WINDOW if frame.stream == 0 => self.room += i64::from(number(payload, 0) & ALL),
            GO_AWAY => return Err(InvalidReply("the server closed the connection (GOAWAY)")),
            _ => {}
        }
        let ends = frame.kind == RESET
            || matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0;
        if ends {
            self.finish(frame.stream, answered);
        }
        Ok(Some(end))
    }

    fn settings(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        for setting in payload.chunks_exact(6) {
            if let [0, 3, value @ ..] = setting {
                self.most = number(value, 0) as usize;
            }
        }
        frame(out, SETTINGS, ACK, &[]);
    }

    fn data(
        &mut self,
        frame: Frame,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), InvalidReply> {
        self.taken += frame.length as u32;
        if self.taken > ALL / 2 {
            self::frame(out, WINDOW, 0, &self.taken.to_be_bytes());
            self.taken = 0;
        }
        let part = match (frame.flags & PADDED, payload.split_first()) {
            (0, _) => payload,
            (_, Some((&padding, rest))) if usize::from(padding) <= rest.len() => {
                &rest[..rest.len() - usize::from(padding)]
            }
            _ => return Err(InvalidReply("invalid padding")),
        };
        if let Some(stream) = self.place(frame.stream).and_then(|at| self.waiting.get_mut(at)) {
            stream.message.extend_from_slice(part);
            if stream.message.len() > MAX_MESSAGE_BYTES {
                return Err(InvalidReply("message too long"));
            }
        }
        Ok(())
    }

    fn place(&self, stream: u32) -> Option<usize> {
        Some(stream.checked_sub(self.first)? as usize / 2)
    }

    fn finish(&mut self, stream: u32, answered: &mut impl FnMut(usize, Reply)) {
        let Some(place) = self.place(stream) else { return };
        let Some(stream) = self.waiting.get_mut(place).filter(|stream| !stream.answered) else {
            return;
        };
        stream.answered = true;
        let reply = reply(&stream.message);
        self.open -= 1;
        answered(place, reply);
    }
}

impl Frame {
    fn read(input: &[u8]) -> Option<Self> {
        let head = input.get(..HEAD)?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        Some(Self { length, kind: head[3], flags: head[4], stream: number(head, 5) & ALL })
    }
}

fn number(bytes: &[u8], from: usize) -> u32 {
    let bytes = bytes.get(from..from + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_be_bytes)
}

fn reply(bytes: &[u8]) -> Reply {
    let Some(message) = bytes.get(PREFIX..) else {
        return Reply::Failed("gRPC error without a message".to_owned());
    };
    // Fast path: the code is the first field if the server writes fields in order.
    let code = match message {
        [0x08, code, ..] => i32::from(*code),
        _ => RateLimitResponse::decode(message).map_or(0, |response| response.overall_code),
    };
    match Code::try_from(code) {
        Ok(Code::Ok) => Reply::Allowed,
        Ok(Code::OverLimit) => Reply::Denied,
        _ => Reply::Failed("response without a code".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(session: &mut Session, input: &[u8]) -> (Vec<(usize, Reply)>, Vec<u8>) {
        let (mut replies, mut out, mut done) = (Vec::new(), Vec::new(), 0);
        let mut take = |place, reply| replies.push((place, reply));
        while let Some(length) = session.read(&input[done..], &mut out, &mut take).unwrap() {
            done += length;
        }
        assert_eq!(done, input.len());
        (replies, out)
    }

    fn on(stream: u8, kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame(&mut bytes, kind, flags, payload);
        bytes[HEAD - 1] = stream;
        bytes
    }

    fn two_open() -> Session {
        let mut session = Session::default();
        for stream in [1, 3] {
            let mut bytes = [on(0, HEADERS, END_HEADERS, b"h"), on(0, DATA, 1, b"12345")].concat();
            session.open(5, &mut bytes);
            assert_eq!((bytes[8], bytes[HEAD + 1 + 8]), (stream, stream));
        }
        session
    }

    #[test]
    fn responses_may_be_split_and_out_of_order() {
        let mut session = two_open();
        let input = [
            on(3, DATA, 0, b"\0\0\0\0\x02\x08"),
            on(3, DATA, PADDED, b"\x02\x02xx"),
            on(3, HEADERS, END_STREAM | END_HEADERS, b""),
            on(1, DATA, END_STREAM, b"\0\0\0\0\x02\x08\x01"),
        ]
        .concat();
        let (replies, out) = read(&mut session, &input);
        assert_eq!(replies, [(1, Reply::Denied), (0, Reply::Allowed)]);
        assert!(out.is_empty() && session.open == 0);
        session.forget_first();
        assert_eq!((session.first, session.waiting.len()), (3, 1));
    }

    #[test]
    fn a_response_without_a_message_is_an_error() {
        let mut session = two_open();
        let input =
            [on(1, HEADERS, END_STREAM | END_HEADERS, b"\x88"), on(3, RESET, 0, &[0; 4])].concat();
        let (replies, _) = read(&mut session, &input);
        let failed = Reply::Failed("gRPC error without a message".to_owned());
        assert_eq!(replies, [(0, failed.clone()), (1, failed)]);
    }

    #[test]
    fn settings_pings_and_window_updates_are_handled() {
        let mut session = two_open();
        let input = [
            on(0, SETTINGS, 0, &[0, 3, 0, 0, 0, 2]),
            on(0, PING, 0, b"12345678"),
            on(0, WINDOW, 0, &1_000_u32.to_be_bytes()),
        ]
        .concat();
        let (_, out) = read(&mut session, &input);
        assert_eq!(out, [on(0, SETTINGS, ACK, b""), on(0, PING, ACK, b"12345678")].concat());
        assert_eq!((session.room, session.has_room()), (65_535 - 10 + 1_000, false));
    }

    #[test]
    fn long_strings_have_multi_byte_lengths() {
        let mut block = Vec::new();
        text(&mut block, &"x".repeat(1_337));
        assert_eq!(block[..3], [127, 0xba, 0x09]);
        assert_eq!(block.len(), 1_340);
    }
}
