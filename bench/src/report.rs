//! The results as a table and as a JSON file.

use std::{borrow::Cow, collections::BTreeSet, fs, io, path::Path};

/// One result; all benchmarks of the project share this format.
#[derive(Clone, serde::Serialize)]
pub struct Row {
    pub case: String,
    pub subject: String,
    pub metric: Cow<'static, str>,
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub rounds: usize,
    /// Target: the maximum of the median, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<f64>,
}

pub fn write(rows: &[Row], path: &Path) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    fs::write(path, serde_json::to_string_pretty(rows)?)?;
    println!("\nresults written to {}", path.display());
    Ok(())
}

/// Prints every subject with its median and range, by metric and case.
pub fn print(rows: &[Row]) {
    let metrics: BTreeSet<_> = rows.iter().map(|row| &*row.metric).collect();
    for metric in metrics {
        println!("\n{metric}");
        println!("{:<22} {:<26} {:>9} {:>21}", "case", "subject", "median", "range");
        let mut last = "";
        for row in rows.iter().filter(|row| row.metric == metric) {
            let case = if row.case == last { "" } else { &row.case };
            last = &row.case;
            let range = format!("{:.2} to {:.2}", row.min, row.max);
            let bar = row.bar.map(|bar| {
                let kept = if row.median <= bar { "met" } else { "MISSED" };
                format!("  at most {bar:.3}: {kept}")
            });
            let bar = bar.unwrap_or_default();
            println!("{:<22} {:<26} {:>9.2} {:>21}{bar}", case, row.subject, row.median, range);
        }
    }
}
