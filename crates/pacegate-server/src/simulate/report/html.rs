//! The report as a single HTML file.

use std::fmt;

use super::{Report, Trouble};

/// A self-contained page that loads nothing from elsewhere.
#[derive(Debug)]
pub(crate) struct Page {
    data: String,
}

const PAGE: &str = include_str!("../../../assets/report/report.html");
const STYLE: &str = include_str!("../../../assets/report/report.css");
const SCRIPT: &str = include_str!("../../../assets/report/report.js");
const CHARTS: &str = include_str!("../../../assets/chart.js");

impl Page {
    pub(crate) fn new(report: &Report) -> Result<Self, Trouble> {
        let data = serde_json::to_string(report)?;
        // Keys are untrusted input: escape everything that could end the script element.
        let data = data.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
        Ok(Self { data })
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = PAGE;
        // In the order in which they appear in the page.
        for (mark, text) in [
            ("/*style*/", STYLE),
            ("/*data*/", &self.data),
            ("/*charts*/", CHARTS),
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
