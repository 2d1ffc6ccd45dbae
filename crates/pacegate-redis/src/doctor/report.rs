use std::fmt;

/// Severity of a finding.
///
/// Levels are ordered, so that `finding.level >= Level::Warning` selects warnings and problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Everything is fine.
    Good,
    /// Worth knowing, or not checked.
    Notice,
    /// Works now, but may fail or over-admit under bad conditions.
    Warning,
    /// Does not work, or does not enforce the limits.
    Problem,
}

/// The result of one check.
///
/// Filter by `level`, and use `subject` to ignore findings that you accept: the text may change between versions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The severity.
    pub level: Level,
    /// The subject in one word. Stable between versions.
    pub subject: &'static str,
    /// The observation.
    pub text: String,
    /// The advice. Present unless the level is [`Level::Good`].
    pub advice: Option<String>,
}

/// The role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// A single server.
    Alone,
    /// A master of a cluster.
    ClusterMaster,
    /// The master that the sentinels name.
    Master,
    /// A sentinel.
    Sentinel,
}

/// The findings about one server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerReport {
    /// Address, such as `127.0.0.1:6379`.
    pub address: String,
    /// Role.
    pub part: Part,
    /// Name and version, such as `Valkey 8.1.4`, if known.
    pub name: Option<String>,
    /// True if the server responded.
    pub is_reached: bool,
    /// The findings, in display order.
    pub findings: Vec<Finding>,
}

/// All findings.
///
/// [`worst`](Self::worst) summarizes it, for example for an exit code.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Findings about several servers together: a cluster, or sentinels and their master.
    pub setup: Vec<Finding>,
    /// Findings about each server.
    pub servers: Vec<ServerReport>,
}

impl Level {
    /// Returns `good`, `notice`, `warning` or `problem`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Part {
    /// Returns `server`, `cluster master`, `master` or `sentinel`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alone => "server",
            Self::ClusterMaster => "cluster master",
            Self::Master => "master",
            Self::Sentinel => "sentinel",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Report {
    /// Returns all findings.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.setup.iter().chain(self.servers.iter().flat_map(|server| &server.findings))
    }

    /// Returns the highest level of all findings.
    pub fn worst(&self) -> Level {
        self.findings().map(|finding| finding.level).max().unwrap_or(Level::Good)
    }

    /// Returns true if a server responded that could store counters.
    pub fn is_reached(&self) -> bool {
        self.servers.iter().any(|server| server.is_reached && server.part != Part::Sentinel)
    }
}
