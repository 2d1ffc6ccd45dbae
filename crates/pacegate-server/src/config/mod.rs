//! The configuration: policies, store, API keys and listeners.
//!
//! [`read`] converts a file to [`Settings`], or returns all mistakes in it. The types in `file.rs` define the format of
//! the file and its JSON Schema.

mod application;
mod bounds;
mod environment;
mod file;
mod files;
mod format;
mod forms;
mod hint;
mod layout;
mod load;
mod mask;
mod matching;
mod place;
mod placeholder;
mod policies;
mod problem;
mod recover;
mod reference;
mod rlaas;
mod rules;
mod schema;
mod service;
mod settings;
mod text;
mod warnings;
mod written;
mod yaml;

pub use bounds::Bounds;
pub use environment::{Environment, SecretError};
pub use format::{FileFormat, format_of};
pub use layout::LayoutError;
pub use load::{LoadError, load};
pub use pacegate_http::{HeaderStyle, Headers, ResetStyle};
pub use problem::{ConfigError, Diagnostic, Position};
pub use reference::reference;
pub use schema::schema;
pub use service::StoreAddressError;
pub use settings::{
    Bind, Credential, Descriptors, Scope, Security, Settings, StoreSettings, TlsFiles,
};
pub use text::BindError;
pub use warnings::warnings;

pub(crate) use files::Files;
pub(crate) use load::rule_files;
pub(crate) use mask::masked;
pub(crate) use yaml::message;

use pacegate::PolicySet;

use problem::Problems;
use service::Reader;

use crate::envoy::RuleFile;

/// The configuration of a server that is started without a file.
pub const DEFAULT_CONFIG: &str = include_str!("default.yaml");

/// Reads a configuration, in any [`FileFormat`]. `file` is its path: errors name it, and paths in the text are
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
    let written: Option<Option<file::Config>> = recover::parse(text, &mut problems);
    let written = match written.flatten() {
        Some(written) => written,
        None if problems.is_empty() => return Err(ConfigError::whole(file, NOTHING)),
        None => return problems.finish(None),
    };
    let policies = written.policies.as_deref();
    let is_told_that_none = policies.is_some_and(<[_]>::is_empty);
    let Ok(none) = PolicySet::new([]) else { return problems.finish(None) };
    let mut settings = Settings::new(none);
    settings.may_limit_nothing = is_told_that_none;
    // Read the store first: its layout determines which limits it can count.
    Reader { file, environment, problems: &mut problems }.service(&written, &mut settings);
    let policies =
        policies::policies(policies.unwrap_or_default(), &settings.layout, &mut problems);
    settings.policies = policies.unwrap_or(settings.policies);
    problems.finish(Some(settings))
}
