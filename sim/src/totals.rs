//! The totals of a run, and the file that adds up several runs.

use std::{fmt, fs, io};

use anyhow::Context;
use pacegate_sim::Outcome;

/// The totals of the seeds of one run.
#[derive(Debug)]
pub(crate) struct Totals {
    first: u64,
    /// The seed after the last one.
    end: u64,
    decisions: usize,
    faults: usize,
    /// The line of this run in the file starts here.
    offset: Option<usize>,
}

impl Totals {
    pub(crate) fn new(first: u64) -> Self {
        Self { first, end: first, decisions: 0, faults: 0, offset: None }
    }

    pub(crate) fn add(&mut self, outcome: &Outcome) {
        self.end = outcome.seed + 1;
        self.decisions += outcome.decisions;
        self.faults += outcome.faults;
    }

    /// Writes the line of this run to the file, after those of earlier runs.
    pub(crate) fn save(&mut self, file: Option<&str>) -> anyhow::Result<()> {
        let Some(file) = file else { return Ok(()) };
        let mut text = read(file)?;
        text.truncate(*self.offset.get_or_insert(text.len()));
        text.push_str(&format!("{} {self}\n", env!("SIM_COMMIT")));
        fs::write(file, text).with_context(|| format!("cannot write {file}"))
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, end, decisions, faults, .. } = self;
        let seconds = cpu_seconds();
        let rate = *decisions as f64 / seconds.max(0.01);
        let interval = *decisions as f64 / (*faults).max(1) as f64;
        write!(
            f,
            "seeds {first}..{end}: {decisions} decisions, {faults} faults, {seconds:.1} CPU seconds, \
             {rate:.0} decisions per CPU second, a fault every {interval:.0} decisions"
        )
    }
}

/// Returns the seed after the last one of a file; 0 if there is no file.
pub(crate) fn next_seed(file: &str) -> anyhow::Result<u64> {
    let text = read(file)?;
    let Some(line) = text.lines().last() else { return Ok(0) };
    let end = line.split_once("..").and_then(|(_, rest)| rest.split_once(':'));
    let (end, _) = end.with_context(|| format!("{file}: no seeds in `{line}`"))?;
    end.parse().with_context(|| format!("{file}: invalid seed `{end}`"))
}

fn read(file: &str) -> anyhow::Result<String> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text.with_context(|| format!("cannot read {file}")),
    }
}

/// Linux counts the CPU time of a process in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the CPU time of this process; 0 on systems without `/proc`.
pub(crate) fn cpu_seconds() -> f64 {
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return 0.0 };
    // The fields after the name, which is in parentheses and may have spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks =
        fields.split_whitespace().skip(11).take(2).filter_map(|text| text.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS_PER_SECOND
}
