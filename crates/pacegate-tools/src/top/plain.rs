//! Prints a [`View`] as plain text, for scripts and pipes.

use super::{
    data::{Live, TopKey},
    draw::{connections_and_latency, limits, outcomes, store, uptime},
    view::{MAX_SECONDS, View},
    words::{bars, key_name, percent, rate, shown, time},
};
use crate::{grouped, text::table};

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
    line(policies(view));
    for (title, keys) in [("busiest", &live.busiest), ("most denied", &live.most_denied)] {
        if !keys.is_empty() {
            line(String::new());
            line(top(live, title, keys));
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

fn policies(view: &View) -> String {
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
    aligned(2, rows)
}

fn top(live: &Live, title: &str, keys: &[TopKey]) -> String {
    let head = [&title.to_uppercase(), "ALLOWED", "DENIED", "SHADOW", "KEY"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(keys.iter().map(|top| {
        let [allowed, denied, shadow] = outcomes(live, top).map(grouped);
        vec![shown(&top.policy), allowed, denied, shadow, key_name(&top.key)]
    }));
    aligned(1, rows)
}

/// Aligns rows. The first `left` columns and the last one are text, the others are numbers.
fn aligned(left: usize, rows: Vec<Vec<String>>) -> String {
    let last = rows[0].len() - 1;
    let lines = table(rows, |column| (left..last).contains(&column));
    lines.iter().map(|line| line.trim_start()).collect::<Vec<_>>().join("\n")
}
