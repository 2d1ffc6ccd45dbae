//! The whole file, and the settings that it is read into. Each section is declared in the file that reads it.

use std::{collections::BTreeSet, sync::Arc};

use pacegate::{Policy, PolicyName, PolicySet, policy::FailureMode};
use pacegate_http::{HeaderStyle, Headers, ResetStyle};
use pacegate_redis::Layout;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::{
    Bind, Bounds, Environment, Security, StoreSettings, TlsFiles, WebhookSettings,
    bounds::BoundsSection,
    choices::choices,
    layout::{LayoutError, check_cluster, check_debt, supported},
    notifications::NotificationsSection,
    policies::{FailureSection, PolicySection, failure},
    problem::Problems,
    security::KeySection,
    spanned::{At, Form},
    store::StoreSection,
};
use crate::{
    envoy::{EnvoyOptions, Rules},
    listeners::{ListenAddresses, ListenSection, ListenerId},
};

/// The configuration of `pacegate serve`. All fields are optional.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Pacegate")]
pub(crate) struct Config {
    /// The store for counters: `memory`, the address of a Redis or Valkey server, or a section with options.
    #[schemars(
        extend("default" = "memory"),
        example = "redis://127.0.0.1:6379",
        example = "redis+cluster://10.0.0.1:6379,10.0.0.2:6379"
    )]
    pub(crate) store: Option<At<Form<StoreSection>>>,

    /// The policies. Every policy that matches a request applies to it, all or nothing. To remove all policies with a
    /// reload, write `[]`.
    pub(crate) policies: Option<Vec<At<PolicySection>>>,

    /// Options for inline limits, which are part of a request instead of a policy, such as those of `CL.THROTTLE`.
    pub(crate) inline_limits: Option<InlineSection>,

    /// Puts every policy into shadow mode: it counts and reports, but does not deny.
    #[serde(default)]
    pub(crate) shadow: bool,

    /// The addresses of the listeners.
    #[serde(default)]
    pub(crate) listen: ListenSection,

    /// The rate limit headers of HTTP responses.
    #[serde(default)]
    pub(crate) headers: HeadersSection,

    /// Returns denials of `/v1/check` and `/v1/auth` as problem details (RFC 9457): the fields of a decision, and
    /// `type`, `title`, `status`, `key`, and `window` in seconds. Leave it off if clients must not see the key that
    /// their requests are counted by.
    #[serde(default)]
    pub(crate) problem_details: bool,

    /// The way that several descriptors of one Envoy request are charged. Default: `independent` for rules of
    /// envoyproxy/ratelimit files, `together` for policies.
    pub(crate) descriptors: Option<Descriptors>,

    /// Options for Envoy's descriptors.
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) envoy: EnvoyOptions,

    /// The certificate of the server. Required for listeners on public addresses.
    pub(crate) tls: Option<TlsFiles>,

    /// API keys. Empty means no authentication; allowed on loopback only. A reload cannot remove all of them.
    #[serde(default)]
    pub(crate) keys: Vec<At<KeySection>>,

    /// The receivers of events, such as keys that reach a threshold of `notify`.
    #[serde(default)]
    pub(crate) notifications: NotificationsSection,

    /// Limits on the resources that clients can use.
    #[serde(default)]
    pub(crate) bounds: BoundsSection,
}

/// Options for inline limits, which are part of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "InlineLimits")]
pub(crate) struct InlineSection {
    /// The failure mode, which applies when the store does not answer.
    #[schemars(extend("default" = "local"))]
    pub(crate) failure: Option<At<Form<FailureSection>>>,
}

/// The rate limit headers of responses. A denial also has `Retry-After`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Headers")]
pub(crate) struct HeadersSection {
    /// `RateLimit` and `RateLimit-Policy`, or the headers of earlier drafts.
    #[schemars(extend("default" = "draft-8"))]
    standard: Option<Standard>,

    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    #[schemars(extend("default" = "epoch"))]
    legacy: Option<Legacy>,
}

choices! {
    /// The draft of the standard headers.
    Standard => HeaderStyle {
        /// As in drafts 8 to 11: `RateLimit: "api";r=12;t=3`.
        #[serde(rename = "draft-8")]
        Draft8 => HeaderStyle::Draft8,
        /// As in drafts up to 6: `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, in seconds from now.
        #[serde(rename = "draft-6")]
        Draft6 => HeaderStyle::Draft6,
        /// None of them.
        Off => HeaderStyle::Off,
    }
}

choices! {
    /// The meaning of the number in `X-RateLimit-Reset`.
    Legacy => Option<ResetStyle> {
        /// Seconds since 1970.
        Epoch => Some(ResetStyle::Epoch),
        /// Seconds from now.
        Delta => Some(ResetStyle::Delta),
        /// None of the three headers.
        Off => None,
    }
}

/// The way that several descriptors of one Envoy request are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Descriptors {
    /// All or none of them: a denied request consumes nothing.
    Together,
    /// Each separately, as envoyproxy/ratelimit does: allowed descriptors are charged even if another is denied, and
    /// denied hits are counted.
    Independent,
}

/// A checked configuration. Fields that are absent from the file are as in [`Settings::new`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The store for counters.
    pub store: StoreSettings,
    /// The layout of the counters on Redis or Valkey.
    pub layout: Layout,
    /// True if every denied request reaches Redis or Valkey.
    pub count_denied: bool,
    /// All policies, including those of the rules for Envoy's descriptors.
    pub policies: PolicySet,
    /// The policies with `envoy_quota`.
    pub(crate) envoy_quotas: BTreeSet<PolicyName>,
    /// True if the configuration states that it has no policies, instead of just having none.
    pub(crate) may_limit_nothing: bool,
    /// The rules for Envoy's descriptors.
    pub(crate) rules: Arc<Rules>,
    /// The failure mode of inline limits, such as those of `CL.THROTTLE`.
    pub inline_failure: FailureMode,
    /// True if all policies are in shadow mode.
    pub shadow: bool,
    /// The addresses of the listeners.
    pub listen: ListenAddresses,
    /// Names that HTTP requests may have in their `Host`, in small letters, besides `localhost` and addresses.
    pub hosts: Vec<String>,
    /// The rate limit headers of HTTP responses.
    pub headers: Headers,
    /// True if HTTP denials are problem details with the key.
    pub problem_details: bool,
    /// The way that several descriptors of one Envoy request are charged.
    /// Default: independently for rules of envoyproxy/ratelimit files, together for policies.
    pub descriptors: Option<Descriptors>,
    /// Options for Envoy's descriptors.
    pub(crate) envoy: EnvoyOptions,
    /// The origin of the rules, for messages, if the server was started in the place of envoyproxy/ratelimit.
    pub ratelimit: Option<String>,
    /// TLS and API keys.
    pub security: Security,
    /// The receiver of threshold events.
    pub(crate) webhook: Option<WebhookSettings>,
    /// Limits on the resources that clients can use.
    pub bounds: Bounds,
}

/// Converts sections to settings. A section adds its mistakes to `problems`.
pub(super) struct Reader<'a, 'p> {
    /// The path of the file, which other paths are relative to.
    pub(super) file: &'a str,
    pub(super) environment: &'a Environment<'a>,
    pub(super) problems: &'p mut Problems<'a>,
}

impl Reader<'_, '_> {
    /// Reads all sections but the policies. An invalid field keeps its default, and is reported.
    pub(super) fn read(&mut self, config: &Config, settings: &mut Settings) {
        if let Some(store) = &config.store {
            self.store(store, settings);
        }
        let inline = config.inline_limits.as_ref().and_then(|inline| inline.failure.as_ref());
        if let Some(failure) = inline.and_then(|section| failure(section, self.problems)) {
            settings.inline_failure = failure;
        }
        settings.shadow = config.shadow;
        self.listen(&config.listen, settings);
        config.headers.apply(&mut settings.headers);
        settings.problem_details = config.problem_details;
        settings.descriptors = config.descriptors;
        settings.envoy = config.envoy.clone().beside(self.file);
        settings.security.grpc_tls.clone_from(&settings.envoy.tls);
        settings.security.tls = config.tls.as_ref().map(|tls| tls.beside(self.file));
        settings.security.credentials = self.credentials(&config.keys);
        settings.webhook = self.webhook(&config.notifications);
        settings.bounds = config.bounds.read(self.problems);
    }
}

impl HeadersSection {
    fn apply(&self, headers: &mut Headers) {
        headers.standard = self.standard.map_or(headers.standard, Into::into);
        headers.legacy = self.legacy.map_or(headers.legacy, Into::into);
    }
}

impl Settings {
    /// Creates settings with these policies and the defaults: the memory store, and all listeners on the loopback.
    pub fn new(policies: PolicySet) -> Self {
        Self {
            store: StoreSettings::default(),
            layout: Layout::native(),
            count_denied: false,
            policies,
            envoy_quotas: BTreeSet::new(),
            may_limit_nothing: false,
            rules: Arc::default(),
            inline_failure: FailureMode::default(),
            shadow: false,
            listen: ListenAddresses::default(),
            hosts: Vec::new(),
            headers: Headers::default(),
            problem_details: false,
            descriptors: None,
            envoy: EnvoyOptions::default(),
            ratelimit: None,
            security: Security::default(),
            webhook: None,
            bounds: Bounds::default(),
        }
    }

    /// Returns an error if the store cannot count a limit because of its layout.
    pub(crate) fn check_layout(&self) -> Result<(), LayoutError> {
        let StoreSettings::Redis { url, .. } = &self.store else { return Ok(()) };
        check_cluster(url, &self.layout)?;
        for policy in self.policies.policies() {
            self.check_policy_layout(policy).map_err(|error| LayoutError::Policy {
                policy: policy.name,
                error: Box::new(error),
            })?;
        }
        Ok(())
    }

    fn check_policy_layout(&self, policy: &Policy) -> Result<(), LayoutError> {
        check_debt(&self.layout, policy.record_in_full)?;
        let mut each = std::iter::once(&policy.limits)
            .chain(policy.overrides.iter().map(|other| &other.limits));
        each.try_for_each(|limits| supported(&self.layout, limits, policy.lease.is_some()))
    }

    /// Returns whether descriptors in this domain are charged independently.
    pub(crate) fn counts_independently(&self, domain: &[u8]) -> bool {
        match self.descriptors {
            Some(descriptors) => descriptors == Descriptors::Independent,
            None => self.rules.domain(domain).is_some(),
        }
    }

    /// Returns true if a listener rejects administration: in the place of envoyproxy/ratelimit, whose ports have no
    /// authentication, it is only for clients on this machine.
    pub(crate) fn is_admin_off(&self, listener: ListenerId) -> bool {
        let is_public = match self.listen[listener] {
            Bind::At(address) => !address.ip().to_canonical().is_loopback(),
            Bind::Off => false,
        };
        is_public && self.ratelimit.is_some() && self.security.credentials.is_empty()
    }

    /// Returns the number of policies that do not come from rules.
    pub(crate) fn own_policies(&self) -> usize {
        self.policies.policies().len().saturating_sub(self.rules.policies())
    }
}

/// Returns the default for a field without a value.
pub(super) fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
