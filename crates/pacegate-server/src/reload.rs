//! Other settings while the service runs: when files change, on a signal, and when an operator asks.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
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
    config::Settings,
    envoy::RuleFile,
    gate::Gate,
    service::{Tls, check_exposure},
    source::ConfigSource,
};

/// Reads the settings again, and puts them in force if they are sound.
pub struct Reloader {
    gate: Arc<Gate>,
    source: ConfigSource,
    /// Listeners, certificates and the store are those that it said at the start.
    first: Arc<Settings>,
    tls: Vec<Arc<Tls>>,
    /// What the sources held when they were last read. Also lets one reload go on at a time.
    seen: Mutex<[u8; 32]>,
}

/// Tells of changes in folders for as long as it is kept.
struct Watching {
    watcher: Option<RecommendedWatcher>,
    folders: BTreeSet<PathBuf>,
}

/// Editors and orchestrators write in several steps: changes are looked at once they have ceased for so long,
const QUIET: Duration = Duration::from_millis(50);
/// or after so long, if they do not cease: something else may be written all the time in the same folder.
const LONGEST: Duration = Duration::from_secs(1);
/// Where no changes are told of, as on some network drives, files are looked at every so often.
const LOOK_EVERY: Duration = Duration::from_secs(10);

impl Reloader {
    /// For a source that has been read, and certificates that are in use.
    pub(crate) fn new(gate: Arc<Gate>, source: ConfigSource, tls: Vec<Arc<Tls>>) -> Self {
        let first = gate.revision().settings.clone();
        let reloader = Self { gate, source, first, tls, seen: Mutex::default() };
        *reloader.seen.lock() = reloader.fingerprint();
        reloader
    }

    /// Reads everything again, and tells the number of the revision that is in force now, or what stays as it was and
    /// why. Settings and certificates are taken each by themselves: a mistake in the one does not let the other expire.
    pub fn reload(&self) -> Result<u64, String> {
        let mut seen = self.seen.lock();
        let now = self.fingerprint();
        self.reload_locked(&mut seen, now)
    }

    /// [`Reloader::reload`] if anything has changed.
    fn refresh(&self) {
        let mut seen = self.seen.lock();
        let now = self.fingerprint();
        if *seen != now {
            // What is wrong was said where it was found.
            let _ = self.reload_locked(&mut seen, now);
        }
    }

    /// `now` is from before anything is read, so that what changes meanwhile is noticed the next time.
    fn reload_locked(&self, seen: &mut [u8; 32], now: [u8; 32]) -> Result<u64, String> {
        let before = self.paths();
        let taken = self.take();
        *seen = if self.paths() == before { now } else { self.fingerprint() };
        taken
    }

    fn take(&self) -> Result<u64, String> {
        let certificates = self.reload_certificates();
        let settings = self.source.load().and_then(|mut settings| {
            self.check_exposure(&settings)?;
            self.check_policies(&settings)?;
            self.check_keys(&settings)?;
            self.check_layout(&settings)?;
            self.warn_of_what_stays(&settings);
            self.keep_what_stays(&mut settings);
            let policies = settings.policies.policies().len();
            let revision = self.gate.replace(settings);
            tracing::info!(revision, policies, "other settings are in force");
            Ok(revision)
        });
        let refused = |error: &String| self.gate.refuse(error.clone());
        if let Err(error) = &settings {
            tracing::error!(%error, "the settings cannot be used: those in force stay");
            refused(error);
        }
        if let Err(error) = &certificates {
            tracing::error!(%error, "the certificates cannot be used: those in force stay");
            refused(error);
        }
        settings.and_then(|revision| certificates.map(|()| revision))
    }

    /// All of them or none.
    fn reload_certificates(&self) -> Result<(), String> {
        let read: Result<Vec<_>, _> = self.tls.iter().map(|tls| tls.read_again()).collect();
        let read = read.map_err(|error| error.to_string())?;
        self.tls.iter().zip(read).for_each(|(tls, config)| tls.put(config));
        Ok(())
    }

    /// What others can reach does not become open to everybody because the last key is gone.
    fn check_exposure(&self, new: &Settings) -> Result<(), String> {
        let mut effective = Settings::clone(&self.first);
        effective.security.credentials.clone_from(&new.security.credentials);
        check_exposure(&effective).map_err(|error| error.to_string())
    }

    /// Limits do not go because half of a file is gone, also if there are rules beside it.
    fn check_policies(&self, new: &Settings) -> Result<(), String> {
        let has_none = |settings: &Settings| settings.own_policies() == 0;
        if has_none(new) && !new.may_limit_nothing && !has_none(&self.gate.revision().settings) {
            let error = "there are no policies any more: write `policies: []` if that is meant";
            return Err(error.to_owned());
        }
        Ok(())
    }

    /// The store keeps its layout until a restart, so it must be able to count the new limits.
    fn check_layout(&self, new: &Settings) -> Result<(), String> {
        let (store, layout) = (self.first.store.clone(), self.first.layout.clone());
        let effective = Settings { store, layout, ..new.clone() };
        let hint = |problem| match self.first.layout == new.layout {
            true => problem,
            false => format!("{problem}. The layout of the store changes only with a restart"),
        };
        effective.check_layout().map_err(hint)
    }

    /// A file that lost its `keys:` does not open resets, reloads and everything else to all who can connect.
    fn check_keys(&self, new: &Settings) -> Result<(), String> {
        let needs_key = |settings: &Settings| !settings.security.credentials.is_empty();
        if needs_key(&self.gate.revision().settings) && !needs_key(new) {
            let error = "the new configuration has no API keys: restart the server to run it without \
                         authentication";
            return Err(error.to_owned());
        }
        Ok(())
    }

    fn warn_of_what_stays(&self, new: &Settings) {
        let old = &self.first;
        let listens = |settings: &Settings| [settings.http, settings.grpc, settings.resp];
        let tls = |settings: &Settings| {
            [settings.security.tls.clone(), settings.security.grpc_tls.clone()]
        };
        if listens(old) != listens(new) || tls(old) != tls(new) {
            tracing::warn!("listeners and paths of certificates stay as they are until a restart");
        }
        let store = |settings: &Settings| (settings.store.clone(), settings.layout.clone());
        if store(old) != store(new) || old.count_denied != new.count_denied {
            tracing::warn!("the store stays as it is until a restart");
        }
    }

    /// Whoever asks the settings in force how the service listens is told how it does.
    fn keep_what_stays(&self, new: &mut Settings) {
        let old = Settings::clone(&self.first);
        (new.http, new.grpc, new.resp) = (old.http, old.grpc, old.resp);
        (new.store, new.layout, new.count_denied) = (old.store, old.layout, old.count_denied);
        (new.security.tls, new.security.grpc_tls) = (old.security.tls, old.security.grpc_tls);
        new.security.insecure = old.security.insecure;
        new.bounds.connections = old.bounds.connections;
    }

    /// Looks at the sources whenever they may have changed, for ever.
    pub async fn watch(self: Arc<Self>) {
        let (changed, mut changes) = mpsc::channel(1);
        let mut watching = Watching::new(changed);
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            watching.cover(self.folders());
            tokio::select! {
                _ = looks.tick() => {}
                Some(()) = changes.recv() => {
                    let last = Instant::now() + LONGEST;
                    while timeout(QUIET, changes.recv()).await.is_ok_and(|more| more.is_some())
                        && Instant::now() < last
                    {}
                }
            }
            let reloader = self.clone();
            // Reading files waits for a disk. A panic would have been reported; the next change is another chance.
            let _ = tokio::task::spawn_blocking(move || reloader.refresh()).await;
        }
    }

    /// What is read.
    fn paths(&self) -> Vec<PathBuf> {
        let tls = self.tls.iter().flat_map(|tls| tls.files()).map(Path::to_owned);
        self.source.paths().into_iter().chain(tls).collect()
    }

    /// Where changes show. A file may be replaced, or be behind a link that is, as Kubernetes does.
    ///
    /// Each folder goes by one name: under two it would be watched once, and no longer watched once one of them is
    /// left out. One that is gone is left out, so that it is watched when it is there again.
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

    /// Stands for everything that is read.
    fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        for path in self.paths() {
            let mut files = vec![path.clone()];
            if path.is_dir() {
                files = RuleFile::files(&path).unwrap_or_default();
            }
            for file in files {
                hasher.update(file.as_os_str().as_encoded_bytes());
                let content = fs::read(&file).unwrap_or_default();
                hasher.update((content.len() as u64).to_le_bytes());
                hasher.update(content);
            }
        }
        hasher.finalize().into()
    }
}

impl Watching {
    fn new(changed: mpsc::Sender<()>) -> Self {
        let tell = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                // If there is one already, that is as good.
                let _ = changed.try_send(());
            }
        };
        let watcher = notify::recommended_watcher(tell).inspect_err(|error| {
            tracing::warn!(%error, "changes are seen within some seconds only");
        });
        Self { watcher: watcher.ok(), folders: BTreeSet::new() }
    }

    /// Watches these folders. One that is there again after it was gone is another one.
    fn cover(&mut self, folders: BTreeSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else { return };
        for gone in self.folders.difference(&folders) {
            // It may not be there any more.
            let _ = watcher.unwatch(gone);
        }
        for folder in folders.difference(&self.folders) {
            if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
                let folder = folder.display();
                tracing::warn!(%folder, %error, "changes are seen within some seconds only");
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
