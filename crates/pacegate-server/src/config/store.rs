//! The section `store`.

use std::{fmt, str, time::Duration};

use pacegate::MemoryStore;
use pacegate_redis::{Layout, RedisStore, RedisUrl, UrlError};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Settings,
    environment::{Secret, beside},
    hint::shorten,
    layout::{LayoutSection, check_cluster},
    settings::Reader,
    spanned::{At, Either, Form, Forms},
    text::{count, duration, format_duration},
};

/// The options of a store. With `url`, `url_file` or `url_env` it is on Redis or Valkey, otherwise in memory.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Store")]
pub(crate) struct StoreSection {
    /// The address of the servers: `redis://`, `rediss://`, `redis+cluster://`, `redis+sentinel://`,
    /// `redis+unix://`. If the address has a password, use `url_file` or `url_env` to keep it out of this file.
    #[schemars(example = "redis://127.0.0.1:6379")]
    url: Option<At<String>>,

    /// A file that contains only the address, such as a mounted secret.
    #[schemars(example = "/run/secrets/redis-url")]
    url_file: Option<At<String>>,

    /// The environment variable that contains the address.
    #[schemars(example = &"REDIS_URL")]
    url_env: Option<At<String>>,

    /// The prefix of all keys in the store. For a named `layout`: the text before the colon and the key; default: the
    /// prefix of the layout. Redis and Valkey only.
    #[schemars(extend("default" = RedisStore::DEFAULT_PREFIX))]
    pub(super) prefix: Option<At<String>>,

    /// Deadline for a call to the store. After it, the failure modes of the policies apply. Redis and Valkey only.
    #[schemars(extend("default" = format_duration(RedisStore::DEFAULT_DEADLINE)))]
    deadline: Option<At<String>>,

    /// The layout of the counters: `native`, `rlaas`, `rlaas-log`, `spring`, `valkey-api`, `unix-time`,
    /// `unix-time-log`, `typescript`, `typescript-sliding`, a template for key names, or a template with its options.
    /// Redis and Valkey only. See docs/layouts.md.
    #[schemars(
        extend("default" = "native"),
        example = &"rlaas",
        example = "myapp:{key}:{window}"
    )]
    pub(super) layout: Option<At<Form<LayoutSection>>>,

    /// Sends every denied request to the server. By default, this process caches denials, so layouts that count denied
    /// requests count only the first ones. With this option, `GET /check` also returns the count beyond the limit.
    /// Redis and Valkey only.
    #[schemars(extend("default" = false))]
    count_denied: Option<At<bool>>,

    /// Maximum number of keys in memory; further keys share one counter. Half of the capacity is divided evenly between
    /// the domains and inline limits, so that none of them can use up the capacity of the others. Memory only.
    #[schemars(
        range(min = 1, max = 1_000_000_000),
        extend("default" = MemoryStore::DEFAULT_MAX_KEYS)
    )]
    max_keys: Option<At<u64>>,
}

/// The store for counters. Its `Debug` form shows no password.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreSettings {
    /// In this process.
    Memory {
        /// Maximum number of keys.
        max_keys: usize,
    },
    /// On Redis or Valkey.
    Redis {
        /// Any address that `pacegate_redis::RedisUrl` parses. It may contain a password: mask it before printing.
        url: String,
        /// The prefix of all keys.
        prefix: String,
        /// The deadline for a call.
        deadline: Duration,
    },
}

/// The reason why a text is not the address of a store. Passwords are not part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreAddressError {
    #[error(
        "invalid store `{0}`: expected `memory` or an address such as `redis://127.0.0.1:6379`"
    )]
    Unknown(String),
    #[error(transparent)]
    Url(#[from] UrlError),
}

const MIN_DEADLINE: Duration = Duration::from_millis(1);
const MAX_DEADLINE: Duration = Duration::from_secs(60);

impl Forms for StoreSection {
    const EXPECTED: &'static str =
        "`memory`, an address such as `redis://127.0.0.1:6379`, or the parts of a store";
    type AnyForm = Either<String, Self>;
}

impl Reader<'_, '_> {
    pub(super) fn store(&mut self, written: &At<Form<StoreSection>>, settings: &mut Settings) {
        let text = match &written.value {
            Form::Map(section) => return self.store_section(&written.with(&**section), settings),
            Form::One(scalar) => written.scalar_text(scalar, self.problems),
            Form::List(_) => return self.problems.expected::<StoreSection>(written.location),
        };
        if let Some(store) = self.problems.take(written.location, text.parse()) {
            settings.store = store;
        }
    }

    fn store_section(&mut self, written: &At<&StoreSection>, settings: &mut Settings) {
        let section = written.value;
        let url = match (&section.url, &section.url_file, &section.url_env) {
            (None, None, None) => return self.memory(section, settings),
            (Some(url), None, None) => Some(url.clone()),
            (None, Some(path), None) => {
                let secret = self.environment.file(&beside(self.file, &path.value));
                self.secret_url(path, secret)
            }
            (None, None, Some(name)) => {
                let secret = self.environment.variable(&name.value);
                self.secret_url(name, secret)
            }
            _ => {
                let message =
                    "a store has only one address: keep one of `url`, `url_file` and `url_env`";
                return self.problems.add(written.location, message);
            }
        };
        if let Some(max_keys) = &section.max_keys {
            let message = "`max_keys` is for the memory store: remove it, or remove the address";
            self.problems.add(max_keys.location, message);
        }
        let Some(url) = url else { return };
        let Some(mut store) = self.problems.take(url.location, redis(&url.value)) else { return };
        let layout = self.layout(section, &settings.layout);
        if let StoreSettings::Redis { url, prefix, deadline } = &mut store {
            if let (Some(written), true) = (&section.prefix, layout == Layout::native()) {
                prefix.clone_from(&written.value);
            }
            if let Some(At { value, location, .. }) = &section.deadline {
                let read = duration(value, MIN_DEADLINE..=MAX_DEADLINE);
                *deadline = self.problems.take(*location, read).unwrap_or(*deadline);
            }
            if let (Some(written), Err(problem)) = (&section.layout, check_cluster(url, &layout)) {
                self.problems.add(written.location, problem);
            }
        }
        settings.store = store;
        settings.layout = layout;
        settings.count_denied = section.count_denied.as_ref().is_some_and(|denied| denied.value);
    }

    /// Returns the address from a file or a variable. Errors do not quote it.
    fn secret_url(&mut self, written: &At<String>, secret: Secret) -> Option<At<String>> {
        let Some(url) = self.problems.take(written.location, secret)? else {
            return Some(written.with("redis://127.0.0.1".to_owned()));
        };
        let text = String::from_utf8(url).map_err(|_| "the address is not valid UTF-8");
        Some(written.with(self.problems.take(written.location, text)?))
    }

    fn memory(&mut self, section: &StoreSection, settings: &mut Settings) {
        let StoreSection { prefix, deadline, layout, count_denied, max_keys, .. } = section;
        let redis_only = [
            ("prefix", prefix.as_ref().map(|prefix| prefix.location)),
            ("deadline", deadline.as_ref().map(|deadline| deadline.location)),
            ("layout", layout.as_ref().map(|layout| layout.location)),
            ("count_denied", count_denied.as_ref().map(|denied| denied.location)),
        ];
        for (name, location) in redis_only {
            let Some(location) = location else { continue };
            let message = format!(
                "`{name}` is for Redis and Valkey: add a `url`, `url_file` or `url_env`, or remove it"
            );
            self.problems.add(location, message);
        }
        let Some(At { value, location, .. }) = max_keys else { return };
        let max_keys = count(&value.to_string(), 1..=1_000_000_000);
        if let Some(max_keys) = self.problems.take(*location, max_keys) {
            settings.store = StoreSettings::Memory { max_keys };
        }
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self::Memory { max_keys: MemoryStore::DEFAULT_MAX_KEYS }
    }
}

impl str::FromStr for StoreSettings {
    type Err = StoreAddressError;

    /// Parses `memory`, or the address of a Redis or Valkey.
    fn from_str(text: &str) -> Result<Self, StoreAddressError> {
        match text {
            "memory" => Ok(Self::default()),
            _ if text.contains("://") => redis(text),
            // The text before an @ may be a password, and so may the text after it or after a colon.
            _ if may_be_secret(text) => Err(StoreAddressError::Unknown("***".to_owned())),
            _ => Err(StoreAddressError::Unknown(shorten(text))),
        }
    }
}

fn may_be_secret(address: &str) -> bool {
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    address.contains('@') || address.rsplit_once(':').is_some_and(|(_, port)| !is_port(port))
}

fn redis(url: &str) -> Result<StoreSettings, StoreAddressError> {
    url.parse::<RedisUrl>()?;
    let (prefix, deadline) = (RedisStore::DEFAULT_PREFIX.to_owned(), RedisStore::DEFAULT_DEADLINE);
    Ok(StoreSettings::Redis { url: url.to_owned(), prefix, deadline })
}

/// Prints the address without its secrets.
impl fmt::Display for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { max_keys } => write!(f, "memory for up to {max_keys} keys"),
            Self::Redis { url, .. } => match url.parse::<RedisUrl>() {
                Ok(url) => url.fmt(f),
                Err(_) => f.write_str("Redis"),
            },
        }
    }
}

impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { max_keys } => {
                f.debug_struct("Memory").field("max_keys", max_keys).finish()
            }
            Self::Redis { url, prefix, deadline } => f
                .debug_struct("Redis")
                .field("url", &super::mask::masked(url, 0).0)
                .field("prefix", prefix)
                .field("deadline", deadline)
                .finish(),
        }
    }
}
