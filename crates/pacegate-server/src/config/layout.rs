//! The layout of the counters in the store.

use std::time::Duration;

use pacegate::{Limit, PolicyName, StoreError};
use pacegate_redis::Layout;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    hint::{among, shorten},
    settings::Reader,
    spanned::{At, Either, Form, Forms},
    store::StoreSection,
    text::duration,
};

/// Fixed windows with custom keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Layout")]
pub(crate) struct LayoutSection {
    /// The names of keys: text with `{key}` and one of `{window}`, `{window_start}` and `{window_start_ms}`.
    #[schemars(example = "myapp:{key}:{window}")]
    template: At<String>,

    /// Time that a counter outlives its window, up to 365d.
    #[schemars(extend("default" = "0s"))]
    ttl_slack: Option<At<String>>,

    /// Renews the expiry of a counter with every request. By default, only the first request sets it.
    #[serde(default)]
    refresh_ttl: bool,
}

/// The reason why the layout of a store cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    #[error(
        "`{text}` is neither a layout nor a template such as `myapp:{{key}}:{{window}}`: {choices}"
    )]
    Unknown { text: String, choices: String },
    #[error(
        "this layout counts two windows of a key, which a cluster keeps in different slots: write the \
         address of a single server"
    )]
    Cluster,
    #[error(
        "the layout of the store cannot record debt: remove `record_in_full`, or use the layout `native`"
    )]
    Debt,
    /// A limit that the layout cannot count.
    #[error("{}", reason(.0))]
    Limit(StoreError),
    #[error("policy `{policy}`: {error}")]
    Policy { policy: PolicyName, error: Box<Self> },
}

fn reason(error: &StoreError) -> String {
    match error {
        StoreError::Unsupported(reason) => reason.clone(),
        other => other.to_string(),
    }
}

type NamedLayout = (&'static str, fn() -> Layout);

const LAYOUTS: [NamedLayout; 9] = [
    ("native", Layout::native),
    ("rlaas", Layout::rlaas),
    ("rlaas-log", Layout::rlaas_log),
    ("spring", || Layout::spring(Layout::SPRING_PREFIX)),
    ("valkey-api", Layout::valkey_api),
    ("unix-time", Layout::unix_time),
    ("unix-time-log", Layout::unix_time_log),
    ("typescript", Layout::typescript),
    ("typescript-sliding", Layout::typescript_sliding),
];

/// The longest `ttl_slack`.
const MAX_SLACK: Duration = Duration::from_secs(365 * 24 * 3_600);

impl Forms for LayoutSection {
    const EXPECTED: &'static str = "a layout such as `spring`, a template such as `myapp:{key}:{window}`, or \
                                    `template` with `ttl_slack` and `refresh_ttl`";
    type AnyForm = Either<String, Self>;
}

impl Reader<'_, '_> {
    /// Returns the layout of a store, with its prefix; `default` if it is absent or invalid.
    pub(super) fn layout(&mut self, section: &StoreSection, default: &Layout) -> Layout {
        let Some(written) = &section.layout else { return self.prefixed(section, default) };
        let template = match &written.value {
            Form::Map(template) => self.template(template),
            Form::One(scalar) => {
                let text = written.scalar_text(scalar, self.problems);
                match text.contains('{') {
                    true => {
                        let template = Layout::template(&text);
                        self.problems.take(written.location, template).map(Into::into)
                    }
                    false => {
                        let named = self.problems.take(written.location, named(&text));
                        return self.prefixed(section, &named.unwrap_or_else(|| default.clone()));
                    }
                }
            }
            Form::List(_) => {
                self.problems.expected::<LayoutSection>(written.location);
                None
            }
        };
        if let Some(prefix) = &section.prefix {
            let message = "a template begins with its prefix: write it there, and remove `prefix`";
            self.problems.add(prefix.location, message);
        }
        template.unwrap_or_else(|| default.clone())
    }

    fn prefixed(&self, section: &StoreSection, layout: &Layout) -> Layout {
        match &section.prefix {
            Some(prefix) => layout.with_prefix(&prefix.value),
            None => layout.clone(),
        }
    }

    fn template(&mut self, section: &LayoutSection) -> Option<Layout> {
        let LayoutSection { template, ttl_slack, refresh_ttl } = section;
        let template = self.problems.take(template.location, Layout::template(&template.value));
        let slack = match ttl_slack {
            Some(slack) => {
                let read = duration(&slack.value, Duration::ZERO..=MAX_SLACK);
                self.problems.take(slack.location, read)?
            }
            None => Duration::ZERO,
        };
        let template = template?.ttl_slack(slack);
        Some(if *refresh_ttl { template.refresh_ttl() } else { template }.into())
    }
}

fn named(text: &str) -> Result<Layout, LayoutError> {
    let known = LAYOUTS.iter().find(|(name, _)| *name == text).map(|(_, layout)| layout());
    known.ok_or_else(|| LayoutError::Unknown {
        text: shorten(text),
        choices: among(text, &LAYOUTS.map(|(name, _)| name)),
    })
}

/// Returns an error if a cluster cannot hold the counters of a layout.
pub(super) fn check_cluster(url: &str, layout: &Layout) -> Result<(), LayoutError> {
    let scheme = url.split("://").next().unwrap_or_default();
    match scheme.ends_with("+cluster") && !layout.works_on_cluster() {
        true => Err(LayoutError::Cluster),
        false => Ok(()),
    }
}

/// Returns an error if `record_in_full` is set and the layout cannot record debt.
pub(super) fn check_debt(layout: &Layout, record_in_full: bool) -> Result<(), LayoutError> {
    match record_in_full && *layout != Layout::native() {
        true => Err(LayoutError::Debt),
        false => Ok(()),
    }
}

/// Returns why a store with this layout cannot count these limits.
pub(super) fn supported(
    layout: &Layout,
    limits: &[Limit],
    leased: bool,
) -> Result<(), LayoutError> {
    layout.supports(limits, leased).map_err(LayoutError::Limit)
}
