//! Reads everything except policies: the store, listeners, API keys, and bounds.

use std::{net::IpAddr, ops::RangeInclusive, str, time::Duration};

use pacegate_redis::{Layout, RedisUrl, UrlError};
use sha2::{Digest, Sha256};

use super::{
    Bind, Credential, Environment, HeaderStyle, Headers, ResetStyle, Security, Settings,
    StoreSettings, TlsFiles,
    environment::{Secret, beside},
    file,
    hint::shorten,
    layout::check_cluster,
    place::{At, Form, Forms},
    policies::failure,
    problem::Problems,
    text::{count, duration, sha256},
    written::scalar_text,
};

/// Reads all sections but the policies.
pub(super) struct Reader<'a, 'p> {
    pub(super) file: &'a str,
    pub(super) environment: &'a Environment<'a>,
    pub(super) problems: &'p mut Problems<'a>,
}

impl Reader<'_, '_> {
    /// Reads all sections but the policies. An invalid field keeps its default, and is reported.
    pub(super) fn service(&mut self, written: &file::Config, settings: &mut Settings) {
        if let Some(store) = &written.store {
            self.store(store, settings);
        }
        let ad_hoc = written.ad_hoc.as_ref().and_then(|ad_hoc| ad_hoc.failure.as_ref());
        if let Some(failure) = ad_hoc.and_then(|written| failure(written, self.problems)) {
            settings.ad_hoc_failure = failure;
        }
        settings.shadow = written.shadow;
        for (listener, address) in written.listen.addresses() {
            self.bind(address, &mut settings.listen[listener]);
        }
        settings.hosts =
            written.listen.hosts.iter().filter_map(|written| self.host(written)).collect();
        settings.headers = headers(&written.headers);
        settings.problem_details = written.problem_details;
        settings.descriptors = written.descriptors;
        settings.envoy = written.envoy.clone();
        settings.security = Security {
            tls: written.tls.as_ref().map(|tls| self.tls(tls)),
            credentials: self.credentials(&written.keys),
            insecure: settings.security.insecure,
            ..Security::default()
        };
        settings.bounds = written.bounds.read(self.problems);
    }

    pub(super) fn store(&mut self, written: &At<Form<file::Store>>, settings: &mut Settings) {
        let text = match &written.value {
            Form::Map(parts) => return self.parted_store(&written.with(&**parts), settings),
            Form::One(scalar) => scalar_text(scalar, written.origin, self.problems),
            Form::List(_) => {
                let expected = format_args!("expected {}", file::Store::EXPECTED);
                return self.problems.add(written.place, expected);
            }
        };
        if let Some(store) = self.problems.take(written.place, text.parse()) {
            settings.store = store;
        }
    }

    fn parted_store(&mut self, written: &At<&file::Store>, settings: &mut Settings) {
        let parts = written.value;
        let url = match (&parts.url, &parts.url_file, &parts.url_env) {
            (None, None, None) => return self.memory(parts, settings),
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
                return self.problems.add(written.place, message);
            }
        };
        if let Some(max_keys) = &parts.max_keys {
            let message = "`max_keys` is for the memory store: remove it, or remove the address";
            self.problems.add(max_keys.place, message);
        }
        let Some(url) = url else { return };
        let Some(mut store) = self.problems.take(url.place, redis(&url.value)) else { return };
        let layout = self.layout(parts, &settings.layout);
        if let StoreSettings::Redis { url, prefix, deadline } = &mut store {
            if let (Some(written), true) = (&parts.prefix, layout == Layout::native()) {
                prefix.clone_from(&written.value);
            }
            self.duration(parts.deadline.as_ref(), MILLISECOND..=MINUTE, deadline);
            if let (Some(written), Err(problem)) = (&parts.layout, check_cluster(url, &layout)) {
                self.problems.add(written.place, problem);
            }
        }
        settings.store = store;
        settings.layout = layout;
        settings.count_denied = parts.count_denied.as_ref().is_some_and(|written| written.value);
    }

    /// Returns the address from a file or a variable. Errors do not quote it.
    fn secret_url(&mut self, written: &At<String>, secret: Secret) -> Option<At<String>> {
        let Some(url) = self.problems.take(written.place, secret)? else {
            return Some(written.with("redis://127.0.0.1".to_owned()));
        };
        let text = str::from_utf8(&url).map_err(|_| "the address is not valid UTF-8");
        let text = self.problems.take(written.place, text)?.to_owned();
        Some(written.with(text))
    }

    fn memory(&mut self, parts: &file::Store, settings: &mut Settings) {
        let place = |part: &Option<At<String>>| part.as_ref().map(|part| part.place);
        let only = [
            ("prefix", place(&parts.prefix)),
            ("deadline", place(&parts.deadline)),
            ("layout", parts.layout.as_ref().map(|layout| layout.place)),
            ("count_denied", parts.count_denied.as_ref().map(|written| written.place)),
        ];
        for (name, place) in only {
            if let Some(place) = place {
                let message = format!(
                    "`{name}` is for Redis and Valkey: add a `url`, `url_file` or `url_env`, or leave it out"
                );
                self.problems.add(place, message);
            }
        }
        let Some(written) = &parts.max_keys else { return };
        let max_keys = count(&written.value.to_string(), 1..=1_000_000_000);
        if let Some(max_keys) = self.problems.take(written.place, max_keys) {
            settings.store = StoreSettings::Memory { max_keys };
        }
    }

    fn bind(&mut self, written: Option<&At<String>>, bind: &mut Bind) {
        let Some(written) = written else { return };
        if let Some(said) = self.problems.take(written.place, written.value.parse()) {
            *bind = said;
        }
    }

    fn host(&mut self, written: &At<String>) -> Option<String> {
        let is_part = |char: char| char.is_ascii_alphanumeric() || "-_.:".contains(char);
        let text = written.value.trim_start_matches('[').trim_end_matches(']');
        let is_address = text.parse::<IpAddr>().is_ok();
        if text.is_empty() || !text.chars().all(is_part) || (text.contains(':') && !is_address) {
            let shown = shorten(&written.value);
            let message = format!(
                "invalid host `{shown}`: expected a name without a scheme and a port, such as `limits.example.com`"
            );
            self.problems.add(written.place, message);
            return None;
        }
        Some(text.trim_end_matches('.').to_ascii_lowercase())
    }

    fn tls(&self, written: &file::Tls) -> TlsFiles {
        let path = |path: &At<String>| beside(self.file, &path.value);
        TlsFiles {
            certificate: path(&written.certificate),
            key: path(&written.key),
            client_ca: written.client_ca.as_ref().map(path),
        }
    }

    fn credentials(&mut self, keys: &[At<file::Key>]) -> Vec<Credential> {
        let mut credentials: Vec<Credential> = Vec::new();
        for written in keys {
            let Some(credential) = self.credential(written) else { continue };
            let same = credentials.iter().find(|other| {
                other.name == credential.name
                    || (self.environment.has_secrets() && other.sha256 == credential.sha256)
            });
            if let Some(same) = same {
                let same = shorten(&same.name);
                let message =
                    format!("same name or secret as the API key `{same}`: each key needs its own");
                self.problems.add(written.value.name.place, message);
            }
            credentials.push(credential);
        }
        credentials
    }

    fn credential(&mut self, written: &At<file::Key>) -> Option<Credential> {
        let file::Key { name, scope, domains, inline, .. } = &written.value;
        if name.value.is_empty() || name.value.len() > 64 {
            self.problems.add(name.place, "invalid name of an API key: expected 1 to 64 bytes");
            return None;
        }
        if let Some(domains) = domains.as_ref().filter(|domains| domains.value.is_empty()) {
            let message = "empty `domains`: list at least one, or remove the field to allow all";
            self.problems.add(domains.place, message);
        }
        Some(Credential {
            name: name.value.clone(),
            sha256: self.hash(written)?,
            scope: *scope,
            domains: domains.as_ref().map(|domains| domains.value.clone()),
            inline: *inline,
        })
    }

    fn hash(&mut self, written: &At<file::Key>) -> Option<[u8; 32]> {
        let (place, secret) = match &written.value {
            file::Key { sha256: Some(hash), file: None, env: None, .. } => {
                return self.problems.take(hash.place, sha256(&hash.value));
            }
            file::Key { sha256: None, file: Some(path), env: None, .. } => {
                (path.place, self.environment.file(&beside(self.file, &path.value)))
            }
            file::Key { sha256: None, file: None, env: Some(name), .. } => {
                (name.place, self.environment.variable(&name.value))
            }
            _ => {
                let message = "an API key needs exactly one of `sha256`, `file` and `env`";
                self.problems.add(written.place, message);
                return None;
            }
        };
        let secret = self.problems.take(place, secret)?;
        if let Some(length) = secret.as_ref().map(Vec::len).filter(|length| *length < MIN_API_KEY) {
            let message = format!(
                "the API key has {length} bytes: use at least {MIN_API_KEY}, such as the output of \
                 `openssl rand -hex 32`"
            );
            self.problems.add(place, message);
            return None;
        }
        Some(secret.map_or([0; 32], |secret| Sha256::digest(secret).into()))
    }

    fn duration(
        &mut self,
        written: Option<&At<String>>,
        range: RangeInclusive<Duration>,
        value: &mut Duration,
    ) {
        let read =
            written.and_then(|text| self.problems.take(text.place, duration(&text.value, range)));
        *value = read.unwrap_or(*value);
    }
}

/// Minimum length of an API key in bytes. Shorter ones could be guessed.
const MIN_API_KEY: usize = 16;
const MILLISECOND: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);

fn headers(written: &file::Headers) -> Headers {
    let mut headers = Headers::default();
    headers.standard = match written.standard {
        Some(file::Standard::Off) => HeaderStyle::Off,
        Some(file::Standard::Draft6) => HeaderStyle::Draft6,
        Some(file::Standard::Draft8) | None => HeaderStyle::Draft8,
    };
    headers.legacy = match written.legacy {
        Some(file::Legacy::Off) => None,
        Some(file::Legacy::Delta) => Some(ResetStyle::Delta),
        Some(file::Legacy::Epoch) | None => Some(ResetStyle::Epoch),
    };
    headers
}

/// The reason why a text is not the address of a store. Passwords are not part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum StoreAddressError {
    #[error(
        "invalid store `{0}`: expected `memory` or an address such as `redis://127.0.0.1:6379`"
    )]
    Unknown(String),
    #[error(transparent)]
    Url(#[from] UrlError),
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
    let (prefix, deadline) = ("pg:".to_owned(), Duration::from_millis(100));
    Ok(StoreSettings::Redis { url: url.to_owned(), prefix, deadline })
}
