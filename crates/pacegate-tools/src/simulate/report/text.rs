//! The report for terminals: tables and one-line plots.

use std::fmt;

use anstyle::{AnsiColor, Style};

use super::{
    Headroom, KeyReport, PolicyReport, Report, SuggestionReport, VariantReport,
    change::{Change, KeyChange, PolicyChange},
    percent, whose,
};
use crate::text::{format_seconds, grouped, printable, table};

/// Displays a report as text.
#[derive(Debug)]
pub struct TextReport<'a>(pub &'a Report);

const BOLD: Style = Style::new().bold();
const GOOD: Style = AnsiColor::Cyan.on_default();
const BAD: Style = AnsiColor::Red.on_default();
const QUIET: Style = Style::new().dimmed();
/// Width of a plot, in characters.
const WIDTH: usize = 60;
/// Maximum width of a key, in characters.
const KEY_WIDTH: usize = 40;

impl fmt::Display for TextReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { finding, traffic, variants, changes, suggestion, notes } = self.0;
        writeln!(f, "{BOLD}{}{BOLD:#}\n", printable(finding))?;
        writeln!(
            f,
            "{}: {} requests in {}, {} to {}; peak: {} per second, {} per minute",
            traffic.source,
            grouped(traffic.seen.requests),
            lasting(traffic.seconds),
            traffic.from,
            traffic.to,
            grouped(traffic.peak_second),
            grouped(traffic.peak_minute),
        )?;
        if traffic.seen.files.len() > 1 {
            for file in &traffic.seen.files {
                writeln!(f, "  {}: {} requests", file.name, grouped(file.requests))?;
            }
        }
        lost(f, self.0)?;
        if let Some(suggestion) = suggestion {
            suggested(f, suggestion)?;
        }
        match &**variants {
            [variant] => variant.policies.iter().try_for_each(|policy| detailed(f, policy))?,
            variants => side_by_side(f, variants)?,
        }
        changes.iter().try_for_each(|change| changed(f, change))?;
        for (place, note) in notes.iter().enumerate() {
            let gap = if place == 0 { "\n" } else { "" };
            writeln!(f, "{gap}note: {note}")?;
        }
        Ok(())
    }
}

/// Writes the malformed lines and the lines that were too far out of order.
fn lost(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    let seen = &report.traffic.seen;
    if seen.malformed > 0 {
        let lines = grouped(seen.lines);
        writeln!(f, "{} of {lines} lines could not be parsed:", grouped(seen.malformed))?;
        for example in &seen.malformed_examples {
            writeln!(f, "  {}", printable(example))?;
        }
    }
    if seen.late > 0 {
        let late = grouped(seen.late);
        writeln!(
            f,
            "{late} lines were out of order by more than --window; each counts at the time of the line before it"
        )?;
    }
    Ok(())
}

fn suggested(f: &mut fmt::Formatter<'_>, suggestion: &SuggestionReport) -> fmt::Result {
    let SuggestionReport { target, limit, summary, next, next_summary, passes, tried, .. } =
        suggestion;
    if suggestion.any {
        return writeln!(f, "\nevery limit meets the target: no client sends more ({target})");
    }
    let Some((limit, summary)) = limit.as_ref().zip(summary.as_ref()) else {
        return writeln!(f, "\nno limit of this form meets the target: {target}");
    };
    writeln!(f, "\n  {GOOD}{limit}{GOOD:#} {summary}")?;
    if let Some(((next, _), summary)) = next.as_ref().zip(next_summary.as_ref()) {
        writeln!(f, "  {BAD}{next}{BAD:#} {summary}")?;
    }
    let subject = if next.is_some() { "both" } else { "it was" };
    writeln!(
        f,
        "  {QUIET}{subject} replayed over all traffic; {tried} limits tried in {passes} passes{QUIET:#}"
    )?;
    match &suggestion.headroom {
        None => writeln!(f, "  headroom: none; every client has denied requests")?,
        Some(Headroom { peak, amount, period, share }) => writeln!(
            f,
            "  headroom: {share}; the busiest client without denials sends {} of {} in any {period}",
            grouped(*peak),
            grouped(*amount)
        )?,
    }
    write!(f, "\n{}", suggestion.yaml.as_deref().unwrap_or_default())
}

/// Writes the results of one policy.
fn detailed(f: &mut fmt::Formatter<'_>, policy: &PolicyReport) -> fmt::Result {
    let PolicyReport { name, counts, requests, amount, period, .. } = policy;
    let shadow = if policy.shadow { ", shadow mode" } else { "" };
    let per = whose(&policy.per);
    let limits = policy.limits.join(", ");
    let named = limits.contains(policy.algorithm);
    let algorithm = if named { "" } else { &*format!(", {}", policy.algorithm) };
    writeln!(f, "\n{BOLD}{name}{BOLD:#}  {limits}{algorithm}, {per}{shadow}")?;
    let denied = counts.all_denied();
    let verb = if policy.shadow { "would deny" } else { "denied" };
    let times = &policy.timeline;
    let missed = if policy.shadow { &times.shadow_denied } else { &times.denied };
    let width = grouped(*requests).len();
    let line = |style: Style, word: &str, count: u64, values: &[u64]| {
        let (share, count, plot) = (percent(count, *requests), grouped(count), plot(values, WIDTH));
        let plot = if plot.is_empty() { plot } else { format!("  {style}{plot}{style:#}") };
        format!("  {word:10} {count:>width$}  {share:>8}{plot}\n")
    };
    f.write_str(&line(GOOD, "allowed", counts.allowed, &times.allowed))?;
    f.write_str(&line(BAD, verb, denied, missed))?;
    if policy.denied_elsewhere > 0 {
        let count = grouped(policy.denied_elsewhere);
        writeln!(f, "  {count} more were within this limit but denied by another policy")?;
    }
    peaks(f, policy)?;
    if policy.bursts > 0 {
        let worst = policy.worst_bursts.first();
        let worst = worst.map(|worst| {
            format!("; worst: {} by {} at {}", worst.admitted, short(&worst.key), worst.at)
        });
        writeln!(
            f,
            "  {BAD}{} bursts above {amount} within one {period}, across fixed-window boundaries{BAD:#}{}",
            grouped(policy.bursts),
            worst.unwrap_or_default()
        )?;
    }
    for (title, keys) in [("most denied", &policy.denied_most), ("busiest", &policy.busiest)] {
        if !keys.is_empty() {
            writeln!(f)?;
            write_table(f, key_table(title, keys, period))?;
        }
    }
    Ok(())
}

/// Writes the number of clients and their peak rates.
fn peaks(f: &mut fmt::Formatter<'_>, policy: &PolicyReport) -> fmt::Result {
    let PolicyReport { amount, period, keys, .. } = policy;
    let [asked, admitted, amount] = [policy.peak_asked, policy.peak_admitted, *amount].map(grouped);
    if policy.per.is_empty() {
        return writeln!(
            f,
            "  peak in any {period}: {asked} requested, {admitted} admitted (limit {amount})"
        );
    }
    let about = if keys.exact { "" } else { "about " };
    writeln!(
        f,
        "  {about}{} clients, {} with denied requests ({})",
        grouped(keys.seen),
        grouped(keys.touched),
        percent(keys.touched, keys.seen)
    )?;
    writeln!(
        f,
        "  peak per client in any {period}: {asked} requested, {admitted} admitted (limit {amount})"
    )
}

fn key_table(title: &str, keys: &[KeyReport], period: &str) -> Vec<Vec<String>> {
    let head = [title, "requests", "allowed", "denied", "share", "peak/second"].map(str::to_owned);
    let peaks = ["peak", "admitted"].map(|what| format!("{what}/{period}"));
    let mut rows = vec![[&head[..], &peaks].concat()];
    for key in keys {
        let denied = key.counts.all_denied();
        rows.push(vec![
            short(&key.key),
            grouped(key.requests),
            grouped(key.counts.allowed),
            grouped(denied),
            percent(denied, key.requests),
            grouped(key.peak_second.into()),
            grouped(key.peak_asked.into()),
            grouped(key.peak_admitted.into()),
        ]);
    }
    rows
}

fn side_by_side(f: &mut fmt::Formatter<'_>, variants: &[VariantReport]) -> fmt::Result {
    let head = ["comparison", "policy", "allowed", "denied", "share", "clients denied"].into_iter();
    let head = head.chain(["most admitted", "bursts"]).map(str::to_owned);
    let mut rows = vec![head.collect::<Vec<_>>()];
    for variant in variants {
        for (place, policy) in variant.policies.iter().enumerate() {
            let name = if place == 0 { short(&variant.name) } else { String::new() };
            let (denied, keys) = (policy.counts.all_denied(), policy.keys);
            rows.push(vec![
                name,
                policy.name.clone(),
                grouped(policy.counts.allowed),
                grouped(denied),
                percent(denied, policy.requests),
                format!("{} of {}", grouped(keys.touched), grouped(keys.seen)),
                format!("{} of {}/{}", grouped(policy.peak_admitted), policy.amount, policy.period),
                grouped(policy.bursts),
            ]);
        }
        if variant.policies.len() > 1 {
            let (allowed, denied) = (variant.counts.allowed, variant.counts.all_denied());
            let share = percent(denied, variant.requests);
            let total = ["", "total"].map(str::to_owned).into_iter();
            rows.push(total.chain([grouped(allowed), grouped(denied), share]).collect());
        }
    }
    writeln!(f)?;
    write_table(f, rows)?;
    writeln!(f)?;
    let width = variants.iter().map(|variant| short(&variant.name).chars().count()).max();
    let width = width.unwrap_or_default();
    for variant in variants {
        let name = short(&variant.name);
        let denied = plot(&variant.timeline.denied, WIDTH);
        writeln!(f, "  {name:width$}  denied  {BAD}{denied}{BAD:#}")?;
    }
    Ok(())
}

fn changed(f: &mut fmt::Formatter<'_>, change: &Change) -> fmt::Result {
    let [before, after] = change.denied;
    let difference = match after.cmp(&before) {
        std::cmp::Ordering::Less => format!("{} fewer", grouped(before - after)),
        std::cmp::Ordering::Equal => "the same number".to_owned(),
        std::cmp::Ordering::Greater => format!("{} more", grouped(after - before)),
    };
    writeln!(f, "\n{BOLD}from {} to {}{BOLD:#}: {difference} denied", change.from, change.to)?;
    for policy in &change.policies {
        let PolicyChange { name, limits, denied, touched, worse, better } = policy;
        let [from, to] = limits.each_ref().map(|limits| limits.as_deref().unwrap_or("(none)"));
        let text = |[from, to]: &[u64; 2]| format!("{} → {}", grouped(*from), grouped(*to));
        let limits = if from == to { from.to_owned() } else { format!("{from} → {to}") };
        writeln!(
            f,
            "  {name}: {limits}; denied {}; clients denied {}",
            text(denied),
            text(touched)
        )?;
        key_changes(f, "worse for", worse)?;
        key_changes(f, "better for", better)?;
    }
    Ok(())
}

fn key_changes(f: &mut fmt::Formatter<'_>, title: &str, keys: &[KeyChange]) -> fmt::Result {
    if keys.is_empty() {
        return Ok(());
    }
    let mut rows = vec![[title, "requests", "denied before", "after"].map(str::to_owned).to_vec()];
    for key in keys {
        let [before, after] = key.denied.map(grouped);
        rows.push(vec![short(&key.key), grouped(key.requests), before, after]);
    }
    write_table(f, rows)
}

/// Writes a table with indentation: the first column is text, the others are numbers.
fn write_table(f: &mut fmt::Formatter<'_>, rows: Vec<Vec<String>>) -> fmt::Result {
    for (place, line) in table(rows, |column| column > 0).iter().enumerate() {
        let style = if place == 0 { QUIET } else { Style::new() };
        writeln!(f, " {style}{line}{style:#}")?;
    }
    Ok(())
}

/// Draws values as bars of different heights. Values above zero are always visible.
fn plot(values: &[u64], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    if values.is_empty() {
        return String::new();
    }
    let columns = values.len().min(width);
    let place = |column: usize| column * values.len() / columns;
    let sums = (0..columns).map(|column| {
        let part = &values[place(column)..place(column + 1)];
        // The mean, because columns may cover different numbers of values.
        part.iter().sum::<u64>() / part.len().max(1) as u64
            + u64::from(part.iter().any(|one| *one > 0))
    });
    let sums: Vec<u64> = sums.collect();
    let most = sums.iter().copied().max().unwrap_or_default().max(1);
    let bar = |sum: &u64| match sum {
        0 => ' ',
        sum => BARS[usize::try_from(sum * 7 / most).unwrap_or_default().min(7)],
    };
    let plot: String = sums.iter().map(bar).collect();
    plot.trim_end().to_owned()
}

fn lasting(seconds: u64) -> String {
    match seconds {
        0 => "less than a second".to_owned(),
        seconds => format_seconds(seconds),
    }
}

/// Truncates a text to the column width.
fn short(text: &str) -> String {
    let text = printable(text);
    if text.chars().count() <= KEY_WIDTH {
        return text;
    }
    text.chars().take(KEY_WIDTH - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_keys_are_shortened() {
        assert_eq!(lasting(90_061), "1d 1h 1m 1s");
        assert_eq!(lasting(0), "less than a second");
        assert_eq!(percent(1, 1_000), "0.10%");
        assert_eq!(percent(1, 30_000), "0.0033%");
        assert_eq!(percent(1, 30_000_000), "<0.0001%");
        assert_eq!(percent(999, 1_000), "99.9%");
        assert_eq!(percent(2_711, 24_284), "11.2%");
        assert_eq!(percent(1, 327), "0.31%");
        assert_eq!(percent(9_999, 10_000), "99.9%", "only the whole is 100%");
        assert_eq!(percent(7, 7), "100%");
    }

    #[test]
    fn a_plot_shows_small_values() {
        assert_eq!(plot(&[0, 1, 1_000], 60), " ▁█");
        assert_eq!(plot(&[0, 0, 5, 0], 2), " █");
        assert_eq!(plot(&[5, 0, 0, 0], 4), "█");
        assert_eq!(plot(&[], 60), "");
    }
}
