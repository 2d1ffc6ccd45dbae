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

/// An algorithm of RLaaS, with ours and the layout of its counters.
type Row = (&'static str, Algorithm, fn() -> Layout);

const ALGORITHMS: [Row; 2] = [
    ("fixed-window-algo", Algorithm::FixedWindow, Layout::rlaas),
    ("sliding-window-algo", Algorithm::SlidingLog, Layout::rlaas_log),
];

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
    let algorithm = algorithm(&limiter.value, environment, &mut problems);
    let (algorithm, layout) = algorithm.unzip();
    settings.layout = layout.unwrap_or(settings.layout);
    Reader { file, environment, problems: &mut problems }.read(&config, &mut settings);
    let limit = algorithm
        .and_then(|algorithm| limit(algorithm, &limiter.value, environment, &mut problems));
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

fn algorithm(
    written: &RateLimiter,
    environment: &Environment<'_>,
    problems: &mut Problems<'_>,
) -> Option<(Algorithm, Layout)> {
    let At { value, location, .. } = &written.use_algo;
    let text = problems.take(*location, placeholder::resolve(value, environment))?;
    let known = ALGORITHMS.into_iter().find(|(name, ..)| *name == text);
    let known = known.ok_or_else(|| {
        let choices = among(&text, &ALGORITHMS.map(|(name, ..)| name));
        format!("`{}` is not an algorithm of RLaaS: {choices}", shorten(&text))
    });
    let (_, algorithm, layout) = problems.take(*location, known)?;
    Some((algorithm, layout()))
}

fn limit(
    algorithm: Algorithm,
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
    let limit = limit.and_then(|limit| limit.with_algorithm(algorithm));
    problems.take(max_requests.location, limit)
}
