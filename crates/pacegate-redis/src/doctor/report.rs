use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// As it should be.
    Good,
    /// Worth knowing; or something that could not be looked at.
    Notice,
    /// Works today, and may fail or admit too much on a bad day.
    Warning,
    /// Does not work, or does not hold the limits.
    Problem,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What it is about, in one word. The words stay the same from one version to the next.
    pub subject: &'static str,
    /// What was seen.
    pub text: String,
    /// What to do about it. There for everything that is not good.
    pub advice: Option<String>,
}

/// What a server is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// The only one.
    Alone,
    /// Has some slots of a cluster.
    ClusterMaster,
    /// The one that sentinels call the master.
    Master,
    /// Watches the master.
    Sentinel,
}

/// What was found at one server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerReport {
    /// Where it is, such as `127.0.0.1:6379`.
    pub address: String,
    /// What it is there for.
    pub part: Part,
    /// Name and version, such as `Valkey 8.1.4`, if it told.
    pub name: Option<String>,
    /// Whether it answered at all.
    pub is_reached: bool,
    /// What was looked at, in an order that reads well.
    pub findings: Vec<Finding>,
}

/// What was found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// What concerns the servers together: a cluster, or sentinels and their master.
    pub setup: Vec<Finding>,
    /// What concerns each.
    pub servers: Vec<ServerReport>,
}

impl Level {
    /// `good`, `notice`, `warning` or `problem`.
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
    /// `server`, `cluster master`, `master` or `sentinel`.
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
    /// Everything that was found.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.setup.iter().chain(self.servers.iter().flat_map(|server| &server.findings))
    }

    /// The worst of it.
    pub fn worst(&self) -> Level {
        self.findings().map(|finding| finding.level).max().unwrap_or(Level::Good)
    }

    /// Whether any server answered that could hold budgets.
    pub fn is_reached(&self) -> bool {
        self.servers.iter().any(|server| server.is_reached && server.part != Part::Sentinel)
    }
}

impl Finding {
    pub(super) fn good(subject: &'static str, text: impl Into<String>) -> Self {
        Self { level: Level::Good, subject, text: text.into(), advice: None }
    }

    pub(super) fn notice(
        subject: &'static str,
        text: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::bad(Level::Notice, subject, text, advice)
    }

    pub(super) fn warning(
        subject: &'static str,
        text: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::bad(Level::Warning, subject, text, advice)
    }

    pub(super) fn problem(
        subject: &'static str,
        text: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::bad(Level::Problem, subject, text, advice)
    }

    pub(super) fn bad(
        level: Level,
        subject: &'static str,
        text: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { level, subject, text: text.into(), advice: Some(advice.into()) }
    }
}
