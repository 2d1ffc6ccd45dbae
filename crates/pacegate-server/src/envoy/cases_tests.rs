//! Files of envoyproxy/ratelimit in `tests/envoy-configs`, each with requests and the expected responses.

use std::{fs, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use pacegate::{Limiter, ManualClock, PolicySet, Timestamp};
use serde::Deserialize;

use super::{
    decide::decide,
    options::{EnvoyOptions, HeaderNames},
    proto::{
        Code, DescriptorStatus, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
        RateLimitResponse, Unit,
    },
    rules::Rules,
};
use crate::{
    active_config::{ActiveConfig, State},
    config::{Descriptors, Settings},
    engine::Engine,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(default)]
    together: bool,
    #[serde(default)]
    dynamic_metadata: bool,
    #[serde(default)]
    shadow: bool,
    #[serde(default)]
    quota_mode: bool,
    #[serde(default)]
    headers: bool,
    /// Native policies: a domain, the `per` attributes, and a limit.
    #[serde(default)]
    native: Vec<Native>,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Native {
    name: String,
    domain: String,
    per: Vec<String>,
    limit: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// Milliseconds that pass before it.
    #[serde(default)]
    after: u64,
    domain: String,
    /// `key=value, key=value`, and after semicolons `hits 3`, `limit 5/MINUTE` and `refund`.
    #[serde(default)]
    ask: Vec<String>,
    #[serde(default)]
    hits: u32,
    /// Number of repetitions; only the last response is compared.
    #[serde(default)]
    times: Option<u32>,
    /// `OK`, `OVER_LIMIT`, or an error.
    answer: String,
    #[serde(default)]
    statuses: Vec<String>,
    #[serde(default)]
    headers: Vec<String>,
    metadata: Option<serde_json::Value>,
}

/// 13:20:10.3 on a Thursday.
const START: u64 = 1_700_140_810_300;

fn active(rules: &Path, case: &Case, clock: &ManualClock) -> ActiveConfig {
    let options = EnvoyOptions {
        quota_mode: case.quota_mode,
        dynamic_metadata: case.dynamic_metadata,
        response_headers: case.headers.then(HeaderNames::default),
        ..EnvoyOptions::default()
    };
    let rules = Rules::load(rules, &options).unwrap_or_else(|error| panic!("{error}"));
    let native = case.native.iter().map(|native| {
        let limit = native.limit.as_str();
        pacegate::Policy::new(native.name.as_str(), [limit])
            .in_domain(&native.domain)
            .per(native.per.clone())
    });
    let policies = rules.beside(&PolicySet::new(native).unwrap()).unwrap();
    let limiter =
        Limiter::builder().policies(policies.clone()).clock(clock.clone()).build().unwrap();
    let mut settings = Settings::new(policies);
    settings.rules = Arc::new(rules);
    settings.shadow = case.shadow;
    settings.envoy = options;
    settings.descriptors = case.together.then_some(Descriptors::Together);
    let state = State::Memory(limiter.store().clone());
    ActiveConfig::new(Engine::memory(limiter).with_clock(clock.clone()), state, settings)
}

fn unit(word: &str) -> Unit {
    let known = Unit::BY_LENGTH.into_iter().find(|(unit, _)| unit.word() == word.to_lowercase());
    known.map_or(Unit::Unknown, |(unit, _)| unit)
}

fn descriptor(text: &str) -> RateLimitDescriptor {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let mut parts = text.split(';').map(str::trim);
    let mut descriptor = RateLimitDescriptor::default();
    for pair in parts.next().unwrap().split(", ") {
        let (key, value) = pair.split_once('=').unwrap();
        descriptor.entries.push(Entry { key: bytes(key), value: bytes(value) });
    }
    for part in parts {
        match part.split_once(' ') {
            Some(("hits", hits)) => descriptor.hits_addend = Some(hits.parse().unwrap()),
            Some(("limit", limit)) => {
                let (amount, word) = limit.split_once('/').unwrap();
                descriptor.limit = Some(RateLimitOverride {
                    requests_per_unit: amount.parse().unwrap(),
                    unit: unit(word).into(),
                });
            }
            None if part == "refund" => descriptor.is_negative_hits = true,
            _ => panic!("{part}"),
        }
    }
    descriptor
}

fn code(code: i32) -> &'static str {
    match Code::try_from(code).unwrap() {
        Code::Unknown => "UNKNOWN",
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

/// `OK 5/MINUTE name left 4 reset 50`, or less if less is said.
fn show(status: &DescriptorStatus) -> String {
    let mut text = code(status.code).to_owned();
    if let Some(limit) = &status.current_limit {
        let unit = Unit::try_from(limit.unit).unwrap().word().to_uppercase();
        text += &format!(" {}/{unit}", limit.requests_per_unit);
        if !limit.name.is_empty() {
            text += &format!(" {}", String::from_utf8_lossy(&limit.name));
        }
    }
    if status.current_limit.is_some() || status.limit_remaining > 0 {
        text += &format!(" left {}", status.limit_remaining);
    }
    if let Some(reset) = status.duration_until_reset {
        assert_eq!(reset.nanos, 0);
        text += &format!(" reset {}", reset.seconds);
    }
    text
}

async fn run(step: &Step, active: &ActiveConfig) -> Result<RateLimitResponse, String> {
    let request = RateLimitRequest {
        domain: Bytes::copy_from_slice(step.domain.as_bytes()),
        descriptors: step.ask.iter().map(|text| descriptor(text)).collect(),
        hits_addend: step.hits,
    };
    let revision = active.revision();
    for _ in 1..step.times.unwrap_or(1) {
        decide(&revision, &request).await.map_err(|error| error.to_string())?;
    }
    let decided = decide(&revision, &request).await.map_err(|error| error.to_string())?;
    Ok(decided.response)
}

async fn check(name: &str, number: usize, step: &Step, active: &ActiveConfig) {
    let at = format!("{name}, step {}: {step:?}", number + 1);
    let response = match run(step, active).await {
        Ok(response) => response,
        Err(error) => {
            assert_eq!(error, step.answer, "{at}");
            return;
        }
    };
    assert_eq!(response.statuses.iter().map(show).collect::<Vec<_>>(), step.statuses, "{at}");
    assert_eq!(code(response.overall_code), step.answer, "{at}");
    let headers = response.response_headers_to_add.iter();
    let headers: Vec<_> = headers.map(|it| format!("{}: {}", it.key, it.value)).collect();
    assert_eq!(headers, step.headers, "{at}");
    let metadata = response.dynamic_metadata.as_ref().map(super::metadata::to_json);
    assert_eq!(metadata, step.metadata, "{at}");
}

#[tokio::test]
async fn every_file_decides_as_is_written_beside_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy-configs");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path()).collect();
    files.sort_unstable();
    let mut count = 0;
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let Some(stem) = name.strip_suffix(".requests.yaml") else { continue };
        let text = fs::read_to_string(&file).unwrap();
        let case: Case =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let clock = ManualClock::at(Timestamp::from_micros(START * 1000));
        let config = folder.join(stem.split('+').next().unwrap()).with_extension("yaml");
        let active = active(&config, &case, &clock);
        for (number, step) in case.steps.iter().enumerate() {
            clock.advance(Duration::from_millis(step.after));
            check(stem, number, step, &active).await;
        }
        count += 1;
    }
    assert!(count >= 10, "{count} files");
}
