//! Reloads the settings: when files change, on a signal, and when an operator requests it.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::{
    active_config::ActiveConfig,
    config::{Files, LayoutError, Settings},
    envoy::{ConfigClient, Resources, RuleFile},
    listeners::{Exposed, check_exposure},
    service::{Tls, TlsError},
    source::{ConfigSource, SourceError},
};

/// Reads the settings again, and activates them if they are valid.
pub struct Reloader {
    pub(crate) active: Arc<ActiveConfig>,
    source: ConfigSource,
    /// The settings of the start. Listeners, paths of certificates and the store do not change until a restart.
    first: Arc<Settings>,
    tls: Vec<Arc<Tls>>,
    /// The digest of all files at the last load. The lock also serializes reloads.
    seen: Mutex<Digest32>,
}

/// The reason why a reload failed and the current configuration stays active.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum ReloadError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Exposed(#[from] Exposed),
    #[error("the new configuration has no policies: write `policies: []` to remove all limits")]
    NoPolicies,
    #[error(
        "the new configuration has no API keys: restart the server to run it without authentication"
    )]
    NoApiKeys,
    #[error(transparent)]
    Layout(LayoutError),
    #[error("{0}. The layout of the store changes only with a restart")]
    OtherLayout(LayoutError),
    #[error(transparent)]
    Certificates(#[from] TlsError),
}

/// Reloads the configuration and returns its revision. May block.
pub(crate) type Reload = Arc<dyn Fn() -> Result<u64, ReloadError> + Send + Sync>;

/// A SHA-256 digest.
type Digest32 = [u8; 32];

/// Watches directories for changes until it is dropped.
struct DirectoryWatcher {
    watcher: Option<RecommendedWatcher>,
    folders: BTreeSet<PathBuf>,
}

/// Editors and orchestrators write in several steps: a reload starts once nothing has changed for this long,
const QUIET_TIME: Duration = Duration::from_millis(50);
/// or after this long at the latest, because other files in the same directory may change all the time.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// The interval between checks on file systems without change notifications, such as some network drives.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

impl Reloader {
    /// Creates a reloader for a source that has been read and certificates that are in use.
    pub(crate) fn new(active: Arc<ActiveConfig>, source: ConfigSource, tls: Vec<Arc<Tls>>) -> Self {
        let first = active.revision().settings.clone();
        let reloader = Self { active, source, first, tls, seen: Mutex::default() };
        *reloader.seen.lock() = reloader.digest(&Files::default());
        reloader
    }

    /// Reads everything again and returns the number of the active revision. Settings and certificates are replaced
    /// independently: a mistake in one does not keep the other from being renewed.
    ///
    /// # Errors
    ///
    /// If the settings or the certificates are invalid. They then stay as they were.
    pub fn reload(&self) -> Result<u64, ReloadError> {
        self.reload_locked(&mut self.seen.lock(), &Rc::default())
    }

    /// [`Reloader::reload`] if any file has changed.
    fn refresh(&self) {
        let mut seen = self.seen.lock();
        let files = Rc::default();
        if *seen != self.digest(&files) {
            // The error has been logged.
            let _ = self.reload_locked(&mut seen, &files);
        }
    }

    /// Reloads, and stores the digest of the files that were read: a change during the reload starts another one.
    fn reload_locked(&self, seen: &mut Digest32, files: &Rc<Files>) -> Result<u64, ReloadError> {
        let certificates = self.reload_certificates();
        let settings = self.reload_settings(files);
        *seen = self.digest(files);
        if let Err(error) = &settings {
            tracing::error!(%error, "reload failed; keeping the current configuration");
            self.active.refuse(error.to_string());
        }
        if let Err(error) = &certificates {
            tracing::error!(%error, "reload failed; keeping the current certificates");
            self.active.refuse(error.to_string());
        }
        let revision = settings?;
        certificates?;
        Ok(revision)
    }

    fn reload_settings(&self, files: &Rc<Files>) -> Result<u64, ReloadError> {
        let mut settings = self.source.load_from(files)?;
        self.check_exposure(&settings)?;
        self.check_policies(&settings)?;
        self.check_keys(&settings)?;
        self.check_layout(&settings)?;
        self.warn_about_restart(&settings);
        self.keep_startup_settings(&mut settings);
        let policies = settings.policies.policies().len();
        let revision = self.active.replace(settings);
        tracing::info!(revision, policies, "configuration reloaded");
        Ok(revision)
    }

    /// Connects to the config servers, if the rules come from there.
    pub fn follow_config_servers(self: &Arc<Self>) -> Option<ConfigClient> {
        let servers = self.first.envoy.xds.clone()?;
        Some(ConfigClient::start(self, Arc::new(servers)))
    }

    /// Activates the resources of a config server, together with the last ones of the others. If they are invalid, the
    /// current configuration stays active.
    pub(crate) fn activate_resources(
        &self,
        server: usize,
        resources: Arc<Resources>,
    ) -> Result<(), ReloadError> {
        let _serialized = self.seen.lock();
        let activated = self.activate_resources_locked(server, resources.clone());
        self.source.set_rejected(server, activated.is_err().then_some(resources));
        activated
    }

    fn activate_resources_locked(
        &self,
        server: usize,
        resources: Arc<Resources>,
    ) -> Result<(), ReloadError> {
        let mut settings = Settings::clone(&self.active.revision().settings);
        let all = self.source.with_resources(server, resources, &mut settings)?;
        let Some(all) = all else {
            // A rejected version has been withdrawn.
            self.active.clear_complaint();
            return Ok(());
        };
        self.check_layout(&settings)?;
        self.source.keep_resources(all);
        let policies = settings.policies.policies().len();
        let revision = self.active.replace(settings);
        tracing::info!(revision, policies, "configuration received");
        Ok(())
    }

    /// Forgets the rejected resources of a config server that has sent others, or whose stream has ended.
    pub(crate) fn forget_rejected(&self, server: usize) {
        self.source.set_rejected(server, None);
    }

    /// Replaces all certificates or none.
    fn reload_certificates(&self) -> Result<(), TlsError> {
        let read: Vec<_> = self.tls.iter().map(|tls| tls.read_again()).collect::<Result<_, _>>()?;
        self.tls.iter().zip(read).for_each(|(tls, config)| tls.put(config));
        Ok(())
    }

    /// Rejects settings without API keys for a listener that other machines can reach.
    fn check_exposure(&self, new: &Settings) -> Result<(), Exposed> {
        let mut effective = Settings::clone(&self.first);
        effective.security.credentials.clone_from(&new.security.credentials);
        check_exposure(&effective)
    }

    /// Rejects settings that lost their policies, as a truncated file would, also if there are rules beside them.
    fn check_policies(&self, new: &Settings) -> Result<(), ReloadError> {
        let has_none = |settings: &Settings| settings.own_policies() == 0;
        let lost = has_none(new) && !has_none(&self.active.revision().settings);
        if lost && !new.may_limit_nothing { Err(ReloadError::NoPolicies) } else { Ok(()) }
    }

    /// Rejects limits that the store cannot count: it keeps its layout until a restart.
    fn check_layout(&self, new: &Settings) -> Result<(), ReloadError> {
        let (store, layout) = (self.first.store.clone(), self.first.layout.clone());
        let effective = Settings { store, layout, ..new.clone() };
        effective.check_layout().map_err(|error| match self.first.layout == new.layout {
            true => ReloadError::Layout(error),
            false => ReloadError::OtherLayout(error),
        })
    }

    /// Rejects settings that lost their API keys, which would allow all clients to reset and reload.
    fn check_keys(&self, new: &Settings) -> Result<(), ReloadError> {
        let needs_key = |settings: &Settings| !settings.security.credentials.is_empty();
        let lost = needs_key(&self.active.revision().settings) && !needs_key(new);
        if lost { Err(ReloadError::NoApiKeys) } else { Ok(()) }
    }

    fn warn_about_restart(&self, new: &Settings) {
        let old = &self.first;
        let tls = |settings: &Settings| {
            [settings.security.tls.clone(), settings.security.grpc_tls.clone()]
        };
        if old.listen != new.listen || tls(old) != tls(new) {
            tracing::warn!("changed listeners and certificate paths take effect after a restart");
        }
        let store = |settings: &Settings| {
            let denials = (settings.count_denied, settings.envoy.cache_denials);
            (settings.store.clone(), settings.layout.clone(), denials)
        };
        if old.envoy.xds != new.envoy.xds {
            tracing::warn!("changed config servers take effect after a restart");
        }
        if old.envoy.statistics != new.envoy.statistics {
            tracing::warn!("changed outputs of statistics take effect after a restart");
        }
        if store(old) != store(new) {
            tracing::warn!("a changed store takes effect after a restart");
        }
    }

    /// Copies the settings that do not change until a restart.
    fn keep_startup_settings(&self, new: &mut Settings) {
        let old = Settings::clone(&self.first);
        (new.listen, new.envoy.statistics) = (old.listen, old.envoy.statistics);
        (new.store, new.layout, new.count_denied) = (old.store, old.layout, old.count_denied);
        (new.security.tls, new.security.grpc_tls) = (old.security.tls, old.security.grpc_tls);
        new.security.insecure = old.security.insecure;
        new.bounds.connections = old.bounds.connections;
    }

    /// Reloads whenever a file has changed. Never returns.
    pub async fn watch(self: Arc<Self>) {
        let (changed, mut changes) = mpsc::channel(1);
        let mut watching = DirectoryWatcher::new(changed);
        let mut polls = interval(POLL_INTERVAL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            watching.cover(self.folders());
            tokio::select! {
                _ = polls.tick() => {}
                Some(()) = changes.recv() => {
                    let last = Instant::now() + MAX_DELAY;
                    while timeout(QUIET_TIME, changes.recv()).await.is_ok_and(|more| more.is_some())
                        && Instant::now() < last
                    {}
                }
            }
            let reloader = self.clone();
            // Reading files blocks. A panic has been logged; the next change starts another reload.
            let _ = tokio::task::spawn_blocking(move || reloader.refresh()).await;
        }
    }

    /// Returns all files and directories that a reload reads.
    fn paths(&self) -> Vec<PathBuf> {
        let tls = self.tls.iter().flat_map(|tls| tls.files()).map(Path::to_owned);
        self.source.paths().into_iter().chain(tls).collect()
    }

    /// Returns the directories to watch. A file may be replaced, or be behind a symbolic link that is replaced, as
    /// Kubernetes does.
    ///
    /// Each directory has one canonical path: the watcher would watch two paths of it once, and stop when one of them
    /// is removed. A missing directory is left out, so that it is watched when it exists again.
    fn folders(&self) -> BTreeSet<PathBuf> {
        let parent = |path: &Path| path.parent().unwrap_or(path).to_owned();
        let mut folders = BTreeSet::new();
        for path in self.paths() {
            let Ok(path) = std::path::absolute(path) else { continue };
            folders.extend(parent(&path).canonicalize());
            if let Ok(behind_links) = path.canonicalize() {
                folders.insert(parent(&behind_links));
                if behind_links.is_dir() {
                    let files = RuleFile::files(&behind_links).unwrap_or_default();
                    let below = files.iter().map(|file| parent(file).canonicalize());
                    folders.extend(below.filter_map(Result::ok));
                    folders.insert(behind_links);
                }
            }
        }
        folders
    }

    /// Returns a digest of all files.
    fn digest(&self, files: &Files) -> Digest32 {
        let mut hasher = Sha256::new();
        for path in self.paths() {
            let below = match path.is_dir() {
                true => RuleFile::files(&path).unwrap_or_default(),
                false => vec![path],
            };
            for file in below {
                hasher.update(file.as_os_str().as_encoded_bytes());
                let content = files.read(&file).unwrap_or_default();
                hasher.update((content.len() as u64).to_le_bytes());
                hasher.update(content);
            }
        }
        hasher.finalize().into()
    }
}

impl DirectoryWatcher {
    fn new(changed: mpsc::Sender<()>) -> Self {
        let notify = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                // One pending notification is enough.
                let _ = changed.try_send(());
            }
        };
        let watcher = notify::recommended_watcher(notify).inspect_err(|error| {
            tracing::warn!(%error, "cannot watch for changes; checking files every 10 seconds");
        });
        Self { watcher: watcher.ok(), folders: BTreeSet::new() }
    }

    /// Watches these directories instead of the previous ones.
    fn cover(&mut self, folders: BTreeSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else { return };
        for removed in self.folders.difference(&folders) {
            // The directory may not exist any more.
            let _ = watcher.unwatch(removed);
        }
        for folder in folders.difference(&self.folders) {
            if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
                let folder = folder.display();
                tracing::warn!(%folder, %error, "cannot watch for changes; checking files every 10 seconds");
            }
        }
        self.folders = folders;
    }
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").field("source", &self.source).finish_non_exhaustive()
    }
}
