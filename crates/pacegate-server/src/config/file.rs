//! The sections of the file. The JSON Schema and the reference page are made from these types.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use super::{
    Descriptors, Scope,
    bounds::BoundsSection,
    forms::{Conditions, FailureForm, LayoutForm, Lease, OneOrMany, StoreForm},
    place::{At, Entries, Form, Forms, NoMap},
};
use crate::envoy::EnvoyOptions;
use crate::listeners::{LISTENER_COUNT, ListenAddresses, ListenerId};

/// The configuration of `pacegate serve`. Everything may be left out.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Pacegate")]
pub(crate) struct Config {
    /// The store for counters: `memory`, the address of a Redis or Valkey server, or a section with options.
    #[serde(default)]
    #[schemars(with = "StoreForm", extend("default" = "memory"))]
    #[schemars(
        example = "redis://127.0.0.1:6379",
        example = "redis+cluster://10.0.0.1:6379,10.0.0.2:6379"
    )]
    pub(crate) store: Option<At<Form<Store>>>,

    /// The policies. Every policy that matches a request applies to it, all or nothing. A reload can remove all
    /// policies only with an explicit `[]`.
    #[serde(default)]
    #[schemars(with = "Vec<At<Policy>>")]
    pub(crate) policies: Option<Vec<At<Policy>>>,

    /// Inline limits, which come with a request instead of from a policy, such as those of `CL.THROTTLE`.
    #[serde(default)]
    #[schemars(with = "AdHoc")]
    pub(crate) ad_hoc: Option<AdHoc>,

    /// Puts every policy into shadow mode: it counts and reports, but does not deny.
    #[serde(default)]
    pub(crate) shadow: bool,

    /// The addresses of the listeners.
    #[serde(default)]
    pub(crate) listen: Listen,

    /// The rate limit headers of HTTP responses.
    #[serde(default)]
    pub(crate) headers: Headers,

    /// Returns denials of `/v1/check` and `/v1/auth` as problem details (RFC 9457): the fields of a decision, and
    /// `type`, `title`, `status`, `key`, and `window` in seconds. Leave it off if clients must not see the key that
    /// their requests are counted by.
    #[serde(default)]
    pub(crate) problem_details: bool,

    /// The way that several descriptors of one Envoy request are charged. Default: `independent` for rules of
    /// envoyproxy/ratelimit files, `together` for policies.
    #[serde(default)]
    #[schemars(with = "Descriptors")]
    pub(crate) descriptors: Option<Descriptors>,

    /// Options for Envoy's descriptors.
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) envoy: EnvoyOptions,

    /// The certificate of the server. Required for listeners on public addresses.
    #[serde(default)]
    #[schemars(with = "Tls")]
    pub(crate) tls: Option<Tls>,

    /// API keys. Empty means no authentication; allowed on loopback only. A reload cannot remove all of them.
    #[serde(default)]
    pub(crate) keys: Vec<At<Key>>,

    /// Limits on the resources that clients can use.
    #[serde(default)]
    pub(crate) bounds: BoundsSection,
}

/// The parts of a store. With `url`, `url_file` or `url_env` it is on Redis or Valkey, otherwise in memory.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Store {
    /// The address of the servers: `redis://`, `rediss://`, `redis+cluster://`, `redis+sentinel://`,
    /// `redis+unix://`. Keep passwords out of this file: `url_file` and `url_env` are for addresses that have one.
    #[serde(default)]
    #[schemars(with = "String", example = "redis://127.0.0.1:6379")]
    pub(crate) url: Option<At<String>>,

    /// A file that holds the address and nothing else, such as a mounted secret.
    #[serde(default)]
    #[schemars(with = "String", example = "/run/secrets/redis-url")]
    pub(crate) url_file: Option<At<String>>,

    /// The environment variable that holds the address.
    #[serde(default)]
    #[schemars(with = "String", example = &"REDIS_URL")]
    pub(crate) url_env: Option<At<String>>,

    /// The prefix of all keys in the store. With a named `layout`: the text before its key, without the colon; default:
    /// that of the layout. Redis and Valkey only.
    #[serde(default)]
    #[schemars(with = "String", extend("default" = "pg:"))]
    pub(crate) prefix: Option<At<String>>,

    /// Deadline for a call to the store. After it, the failure modes of the policies apply. Redis and Valkey only.
    #[serde(default)]
    #[schemars(with = "String", extend("default" = "100ms"))]
    pub(crate) deadline: Option<At<String>>,

    /// The layout of the counters: `native`, `rlaas`, `rlaas-log`, `spring`, `valkey-api`, `unix-time`,
    /// `unix-time-log`, `typescript`, `typescript-sliding`, a template for key names, or a template with its options.
    /// Redis and Valkey only. See docs/layouts.md.
    #[serde(default)]
    #[schemars(with = "LayoutForm", extend("default" = "native"))]
    #[schemars(example = &"rlaas", example = "myapp:{key}:{window}")]
    pub(crate) layout: Option<At<Form<Layout>>>,

    /// Sends every denied request to the server, so that layouts that count denied requests count all of them. `GET
    /// /check` then returns the count beyond the limit. By default, this process caches denials. Redis and Valkey only.
    #[serde(default)]
    #[schemars(with = "bool", extend("default" = false))]
    pub(crate) count_denied: Option<At<bool>>,

    /// Maximum number of keys in memory; further keys share one counter. Half of the room is divided evenly between the
    /// domains and inline limits, so that none of them can use up the room of the others. Memory only.
    #[serde(default)]
    #[schemars(with = "u64", range(min = 1, max = 1_000_000_000), extend("default" = 1_000_000))]
    pub(crate) max_keys: Option<At<u64>>,
}

/// Fixed windows with custom keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Layout {
    /// The names of keys: text with `{key}` and one of `{window}`, `{window_start}` and `{window_start_ms}`.
    #[schemars(example = "myapp:{key}:{window}")]
    pub(crate) template: At<String>,

    /// Time that a counter outlives its window, up to 365d.
    #[serde(default)]
    #[schemars(with = "String", extend("default" = "0s"))]
    pub(crate) ttl_slack: Option<At<String>>,

    /// Renews the expiry of a counter with every request, instead of the first one only.
    #[serde(default)]
    pub(crate) refresh_ttl: bool,
}

/// A named rule: the requests that it covers, the attributes that they are counted by, and their limits.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Policy {
    /// Unique name: 1 to 64 of `A-Z a-z 0-9 _ . -`; not `ad-hoc`. It is part of the keys of counters: a renamed policy
    /// starts with new counters.
    #[schemars(example = "login-per-ip")]
    pub(crate) name: At<String>,

    /// Only requests of this domain. Without it: only requests without a domain.
    #[serde(default)]
    #[schemars(with = "String", extend("default" = ""))]
    pub(crate) domain: Option<String>,

    /// Conditions on the attributes of a request, all of which must hold. Without it: every request of the domain.
    #[serde(default, rename = "match")]
    #[schemars(with = "Conditions")]
    pub(crate) matching: Option<Entries<Form<Condition>>>,

    /// The form in which `match` compares and `per` counts the attribute `path`.
    #[serde(default)]
    #[schemars(with = "Paths", extend("default" = "normalized"))]
    pub(crate) paths: Option<Paths>,

    /// The attribute whose values have a budget each, or a list of them for each combination of values. Without it:
    /// one budget for all.
    #[serde(default)]
    #[schemars(with = "OneOrMany")]
    #[schemars(example = &"user", example = ["tenant", "user"])]
    pub(crate) per: Option<At<Form<NoMap>>>,

    /// The treatment of a request without an attribute of `per`.
    #[serde(default)]
    #[schemars(with = "Missing", extend("default" = "share"))]
    pub(crate) missing: Option<Missing>,

    /// An amount per period, with an optional burst and algorithm. Several in a list are charged all or nothing.
    /// Periods are `second`, `minute`, `hour`, `day`, `week`, or a number of `ms`, `s`, `m`, `h`, `d`, `w`.
    #[schemars(with = "OneOrMany")]
    #[schemars(example = "100/minute", example = "5/30s sliding-log", example = ["10/second burst 20", "1000/hour"])]
    pub(crate) limit: At<Form<NoMap>>,

    /// The algorithm of all limits of this policy whose text does not name one.
    #[serde(default)]
    #[schemars(with = "Algorithm", extend("default" = "fixed-window"))]
    pub(crate) algorithm: Option<At<String>>,

    /// The burst, unless it is in the text of the limit. Makes the limit a `token-bucket`.
    #[serde(default)]
    #[schemars(with = "u64", range(min = 1))]
    pub(crate) burst: Option<At<u64>>,

    /// Maximum cost of one request. Default: as much as the limit can admit at once.
    #[serde(default)]
    #[schemars(with = "u64", range(min = 1))]
    pub(crate) max_cost: Option<At<u64>>,

    /// Other limits for some of the requests: the first that matches replaces `limit`. Each override has its own
    /// counters.
    #[serde(default)]
    pub(crate) overrides: Vec<Override>,

    /// Enforces the limits, or only counts and reports.
    #[serde(default)]
    #[schemars(with = "Mode", extend("default" = "enforce"))]
    pub(crate) mode: Option<Mode>,

    /// The failure mode, which applies when the store does not answer.
    #[serde(default)]
    #[schemars(with = "FailureForm", extend("default" = "local"))]
    #[schemars(example = &"closed", example = serde_json::json!({"local": "1/3"}))]
    pub(crate) failure: Option<At<Form<Failure>>>,

    /// Units that this process may charge ahead in Redis or Valkey and spend without a round trip: a number, or a part
    /// of the limit. For fixed and sliding windows. Never admits too much, but may deny units held by other processes.
    #[serde(default)]
    #[schemars(with = "Lease")]
    #[schemars(example = 50, example = "5%")]
    pub(crate) lease: Option<At<String>>,

    /// The hash tag of its keys on a cluster. Policies of one request with the same tag are charged in one step.
    #[serde(default)]
    #[schemars(with = "Tag", extend("default" = "key"))]
    pub(crate) tag: Option<At<Tag>>,
}

/// Other limits for some requests of a policy, with their own counters. Their keys contain the policy's name and
/// `match`: a new `limit` with the same algorithm and period keeps its usage.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Override {
    /// The requests of the policy that the override applies to.
    #[serde(rename = "match")]
    #[schemars(with = "Conditions")]
    pub(crate) matching: At<Entries<Form<Condition>>>,

    /// Their limits, or `unlimited`.
    #[schemars(with = "OneOrMany")]
    #[schemars(example = "1000/minute", example = &"unlimited")]
    pub(crate) limit: At<Form<NoMap>>,
}

/// A condition on the value of an attribute: exactly one of these.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Condition {
    /// Exactly this text, even if it has a `*` or a `?`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub(crate) equal: Option<At<String>>,

    /// One of these texts, compared literally.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub(crate) one_of: Option<At<Vec<At<String>>>>,

    /// A pattern: `*` is any run without a `/`, `**` any run at all, `?` any one character but `/`. Of a value that is
    /// longer than 4 KiB, the first 4 KiB are compared: the policy applies if a value with this beginning can match.
    #[serde(default)]
    #[schemars(with = "String", example = "/api/**")]
    pub(crate) glob: Option<At<String>>,

    /// An address in this network, or in one of a list of them.
    #[serde(default)]
    #[schemars(with = "OneOrMany")]
    #[schemars(example = "10.0.0.0/8", example = ["10.0.0.0/8", "2001:db8::/32"])]
    pub(crate) cidr: Option<At<Form<NoMap>>>,

    /// `true`: the request must have the attribute, with any value.
    #[serde(default)]
    #[schemars(with = "bool")]
    pub(crate) present: Option<At<bool>>,

    /// `true`: the request must not have the attribute.
    #[serde(default)]
    #[schemars(with = "bool")]
    pub(crate) absent: Option<At<bool>>,
}

/// The schema of an algorithm's name.
pub(crate) enum Algorithm {}

impl JsonSchema for Algorithm {
    fn schema_name() -> Cow<'static, str> {
        "Algorithm".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let variants = pacegate::Algorithm::BUILT_IN.map(|algorithm| {
            json_schema!({
                "description": algorithm.summary(),
                "type": "string",
                "const": algorithm.name(),
            })
        });
        json_schema!({ "description": "The algorithm of a limit.", "oneOf": variants })
    }
}

/// The mode of a policy.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// Requests over the limit are denied.
    Enforce,
    /// Requests over the limit are counted and reported, and pass.
    Shadow,
}

/// The form in which the attribute `path` is compared and counted.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Paths {
    /// In one spelling: decoded, without query, path parameters, dot segments, repeated and trailing slashes, and in
    /// lower case. Patterns get the same spelling.
    Normalized,
    /// The same, but upper and lower case differ.
    CaseSensitive,
    /// As it was sent.
    Exact,
}

/// The treatment of a request without an attribute of `per`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Missing {
    /// All requests that lack it share one budget, so that leaving it out gains nothing.
    Share,
    /// The policy does not cover the request.
    Skip,
}

/// `local` with a share.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failure {
    /// Count in the memory of this process, at this part of the limit: `1/3` if three processes share the load.
    #[schemars(example = "1/3")]
    pub(crate) local: At<String>,
}

/// The hash tag of the keys of a policy on a cluster.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tag {
    /// The key: spreads most.
    Key,
    /// The value of this attribute, one of those in `per`.
    Attribute(At<String>),
    /// This name, which other policies may share: all of their state is on one server.
    Name(At<String>),
}

/// Inline limits, which come with a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AdHoc {
    /// The failure mode, which applies when the store does not answer.
    #[serde(default)]
    #[schemars(with = "FailureForm", extend("default" = "local"))]
    pub(crate) failure: Option<At<Form<Failure>>>,
}

/// The addresses of the listeners: `HOST:PORT`, with port 0 for a free port, or `off`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listen {
    /// HTTP: checks, administration, metrics, health.
    #[serde(default)]
    #[schemars(with = "String", extend("default" = default_address(ListenerId::Http)))]
    pub(crate) http: Option<At<String>>,

    /// gRPC: Envoy's rate limit service.
    #[serde(default)]
    #[schemars(with = "String", extend("default" = default_address(ListenerId::Grpc)))]
    pub(crate) grpc: Option<At<String>>,

    /// The protocol of Redis.
    #[serde(default)]
    #[schemars(with = "String", extend("default" = default_address(ListenerId::Resp)))]
    pub(crate) resp: Option<At<String>>,

    /// Names in the `Host` of HTTP requests that are accepted besides `localhost` and addresses of this server, without
    /// ports. Requests for other names are rejected if this list is given, or if `http` is on the loopback without API
    /// keys. A proxy on the same machine may need it.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    #[schemars(example = ["limits.example.com"])]
    pub(crate) hosts: Vec<At<String>>,
}

/// The rate limit headers of responses. A denial also has `Retry-After`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Headers {
    /// `RateLimit` and `RateLimit-Policy`, or their predecessors.
    #[serde(default)]
    #[schemars(with = "Standard", extend("default" = "draft-8"))]
    pub(crate) standard: Option<Standard>,

    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    #[serde(default)]
    #[schemars(with = "Legacy", extend("default" = "epoch"))]
    pub(crate) legacy: Option<Legacy>,
}

/// The draft of the standard headers.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub(crate) enum Standard {
    /// As in drafts 8 to 11: `RateLimit: "api";r=12;t=3`.
    #[serde(rename = "draft-8")]
    Draft8,
    /// As in drafts up to 6: `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, in seconds from now.
    #[serde(rename = "draft-6")]
    Draft6,
    /// None of them.
    #[serde(rename = "off")]
    Off,
}

/// The meaning of the number in `X-RateLimit-Reset`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Legacy {
    /// Seconds since 1970.
    Epoch,
    /// Seconds from now.
    Delta,
    /// None of the three headers.
    Off,
}

/// Files in PEM form, read again when they change. Relative to the folder of this file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tls {
    /// The certificate chain, starting with the server's own certificate.
    #[schemars(example = "/etc/pacegate/tls.crt")]
    pub(crate) certificate: At<String>,

    /// Its private key.
    #[schemars(example = "/etc/pacegate/tls.key")]
    pub(crate) key: At<String>,

    /// The certificate authority for client certificates. Without it, clients need none.
    #[serde(default)]
    #[schemars(with = "String")]
    pub(crate) client_ca: Option<At<String>>,
}

/// An API key. This file never contains the key itself, only its hash or its location.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Key {
    /// The name of the API key, for logs.
    #[schemars(example = &"checkout")]
    pub(crate) name: At<String>,

    /// The SHA-256 of the key, as 64 hexadecimal digits: `printf %s "$KEY" | sha256sum`.
    #[serde(default)]
    #[schemars(with = "String", regex(pattern = "^[0-9A-Fa-f]{64}$"))]
    pub(crate) sha256: Option<At<String>>,

    /// A file that holds the key, of 16 bytes or more, and nothing else. Relative to the folder of this file.
    #[serde(default)]
    #[schemars(with = "String", example = "/run/secrets/checkout-key")]
    pub(crate) file: Option<At<String>>,

    /// The environment variable that holds the key, of 16 bytes or more.
    #[serde(default)]
    #[schemars(with = "String", example = &"CHECKOUT_KEY")]
    pub(crate) env: Option<At<String>>,

    /// The permissions of the API key.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(extend("default" = "check"))]
    pub(crate) scope: Scope,

    /// The domains it may be used for. Without it: all of them.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub(crate) domains: Option<At<Vec<String>>>,

    /// Allows inline limits: a `key` with its own `limit`, `CL.THROTTLE`, and the `limit` of an Envoy descriptor. The
    /// scope `admin` does not include it. Over HTTP and RESP, inline limits have no domain, so `domains` must be left
    /// out or contain `""`.
    #[serde(default)]
    pub(crate) inline: bool,
}

fn default_address(listener: ListenerId) -> String {
    ListenAddresses::default()[listener].to_string()
}

/// A field without a value has its default.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Listen {
    /// Returns the address of each listener, if it is given.
    pub(super) fn addresses(&self) -> [(ListenerId, Option<&At<String>>); LISTENER_COUNT] {
        [
            (ListenerId::Http, self.http.as_ref()),
            (ListenerId::Grpc, self.grpc.as_ref()),
            (ListenerId::Resp, self.resp.as_ref()),
        ]
    }
}

impl Forms<'_> for Store {
    const EXPECTED: &'static str =
        "`memory`, an address such as `redis://127.0.0.1:6379`, or the parts of a store";
}

impl Forms<'_> for Layout {
    const EXPECTED: &'static str = "a layout such as `spring`, a template such as `myapp:{key}:{window}`, or \
                                    `template` with `ttl_slack` and `refresh_ttl`";
}

impl Forms<'_> for Condition {
    const EXPECTED: &'static str = "a text, a list of texts, or one of `equal`, `one_of`, `glob`, `cidr`, \
                                    `present` and `absent` with its value";
}

impl Forms<'_> for Failure {
    const EXPECTED: &'static str =
        "`open`, `closed`, `local`, or `local` with a share, as in `{local: 1/3}`";
}
