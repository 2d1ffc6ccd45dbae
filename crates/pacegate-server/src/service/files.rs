use crate::config::Bounds;

/// Open files other than client connections: standard streams, watched directories, the store.
const OTHER_FILES: u64 = 256;

/// Raises the open-file limit of this process as far as allowed. Returns the number of connections for each of
/// `listeners` listeners, at most `wanted`: a flood on one listener leaves files for the others.
pub(crate) fn connections_each(wanted: usize, listeners: usize) -> usize {
    let files = raise();
    let each =
        files.saturating_sub(OTHER_FILES) / u64::try_from(listeners.max(1)).unwrap_or(u64::MAX);
    let each = usize::try_from(each).unwrap_or(usize::MAX).max(1);
    // Do not log if the default is lowered: it was not configured.
    if each < wanted && wanted != Bounds::default().connections {
        tracing::warn!("open-file limit is {files}; capping connections at {each} per listener");
    } else if each < wanted {
        tracing::debug!("open-file limit is {files}; capping connections at {each} per listener");
    }
    wanted.min(each)
}

#[cfg(unix)]
fn raise() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let before = limit.current;
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%error, "cannot raise the open-file limit");
            limit.current = before;
        }
    }
    // `None` means no limit.
    limit.current.unwrap_or(u64::MAX)
}

/// Windows has no such limit.
#[cfg(not(unix))]
fn raise() -> u64 {
    u64::MAX
}
