//! Checks the server version and known vulnerabilities.

use std::fmt;

use super::{Finding, ask::Info, findings as table};

/// Name and version of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    product: Product,
    number: Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Product {
    Redis,
    Valkey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Number(u32, u32, u32);

/// Vulnerabilities of the script engine, and the first fixed version of each series.
struct Holes {
    names: &'static str,
    product: Product,
    fixed: &'static [Number],
    /// True if older series, and those in between, are also assumed to be vulnerable.
    older: bool,
}

const LUA_2025: &str = "CVE-2025-49844, CVE-2025-46817, CVE-2025-46818 and CVE-2025-46819";

const HOLES: [Holes; 3] = [
    Holes {
        names: LUA_2025,
        product: Product::Redis,
        fixed: &[Number(6, 2, 20), Number(7, 2, 11), Number(7, 4, 6), Number(8, 2, 2)],
        older: true,
    },
    Holes {
        names: LUA_2025,
        product: Product::Valkey,
        fixed: &[Number(7, 2, 11), Number(8, 0, 6), Number(8, 1, 4)],
        older: true,
    },
    Holes {
        names: "CVE-2026-23631 and CVE-2026-23479",
        product: Product::Redis,
        fixed: &[Number(8, 6, 3)],
        older: false,
    },
];

impl Version {
    /// Reads the version. Valkey reports Redis 7.2 for compatibility, and its real version in another field.
    pub(super) fn of(info: &Info) -> Option<Self> {
        let valkey = info.text("valkey_version").map(|text| (Product::Valkey, text));
        let (product, text) =
            valkey.or_else(|| Some((Product::Redis, info.text("redis_version")?)))?;
        Some(Self { product, number: Number::parse(text)? })
    }

    pub(super) fn check(self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = Vec::new();
        let least = match self.product {
            Product::Redis => Number(6, 2, 0),
            Product::Valkey => Number(7, 2, 0),
        };
        if self.number < least {
            let args: [&dyn fmt::Display; 4] = [&self, &self.product, &least.0, &least.1];
            findings.push(table::VERSION_UNSUPPORTED.with(&args));
        }
        findings.extend(HOLES.iter().filter_map(|holes| self.suffers(holes)));
        if findings.is_empty() {
            findings.push(table::VERSION.with(&[&self]));
        }
        findings
    }

    fn suffers(self, holes: &Holes) -> Option<Finding> {
        let series = |number: Number| (number.0, number.1);
        let same_series = holes.fixed.iter().find(|fixed| series(**fixed) == series(self.number));
        let newest = holes.fixed.last().filter(|_| holes.older);
        let fixed = same_series.or(newest)?;
        if holes.product != self.product || self.number >= *fixed {
            return None;
        }
        let row = match same_series {
            Some(_) => table::VERSION_VULNERABLE,
            None => table::VERSION_DOUBTFUL,
        };
        let series = format!("{}.{}", self.number.0, self.number.1);
        Some(row.with(&[&self, &holes.names, &self.product, fixed, &series]))
    }
}

impl Number {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        });
        let mut next = || parts.next().flatten();
        Some(Self(next()?, next()?, next().unwrap_or(0)))
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redis => "Redis",
            Self::Valkey => "Valkey",
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.product, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    fn found(info: &str) -> Vec<Finding> {
        Version::of(&Info::new(info)).unwrap().check()
    }

    #[test]
    fn only_vulnerable_versions_are_reported() {
        for (version, warned) in [
            ("redis_version:6.2.19", Some("6.2.20")),
            ("redis_version:6.2.20", None),
            ("redis_version:7.0.15", Some("8.2.2")),
            ("redis_version:7.2.10", Some("7.2.11")),
            ("redis_version:7.2.11", None),
            ("redis_version:7.4.5", Some("7.4.6")),
            ("redis_version:7.4.6", None),
            ("redis_version:8.2.1", Some("8.2.2")),
            ("redis_version:8.2.2", None),
            ("redis_version:8.4.0", None),
            ("redis_version:8.6.2", Some("8.6.3")),
            ("redis_version:8.6.3", None),
            ("redis_version:8.8.0-rc1", None),
            ("redis_version:7.2.4\nvalkey_version:7.2.10", Some("7.2.11")),
            ("redis_version:7.2.4\nvalkey_version:8.0.5", Some("8.0.6")),
            ("redis_version:7.2.4\nvalkey_version:8.0.6", None),
            ("redis_version:7.2.4\nvalkey_version:8.1.3", Some("8.1.4")),
            ("redis_version:7.2.4\nvalkey_version:9.0.0", None),
        ] {
            let findings = found(version);
            assert_eq!(findings.len(), 1, "{version}");
            let level = if warned.is_some() { Level::Warning } else { Level::Good };
            assert_eq!(findings[0].level, level, "{version}");
            let advice = findings[0].advice.as_deref().unwrap_or_default();
            assert!(advice.contains(warned.unwrap_or_default()), "{version}: {advice}");
        }
    }

    #[test]
    fn old_servers_are_a_problem() {
        for version in
            ["redis_version:6.0.20", "redis_version:5.0.7", "valkey_version:7.0.0\nredis_version:7"]
        {
            assert_eq!(found(version)[0].level, Level::Problem, "{version}");
        }
    }
}
