//! `pacegate doctor`: reports about Redis and Valkey servers, as text and as JSON.

use std::fmt;

use anstyle::{AnsiColor, Style};
use pacegate_redis::doctor::{Finding, Level, Report};
use serde_json::{Value, json};

/// Displays a report as text. The colours can be stripped when printing.
#[derive(Clone, Copy, Debug)]
pub struct ReportText<'a> {
    /// The address that was examined, without user and password.
    pub url: &'a str,
    /// The findings.
    pub report: &'a Report,
}

impl fmt::Display for ReportText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bold = Style::new().bold();
        if !self.report.setup.is_empty() {
            writeln!(f, "{bold}{}{bold:#}", self.url)?;
            write_findings(f, &self.report.setup)?;
        }
        for server in &self.report.servers {
            let name = server.name.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
            writeln!(f, "{bold}{}, {}{name}{bold:#}", server.address, server.part)?;
            write_findings(f, &server.findings)?;
        }
        self.sum_up(f)
    }
}

impl ReportText<'_> {
    fn sum_up(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let levels = [Level::Problem, Level::Warning, Level::Notice];
        let counted = levels.map(|level| {
            let count = self.report.findings().filter(|finding| finding.level == level).count();
            let plural = if count == 1 { "" } else { "s" };
            format!("{count} {level}{plural} ({})", mark(level).0)
        });
        writeln!(f, "{}", counted.join(", "))
    }
}

fn write_findings(f: &mut fmt::Formatter<'_>, findings: &[Finding]) -> fmt::Result {
    for Finding { level, subject, text, advice, .. } in findings {
        let (mark, style) = mark(*level);
        writeln!(f, "  {style}{mark} {subject:<12}{style:#}{text}")?;
        if let Some(advice) = advice {
            writeln!(f, "    {:<12}→ {advice}", "")?;
        }
    }
    writeln!(f)
}

fn mark(level: Level) -> (char, Style) {
    let color = |color: AnsiColor| Style::new().fg_color(Some(color.into()));
    match level {
        Level::Good => ('✓', color(AnsiColor::Green)),
        Level::Notice => ('·', color(AnsiColor::Cyan)),
        Level::Warning => ('!', color(AnsiColor::Yellow).bold()),
        Level::Problem => ('✗', color(AnsiColor::Red).bold()),
    }
}

/// Returns a report as one JSON object.
#[must_use]
pub fn report_json(url: &str, report: &Report) -> Value {
    let servers = report.servers.iter().map(|server| {
        json!({
            "address": server.address,
            "part": server.part.to_string(),
            "name": server.name,
            "reached": server.is_reached,
            "findings": findings_json(&server.findings),
        })
    });
    json!({
        "url": url,
        "level": report.worst().to_string(),
        "reached": report.is_reached(),
        "setup": findings_json(&report.setup),
        "servers": servers.collect::<Value>(),
    })
}

fn findings_json(findings: &[Finding]) -> Value {
    let finding = |Finding { level, subject, text, advice, .. }: &Finding| {
        json!({
            "level": level.to_string(),
            "subject": subject.to_string(),
            "text": text,
            "advice": advice,
        })
    };
    findings.iter().map(finding).collect()
}
