//! The table for people and the file for machines.

use std::{collections::BTreeSet, fs, io, path::Path};

/// The form that all benchmarks of the project share.
#[derive(serde::Serialize)]
pub struct Row {
    pub case: String,
    pub subject: String,
    pub metric: &'static str,
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub rounds: usize,
}

pub fn write(rows: &[Row], path: &Path) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    fs::write(path, serde_json::to_string_pretty(rows)?)?;
    println!("\nwritten to {}", path.display());
    Ok(())
}

/// For each metric and case, every subject with its median and its range.
pub fn print(rows: &[Row]) {
    let metrics: BTreeSet<_> = rows.iter().map(|row| row.metric).collect();
    for metric in metrics {
        println!("\n{metric}");
        println!("{:<22} {:<26} {:>9} {:>21}", "case", "subject", "median", "range");
        let mut last = "";
        for row in rows.iter().filter(|row| row.metric == metric) {
            let case = if row.case == last { "" } else { &row.case };
            last = &row.case;
            let range = format!("{:.2} to {:.2}", row.min, row.max);
            println!("{:<22} {:<26} {:>9.2} {:>21}", case, row.subject, row.median, range);
        }
    }
}
