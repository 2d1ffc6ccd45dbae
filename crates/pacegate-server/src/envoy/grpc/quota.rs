//! The stream of Envoy's quota service.

use std::sync::Arc;

use http::{HeaderMap, Request, Response, header};
use hyper::body::Incoming;
use tokio::{
    sync::mpsc::{Sender, channel},
    time::{Instant, sleep_until},
};

use super::{
    super::rlqs::{SEND_TIMEOUT, Session},
    GRPC, known,
    message::{MessageStream, framed},
    reply::{Failure, GrpcCode, Reply, StreamMessage},
};
use crate::{
    active_config::ActiveConfig,
    config::Scope,
    service::{Drain, Keys, Watch},
};

/// A stream with the API key of its client.
struct QuotaStream {
    active: Arc<ActiveConfig>,
    watch: Arc<Watch>,
    headers: HeaderMap,
    session: Session,
    output: Sender<Result<StreamMessage, Failure>>,
}

/// The maximum size of a report. A report has all buckets of a stream: their ids and at most 100 bytes more for each.
/// Below the bytes that a connection may hold.
const MAX_REPORT_BYTES: usize = 960 << 10;
/// Messages that wait for the connection. More would only be dropped, because they are too late.
const MAX_WAITING: usize = 4;

/// Starts a stream, which ends with the request body, the connection or the server.
pub(super) fn stream(
    active: &Arc<ActiveConfig>,
    watch: &Arc<Watch>,
    drain: &Drain,
    request: Request<Incoming>,
) -> Result<Response<Reply>, Failure> {
    let (mut head, body) = request.into_parts();
    known(Keys(&active.revision().settings.security.credentials), &head.headers)?;
    let key = head.headers.remove(header::AUTHORIZATION).map(|key| (header::AUTHORIZATION, key));
    let (output, messages) = channel(MAX_WAITING);
    let quotas = QuotaStream {
        active: active.clone(),
        watch: watch.clone(),
        headers: HeaderMap::from_iter(key),
        session: Session::new(active.clone()),
        output,
    };
    let reports = MessageStream::new(body, MAX_REPORT_BYTES, watch.share().cloned());
    tokio::spawn(quotas.run(reports, drain.clone()));
    let mut response = Response::new(Reply::stream(messages));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    Ok(response)
}

impl QuotaStream {
    async fn run(mut self, mut reports: MessageStream, mut drain: Drain) {
        // The connection is not idle while the stream is open.
        let _open = self.watch.begin(http::Version::HTTP_2);
        let end = loop {
            let due = self.session.next_due();
            let is_due = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                report = reports.next() => match report {
                    Ok(None) => break None,
                    Err(failure) => break Some(failure),
                    Ok(Some(report)) => {
                        let recorded = self.session.receive(report).map_err(Failure::from);
                        if let Err(failure) = recorded.and_then(|()| self.permit()) {
                            break Some(failure);
                        }
                    }
                },
                () = is_due => {}
                () = drain.begun() => break None,
                () = self.output.closed() => return,
            }
            self.send_due().await;
        };
        if let Some(failure) = end {
            // An error means that the client is gone.
            let _ = self.output.send(Err(failure)).await;
        }
    }

    /// Checks that the API key permits the domain, with each report: a reload may have removed the key.
    fn permit(&self) -> Result<(), Failure> {
        let revision = self.active.revision();
        let access = known(Keys(&revision.settings.security.credentials), &self.headers)?;
        let domain = self.session.domain().unwrap_or_default();
        match access.allows(Scope::Check, domain) {
            true => Ok(()),
            false => {
                let message = "the API key does not permit this in this domain";
                Err(Failure::new(GrpcCode::PermissionDenied, message))
            }
        }
    }

    async fn send_due(&mut self) {
        let responses = self.session.assign_due().await;
        // The lives of all assignments were computed at the same time.
        let deadline = Instant::now() + SEND_TIMEOUT;
        for response in responses {
            let mut message = framed(&response);
            if let Some(share) = self.watch.share() {
                message = share.answer(message.len()).keep(message);
            }
            // An error means that the client is gone, which the next turn notices.
            let _ = self.output.send(Ok((message, deadline))).await;
        }
    }
}
