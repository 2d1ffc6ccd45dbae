//! The file of RLaaS, as it is: `rate-limiter: {use-algo, window-size, max-requests}`.

use std::time::Duration;

use pacegate::{
    Algorithm, Limit, PolicySet,
    policy::{Policy, PolicyName},
};
use pacegate_redis::Layout;
use serde::Deserialize;

use super::{
    ConfigError, Environment, Settings, file,
    place::{At, Form},
    problem::Problems,
    service::Reader,
    yaml,
};

/// What is at its top. What else an application of Spring has there is left alone.
#[derive(Debug, Deserialize)]
struct Application {
    #[serde(rename = "rate-limiter")]
    limiter: At<RateLimiter>,
    /// Not one of theirs: where the counters are that both share.
    store: Option<At<Form<file::Store>>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RateLimiter {
    use_algo: Algo,
    /// In seconds.
    window_size: At<u64>,
    max_requests: At<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Algo {
    FixedWindowAlgo,
    SlidingWindowAlgo,
}

/// Requests are told apart by this attribute.
const USER: &str = "userId";

/// One policy by `userId`, whose counters on Redis are those of RLaaS.
pub(super) fn read(
    text: &str,
    file: &str,
    environment: &Environment<'_>,
) -> Result<Settings, ConfigError> {
    let application: Application = yaml::parse(text, file)?;
    let mut problems = Problems::new(file, text);
    let limiter = &application.limiter.value;
    let settings = limit(limiter, &mut problems).and_then(|limit| {
        let name =
            problems.take(application.limiter.place, "rate-limiter".parse::<PolicyName>())?;
        let policies = PolicySet::new([Policy::new(name, [limit]).per([USER])]);
        problems.take(application.limiter.place, policies).map(Settings::new)
    });
    let settings = settings.map(|mut settings| {
        let mut reader = Reader { file, environment, problems: &mut problems };
        if let Some(store) = &application.store {
            reader.store(store, &mut settings);
        }
        settings.layout = limiter.use_algo.layout();
        settings
    });
    problems.finish(settings)
}

fn limit(written: &RateLimiter, problems: &mut Problems<'_>) -> Option<Limit> {
    let RateLimiter { use_algo, window_size, max_requests } = written;
    let limit = Limit::new(0, Duration::from_secs(window_size.value));
    let period = problems.take(window_size.place, limit)?.period();
    let limit = Limit::new(max_requests.value, period);
    let limit = limit.and_then(|limit| limit.with_algorithm(use_algo.algorithm()));
    problems.take(max_requests.place, limit)
}

impl Algo {
    fn algorithm(self) -> Algorithm {
        match self {
            Self::FixedWindowAlgo => Algorithm::FixedWindow,
            Self::SlidingWindowAlgo => Algorithm::SlidingLog,
        }
    }

    fn layout(self) -> Layout {
        match self {
            Self::FixedWindowAlgo => Layout::rlaas(),
            Self::SlidingWindowAlgo => Layout::rlaas_log(),
        }
    }
}
