//! Formats numbers and untrusted text for the terminal.

use std::time::Duration;

use crate::grouped;

/// Escapes control characters in untrusted text, so that it cannot control the terminal.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\'' | '"' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

/// Returns a key for display. The empty key is that of a policy with one counter for all clients.
pub(super) fn key_name(key: &str) -> String {
    if key.is_empty() { "all clients".to_owned() } else { shown(key) }
}

/// Shortens a text to a number of columns. An ellipsis marks a cut.
pub(super) fn fit(text: &str, columns: u16) -> String {
    let columns = usize::from(columns);
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// Formats the upper bound of a latency. The server does not measure times above 10 seconds.
pub(super) fn at_most(bound: f64) -> String {
    if bound > 10.0 { "> 10s".to_owned() } else { format!("≤ {}", seconds(bound)) }
}

/// Formats a rate per second. A small nonzero rate is never shown as 0.
pub(super) fn rate(count: u64, seconds: u64) -> String {
    if seconds == 0 || count == 0 {
        return "0".to_owned();
    }
    let tenths = count.saturating_mul(10).div_ceil(seconds);
    match tenths {
        0..100 if !tenths.is_multiple_of(10) => format!("{}.{}", tenths / 10, tenths % 10),
        _ => grouped((tenths + 5) / 10),
    }
}

/// Formats a duration with its two largest units.
pub(super) fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// Formats a number of seconds with its unit. Untrusted numbers that are no time become `-`.
pub(super) fn seconds(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or("-".to_owned(), |time| format!("{time:?}"))
}

/// Formats a share in percent.
#[expect(clippy::float_arithmetic, reason = "only for display")]
pub(super) fn percent(share: Option<f64>) -> String {
    match share {
        Some(share) if share.is_finite() => format!("{:.0}%", share.clamp(0.0, 9.99) * 100.0),
        _ => "-".to_owned(),
    }
}

/// One bar of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bar {
    pub(super) bar: char,
    pub(super) worst: Worst,
}

/// The worst outcome of the requests in a bar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worst {
    #[default]
    Allowed,
    /// A request would have been denied without shadow mode.
    Shadow,
    Denied,
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Groups seconds, the last of which ended at `end`, into bars. Each bar covers a fixed range of clock
/// seconds, so that bars move to the left without changing.
pub(super) fn bars(seconds: &[[u32; 3]], end: u64, width: usize, most: usize) -> Vec<Bar> {
    if width == 0 {
        return Vec::new();
    }
    let step = most.div_ceil(width).max(1) as u64;
    let mut stretches = vec![(0_u64, 0_u64, Worst::Allowed); width];
    for (back, [allowed, denied, shadow_denied]) in seconds.iter().rev().enumerate() {
        let second = end.saturating_sub(back as u64);
        let columns = usize::try_from(end / step - second / step).unwrap_or(usize::MAX);
        let Some(place) = (width - 1).checked_sub(columns) else { break };
        let (sum, length, worst) = &mut stretches[place];
        *sum += [allowed, denied, shadow_denied].into_iter().map(|&n| u64::from(n)).sum::<u64>();
        *length += 1;
        *worst = (*worst).max(match (denied, shadow_denied) {
            (1.., _) => Worst::Denied,
            (0, 1..) => Worst::Shadow,
            (0, 0) => Worst::Allowed,
        });
    }
    // The mean per second, because the last bar may cover fewer seconds.
    let height = |&(sum, length, _): &(u64, u64, Worst)| sum * 1_000 / length.max(1);
    let highest = stretches.iter().map(height).max().unwrap_or(0).max(1);
    let bar = |stretch: &(u64, u64, Worst)| {
        let level = (height(stretch) * BARS.len() as u64).div_ceil(highest);
        let place = usize::try_from(level).ok().and_then(|level| level.checked_sub(1));
        let bar = place.and_then(|place| BARS.get(place)).copied().unwrap_or(' ');
        Bar { bar, worst: stretch.2 }
    };
    stretches.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(shown("a\u{1b}[2J\r\n\0\u{7f}\u{9b}b"), r"a\u{1b}[2J\r\n\0\u{7f}\u{9b}b");
        assert_eq!(shown("\u{202e}abc\u{200b}\u{2066}"), r"\u{202e}abc\u{200b}\u{2066}");
        assert_eq!(shown(r#"it's "é" \"#), r#"it's "é" \\"#);
    }

    #[test]
    fn rates_durations_and_shares_are_short() {
        let rates = [(0, 5), (1, 5), (1, 300), (7, 2), (50, 5), (99, 1), (1_234, 1), (9, 0)];
        let formatted = rates.map(|(count, seconds)| rate(count, seconds));
        assert_eq!(formatted, ["0", "0.2", "0.1", "3.5", "10", "99", "1,234", "0"]);
        let times = [3, 62, 3_723, 90_000].map(|seconds| time(Duration::from_secs(seconds)));
        assert_eq!(times, ["3 s", "1 min 2 s", "1 h 2 min", "1 d 1 h"]);
        assert_eq!(
            [0.00025, 0.0025, 1.0, -1.0, f64::NAN].map(seconds),
            ["250µs", "2.5ms", "1s", "-", "-"]
        );
        let shares =
            [None, Some(0.0), Some(0.934), Some(1.4), Some(70.0), Some(f64::NAN)].map(percent);
        assert_eq!(shares, ["-", "0%", "93%", "140%", "999%", "-"]);
    }

    #[test]
    fn cut_texts_end_with_an_ellipsis() {
        let fitted =
            [("alice", 5), ("alice", 4), ("äöü", 2), ("a", 0)].map(|(text, n)| fit(text, n));
        assert_eq!(fitted, ["alice", "ali…", "ä…", "…"]);
        assert_eq!(["", "a\n"].map(key_name), ["all clients", "a\\n"]);
        assert_eq!([0.5, 10.0, 10.000_001].map(at_most), ["≤ 500ms", "≤ 10s", "> 10s"]);
    }

    fn drawn(seconds: &[[u32; 3]], end: u64, width: usize, most: usize) -> String {
        bars(seconds, end, width, most).iter().map(|bar| bar.bar).collect()
    }

    #[test]
    fn the_height_of_a_bar_is_the_mean_rate() {
        let seconds = [[8, 0, 0], [0, 0, 0], [1, 0, 0], [2, 2, 0]];
        assert_eq!(drawn(&seconds, 103, 6, 6), "  █ ▁▄");
        let worst = |seconds: &[[u32; 3]]| -> Vec<_> {
            bars(seconds, 103, 4, 4).iter().map(|bar| bar.worst).collect()
        };
        let none = Worst::Allowed;
        assert_eq!(worst(&seconds), [none, none, none, Worst::Denied]);
        let shadow = [[8, 1, 1], [0, 0, 1], [1, 0, 0], [0, 0, 0]];
        assert_eq!(worst(&shadow), [Worst::Denied, Worst::Shadow, none, none]);
        assert_eq!(drawn(&seconds, 103, 2, 2), "▂█");
        assert_eq!(drawn(&[], 103, 3, 300), "   ");
        assert_eq!(drawn(&seconds, 103, 0, 300), "");
    }

    #[test]
    fn bars_move_without_changing() {
        let seconds: Vec<_> = (0..40).map(|n| [if n < 20 { 4 } else { 8 }, 0, 0]).collect();
        // Ten seconds each, and the last bar has just begun.
        assert_eq!(drawn(&seconds[..31], 130, 4, 40), "▄▄██");
        assert_eq!(drawn(&seconds[..38], 137, 4, 40), "▄▄██");
        assert_eq!(drawn(&seconds, 139, 4, 40), "▄▄██");
    }
}
