//! Options for Envoy's descriptors, from the section `envoy` of our file or from the variables of envoyproxy/ratelimit.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{stats::StatsSettings, xds::XdsOptions};
use crate::config::TlsFiles;

/// Options for Envoy's descriptors. Each is a setting of envoyproxy/ratelimit.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Envoy")]
pub(crate) struct EnvoyOptions {
    /// Allows several files of envoyproxy/ratelimit to have descriptors of one domain (`MERGE_DOMAIN_CONFIG`).
    pub(crate) merge_domains: bool,

    /// Puts every rule of envoyproxy/ratelimit files into quota mode: a request is denied only if all of its rules are
    /// over their limit (`QUOTA_MODE`).
    pub(crate) quota_mode: bool,

    /// Adds `dynamic_metadata` with the domain, the descriptors and the `metadata` of their rules to each response
    /// (`RESPONSE_DYNAMIC_METADATA`).
    pub(crate) dynamic_metadata: bool,

    /// Answers denials of rules from the deny cache, without counting their hits on Redis
    /// (`LOCAL_CACHE_SIZE_IN_BYTES` above 0). Otherwise every denied hit is counted. A change takes effect after a
    /// restart.
    pub(crate) cache_denials: bool,

    /// Headers that Envoy adds to its responses (`LIMIT_RESPONSE_HEADERS_ENABLED`). `{}` for the default names.
    #[schemars(with = "HeaderNames")]
    pub(crate) response_headers: Option<HeaderNames>,

    /// Makes health checks fail while there is no rule of envoyproxy/ratelimit files
    /// (`HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`).
    pub(crate) needs_rules: bool,

    /// The certificate of the gRPC listener, instead of that in `tls` (`GRPC_SERVER_USE_TLS`). Without `tls`, the other
    /// listeners have none.
    #[schemars(with = "TlsFiles")]
    pub(crate) tls: Option<TlsFiles>,

    /// The statistics of envoyproxy/ratelimit about its rules.
    #[schemars(with = "StatsSettings")]
    pub(crate) statistics: Option<StatsSettings>,

    /// Config servers that send rules over xDS, instead of files of envoyproxy/ratelimit (`CONFIG_TYPE`).
    #[schemars(with = "XdsOptions")]
    pub(crate) xds: Option<XdsOptions>,
}

/// The names of the headers that Envoy adds to its responses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "EnvoyHeaders")]
pub(crate) struct HeaderNames {
    /// The header with the limit (`LIMIT_LIMIT_HEADER`).
    #[schemars(with = "String")]
    pub(crate) limit: ResponseHeader,

    /// The header with the units left (`LIMIT_REMAINING_HEADER`).
    #[schemars(with = "String")]
    pub(crate) remaining: ResponseHeader,

    /// The header with the seconds until the limit resets (`LIMIT_RESET_HEADER`).
    #[schemars(with = "String")]
    pub(crate) reset: ResponseHeader,
}

/// The name of a header, as written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ResponseHeader(String);

/// A text that is not the name of a header.
#[derive(Debug, thiserror::Error)]
#[error("invalid header name: expected letters, digits and dashes, such as X-RateLimit-Limit")]
pub(crate) struct HeaderNameError;

impl EnvoyOptions {
    /// Resolves the paths relative to the directory of `file`.
    pub(crate) fn beside(self, file: &str) -> Self {
        let tls = self.tls.map(|tls| tls.beside(file));
        Self { tls, xds: self.xds.map(|xds| xds.beside(file)), ..self }
    }
}

impl Default for HeaderNames {
    fn default() -> Self {
        let name = |name: &str| ResponseHeader(name.to_owned());
        Self {
            limit: name("RateLimit-Limit"),
            remaining: name("RateLimit-Remaining"),
            reset: name("RateLimit-Reset"),
        }
    }
}

impl ResponseHeader {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ResponseHeader {
    type Error = HeaderNameError;

    fn try_from(name: String) -> Result<Self, HeaderNameError> {
        match http::HeaderName::from_bytes(name.as_bytes()) {
            Ok(_) => Ok(Self(name)),
            Err(_) => Err(HeaderNameError),
        }
    }
}

impl From<ResponseHeader> for String {
    fn from(name: ResponseHeader) -> Self {
        name.0
    }
}
