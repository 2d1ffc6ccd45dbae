//! What the service is told: policies, where they count, who may ask, and where it listens.
//!
//! [`read`] makes [`Settings`] of a file, or says everything that is wrong with it. The form of the file is in `file.rs`,
//! from which its JSON Schema is made, too.

mod environment;
mod file;
mod hint;
mod mask;
mod matching;
mod place;
mod policies;
mod problem;
mod service;
mod settings;
mod text;
mod written;
mod yaml;

pub use environment::Environment;
pub use problem::{ConfigError, Position, Problem};
pub use settings::{
    Bind, Bounds, Credential, Descriptors, HeaderStyle, Headers, ResetStyle, Scope, Security,
    Settings, StoreSettings, TlsFiles,
};
pub use text::BindError;

use tollgate::PolicySet;

use problem::Problems;
use service::Reader;

/// Reads a configuration. `file` is where it came from: problems name it, and paths in it are relative to its folder.
///
/// # Errors
///
/// Everything that is wrong with what it says; if it is not even of the right form, the first place that is not.
pub fn read(
    text: &str,
    file: &str,
    environment: &Environment<'_>,
) -> Result<Settings, ConfigError> {
    let written: file::Config = yaml::parse(text, file)?;
    let mut problems = Problems::new(file, text);
    let policies = policies::policies(&written.policies, &mut problems);
    let Ok(none) = PolicySet::new([]) else { return problems.finish(None) };
    let mut settings = Settings::new(policies.unwrap_or(none));
    Reader { file, environment, problems: &mut problems }.service(&written, &mut settings);
    problems.finish(Some(settings))
}
