use rustix::process::{Resource, getrlimit, setrlimit};

/// Files that are no connections of clients: standard streams, watched folders, the store.
const OTHERS: u64 = 256;

/// Raises how many files this process may have open as far as it may, and tells how many connections each of so many
/// listeners can have, up to `wanted`: a flood of one leaves files for the others.
pub(crate) fn connections_each(wanted: usize, listeners: usize) -> usize {
    let files = raise();
    let each = files.saturating_sub(OTHERS) / u64::try_from(listeners.max(1)).unwrap_or(u64::MAX);
    let each = usize::try_from(each).unwrap_or(usize::MAX).max(1);
    if each < wanted {
        tracing::info!(
            wanted,
            each,
            files,
            "fewer connections than configured: few files may be open"
        );
    }
    wanted.min(each)
}

fn raise() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let before = limit.current;
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%error, "no more files may be open than before");
            limit.current = before;
        }
    }
    // None stands for no limit at all.
    limit.current.unwrap_or(u64::MAX)
}
