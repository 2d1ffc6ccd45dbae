//! The configuration: policies, store, API keys and listeners.
//!
//! [`read`] converts a file to [`Settings`], or returns all mistakes in it. A section of the file is declared
//! once, in the module that reads it: name, type, default, documentation and bounds of its fields.

mod application;
mod bounds;
mod choices;
mod environment;
mod files;
mod format;
mod hint;
mod layout;
mod listen;
mod load;
mod mask;
mod matching;
mod notifications;
mod placeholder;
mod policies;
mod problem;
mod recover;
mod reference;
mod rlaas;
mod rules;
mod schema;
mod security;
mod settings;
mod spanned;
mod store;
mod text;
mod warnings;
mod yaml;

pub use environment::Environment;
pub use listen::{Bind, BindError};
pub use load::{LoadError, load};
pub use problem::ConfigError;
pub use reference::reference;
pub use schema::schema;
pub use settings::{Descriptors, Settings};
pub use store::StoreSettings;
pub use warnings::warnings;

pub(crate) use bounds::Bounds;
pub(crate) use environment::{SecretError, beside};
pub(crate) use files::Files;
pub(crate) use format::{FileFormat, format_of};
pub(crate) use hint::shorten_to;
pub(crate) use layout::LayoutError;
pub(crate) use load::rule_files;
pub(crate) use mask::masked;
pub(crate) use notifications::WebhookSettings;
pub(crate) use security::{Credential, Scope, Security, TlsFiles};
pub(crate) use spanned::At;
pub(crate) use store::StoreAddressError;
pub(crate) use text::duration;
pub(crate) use yaml::message;

use pacegate::PolicySet;

use problem::Problems;
use settings::{Config, Reader};

use crate::envoy::RuleFile;

/// The configuration of a server that is started without a file.
pub const DEFAULT_CONFIG: &str = include_str!("default.yaml");

/// Reads a configuration, in any supported format. `file` is its path: errors name it, and paths in the text are
/// relative to its directory.
///
/// # Errors
///
/// All mistakes in the file.
pub fn read(
    text: &str,
    file: &str,
    environment: &Environment<'_>,
) -> Result<Settings, ConfigError> {
    yaml::check_length(text, file)?;
    match format_of(text) {
        FileFormat::Pacegate => read_pacegate(text, file, environment),
        FileFormat::Rlaas => rlaas::read(text, file, environment),
        FileFormat::Envoy => rules::read(&[RuleFile { file: file.into(), text: text.to_owned() }]),
    }
}

/// A file that was truncated by mistake, for example by a full disk, must not remove all limits.
const NOTHING: &str = "the file has no settings: write `policies: []` to run without limits";

fn read_pacegate(
    text: &str,
    file: &str,
    environment: &Environment<'_>,
) -> Result<Settings, ConfigError> {
    let mut problems = Problems::new(file, text);
    let config: Option<Option<Config>> = recover::parse(text, &mut problems);
    let config = match config.flatten() {
        Some(config) => config,
        None if problems.is_empty() => return Err(ConfigError::whole(file, NOTHING)),
        None => return problems.finish(None),
    };
    let policies = config.policies.as_deref();
    let Ok(none) = PolicySet::new([]) else { return problems.finish(None) };
    let mut settings = Settings::new(none);
    settings.may_limit_nothing = policies.is_some_and(<[_]>::is_empty);
    // Read the store first: its layout determines which limits it can count.
    Reader { file, environment, problems: &mut problems }.read(&config, &mut settings);
    let sections = policies.unwrap_or_default();
    settings.envoy_quotas = policies::envoy_quotas(sections);
    let policies = policies::policies(sections, &settings.layout, &mut problems);
    settings.policies = policies.unwrap_or(settings.policies);
    problems.finish(Some(settings))
}
