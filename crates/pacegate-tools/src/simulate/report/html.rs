//! The report as a single HTML file.

use std::fmt;

use super::{Report, SimulateError};

/// A self-contained page that loads nothing from elsewhere.
#[derive(Debug)]
pub struct Page {
    data: String,
    charts: &'static str,
}

const PAGE: &str = include_str!("../../../assets/report/report.html");
const STYLE: &str = include_str!("../../../assets/report/report.css");
const SCRIPT: &str = include_str!("../../../assets/report/report.js");

impl Page {
    /// Renders a report. `charts` is the JavaScript module that draws the charts.
    pub fn new(report: &Report, charts: &'static str) -> Result<Self, SimulateError> {
        let data = serde_json::to_string(report)?;
        // Keys are untrusted input: escape everything that could end the script element.
        let data = data.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
        Ok(Self { data, charts })
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = PAGE;
        // In the order in which they appear in the page.
        for (mark, text) in [
            ("/*style*/", STYLE),
            ("/*data*/", &self.data),
            ("/*charts*/", self.charts),
            ("/*script*/", SCRIPT),
        ] {
            let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
            f.write_str(before)?;
            f.write_str(text)?;
            rest = after;
        }
        f.write_str(rest)
    }
}
