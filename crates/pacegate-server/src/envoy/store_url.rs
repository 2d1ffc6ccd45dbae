//! The store of a deployment of envoyproxy/ratelimit, from its `REDIS_*` variables.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

use super::variables::{EnvironmentError, Result, Variables};
use crate::config::StoreSettings;

/// The deadline for `REDIS_TIMEOUT=0`, with which envoyproxy/ratelimit waits forever.
const NO_TIMEOUT: Duration = Duration::from_secs(10);
const NO_TLS: &str = "cannot be used with a unix socket";

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// Returns the store, or `None` without `REDIS_URL`.
    pub(super) fn store(&self) -> Result<Option<StoreSettings>> {
        let Some(address) = self.text("REDIS_URL") else { return Ok(None) };
        let mut store: StoreSettings = self.url(&address)?.parse().map_err(|problem| {
            // The problem never has a password in it.
            let problem = format!("and the variables beside it are not a valid address: {problem}");
            EnvironmentError::new("REDIS_URL", problem)
        })?;
        if let StoreSettings::Redis { prefix, deadline, .. } = &mut store {
            *prefix = self.text("CACHE_KEY_PREFIX").unwrap_or_else(|| prefix.clone());
            let timeout = self.duration("REDIS_TIMEOUT")?;
            let bounded = |timeout: Duration| if timeout.is_zero() { NO_TIMEOUT } else { timeout };
            *deadline = timeout.map_or(*deadline, bounded);
        }
        Ok(Some(store))
    }

    /// Combines address, type and credentials into a URL.
    fn url(&self, address: &str) -> Result<String> {
        let tls = self.switch("REDIS_TLS")?;
        let redis = if tls { "rediss" } else { "redis" };
        let login = self.text("REDIS_AUTH").map(|auth| login(&auth)).unwrap_or_default();
        let kind = self.text("REDIS_TYPE").unwrap_or_default().to_ascii_uppercase();
        let socket = self.text("REDIS_SOCKET_TYPE").unwrap_or_default();
        let is_sentinel = kind == "SENTINEL" || address.contains("+sentinel://");
        let options = self.url_options(is_sentinel);
        Ok(match &*kind {
            "" | "SINGLE" if address.contains("://") => self.complete(address, &login, &options)?,
            "CLUSTER" | "SENTINEL" if address.contains("://") => {
                let problem = "has a scheme, which excludes REDIS_TYPE";
                return Err(EnvironmentError::new("REDIS_URL", problem));
            }
            "" | "SINGLE" if socket == "unix" || address.starts_with('/') => {
                if tls {
                    return Err(EnvironmentError::new("REDIS_TLS", NO_TLS));
                }
                format!("redis+unix://{login}{address}")
            }
            "" | "SINGLE" => format!("{redis}://{login}{address}{options}"),
            "CLUSTER" => format!("{redis}+cluster://{login}{address}{options}"),
            "SENTINEL" => {
                let (master, sentinels) = address.split_once(',').ok_or_else(|| {
                    EnvironmentError::new(
                        "REDIS_URL",
                        "lacks sentinels: expected `master,host:26379,host:26379`",
                    )
                })?;
                format!("{redis}+sentinel://{login}{sentinels}/{master}{options}")
            }
            _ => {
                return Err(EnvironmentError::new(
                    "REDIS_TYPE",
                    "is invalid: expected SINGLE, SENTINEL or CLUSTER",
                ));
            }
        })
    }

    /// Adds credentials and options to an address with a scheme.
    fn complete(&self, address: &str, login: &str, options: &str) -> Result<String> {
        let (scheme, rest) = address.split_once("://").unwrap_or(("redis", address));
        let (base, shape) = scheme.split_at(scheme.find('+').unwrap_or(scheme.len()));
        let wants_tls = self.switch("REDIS_TLS")?;
        if wants_tls && shape == "+unix" {
            return Err(EnvironmentError::new("REDIS_TLS", NO_TLS));
        }
        let is_plain = matches!(base, "redis" | "valkey");
        let secure = if wants_tls && is_plain { "s" } else { "" };
        let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
        let own = authority.rfind('@').map(|at| &rest[..=at]);
        let login = match own {
            Some(own) if !login.is_empty() && own != login => {
                let problem = "differs from the credentials in REDIS_URL: unset one of them";
                return Err(EnvironmentError::new("REDIS_AUTH", problem));
            }
            Some(_) => "",
            None => login,
        };
        // There are options already, which others can follow.
        let options = match rest.contains('?') {
            true => options.replacen('?', "&", 1),
            false => options.to_owned(),
        };
        Ok(format!("{base}{secure}{shape}://{login}{rest}{options}"))
    }

    fn url_options(&self, sentinel: bool) -> String {
        let mut options = Vec::new();
        for (variable, option) in [
            ("REDIS_TLS_CACERT", "ca"),
            ("REDIS_TLS_CLIENT_CERT", "cert"),
            ("REDIS_TLS_CLIENT_KEY", "key"),
        ] {
            options.extend(self.text(variable).map(|file| format!("{option}={}", escape(&file))));
        }
        if let Some(auth) = self.text("REDIS_SENTINEL_AUTH").filter(|_| sentinel) {
            let (user, password) = auth.split_once(':').unwrap_or(("", &auth));
            if !user.is_empty() {
                options.push(format!("sentinel_user={}", escape(user)));
            }
            options.push(format!("sentinel_password={}", escape(password)));
        }
        if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) }
    }
}

/// Formats `password` or `user:password` for a URL.
fn login(auth: &str) -> String {
    let (user, password) = auth.split_once(':').unwrap_or(("", auth));
    format!("{}:{}@", escape(user), escape(password))
}

fn escape(text: &str) -> PercentEncode<'_> {
    const ESCAPED: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, ESCAPED)
}
