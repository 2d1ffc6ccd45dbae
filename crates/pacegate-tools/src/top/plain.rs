//! Prints a [`View`] as plain text, for scripts and pipes.

use std::fmt::Write as _;

use super::{
    data::{Live, TopKey},
    draw::{connections_and_latency, limits, outcomes, store, uptime},
    view::{MAX_SECONDS, View},
    words::{bars, key_name, percent, rate, shown, time},
};
use crate::grouped;

/// Number of bars in a plot.
const BARS: usize = 15;

/// Returns all data as text, table by table.
pub fn plain(view: &View) -> String {
    let mut text = String::new();
    let Some(live) = &view.live else { return text };
    let mut line = |line: String| {
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(format!("Pacegate {} at {}", shown(&live.version), shown(&view.server)));
    let going = if live.draining { ", draining" } else { "" };
    line(format!("up {}, revision {}{going}", time(uptime(live)), live.revision));
    line(store(&live.store));
    for listener in &live.listeners {
        line(format!("{} {}", shown(&listener.name), connections_and_latency(listener)));
    }
    if let Some(complaint) = &live.reload_complaint {
        line(format!("reload failed: {}", shown(complaint)));
    }
    line(String::new());
    line(table(&policies(view)));
    for (title, keys) in [("busiest", &live.busiest), ("most denied", &live.most_denied)] {
        if !keys.is_empty() {
            line(String::new());
            line(table(&top(live, title, keys)));
        }
    }
    if !live.blocked.is_empty() {
        line(String::new());
    }
    for block in &live.blocked {
        line(format!("blocked: {} of {}", key_name(&block.key), shown(&block.policy)));
    }
    text
}

/// Table rows. The first `left` columns are left-aligned, the others right-aligned, except the last, which is
/// not padded.
struct TextRows {
    left: usize,
    rows: Vec<Vec<String>>,
}

fn policies(view: &View) -> TextRows {
    let head = ["POLICY", "LIMIT", "ALLOWED/s", "DENIED/s", "SHADOW/s", "UNITS/s", "ALLOWED"];
    let head = head.into_iter().chain(["DENIED", "SHADOW", "UNITS", "USED", "LAST 5 MINUTES"]);
    let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
    for policy in view.policies() {
        let ([allowed, denied, shadow, units, _], seconds) = view.recent(&policy.name);
        let (history, end) = view.history(&policy.name);
        let mut row = vec![shown(&policy.name), limits(policy)];
        row.extend([allowed, denied, shadow, units].map(|count| rate(count, seconds)));
        let totals = [policy.allowed, policy.denied, policy.shadow_denied, policy.allowed_units];
        row.extend(totals.map(grouped));
        row.push(percent(policy.used));
        row.push(bars(&history, end, BARS, MAX_SECONDS).iter().map(|bar| bar.bar).collect());
        rows.push(row);
    }
    TextRows { left: 2, rows }
}

fn top(live: &Live, title: &str, keys: &[TopKey]) -> TextRows {
    let head = [&title.to_uppercase(), "ALLOWED", "DENIED", "SHADOW", "KEY"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(keys.iter().map(|top| {
        let [allowed, denied, shadow] = outcomes(live, top).map(grouped);
        vec![shown(&top.policy), allowed, denied, shadow, key_name(&top.key)]
    }));
    TextRows { left: 1, rows }
}

fn table(TextRows { left, rows }: &TextRows) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (place, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            // Writing to a `String` cannot fail.
            let _ = match column {
                _ if column + 1 == columns => write!(line, "{cell}"),
                _ if column < *left => write!(line, "{cell:<width$}  "),
                _ => write!(line, "{cell:>width$}  "),
            };
        }
        if place > 0 {
            text.push('\n');
        }
        text.push_str(line.trim_end());
    }
    text
}
