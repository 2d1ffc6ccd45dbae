//! Follows the config servers.

use std::{
    convert::Infallible,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use http::uri::Authority;
use tokio::{
    sync::watch,
    task::{JoinError, JoinSet},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    super::file::shorten,
    options::XdsOptions,
    proto::{DiscoveryRequest, DiscoveryResponse, RpcStatus},
    resource::{Resources, TYPE_URL},
    stream::{DiscoveryStream, StreamError},
};
use crate::reload::{ReloadError, Reloader};

/// The connections to the config servers. Dropping it closes them.
#[derive(Debug)]
pub struct ConfigClient {
    progress: watch::Receiver<Progress>,
    starts_without: bool,
    _tasks: JoinSet<()>,
}

/// The progress with all config servers.
#[derive(Debug)]
struct Progress {
    /// One for each config server: true if a response was accepted or rejected.
    answered: Vec<bool>,
    /// The number of accepted responses.
    accepted: u64,
}

/// Follows one config server.
struct Follower {
    reloader: Arc<Reloader>,
    options: Arc<XdsOptions>,
    /// The index of the config server.
    index: usize,
    progress: Arc<watch::Sender<Progress>>,
    /// True if a response was received on the current stream.
    has_answered: bool,
    /// The last logged error.
    logged: String,
}

/// The state of one stream.
struct Session {
    stream: DiscoveryStream,
    /// The last accepted version.
    version: String,
    /// The last response, if it was rejected.
    rejected: Option<Rejected>,
}

/// The reason why a response is not activated.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error(transparent)]
    Invalid(#[from] ReloadError),
    #[error("the type of the response is `{0}`: expected `{TYPE_URL}`")]
    Type(String),
    #[error("cannot activate the resources: {0}")]
    Failed(#[from] JoinError),
}

/// A rejected response.
struct Rejected {
    response: DiscoveryResponse,
    reason: String,
    /// The number of times that this version was rejected.
    times: u32,
    /// The time to answer it. `None`: it is answered.
    due: Option<Instant>,
}

/// The time after which the start logs that it waits for a configuration.
const SILENT_TIME: Duration = Duration::from_secs(3);
/// The time that the start waits for the other config servers once one has answered.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(2);
/// Config servers in Go send a rejected version again at once, so repeated rejections are delayed: by this at first,
const REJECTION_DELAY: Duration = Duration::from_millis(500);
/// then by twice as much each time, up to this. A config server sends no correction before the rejection.
const MAX_REJECTION_DELAY: Duration = Duration::from_secs(8);
/// `INVALID_ARGUMENT` of gRPC.
const INVALID_ARGUMENT: i32 = 3;

impl ConfigClient {
    /// Connects to all config servers in the background.
    pub(crate) fn start(reloader: &Arc<Reloader>, options: Arc<XdsOptions>) -> Self {
        let answered = vec![false; options.servers.len()];
        let (progress, receiver) = watch::channel(Progress { answered, accepted: 0 });
        let progress = Arc::new(progress);
        let mut tasks = JoinSet::new();
        for index in 0..options.servers.len() {
            let follower = Follower {
                reloader: reloader.clone(),
                options: options.clone(),
                index,
                progress: progress.clone(),
                has_answered: false,
                logged: String::new(),
            };
            tasks.spawn(follower.run());
        }
        Self { progress: receiver, starts_without: options.start_without, _tasks: tasks }
    }

    /// Waits until a config server has sent its configuration, accepted or not, then a moment for the others. Returns
    /// at once if `FORCE_START_WITHOUT_INITIAL_CONFIG` is set.
    pub async fn wait_for_configuration(&self) {
        if self.starts_without {
            return;
        }
        let mut progress = self.progress.clone();
        // The sender lives as long as the tasks.
        let any = |progress: &Progress| progress.answered.contains(&true);
        if timeout(SILENT_TIME, progress.wait_for(any)).await.is_err() {
            tracing::warn!("still waiting for the first configuration of a config server");
            let _ = progress.wait_for(any).await;
        }
        let all = progress.wait_for(|progress| !progress.answered.contains(&false));
        let _ = timeout(OTHERS_TIMEOUT, all).await;
    }
}

impl Follower {
    async fn run(mut self) {
        let options = self.options.clone();
        let server = &options.servers[self.index];
        let (initial, max) = options.backoff();
        let mut delay = initial;
        self.reloader.active.set_connected(server.as_str(), false);
        loop {
            self.has_answered = false;
            let Err(error) = self.follow(server).await;
            self.reloader.active.set_connected(server.as_str(), false);
            self.reloader.forget_rejected(self.index);
            if self.has_answered {
                delay = initial;
            }
            self.log_lost(server, &error);
            sleep(delay / 2 + jitter(delay / 2)).await;
            delay = (delay * 2).min(max);
        }
    }

    /// Follows one stream until it ends. Nonce and version start empty: they belong to a stream.
    async fn follow(&mut self, server: &Authority) -> Result<Infallible, StreamError> {
        let options = self.options.clone();
        let stream = DiscoveryStream::open(server, &options, &self.request("", "")).await?;
        let mut session = Session { stream, version: String::new(), rejected: None };
        let mut progress = self.progress.subscribe();
        loop {
            let rejected = session.rejected.as_ref();
            let due = rejected.and_then(|rejected| rejected.due);
            tokio::select! {
                response = session.stream.receive() => {
                    let response = response?;
                    progress.mark_unchanged();
                    self.receive(&mut session, response).await?;
                }
                Ok(()) = progress.changed(), if rejected.is_some() => {
                    self.retry(&mut session).await?;
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.send_rejection(&mut session).await?;
                }
            }
        }
    }

    /// Activates or rejects a response.
    async fn receive(
        &mut self,
        session: &mut Session,
        response: DiscoveryResponse,
    ) -> Result<(), StreamError> {
        self.reloader.forget_rejected(self.index);
        let result = self.activate(&response).await;
        let server = &self.options.servers[self.index];
        if !std::mem::replace(&mut self.has_answered, true) {
            tracing::info!(%server, "connected to a config server");
            self.reloader.active.set_connected(server.as_str(), true);
            self.logged.clear();
        }
        let index = self.index;
        self.progress.send_if_modified(|all| !std::mem::replace(&mut all.answered[index], true));
        let Err(rejection) = result else {
            // An earlier version must not be tried again.
            session.rejected = None;
            return self.accept(session, &response).await;
        };
        let reason = rejection.to_string();
        let before = session.rejected.take();
        let before = before.filter(|it| it.response.version_info == response.version_info);
        let times = before.as_ref().map_or(0, |it| it.times);
        if before.is_none_or(|it| it.reason != reason) {
            let version = shorten(&response.version_info, 80);
            tracing::error!(
                %server, version, error = reason,
                "rejected the configuration of a config server; keeping the current one"
            );
            self.reloader.active.refuse(reason.clone());
        }
        let due = Some(Instant::now() + rejection_delay(times));
        session.rejected = Some(Rejected { response, reason, times: times + 1, due });
        Ok(())
    }

    /// Tries a rejected response again, because the resources of another config server have changed.
    async fn retry(&mut self, session: &mut Session) -> Result<(), StreamError> {
        let Some(rejected) = session.rejected.take() else { return Ok(()) };
        match self.activate(&rejected.response).await {
            Ok(()) => self.accept(session, &rejected.response).await,
            Err(rejection) => {
                let reason = rejection.to_string();
                // The acceptance of the other resources has cleared the error.
                self.reloader.active.refuse(reason.clone());
                session.rejected = Some(Rejected { reason, ..rejected });
                Ok(())
            }
        }
    }

    /// Activates a response.
    async fn activate(&self, response: &DiscoveryResponse) -> Result<(), Rejection> {
        check_type(&response.type_url)?;
        let (reloader, index) = (self.reloader.clone(), self.index);
        let (server, resources) = (self.options.servers[index].clone(), response.resources.clone());
        let activating = tokio::task::spawn_blocking(move || {
            let resources = Resources::parse(server.as_str(), resources);
            let resources = resources.map_err(|error| ReloadError::Source(error.into()))?;
            reloader.activate_resources(index, Arc::new(resources))
        });
        Ok(activating.await??)
    }

    async fn accept(
        &mut self,
        session: &mut Session,
        response: &DiscoveryResponse,
    ) -> Result<(), StreamError> {
        session.version.clone_from(&response.version_info);
        self.progress.send_modify(|all| all.accepted += 1);
        session.stream.send(&self.request(&session.version, &response.nonce)).await
    }

    async fn send_rejection(&self, session: &mut Session) -> Result<(), StreamError> {
        let Some(rejected) = &mut session.rejected else { return Ok(()) };
        rejected.due = None;
        let mut request = self.request(&session.version, &rejected.response.nonce);
        let message = rejected.reason.clone();
        request.error_detail = Some(RpcStatus { code: INVALID_ARGUMENT, message });
        session.stream.send(&request).await
    }

    /// Creates a request. The node is part of each one, as in envoyproxy/ratelimit.
    fn request(&self, version: &str, nonce: &str) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: version.to_owned(),
            node: Some(self.options.node()),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce.to_owned(),
            error_detail: None,
        }
    }

    /// Logs the loss of a config server as a warning, and further attempts only if the reason changes.
    fn log_lost(&mut self, server: &Authority, error: &StreamError) {
        let error = error.to_string();
        if error == self.logged {
            tracing::debug!(%server, error, "no connection to a config server");
            return;
        }
        tracing::warn!(
            %server, error,
            "no connection to a config server; keeping the current configuration"
        );
        self.logged = error;
    }
}

/// Rejects a response with resources of another type. Some config servers leave the type out.
fn check_type(type_url: &str) -> Result<(), Rejection> {
    match type_url.is_empty() || type_url == TYPE_URL {
        true => Ok(()),
        false => Err(Rejection::Type(shorten(type_url, 80))),
    }
}

/// Returns the delay of a rejection. `times`: earlier rejections of the same version.
fn rejection_delay(times: u32) -> Duration {
    match times.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => {
            let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
            REJECTION_DELAY.saturating_mul(factor).min(MAX_REJECTION_DELAY)
        }
    }
}

/// Returns a random duration below `limit`, so that not all clients reconnect at once.
fn jitter(limit: Duration) -> Duration {
    let range = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX).max(1);
    Duration::from_micros(RandomState::new().hash_one(0) % range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_repeated_rejections_are_delayed() {
        let millis =
            [0, 1, 2, 3, 4, 5, 6, 40, u32::MAX].map(|times| rejection_delay(times).as_millis());
        assert_eq!(millis, [0, 500, 1_000, 2_000, 4_000, 8_000, 8_000, 8_000, 8_000]);
    }

    #[test]
    fn a_response_of_another_type_is_rejected() {
        assert!(check_type("").is_ok() && check_type(TYPE_URL).is_ok());
        let error = check_type("type.googleapis.com/other").unwrap_err().to_string();
        assert!(error.starts_with("the type of the response is `type.googleapis.com/other`"));
    }

    #[test]
    fn jitter_is_below_its_limit() {
        let limit = Duration::from_micros(3);
        assert!((0..100).all(|_| jitter(limit) < limit));
        assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
    }
}
