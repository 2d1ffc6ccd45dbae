//! Reads files of envoyproxy/ratelimit.

use std::sync::Arc;

use pacegate::PolicySet;

use super::{ConfigError, Settings};
use crate::envoy::{EnvoyOptions, RuleFile, Rules};

/// Reads several files as one configuration.
pub(super) fn read(files: &[RuleFile]) -> Result<Settings, ConfigError> {
    let rules = Rules::parse(files, &EnvoyOptions::default()).map_err(|error| {
        let text = files.iter().find(|file| file.file == error.file);
        ConfigError::foreign(&error, text.map_or("", |file| &file.text))
    })?;
    let policies = PolicySet::new([]).and_then(|none| rules.beside(&none));
    let name = files.first().map(|file| file.file.display().to_string()).unwrap_or_default();
    let policies = policies.map_err(|error| ConfigError::whole(&name, error))?;
    let mut settings = Settings::new(policies);
    settings.rules = Arc::new(rules);
    Ok(settings)
}
