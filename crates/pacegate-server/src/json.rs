//! The report of `pacegate doctor` as JSON.

use std::fmt::{self, Display, Formatter};

use pacegate_redis::doctor::{Finding, Report};
use serde_json::{Value, json};

/// A doctor report as one JSON object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonReport<'a> {
    /// Without user and password.
    pub(crate) url: &'a str,
    pub(crate) report: &'a Report,
}

impl Display for JsonReport<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { url, report } = self;
        let servers = report.servers.iter().map(|server| {
            json!({
                "address": server.address,
                "part": server.part.to_string(),
                "name": server.name,
                "reached": server.is_reached,
                "findings": findings(&server.findings),
            })
        });
        let report = json!({
            "url": url,
            "level": report.worst().to_string(),
            "reached": report.is_reached(),
            "setup": findings(&report.setup),
            "servers": servers.collect::<Value>(),
        });
        report.fmt(f)
    }
}

fn findings(findings: &[Finding]) -> Value {
    let findings = findings.iter().map(|finding| {
        json!({
            "level": finding.level.to_string(),
            "subject": finding.subject.to_string(),
            "text": finding.text,
            "advice": finding.advice,
        })
    });
    findings.collect()
}
