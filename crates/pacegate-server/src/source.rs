//! Reads the settings from files, the environment and the command line.

use std::{
    io,
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, OnceLock},
};

use pacegate::{PolicyName, PolicySet, policy::PolicyError};
use parking_lot::Mutex;

use crate::{
    config::{
        self, Bind, Descriptors, Environment, FileFormat, Files, LayoutError, LoadError,
        SecretError, Settings, StoreAddressError,
    },
    envoy::{
        AcceptedResources, Deployment, EnvironmentError, FileError, Logging, Resources, Rules,
        resource_rules,
    },
    listeners::ListenerId,
};

/// Options of the command line, which take precedence over files.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `memory`, or an address of Redis.
    pub store: Option<String>,
    /// A file that contains the value for `store`.
    pub store_file: Option<PathBuf>,
    /// Addresses of listeners.
    pub listen: Vec<(ListenerId, Bind)>,
    /// Allows public addresses without TLS and API keys.
    pub insecure: bool,
    /// The way that several descriptors of one Envoy request are charged.
    pub descriptors: Option<Descriptors>,
    /// True if the program is called `ratelimit`: without files, the variables and defaults of envoyproxy/ratelimit
    /// apply.
    pub ratelimit: bool,
}

/// Files to read, with the options that take precedence over them.
#[derive(Debug)]
pub struct ConfigSource {
    paths: Vec<PathBuf>,
    overrides: Overrides,
    /// The files of the secrets that the last load read.
    secrets: Mutex<Vec<PathBuf>>,
    /// The deployment of envoyproxy/ratelimit. Variables do not change, and names of hosts are resolved once.
    deployment: OnceLock<Option<Deployment>>,
    /// The resources of the config servers.
    resources: Mutex<ReceivedResources>,
}

/// The resources of the config servers.
#[derive(Debug, Default)]
struct ReceivedResources {
    accepted: AcceptedResources,
    /// The last resources of each config server, if they were rejected. They may become valid together with others.
    rejected: AcceptedResources,
}

/// The reason why the settings cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum SourceError {
    #[error(transparent)]
    Deployment(#[from] EnvironmentError),
    #[error("cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("only one Pacegate file can be used, found {} and {}", .0.display(), .1.display())]
    SeveralFiles(PathBuf, PathBuf),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Rules(#[from] FileError),
    #[error("a rule and a policy are both named `{0}`: rename the policy")]
    RuleName(PolicyName),
    #[error(
        "rules come from config servers (`envoy.xds`) and from {}: use one of them",
        .0.display()
    )]
    FilesAndServers(PathBuf),
    #[error(transparent)]
    Policies(#[from] PolicyError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("the store address in `{}` is not UTF-8", .0.display())]
    StoreFile(PathBuf),
    #[error(transparent)]
    Store(#[from] StoreAddressError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

impl ConfigSource {
    /// Creates a source. At most one of the files may be Pacegate's own; directories hold files of
    /// envoyproxy/ratelimit. Without paths, the environment variables of envoyproxy/ratelimit apply, or else the
    /// defaults.
    pub fn new(paths: Vec<PathBuf>, overrides: Overrides) -> Self {
        let (secrets, resources) = (Mutex::default(), Mutex::default());
        Self { paths, overrides, secrets, deployment: OnceLock::new(), resources }
    }

    /// Adds this file if no other was given, it exists, and the environment does not describe a deployment of
    /// envoyproxy/ratelimit.
    #[must_use]
    pub fn or_file(mut self, path: &Path) -> Self {
        let is_deployment = !matches!(self.deployment(&Environment::process()), Ok(None));
        if self.paths.is_empty() && !is_deployment && path.is_file() {
            tracing::debug!(path = %path.display(), "no file was given; reading this one");
            self.paths.push(path.to_owned());
        }
        self
    }

    /// Returns the files and directories of the last load, and the files of the secrets that they refer to.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let own = match self.deployment(&Environment::process()) {
            Ok(Some(Deployment { folder: Some(folder), .. })) => vec![folder],
            _ => self.paths.clone(),
        };
        [own, self.secrets.lock().clone()].concat()
    }

    /// Returns the deployment of envoyproxy/ratelimit that the environment describes, if no file was given.
    fn deployment(&self, environment: &Environment<'_>) -> Result<Option<Deployment>, SourceError> {
        if !self.paths.is_empty() {
            return Ok(None);
        }
        if let Some(known) = self.deployment.get() {
            return Ok(known.clone());
        }
        let read = Deployment::read(|name| environment.get(name), self.overrides.ratelimit)?;
        Ok(self.deployment.get_or_init(|| read).clone())
    }

    /// Returns the log settings of a deployment of envoyproxy/ratelimit. [`ConfigSource::load`] reports its errors.
    pub fn logging(&self) -> Option<Logging> {
        let deployment = self.deployment(&Environment::process()).ok().flatten();
        deployment.map(|deployment| deployment.log)
    }

    /// Reads everything.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or is invalid.
    pub fn load(&self) -> Result<Settings, SourceError> {
        self.load_from(&Rc::default())
    }

    /// Reads everything through `files`.
    pub(crate) fn load_from(&self, files: &Rc<Files>) -> Result<Settings, SourceError> {
        let environment = Environment::process().reading(files.clone());
        let loaded = self.load_with(&environment);
        *self.secrets.lock() = environment.into_secret_files();
        loaded
    }

    fn load_with(&self, environment: &Environment<'_>) -> Result<Settings, SourceError> {
        let mut settings = match self.deployment(environment)? {
            Some(deployment) => self.load_deployment(&deployment, environment)?,
            None => self.load_paths(environment)?,
        };
        self.overrides.apply(&mut settings, environment)?;
        settings.check_layout()?;
        Ok(settings)
    }

    fn load_deployment(
        &self,
        deployment: &Deployment,
        environment: &Environment<'_>,
    ) -> Result<Settings, SourceError> {
        let mut settings = without_policies()?;
        deployment.apply(&mut settings);
        match &deployment.folder {
            Some(folder) => add_rules(&[folder], &mut settings, environment)?,
            None => {
                let rules = resource_rules(&self.resources.lock().accepted, &settings.envoy)?;
                put_rules(rules, &mut settings)?;
            }
        }
        for warning in &deployment.warnings {
            tracing::warn!("{warning}");
        }
        Ok(settings)
    }

    /// Replaces the resources of a config server in `settings`. Returns the resources of all config servers, which
    /// [`ConfigSource::keep_resources`] stores, or `None` if nothing changes.
    ///
    /// If the resources are invalid, they are tried together with the rejected ones of the other config servers: two
    /// that exchange a domain are valid only together.
    pub(crate) fn with_resources(
        &self,
        server: usize,
        resources: Arc<Resources>,
        settings: &mut Settings,
    ) -> Result<Option<AcceptedResources>, SourceError> {
        let received = self.resources.lock();
        let mut all = received.accepted.clone();
        all.resize(all.len().max(received.rejected.len()).max(server + 1), None);
        if all[server].as_ref().is_some_and(|known| known.is_same(&resources)) {
            return Ok(None);
        }
        all[server] = Some(resources.clone());
        let rules = resource_rules(&all, &settings.envoy).or_else(|error| {
            for (current, rejected) in all.iter_mut().zip(&received.rejected) {
                *current = rejected.clone().or(current.take());
            }
            all[server] = Some(resources);
            resource_rules(&all, &settings.envoy).map_err(|_| error)
        })?;
        let own = settings.policies.policies().iter().take(settings.own_policies()).cloned();
        settings.policies = PolicySet::new(own)?;
        put_rules(rules, settings)?;
        Ok(Some(all))
    }

    /// Stores the resources of all config servers for later loads.
    pub(crate) fn keep_resources(&self, all: AcceptedResources) {
        self.resources.lock().accepted = all;
    }

    /// Stores the last resources of a config server if they were rejected; `None` if they were accepted or withdrawn.
    pub(crate) fn set_rejected(&self, server: usize, resources: Option<Arc<Resources>>) {
        let rejected = &mut self.resources.lock().rejected;
        rejected.resize(rejected.len().max(server + 1), None);
        rejected[server] = resources;
    }

    fn load_paths(&self, environment: &Environment<'_>) -> Result<Settings, SourceError> {
        let (mut own, mut foreign): (Option<&PathBuf>, _) = (None, Vec::new());
        for path in &self.paths {
            if is_foreign(path, environment)? {
                foreign.push(path.as_path());
            } else if let Some(first) = own.replace(path) {
                return Err(SourceError::SeveralFiles(first.clone(), path.clone()));
            }
        }
        let mut settings = match own {
            Some(path) => config::load(path, environment)?,
            None if foreign.is_empty() => {
                config::read(config::DEFAULT_CONFIG, "default.yaml", environment)
                    .map_err(LoadError::from)?
            }
            None => without_policies()?,
        };
        match (&settings.envoy.xds, foreign.first()) {
            (Some(_), Some(file)) => return Err(SourceError::FilesAndServers(file.into())),
            (Some(_), None) => {
                let rules = resource_rules(&self.resources.lock().accepted, &settings.envoy)?;
                put_rules(rules, &mut settings)?;
            }
            (None, Some(_)) => add_rules(&foreign, &mut settings, environment)?,
            (None, None) => {}
        }
        Ok(settings)
    }
}

impl Overrides {
    fn apply(
        &self,
        settings: &mut Settings,
        environment: &Environment<'_>,
    ) -> Result<(), SourceError> {
        if let Some(path) = &self.store_file
            && let Some(store) = environment.file(path)?
        {
            let store =
                String::from_utf8(store).map_err(|_| SourceError::StoreFile(path.clone()))?;
            settings.store = store.parse()?;
        }
        if let Some(store) = &self.store {
            settings.store = store.parse()?;
        }
        for (listener, bind) in &self.listen {
            settings.listen[*listener] = *bind;
        }
        settings.security.insecure |= self.insecure;
        settings.descriptors = self.descriptors.or(settings.descriptors);
        Ok(())
    }
}

/// Adds the rules in files of envoyproxy/ratelimit to the policies of `settings`.
fn add_rules(
    paths: &[&Path],
    settings: &mut Settings,
    environment: &Environment<'_>,
) -> Result<(), SourceError> {
    let mut files = Vec::new();
    for path in paths {
        files.extend(config::rule_files(path, environment)?);
    }
    put_rules(Rules::parse(&files, &settings.envoy)?, settings)
}

/// Adds rules to the policies of `settings`.
fn put_rules(rules: Rules, settings: &mut Settings) -> Result<(), SourceError> {
    settings.policies = rules.beside(&settings.policies).map_err(|error| match error {
        PolicyError::DuplicateName(name) => SourceError::RuleName(name),
        other => other.into(),
    })?;
    settings.rules = Arc::new(rules);
    Ok(())
}

/// Returns true for paths of envoyproxy/ratelimit: a directory, or a file with `domain` at its top level.
fn is_foreign(path: &Path, environment: &Environment<'_>) -> Result<bool, SourceError> {
    if path.is_dir() {
        return Ok(true);
    }
    let unreadable = |error| SourceError::Unreadable { path: path.to_owned(), error };
    let text = environment.files.read(path).map_err(unreadable)?;
    Ok(config::format_of(&String::from_utf8_lossy(&text)) == FileFormat::Envoy)
}

/// Returns settings for rules without native policies. A file of rules has at least a domain, so an empty file is
/// an error and cannot remove all limits by mistake.
fn without_policies() -> Result<Settings, SourceError> {
    Ok(Settings { may_limit_nothing: true, ..Settings::new(PolicySet::new([])?) })
}
