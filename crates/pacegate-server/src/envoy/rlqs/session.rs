//! The stream of one Envoy: its reports, and the assignments for its buckets.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use prost::Message;
use tokio::time::Instant;

use super::{
    bucket::{Bucket, Usage},
    charge::{BucketRequest, Grant, whole_seconds},
    proto::{BlanketRule, BucketAction, BucketId, BucketUsage, QuotaResponse, UsageReports},
    registry::{QuotaRegistry, RegisteredNeeds},
};
use crate::active_config::ActiveConfig;

/// The buckets of one Envoy.
#[derive(Debug)]
pub(crate) struct Session {
    active: Arc<ActiveConfig>,
    /// The domain of the first report.
    domain: Option<String>,
    buckets: HashMap<BucketId, TrackedBucket>,
    /// The encoded size of the ids of all buckets.
    id_bytes: usize,
    /// Actions for buckets that are not tracked.
    rejected: Vec<BucketAction>,
}

#[derive(Debug, Default)]
struct TrackedBucket {
    bucket: Bucket,
    needs: RegisteredNeeds,
}

/// An assignment that is not sent yet.
#[derive(Clone, Copy, Debug)]
enum PendingAction {
    /// Units that must not be spent after an instant.
    Units { units: u64, expires: Instant },
    /// An answer for all requests, for this many seconds.
    Blanket(BlanketRule, i64),
}

/// A report that is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("invalid RateLimitQuotaUsageReports")]
    Invalid,
    #[error("the domain is empty")]
    NoDomain,
    #[error("the domain of a stream cannot change")]
    OtherDomain,
}

/// The time that a message may wait until Envoy's connection accepts it. Then it is dropped: its units are lost, and
/// Envoy denies, because a late assignment could be spent in the next window.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_millis(250);
/// The maximum number of buckets of a stream.
const MAX_BUCKETS: usize = 4_096;
/// The maximum length of the names and values in the id of a bucket.
const MAX_ID_BYTES: usize = 4_096;
/// The maximum encoded size of the ids of all buckets of a stream, so that Envoy's reports are not too large.
const MAX_STREAM_ID_BYTES: usize = 256 << 10;
/// Buckets whose units are charged at the same time.
const MAX_CONCURRENT: usize = 32;
/// The maximum number of actions in a message.
const MAX_ACTIONS: usize = 512;
/// Assignments that are due within this time are sent together.
const COALESCE: Duration = Duration::from_millis(10);
/// The life of an assignment without a limit, and the time after which it is checked again.
const UNLIMITED_SECONDS: i64 = 15;
const UNLIMITED_CHECK: Duration = Duration::from_secs(10);
/// The life of a denial. Envoy denies after it, too.
const DENIAL_SECONDS: i64 = 60;

impl Session {
    pub(crate) fn new(active: Arc<ActiveConfig>) -> Self {
        let (buckets, rejected) = (HashMap::new(), Vec::new());
        Self { active, domain: None, buckets, id_bytes: 0, rejected }
    }

    /// Returns the domain of the reports.
    pub(crate) fn domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }

    fn registry(&self) -> &QuotaRegistry {
        &self.active.quotas
    }

    /// Records a report of Envoy.
    pub(crate) fn receive(&mut self, message: Bytes) -> Result<(), SessionError> {
        let reports = UsageReports::decode(message).map_err(|_| SessionError::Invalid)?;
        match &self.domain {
            None if reports.domain.is_empty() => return Err(SessionError::NoDomain),
            None => self.domain = Some(reports.domain),
            Some(domain) if !reports.domain.is_empty() && *domain != reports.domain => {
                return Err(SessionError::OtherDomain);
            }
            Some(_) => {}
        }
        let (allowed, denied) = reports.usages.iter().fold((0_u64, 0_u64), |sum, usage| {
            (sum.0.saturating_add(usage.allowed), sum.1.saturating_add(usage.denied))
        });
        self.registry().count_report(allowed, denied);
        let now = Instant::now();
        for usage in reports.usages {
            self.record(now, usage);
        }
        Ok(())
    }

    fn record(&mut self, now: Instant, reported: BucketUsage) {
        let id = reported.id.unwrap_or_default();
        if !self.track(&id) {
            return;
        }
        let seconds = reported.time_elapsed.map_or(0, |elapsed| elapsed.seconds);
        let usage = Usage {
            allowed: reported.allowed,
            denied: reported.denied,
            elapsed: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
        };
        let Some(tracked) = self.buckets.get_mut(&id) else { return };
        let is_explained = tracked.bucket.report(now, usage);
        if tracked.bucket.is_idle() {
            self.rejected.push(BucketAction::abandon(&id));
            self.forget(&id);
        }
        if !is_explained && let Some(events) = self.registry().warnings.unassigned.events() {
            tracing::warn!(
                events,
                "Envoy let requests pass without an assignment: set `no_assignment_behavior` of its quota filter to \
                 DENY_ALL, and leave `expired_assignment_behavior` out"
            );
        }
    }

    /// Adds a new bucket. Returns false if there are too many, or if ids are too long: Envoy then forgets it.
    fn track(&mut self, id: &BucketId) -> bool {
        if self.buckets.contains_key(id) {
            return true;
        }
        let bytes = id.attributes.iter().map(|(name, value)| name.len() + value.len());
        let fits = bytes.sum::<usize>() <= MAX_ID_BYTES
            && id.attributes.len() <= self.active.revision().settings.bounds.attributes
            && self.id_bytes + id.encoded_len() <= MAX_STREAM_ID_BYTES;
        if fits && self.buckets.len() < MAX_BUCKETS && self.registry().add_bucket() {
            self.buckets.insert(id.clone(), TrackedBucket::default());
            self.id_bytes += id.encoded_len();
            return true;
        }
        self.rejected.push(BucketAction::abandon(id));
        if let Some(events) = self.registry().warnings.too_many.events() {
            tracing::warn!(
                events,
                "rejected a quota bucket of Envoy: too many buckets, or ids that are too long"
            );
        }
        false
    }

    fn forget(&mut self, id: &BucketId) {
        if let Some(tracked) = self.buckets.remove(id) {
            self.id_bytes -= id.encoded_len();
            self.registry().remove_bucket(tracked.needs);
        }
    }

    /// Returns the time of the next assignment.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        if !self.rejected.is_empty() {
            return Some(Instant::now());
        }
        self.buckets.values().filter_map(|tracked| tracked.bucket.due).min()
    }

    /// Charges the units of all assignments that are due, and returns the messages to send at once.
    pub(crate) async fn assign_due(&mut self) -> Vec<QuotaResponse> {
        let Some(domain) = &self.domain else { return Vec::new() };
        let soon = Instant::now() + COALESCE;
        let is_due = |tracked: &TrackedBucket| tracked.bucket.due.is_some_and(|due| due <= soon);
        let due: Vec<_> = self.buckets.extract_if(|_, tracked| is_due(tracked)).collect();
        let active = &*self.active;
        let assigned = stream::iter(due)
            .map(|(id, mut tracked)| async move {
                let pending = tracked.assign(active, domain, &id).await;
                (id, tracked, pending)
            })
            .buffer_unordered(MAX_CONCURRENT);
        let mut assigned = std::pin::pin!(assigned);
        let mut pending = Vec::new();
        while let Some((id, tracked, action)) = assigned.next().await {
            pending.extend(action.map(|action| (id.clone(), action)));
            self.buckets.insert(id, tracked);
        }
        // The charges of other buckets may have taken a while.
        let now = Instant::now();
        let mut actions = std::mem::take(&mut self.rejected);
        actions.extend(pending.iter().flat_map(|(id, action)| action.actions(id, now)));
        let messages = actions.chunks(MAX_ACTIONS).map(|actions| {
            self.active.quotas.responses.inc();
            QuotaResponse { actions: actions.to_vec() }
        });
        messages.collect()
    }
}

impl TrackedBucket {
    /// Charges units for the bucket, and returns their assignment.
    async fn assign(
        &mut self,
        active: &ActiveConfig,
        domain: &str,
        id: &BucketId,
    ) -> Option<PendingAction> {
        let revision = active.revision();
        let (registry, rate) = (&active.quotas, self.bucket.rate);
        let request = BucketRequest { registry, revision: &revision, domain, id, rate };
        let grant = request.charge(&mut self.needs).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot charge the units of a quota bucket of Envoy");
            Grant::Nothing { until: None }
        });
        let now = Instant::now();
        match grant {
            Grant::Units { units, expires, is_scarce, ends } => {
                self.bucket.assign(now, units, is_scarce, ends);
                registry.units.inc_by(units);
                Some(PendingAction::Units { units, expires })
            }
            Grant::Unlimited => {
                self.bucket.allow(now + UNLIMITED_CHECK);
                Some(PendingAction::Blanket(BlanketRule::AllowAll, UNLIMITED_SECONDS))
            }
            // Envoy may have a few tokens left.
            Grant::Nothing { until: Some(until) } if self.bucket.has_tokens(now) => {
                self.bucket.delay(until);
                None
            }
            // Also at the end of a window: the message replaces tokens that arrived late.
            Grant::Nothing { until } => {
                self.bucket.deny(now, until);
                Some(PendingAction::Blanket(BlanketRule::DenyAll, DENIAL_SECONDS))
            }
            Grant::Later { until } => {
                self.bucket.delay(until);
                None
            }
        }
    }
}

impl PendingAction {
    /// Returns the actions of a message that is sent now. Units are lost if it is too late for them.
    fn actions(self, id: &BucketId, now: Instant) -> Vec<BucketAction> {
        match self {
            Self::Blanket(rule, seconds) => vec![BucketAction::blanket(id, rule, seconds)],
            Self::Units { units, expires } => match whole_seconds(expires, now) {
                Some(seconds) => {
                    let tokens = u32::try_from(units).unwrap_or(u32::MAX);
                    BucketAction::tokens(id, tokens, seconds).into()
                }
                None => vec![BucketAction::blanket(id, BlanketRule::DenyAll, DENIAL_SECONDS)],
            },
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for (_, tracked) in self.buckets.drain() {
            self.active.quotas.remove_bucket(tracked.needs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_that_are_sent_too_late_are_not_assigned() {
        let (id, now) = (BucketId::default(), Instant::now());
        let pending = PendingAction::Units { units: 7, expires: now + Duration::from_secs(3) };
        let after = |seconds| pending.actions(&id, now + Duration::from_secs(seconds));
        assert_eq!(after(1), BucketAction::tokens(&id, 7, 2));
        let denial = [BucketAction::blanket(&id, BlanketRule::DenyAll, DENIAL_SECONDS)];
        assert_eq!(after(3), denial);
    }
}
