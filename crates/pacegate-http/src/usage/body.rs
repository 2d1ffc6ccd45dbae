use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{Usage, meter::Meter};
use crate::{Reply, Settlement, Settling};

pin_project! {
    /// The body of a response whose charge is corrected at its end. It passes the inner body on unchanged; only its
    /// last part waits until the charge is corrected.
    pub struct MeteredBody<B> {
        #[pin]
        body: B,
        // Present until the end of the body, if its usage can be known.
        unsettled: Option<Box<Unsettled>>,
        settling: Option<Settling>,
        // The last part of the body, while the charge is corrected.
        last: Option<Frame<Bytes>>,
    }
}

struct Unsettled {
    usage: Arc<Usage>,
    meter: Meter,
    settlement: Settlement,
    /// The bytes that follow, if the body has a known length: its reader may stop after the last one.
    left: Option<u64>,
}

impl<B: Body<Data = Bytes>> MeteredBody<B> {
    /// Wraps the body of a response, which corrects the charge if there is one.
    pub(crate) fn wrap(
        response: Response<B>,
        settlement: Option<Settlement>,
        usage: &Arc<Usage>,
    ) -> Response<Self> {
        let (head, body) = response.into_parts();
        let body = Self::new(body, &head.headers, settlement, usage);
        Response::from_parts(head, body)
    }

    fn new(
        body: B,
        headers: &HeaderMap,
        settlement: Option<Settlement>,
        usage: &Arc<Usage>,
    ) -> Self {
        let meter = settlement.and_then(|it| Some((it, Meter::new(usage, headers)?)));
        let unsettled = meter.map(|(settlement, meter)| {
            let (usage, left) = (Arc::clone(usage), body.size_hint().exact());
            Box::new(Unsettled { usage, meter, settlement, left })
        });
        Self { body, unsettled, settling: None, last: None }
    }
}

impl Unsettled {
    /// Reads a part of the body. Returns false if the usage cannot be known any more.
    fn read(&mut self, data: &Bytes) -> bool {
        self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
        self.meter.read(&self.usage, data)
    }

    /// Corrects the charge. Returns a future if that takes time.
    fn settle(self) -> Option<Settling> {
        match self.settlement.settle(self.meter.finish(&self.usage)?) {
            Reply::Now(()) => None,
            Reply::Later(settling) => Some(settling),
        }
    }
}

impl<B: Body<Data = Bytes>> Body for MeteredBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        if this.settling.is_none() {
            let frame = match ready!(this.body.as_mut().poll_frame(cx)) {
                Some(Err(error)) => {
                    *this.unsettled = None;
                    return Poll::Ready(Some(Err(error)));
                }
                Some(Ok(frame)) => Some(frame),
                None => None,
            };
            let Some(unsettled) = this.unsettled else { return Poll::Ready(frame.map(Ok)) };
            let is_known = match frame.as_ref().and_then(Frame::data_ref) {
                Some(data) => unsettled.read(data),
                None => true,
            };
            if !is_known {
                *this.unsettled = None;
                return Poll::Ready(frame.map(Ok));
            }
            let is_last = frame.is_none() || this.body.is_end_stream() || unsettled.left == Some(0);
            if !is_last {
                return Poll::Ready(frame.map(Ok));
            }
            *this.last = frame;
            *this.settling = this.unsettled.take().and_then(|unsettled| unsettled.settle());
        }
        if let Some(settling) = this.settling {
            ready!(settling.as_mut().poll(cx));
            *this.settling = None;
        }
        Poll::Ready(this.last.take().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.unsettled.is_none() && self.settling.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> fmt::Debug for MeteredBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeteredBody").finish_non_exhaustive()
    }
}
