//! The file of RLaaS: `rate-limiter: {use-algo, window-size, max-requests}` in an `application.yaml` of Spring.

use std::time::Duration;

use pacegate::{
    Algorithm, Limit, PolicySet,
    policy::{Missing, Policy, PolicyName},
};
use pacegate_redis::Layout;
use serde::Deserialize;

use super::{
    ConfigError, Environment, Settings,
    application::Application,
    hint::{among, shorten},
    layout::supported,
    placeholder,
    policies::failure,
    problem::Problems,
    recover,
    settings::Reader,
    spanned::At,
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RateLimiter {
    use_algo: At<String>,
    /// In seconds.
    window_size: At<String>,
    max_requests: At<String>,
}

#[derive(Clone, Copy, Debug)]
enum Algo {
    FixedWindow,
    SlidingWindow,
}

/// The attribute that requests are counted by.
const USER: &str = "userId";

/// Reads a file of RLaaS: one policy per `userId`, with the key layout of RLaaS on Redis.
pub(super) fn read(
    text: &str,
    file: &str,
    environment: &Environment<'_>,
) -> Result<Settings, ConfigError> {
    let mut problems = Problems::new(file, text);
    let application: Option<Application> = recover::parse(text, &mut problems);
    let Some(application) = application else { return problems.finish(None) };
    let Application { limiter, failure: written, config } = application;
    let Ok(none) = PolicySet::new([]) else { return problems.finish(None) };
    let mut settings = Settings::new(none);
    let algo = algo(&limiter.value, environment, &mut problems);
    settings.layout = algo.map_or(settings.layout, Algo::layout);
    Reader { file, environment, problems: &mut problems }.read(&config, &mut settings);
    let limit = algo.and_then(|algo| limit(algo, &limiter.value, environment, &mut problems));
    let failure = written.map(|written| failure(&written, &mut problems));
    if let Some(limit) = limit {
        let location = limiter.value.max_requests.location;
        problems.take(location, supported(&settings.layout, &[limit], false));
        let name = problems.take(limiter.location, "rate-limiter".parse::<PolicyName>());
        let policies = name.and_then(|name| {
            // RLaaS rejects a request without a user, so none is counted.
            let mut policy = Policy::new(name, [limit]).per([USER]);
            policy.missing = Missing::Skip;
            policy.failure = failure.flatten().unwrap_or_default();
            problems.take(limiter.location, PolicySet::new([policy]))
        });
        settings.policies = policies.unwrap_or(settings.policies);
    }
    problems.finish(Some(settings))
}

fn algo(
    written: &RateLimiter,
    environment: &Environment<'_>,
    problems: &mut Problems<'_>,
) -> Option<Algo> {
    let At { value, location, .. } = &written.use_algo;
    let text = problems.take(*location, placeholder::resolve(value, environment))?;
    let algo = match &*text {
        "fixed-window-algo" => Ok(Algo::FixedWindow),
        "sliding-window-algo" => Ok(Algo::SlidingWindow),
        other => {
            let choices = among(other, &["fixed-window-algo", "sliding-window-algo"]);
            Err(format!("`{}` is not an algorithm of RLaaS: {choices}", shorten(other)))
        }
    };
    problems.take(*location, algo)
}

fn limit(
    algo: Algo,
    written: &RateLimiter,
    environment: &Environment<'_>,
    problems: &mut Problems<'_>,
) -> Option<Limit> {
    let RateLimiter { window_size, max_requests, .. } = written;
    let mut number = |written: &At<String>| {
        let text =
            problems.take(written.location, placeholder::resolve(&written.value, environment))?;
        let number = text.trim().parse::<u64>();
        let expected = || format!("expected a whole number from 0, found `{}`", shorten(&text));
        problems.take(written.location, number.map_err(|_| expected()))
    };
    let (seconds, amount) = (number(window_size), number(max_requests));
    let (seconds, amount) = (seconds?, amount?);
    let period =
        problems.take(window_size.location, Limit::new(0, Duration::from_secs(seconds)))?;
    let limit = Limit::new(amount, period.period());
    let limit = limit.and_then(|limit| limit.with_algorithm(algo.algorithm()));
    problems.take(max_requests.location, limit)
}

impl Algo {
    fn algorithm(self) -> Algorithm {
        match self {
            Self::FixedWindow => Algorithm::FixedWindow,
            Self::SlidingWindow => Algorithm::SlidingLog,
        }
    }

    fn layout(self) -> Layout {
        match self {
            Self::FixedWindow => Layout::rlaas(),
            Self::SlidingWindow => Layout::rlaas_log(),
        }
    }
}
