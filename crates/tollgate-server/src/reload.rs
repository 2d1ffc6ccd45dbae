//! Other settings while the service runs: when files change, on a signal, and when an operator asks.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{RecursiveMode, Watcher};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{config::Settings, gate::Gate, service::Tls};

/// Reads the settings again, and puts them in force if they are sound.
pub(crate) struct Reloader {
    gate: Arc<Gate>,
    load: Box<Load>,
    /// Files, and folders of files, that settings come from.
    sources: Vec<PathBuf>,
    tls: Vec<Arc<Tls>>,
    /// What the sources held when they were last read. Also lets one reload go on at a time.
    seen: Mutex<[u8; 32]>,
}

/// Makes settings of what the sources hold now, or says why it cannot.
pub(crate) type Load = dyn Fn() -> Result<Settings, String> + Send + Sync;

/// Editors and orchestrators write in several steps: changes are looked at once they have ceased for so long.
const QUIET: Duration = Duration::from_millis(50);
/// Where no changes are told of, as on some network drives, files are looked at every so often.
const LOOK_EVERY: Duration = Duration::from_secs(10);

impl Reloader {
    pub(crate) fn new(
        gate: Arc<Gate>,
        sources: Vec<PathBuf>,
        tls: Vec<Arc<Tls>>,
        load: Box<Load>,
    ) -> Self {
        let reloader = Self { gate, load, sources, tls, seen: Mutex::default() };
        *reloader.seen.lock() = reloader.fingerprint();
        reloader
    }

    /// Reads everything again, and tells the number of the revision that is in force now, or why it stays as it was.
    pub(crate) fn reload(&self) -> Result<u64, String> {
        let mut seen = self.seen.lock();
        *seen = self.fingerprint();
        self.reload_locked()
    }

    /// [`Reloader::reload`] if anything has changed.
    fn refresh(&self) {
        let mut seen = self.seen.lock();
        let now = self.fingerprint();
        if *seen != now {
            *seen = now;
            // What is wrong was said where it was found.
            let _ = self.reload_locked();
        }
    }

    fn reload_locked(&self) -> Result<u64, String> {
        let loaded = (self.load)().and_then(|settings| {
            self.tls.iter().try_for_each(|tls| tls.reload()).map_err(|error| error.to_string())?;
            Ok(settings)
        });
        match loaded {
            Ok(settings) => {
                self.warn_of_what_stays(&settings);
                let policies = settings.policies.policies().len();
                let revision = self.gate.replace(settings);
                tracing::info!(revision, policies, "other settings are in force");
                Ok(revision)
            }
            Err(error) => {
                tracing::error!(%error, "the settings cannot be used: those in force stay");
                self.gate.refuse(error.clone());
                Err(error)
            }
        }
    }

    fn warn_of_what_stays(&self, new: &Settings) {
        let old = &self.gate.revision().settings;
        let listens = |settings: &Settings| [settings.http, settings.grpc, settings.resp];
        if listens(old) != listens(new) || old.security.tls != new.security.tls {
            tracing::warn!("listeners and paths of certificates stay as they are until a restart");
        }
        if old.store != new.store {
            tracing::warn!("the store stays as it is until a restart");
        }
    }

    /// Looks at the sources whenever they may have changed, for ever.
    pub(crate) async fn watch(self: Arc<Self>) {
        let (changed, mut changes) = mpsc::channel(1);
        let _watcher = watcher(&self.folders(), changed);
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                Some(()) = changes.recv() => {
                    while timeout(QUIET, changes.recv()).await.is_ok_and(|more| more.is_some()) {}
                }
            }
            let reloader = self.clone();
            // Reading files waits for a disk. A panic would have been reported; the next change is another chance.
            let _ = tokio::task::spawn_blocking(move || reloader.refresh()).await;
        }
    }

    /// Where changes show. A file may be replaced, or be behind a link that is, as Kubernetes does.
    fn folders(&self) -> BTreeSet<PathBuf> {
        let tls = self.tls.iter().flat_map(|tls| tls.files());
        let parent = |path: &Path| match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
            Some(parent) => parent.to_owned(),
            None => path.to_owned(),
        };
        let sources = self.sources.iter().map(PathBuf::as_path);
        let folders = self.sources.iter().filter(|path| path.is_dir()).cloned();
        sources.chain(tls).map(parent).chain(folders).collect()
    }

    /// Stands for everything that is read.
    fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        let tls = self.tls.iter().flat_map(|tls| tls.files());
        for path in self.sources.iter().map(PathBuf::as_path).chain(tls) {
            let mut files = vec![path.to_owned()];
            if let Ok(entries) = fs::read_dir(path) {
                files = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
                files.sort();
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

/// Tells of changes for as long as it is kept. Without one, files are still looked at now and then.
fn watcher(folders: &BTreeSet<PathBuf>, changed: mpsc::Sender<()>) -> Option<impl Watcher + use<>> {
    let tell = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            // If there is one already, that is as good.
            let _ = changed.try_send(());
        }
    };
    let mut watcher = notify::recommended_watcher(tell).ok()?;
    for folder in folders {
        if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
            let folder = folder.display();
            tracing::warn!(%folder, %error, "changes are seen within some seconds only");
        }
    }
    Some(watcher)
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").field("sources", &self.sources).finish_non_exhaustive()
    }
}
