//! Permits in responses that are not sent yet.

use pacegate::{Charge, ChargeBuf};
use tokio::runtime::Handle;

use crate::engine::Engine;

/// Charges whose permit was not sent to the client. Dropping it, because the client disconnected, releases the permit.
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

    /// Keeps the permit, which the client has now received.
    pub(super) fn sent(mut self) {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use http::Response;
    use http_body_util::{BodyExt, Full};
    use pacegate::{KeyRef, Limit, Limiter, PolicySet};

    use super::{super::connection::CountedBody, *};

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
            let mut response = Response::new(Full::new(Bytes::from_static(b"{}")));
            response.extensions_mut().insert(Arc::new(UnsentPermit::new(&engine, &charges)));
            CountedBody::wrap(response, None).into_body()
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
