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

/// For each metric and case, every subject with its median, its range, and how many times Tollgate's it takes.
pub fn print(rows: &[Row]) {
    let metrics: BTreeSet<_> = rows.iter().map(|row| row.metric).collect();
    for metric in metrics {
        println!("\n{metric}");
        println!(
            "{:<22} {:<26} {:>9} {:>19} {:>10}",
            "case", "subject", "median", "range", "x tollgate"
        );
        let mut last = "";
        for row in rows.iter().filter(|row| row.metric == metric) {
            let case = if row.case == last { "" } else { &row.case };
            last = &row.case;
            let ours = rows.iter().find(|other| {
                other.metric == metric && other.case == row.case && other.subject == "tollgate"
            });
            let ratio = ours.filter(|ours| ours.median > 0.0).map(|ours| row.median / ours.median);
            println!(
                "{:<22} {:<26} {:>9.1} {:>19} {:>10}",
                case,
                row.subject,
                row.median,
                format!("{:.1} to {:.1}", row.min, row.max),
                ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            );
        }
    }
}
