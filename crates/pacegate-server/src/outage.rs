//! Reports why the store is unreachable and what applies meanwhile, for the log and for health checks.

use std::fmt;

use pacegate::policy::FailureMode;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    active_config::{ActiveConfig, State},
    config::Settings,
};

/// The reason why decisions are made without the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct StoreOutage {
    /// The servers without a working connection. Empty if none is known yet.
    pub(crate) servers: Vec<UnreachableServer>,
    /// The failure modes that apply, and to which policies.
    pub(crate) failure_modes: Vec<ActiveFailureMode>,
}

/// A server of the store without a working connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct UnreachableServer {
    /// The address, without user and password.
    pub(crate) address: String,
    /// The error of the last attempt to connect, or the reason why the connection was closed.
    pub(crate) error: String,
}

/// A failure mode and the policies that it applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct ActiveFailureMode {
    /// `open`, `closed`, `local` or `local` with a share, such as `local 1/3`.
    pub(crate) mode: String,
    /// The first policies with this mode; at most 10.
    pub(crate) policies: Vec<&'static str>,
    /// The number of further policies with this mode.
    pub(crate) more: usize,
}

/// The number of policies that are named for each failure mode.
const MAX_NAMED: usize = 10;

impl StoreOutage {
    /// Returns the reason why the store is unreachable, or `None` if it is reachable.
    pub(crate) fn of(active: &ActiveConfig) -> Option<Self> {
        let State::Redis(store) = &active.state else { return None };
        if active.state.is_reachable() {
            return None;
        }
        let servers = store.stats().servers.into_iter().filter_map(|server| {
            Some(UnreachableServer { error: server.trouble?, address: server.address })
        });
        let failure_modes = failure_modes(&active.revision().settings);
        Some(Self { servers: servers.collect(), failure_modes })
    }
}

/// Groups the policies by their failure modes, in the order of their first use.
fn failure_modes(settings: &Settings) -> Vec<ActiveFailureMode> {
    let policies = settings.policies.policies().iter();
    let own = policies.map(|policy| (policy.failure, policy.name.as_str()));
    let mut modes: Vec<(FailureMode, ActiveFailureMode)> = Vec::new();
    for (failure, name) in own {
        let place = modes.iter().position(|(mode, _)| *mode == failure).unwrap_or_else(|| {
            let active =
                ActiveFailureMode { mode: failure.to_string(), policies: Vec::new(), more: 0 };
            modes.push((failure, active));
            modes.len() - 1
        });
        let active = &mut modes[place].1;
        if active.policies.len() < MAX_NAMED {
            active.policies.push(name);
        } else {
            active.more += 1;
        }
    }
    modes.into_iter().map(|(_, active)| active).collect()
}

/// One sentence: the servers with their errors, then the failure modes with their policies.
impl fmt::Display for StoreOutage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.servers.is_empty() {
            f.write_str("no server of the store is known yet")?;
        }
        for (place, UnreachableServer { address, error }) in self.servers.iter().enumerate() {
            let gap = if place == 0 { "" } else { "; " };
            // Most errors of the store name the address.
            match error.contains(address.as_str()) {
                true => write!(f, "{gap}{error}")?,
                false => write!(f, "{gap}{address}: {error}")?,
            }
        }
        if self.failure_modes.is_empty() {
            return Ok(());
        }
        f.write_str("; applying failure modes: ")?;
        for (place, active) in self.failure_modes.iter().enumerate() {
            let gap = if place == 0 { "" } else { ", " };
            write!(f, "{gap}{active}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ActiveFailureMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, policies, more } = self;
        write!(f, "{mode} ({}", policies.join(", "))?;
        match more {
            0 => f.write_str(")"),
            more => write!(f, " and {more} more)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use pacegate::{Limit, Policy, PolicySet};

    use super::*;

    #[test]
    fn an_outage_names_servers_errors_and_failure_modes() {
        let policy = |n: usize| {
            let name = format!("p{n}");
            let mut policy = Policy::new(name, [Limit::per_minute(1)]);
            policy.failure = if n == 1 { FailureMode::Closed } else { FailureMode::Open };
            policy
        };
        let settings = Settings::new(PolicySet::new((0..13).map(policy)).unwrap());
        let server = |address: &str, error: &str| UnreachableServer {
            address: address.to_owned(),
            error: error.to_owned(),
        };
        let mut outage =
            StoreOutage { servers: Vec::new(), failure_modes: failure_modes(&settings) };
        let modes = "applying failure modes: open (p0, p2, p3, p4, p5, p6, p7, p8, p9, p10 and 2 more), \
                     closed (p1)";
        assert_eq!(outage.to_string(), format!("no server of the store is known yet; {modes}"));
        outage.servers = vec![
            server("cache:6379", "cannot connect to cache:6379: connection refused"),
            server("other:6379", "WRONGPASS"),
        ];
        let servers = "cannot connect to cache:6379: connection refused; other:6379: WRONGPASS";
        assert_eq!(outage.to_string(), format!("{servers}; {modes}"));
    }
}
