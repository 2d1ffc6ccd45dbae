//! Where settings come from: files, the environment, and what the command line puts before them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use pacegate::{PolicySet, policy::PolicyError};
use parking_lot::Mutex;

use crate::{
    config::{self, Bind, Environment, Kind, Settings},
    envoy::{Deployment, Logging, Options, RuleFile, Rules},
};

/// What goes before anything that files say.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `memory`, or an address of Redis.
    pub store: Option<String>,
    /// A file that holds what `store` would.
    pub store_file: Option<PathBuf>,
    /// The address of the HTTP listener.
    pub http: Option<Bind>,
    /// The address of the gRPC listener.
    pub grpc: Option<Bind>,
    /// The address of the listener for Redis clients.
    pub resp: Option<Bind>,
    /// Allows public addresses without TLS and API keys.
    pub insecure: bool,
}

/// Files to read and what to change of them, as often as they change.
#[derive(Debug)]
pub struct ConfigSource {
    paths: Vec<PathBuf>,
    overrides: Overrides,
    /// Where the secrets are that the files refer to.
    secrets: Mutex<Vec<PathBuf>>,
}

impl ConfigSource {
    /// At most one of the files may be Pacegate's own; folders are of envoyproxy/ratelimit's. Without any, what the
    /// environment says of a deployment of that, or else the defaults.
    pub fn new(paths: Vec<PathBuf>, overrides: Overrides) -> Self {
        Self { paths, overrides, secrets: Mutex::default() }
    }

    /// Reads this file if no other was given, it exists, and the environment does not describe a deployment of
    /// envoyproxy/ratelimit.
    pub fn or_file(mut self, path: &Path) -> Self {
        let is_deployment = !matches!(self.deployment(&Environment::process()), Ok(None));
        if self.paths.is_empty() && !is_deployment && path.is_file() {
            tracing::debug!(path = %path.display(), "no file was given; reading this one");
            self.paths.push(path.to_owned());
        }
        self
    }

    /// What was read last: files and folders, and the files of secrets that they refer to.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let own = match self.deployment(&Environment::process()) {
            Ok(Some(deployment)) => vec![deployment.files],
            _ => self.paths.clone(),
        };
        [own, self.secrets.lock().clone()].concat()
    }

    /// What the environment says of envoyproxy/ratelimit's, if nothing else is to be read.
    fn deployment(&self, environment: &Environment<'_>) -> Result<Option<Deployment>, String> {
        if !self.paths.is_empty() {
            return Ok(None);
        }
        Deployment::read(|name| environment.get(name)).map_err(|error| error.to_string())
    }

    /// How a deployment of envoyproxy/ratelimit's is told of events, if this is one. What is wrong with it is for
    /// [`ConfigSource::load`] to say.
    pub fn logging(&self) -> Option<Logging> {
        let deployment = self.deployment(&Environment::process()).ok().flatten();
        deployment.map(|deployment| deployment.log)
    }

    /// Reads everything.
    pub fn load(&self) -> Result<Settings, String> {
        let environment = Environment::process();
        let loaded = self.load_with(&environment);
        *self.secrets.lock() = environment.files();
        loaded
    }

    fn load_with(&self, environment: &Environment<'_>) -> Result<Settings, String> {
        if let Some(deployment) = self.deployment(environment)? {
            return self.load_deployment(&deployment, environment);
        }
        let (mut own, mut foreign) = (None, Vec::new());
        for path in &self.paths {
            if is_foreign(path)? {
                foreign.push(path.as_path());
            } else if own.replace(path).is_some() {
                return Err("only one file of Pacegate's own can be used at a time".to_owned());
            }
        }
        let mut settings = match own {
            Some(path) => config::load(path, environment).map_err(|error| error.to_string())?,
            None if foreign.is_empty() => {
                let text = config::DEFAULT_CONFIG;
                config::read(text, "default.yaml", environment)
                    .map_err(|error| error.to_string())?
            }
            None => rules_alone()?,
        };
        if !foreign.is_empty() {
            add_rules(&foreign, Options::default(), &mut settings)?;
        }
        self.overrides.apply(&mut settings, environment)?;
        settings.check_layout()?;
        Ok(settings)
    }

    fn load_deployment(
        &self,
        deployment: &Deployment,
        environment: &Environment<'_>,
    ) -> Result<Settings, String> {
        let mut settings = rules_alone()?;
        deployment.apply(&mut settings);
        add_rules(&[&deployment.files], deployment.options.clone(), &mut settings)?;
        for warning in &deployment.warnings {
            tracing::warn!("{warning}");
        }
        self.overrides.apply(&mut settings, environment)?;
        settings.check_layout()?;
        Ok(settings)
    }
}

impl Overrides {
    fn apply(&self, settings: &mut Settings, environment: &Environment<'_>) -> Result<(), String> {
        if let Some(path) = &self.store_file
            && let Some(store) = environment.file(path)?
        {
            let store = String::from_utf8(store)
                .map_err(|_| format!("the address in `{}` is not text", path.display()))?;
            settings.store = store.parse()?;
        }
        if let Some(store) = &self.store {
            settings.store = store.parse()?;
        }
        for (bind, given) in [
            (&mut settings.http, self.http),
            (&mut settings.grpc, self.grpc),
            (&mut settings.resp, self.resp),
        ] {
            *bind = given.unwrap_or(*bind);
        }
        settings.security.insecure |= self.insecure;
        Ok(())
    }
}

/// Adds the rules of envoyproxy/ratelimit's files to the policies there are.
fn add_rules(paths: &[&Path], options: Options, settings: &mut Settings) -> Result<(), String> {
    let mut files = Vec::new();
    for path in paths {
        files.extend(RuleFile::read(path).map_err(|error| error.to_string())?);
    }
    let rules = Rules::parse(&files, options).map_err(|error| error.to_string())?;
    let policies = rules.beside(&settings.policies).map_err(|error| match error {
        PolicyError::DuplicateName(name) => {
            format!("a rule is named `{name}`, as is a policy: give the policy another name")
        }
        other => other.to_string(),
    });
    settings.policies = policies?;
    settings.rules = Arc::new(rules);
    Ok(())
}

/// Whether a path is for envoyproxy/ratelimit: a folder, or a file with a domain at its top.
fn is_foreign(path: &Path) -> Result<bool, String> {
    if path.is_dir() {
        return Ok(true);
    }
    let text =
        fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(config::kind_of(&String::from_utf8_lossy(&text)) == Kind::Envoy)
}

/// Settings for rules without policies of our own. A file of rules names a domain at least, so none of them can be
/// empty by mistake.
fn rules_alone() -> Result<Settings, String> {
    let none = PolicySet::new([]).map_err(|error| error.to_string())?;
    Ok(Settings { may_limit_nothing: true, ..Settings::new(none) })
}
