//! Messages of calls: their prefix, compression and maximum size.

use std::{future::Future, io::Read, pin::pin, sync::Arc, task::Poll, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use prost::Message;
use tokio::time::timeout;

use super::reply::{Failure, GrpcCode};
use crate::{
    config::Bounds,
    service::{Held, Share},
};

/// Length of the message prefix: the compression flag, and four bytes for the length.
pub(in crate::envoy) const PREFIX: usize = 5;

/// The messages of a client's stream, each of at most `max` bytes.
pub(super) struct MessageStream {
    body: Incoming,
    buffer: BytesMut,
    max: usize,
    share: Option<Arc<Share>>,
    /// Counts the bytes of `buffer`.
    held: Option<Held>,
}

impl MessageStream {
    pub(super) fn new(body: Incoming, max: usize, share: Option<Arc<Share>>) -> Self {
        Self { body, buffer: BytesMut::new(), max, share, held: None }
    }

    /// Waits for the next message. `None` at the end of the stream. Can be cancelled.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if let Some(length) = self.message_length()? {
                let message = self.buffer.split_to(length).freeze();
                self.held = None;
                return unframed(message, self.max).map(Some);
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let frame =
                frame.map_err(|_| Failure::new(GrpcCode::Internal, "the request is incomplete"))?;
            let Ok(data) = frame.into_data() else { continue };
            self.buffer.extend_from_slice(&data);
            self.held = None;
            self.held =
                self.share.as_ref().map(|share| share.hold(self.buffer.len())).transpose()?;
        }
    }

    /// Returns the length of the first message with its prefix, if all of it has arrived.
    fn message_length(&self) -> Result<Option<usize>, Failure> {
        let Some(mut length) = self.buffer.get(1..PREFIX) else { return Ok(None) };
        let length = usize::try_from(length.get_u32()).unwrap_or(usize::MAX);
        if length > self.max {
            return Err(Failure::new(GrpcCode::ResourceExhausted, "the request is too large"));
        }
        Ok(Some(PREFIX + length).filter(|length| *length <= self.buffer.len()))
    }
}

/// Reads the message of a call, of at most `max` bytes. A message that has already arrived needs no timer.
pub(super) async fn receive(
    body: Incoming,
    bounds: &Bounds,
    max: usize,
    share: Option<&Arc<Share>>,
) -> Result<Bytes, Failure> {
    let mut reading = pin!(gather(body, max, share));
    let once = std::future::poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
    let gathered = match once {
        Poll::Ready(gathered) => gathered,
        Poll::Pending => within(bounds.read_timeout, reading).await?,
    };
    let gathered = gathered?;
    let is_compressed = is_compressed(&gathered);
    let message = unframed(gathered, max)?;
    Ok(match share.filter(|_| is_compressed) {
        Some(share) => share.hold(message.len())?.keep(message),
        None => message,
    })
}

fn is_compressed(data: &[u8]) -> bool {
    data.first().is_some_and(|flag| *flag != 0)
}

async fn within<T>(time: Duration, work: impl Future<Output = T>) -> Result<T, Failure> {
    let late = |_| Failure::new(GrpcCode::DeadlineExceeded, "timed out while reading the request");
    timeout(time, work).await.map_err(late)
}

/// Reads a body, which counts towards `share` until dropped. Does not copy a single frame.
async fn gather(
    mut body: Incoming,
    max: usize,
    share: Option<&Arc<Share>>,
) -> Result<Bytes, Failure> {
    let mut all = BytesMut::new();
    let mut held = share.map(|share| share.hold(0)).transpose()?;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| Failure::new(GrpcCode::Internal, "the request is incomplete"))?;
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > max.saturating_add(PREFIX) {
            return Err(Failure::new(GrpcCode::ResourceExhausted, "the request is too large"));
        }
        let is_whole = body.is_end_stream();
        if all.is_empty() && is_whole {
            return Ok(data);
        }
        if let Some(held) = &mut held {
            held.grow(data.len())?;
        }
        all.extend_from_slice(&data);
        if is_whole {
            break;
        }
    }
    let all = all.freeze();
    Ok(match held {
        None => all,
        Some(held) => held.keep(all),
    })
}

/// Removes the prefix of a message, and decompresses it to at most `max` bytes.
fn unframed(mut data: Bytes, max: usize) -> Result<Bytes, Failure> {
    if data.len() < PREFIX {
        return Err(Failure::new(GrpcCode::Internal, "the request has no message"));
    }
    let is_compressed = is_compressed(&data);
    data.advance(1);
    let length = data.get_u32();
    if usize::try_from(length) != Ok(data.len()) {
        return Err(Failure::new(GrpcCode::Internal, "expected exactly one message"));
    }
    if is_compressed { decompress(&data, max) } else { Ok(data) }
}

/// Decompresses a message. Gzip is the only compression that gRPC clients commonly use.
fn decompress(data: &[u8], max: usize) -> Result<Bytes, Failure> {
    let mut message = Vec::new();
    let bound = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    let read = flate2::read::GzDecoder::new(data).take(bound).read_to_end(&mut message);
    match read {
        Ok(length) if length <= max => Ok(message.into()),
        Ok(_) => Err(Failure::new(GrpcCode::ResourceExhausted, "the request is too large")),
        Err(_) => {
            let message = "unknown compression: send messages with gzip or uncompressed";
            Err(Failure::new(GrpcCode::Unimplemented, message))
        }
    }
}

/// Encodes a message with its prefix.
pub(in crate::envoy) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut data = BytesMut::with_capacity(PREFIX + length);
    data.put_u8(0);
    data.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Encoding into a growing buffer cannot fail.
    let _ = message.encode(&mut data);
    data.freeze()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::envoy::proto::{HealthCheckResponse, ServingStatus};

    #[test]
    fn messages_are_prefixed_with_their_length() {
        let message = HealthCheckResponse { status: ServingStatus::Serving.into() };
        assert_eq!(&*framed(&message), [0, 0, 0, 0, 2, 8, 1]);
        assert_eq!(unframed(framed(&message), 9).unwrap(), &[8, 1][..]);
    }

    #[test]
    fn invalid_frames_are_rejected() {
        for (data, code) in [
            (&[][..], GrpcCode::Internal),
            (&[0, 0, 0, 0], GrpcCode::Internal),
            (&[1, 0, 0, 0, 1, 7], GrpcCode::Unimplemented),
            (&[0, 0, 0, 0, 1], GrpcCode::Internal),
            (&[0, 0, 0, 0, 0, 7], GrpcCode::Internal),
            (&[0, 255, 255, 255, 255, 7], GrpcCode::Internal),
        ] {
            assert_eq!(unframed(Bytes::from_static(data), 9).unwrap_err().code, code, "{data:?}");
        }
    }

    #[test]
    fn gzip_is_decompressed_up_to_the_maximum() {
        let compressed = |length: usize| {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(&vec![b'x'; length]).unwrap();
            let data = encoder.finish().unwrap();
            let length = u32::try_from(data.len()).unwrap().to_be_bytes();
            Bytes::from([&[1][..], &length, &data].concat())
        };
        assert_eq!(unframed(compressed(100), 100).unwrap(), vec![b'x'; 100]);
        // A small message that would fill memory.
        let failure = unframed(compressed(1 << 20), 100).unwrap_err();
        assert_eq!(failure.code, GrpcCode::ResourceExhausted);
    }
}
