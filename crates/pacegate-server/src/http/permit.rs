//! Permits in responses that are not sent yet.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use pacegate::{Charge, ChargeBuf};
use tokio::runtime::Handle;

use crate::engine::Engine;

/// The body of a response with a permit. Dropping it unread, because the client disconnected, releases the permit.
#[derive(Debug)]
pub(super) struct PermitResponseBody {
    pub(super) body: Full<Bytes>,
    /// `None` without a permit, and once the body is read.
    pub(super) unsent: Option<UnsentPermit>,
}

/// Charges whose permit was not sent to the client. Dropping it releases the permit.
#[derive(Debug)]
pub(super) struct UnsentPermit {
    engine: Engine,
    charges: Vec<ChargeBuf>,
}

impl UnsentPermit {
    pub(super) fn new(engine: &Engine, charges: &[Charge<'_>]) -> Self {
        let held = charges.iter().filter(|charge| charge.permit != 0);
        Self { engine: engine.clone(), charges: held.map(ChargeBuf::from).collect() }
    }

    fn sent(mut self) {
        self.charges.clear();
    }
}

impl Drop for UnsentPermit {
    fn drop(&mut self) {
        let charges = std::mem::take(&mut self.charges);
        if charges.is_empty() {
            return;
        }
        let engine = self.engine.clone();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let charges: Vec<_> = charges.iter().map(ChargeBuf::as_charge).collect();
                // The store counts failures and retries.
                drop(engine.charges().release(&charges).await);
            });
        }
    }
}

impl Body for PermitResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(unsent) = self.unsent.take() {
            unsent.sent();
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use pacegate::{KeyRef, Limit, Limiter, PolicySet};

    use super::*;

    #[tokio::test]
    async fn an_unsent_permit_is_released() {
        let limit: Limit = "1/hour concurrency".parse().unwrap();
        let limiter =
            Limiter::builder().policies(PolicySet::of_limits([limit]).unwrap()).build().unwrap();
        let engine = Engine::memory(limiter.clone());
        let charge = Charge::new("default".parse().unwrap(), KeyRef::new(b"alice"), limit);
        let taken = || {
            let charges = [charge.holding(limiter.charges().new_permit_id())];
            assert!(limiter.charges().check_batch(&charges).unwrap().decision.is_allowed());
            let unsent = Some(UnsentPermit::new(&engine, &charges));
            PermitResponseBody { body: Full::new(Bytes::from_static(b"{}")), unsent }
        };
        let free =
            || limiter.charges().check_batch(&[charge.cost(0)]).unwrap().decision.is_allowed();
        drop(taken());
        // Lets the release run on the only worker of this runtime.
        tokio::task::yield_now().await;
        assert!(free());
        assert_eq!(taken().collect().await.unwrap().to_bytes(), "{}");
        tokio::task::yield_now().await;
        assert!(!free());
    }
}
