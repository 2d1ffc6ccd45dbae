//! Draws a [`View`] on a screen of any size.

use std::time::Duration;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize},
    text::{Line, Span},
    widgets::{Block, Cell, Clear, Paragraph, Row, Table},
};

use super::{
    data::{Listener, Live, Policy, Store, TopKey},
    view::{MAX_SECONDS, Pane, View},
    words::{Bar, Worst, at_most, bars, fit, key_name, percent, rate, seconds, shown, time},
};
use crate::grouped;

/// Below this width or height, only one pane is shown, with a head of one line.
const NARROW: u16 = 80;
const LOW: u16 = 14;

const HELP: &[(&str, &str)] = &[
    ("q, Esc", "quit"),
    ("?", "this help"),
    ("Tab, 1 2 3", "policies, keys by traffic, keys by denials"),
    ("s", "sort policies by another column"),
    ("Space", "pause or resume"),
    ("Up, Down", "scroll"),
];

impl View {
    /// Draws the whole screen.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let is_low = area.height < LOW;
        let head = self.head(is_low);
        let foot = u16::from(area.height >= 8);
        let rows = [
            Constraint::Length(u16::try_from(head.len()).unwrap_or(u16::MAX)),
            Constraint::Fill(1),
            Constraint::Length(foot),
        ];
        let [top, middle, bottom] = Layout::vertical(rows).areas(area);
        frame.render_widget(Paragraph::new(head), top);
        match is_low || area.width < NARROW {
            true => self.draw_pane(self.pane, frame, middle),
            false => self.draw_panes(frame, middle),
        }
        frame.render_widget(Paragraph::new(foot_line()), bottom);
        if self.has_help {
            draw_help(frame, area);
        }
    }

    fn draw_panes(&self, frame: &mut Frame<'_>, area: Rect) {
        let policies = self.live.as_ref().map_or(0, |live| live.policies.len());
        // A border, the column names, and one line per policy; but at least half of the height is for the
        // keys.
        let wanted = u16::try_from(policies + 3).unwrap_or(u16::MAX);
        let height = wanted.clamp(5, (area.height / 2).max(5));
        let [above, below] =
            Layout::vertical([Constraint::Length(height), Constraint::Fill(1)]).areas(area);
        let [left, right] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(below);
        self.draw_pane(Pane::Policies, frame, above);
        self.draw_pane(Pane::Traffic, frame, left);
        self.draw_pane(Pane::Denied, frame, right);
    }

    fn draw_pane(&self, pane: Pane, frame: &mut Frame<'_>, area: Rect) {
        let title = match pane {
            Pane::Policies => format!(" 1 Policies {} ", self.order.as_str()),
            Pane::Traffic => " 2 Keys by traffic ".to_owned(),
            Pane::Denied => " 3 Keys by denials ".to_owned(),
        };
        let is_chosen = pane == self.pane;
        let style = if is_chosen { Style::new().bold() } else { Style::new().dim() };
        let block = Block::bordered().border_style(style).title(Span::styled(title, style));
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let skipped = if is_chosen { self.scroll } else { 0 };
        let Some(live) = &self.live else { return };
        match pane {
            Pane::Policies => self.draw_policies(skipped, frame, inner),
            Pane::Traffic => draw_keys(live, &live.busiest, skipped, frame, inner),
            Pane::Denied => draw_keys(live, &live.most_denied, skipped, frame, inner),
        }
    }

    fn draw_policies(&self, skipped: usize, frame: &mut Frame<'_>, area: Rect) {
        let policies = self.policies();
        let name = policies.iter().map(|policy| policy.name.len()).max().unwrap_or(0);
        let name = u16::try_from(name).unwrap_or(u16::MAX).clamp(6, 28);
        let limit = policies.iter().map(|policy| limits(policy).chars().count()).max();
        let limit = u16::try_from(limit.unwrap_or(0)).unwrap_or(u16::MAX).clamp(5, 30);
        let (is_wide, is_middling) = (area.width >= 78, area.width >= 48);
        let mut widths = vec![Constraint::Length(name)];
        let mut heads = vec![Line::from("POLICY")];
        if is_wide {
            widths.push(Constraint::Length(limit));
            heads.push(Line::from("LIMIT"));
        }
        let figures: &[&str] = match (is_wide, is_middling) {
            (true, _) => &["ALLOWED/s", "DENIED/s", "SHADOW/s", "USED", "UNITS/s"],
            (false, true) => &["ALLOWED/s", "DENIED/s", "SHADOW/s", "USED"],
            (false, false) => &["ALLOWED/s", "DENIED/s"],
        };
        for head in figures {
            widths.push(Constraint::Length(u16::try_from(head.len()).unwrap_or(u16::MAX)));
            heads.push(Line::from(*head).right_aligned());
        }
        let taken: u16 = widths.iter().map(|width| length(*width) + 1).sum();
        let room = area.width.saturating_sub(taken);
        if room >= 10 {
            widths.push(Constraint::Length(room));
            heads.push(Line::from("LAST 5 MINUTES"));
        }
        let room = if room >= 10 { usize::from(room) } else { 0 };
        let row = |policy: &&Policy| {
            let mut cells = vec![Cell::from(fit(&shown(&policy.name), name))];
            if is_wide {
                cells.push(Cell::from(fit(&limits(policy), limit)).dim());
            }
            cells.extend(self.figures(policy).into_iter().take(figures.len()).map(Cell::from));
            let (seconds, end) = self.history(&policy.name);
            cells.push(Cell::from(drawn(&bars(&seconds, end, room, MAX_SECONDS))));
            Row::new(cells)
        };
        let rows: Vec<_> = policies.iter().skip(skipped).map(row).collect();
        let heads = Row::new(heads).style(Style::new().dim());
        frame.render_widget(Table::new(rows, widths).header(heads).column_spacing(1), area);
    }

    fn figures(&self, policy: &Policy) -> [Line<'static>; 5] {
        let ([allowed, denied, shadow, units, _], seconds) = self.recent(&policy.name);
        let figure = |count: u64, color: Color| {
            let line = Line::from(rate(count, seconds)).right_aligned();
            if count > 0 { line.fg(color) } else { line.dim() }
        };
        let used = Line::from(percent(policy.used)).right_aligned();
        let used = if policy.used >= Some(1.0) { used.fg(Color::Red) } else { used };
        [
            figure(allowed, Color::Green),
            figure(denied, Color::Red),
            figure(shadow, Color::Yellow),
            used,
            figure(units, Color::Green),
        ]
    }

    fn head(&self, is_low: bool) -> Vec<Line<'static>> {
        let first = self.first_line();
        let trouble = self.trouble.as_ref().map(|trouble| {
            let since = time(self.now.saturating_sub(trouble.since));
            let text = format!(" unreachable for {since}, retrying: ");
            Line::from(text + &shown(&trouble.error)).style(Style::new().fg(Color::Red).bold())
        });
        match (trouble, &self.live) {
            (Some(trouble), _) => vec![first, trouble],
            (None, Some(live)) if !is_low => {
                vec![first, store_line(live), listeners_line(live), self.sums_line(live)]
            }
            _ => vec![first],
        }
    }

    fn first_line(&self) -> Line<'static> {
        let mut spans = vec![Span::from(" Pacegate").bold()];
        match &self.live {
            None => spans.push(Span::from(format!(" at {}", shown(&self.server)))),
            Some(live) => {
                let up = uptime(live);
                let version = shown(&live.version);
                spans.push(Span::from(format!(" {version} at {}", shown(&self.server))));
                let text = format!("  up {}  revision {}", time(up), live.revision);
                spans.push(Span::from(text).dim());
                if live.draining {
                    spans.push(Span::from("  draining").fg(Color::Yellow));
                }
            }
        }
        if self.is_paused {
            spans.push(Span::from("  paused").fg(Color::Yellow).bold());
        }
        Line::from(spans)
    }

    fn sums_line(&self, live: &Live) -> Line<'static> {
        let (counts, seconds) = self.recent_of_all();
        let [allowed, denied, shadow, allowed_units, denied_units] =
            counts.map(|count| rate(count, seconds));
        let mut spans = vec![
            Span::from(format!(" allowed {allowed}/s ({allowed_units} units/s)")).fg(Color::Green),
            Span::from(format!("  denied {denied}/s ({denied_units} units/s)")).fg(Color::Red),
            Span::from(format!("  shadow {shadow}/s")).fg(Color::Yellow),
        ];
        if live.blocked_total > 0 {
            spans.push(Span::from(format!("  {} blocked", grouped(live.blocked_total))));
        }
        Line::from(spans)
    }
}

/// Returns the uptime of the server, by its clock.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped before the cast"
)]
pub(super) fn uptime(live: &Live) -> Duration {
    let now = live.now.clamp(0.0, 1e12) as u64;
    Duration::from_secs(now.saturating_sub(live.started))
}

/// Returns the limits of a policy as text.
pub(super) fn limits(policy: &Policy) -> String {
    let limits: Vec<_> = policy.limits.iter().map(|limit| shown(&limit.limit)).collect();
    let shadow = if policy.mode == "shadow" { " (shadow)" } else { "" };
    limits.join(", ") + shadow
}

/// Returns a one-line summary of the store.
pub(super) fn store(store: &Store) -> String {
    let kind = shown(&store.kind);
    match &*store.kind {
        "memory" => {
            let (keys, max_keys) = (grouped(store.keys), grouped(store.max_keys));
            let reserved = match store.reservations {
                0 => String::new(),
                1 => ", 1 open reservation".to_owned(),
                open => format!(", {} open reservations", grouped(open)),
            };
            format!("store memory, {keys} of {max_keys} keys{reserved}")
        }
        _ => {
            if let Some(outage) = &store.outage {
                return format!("store {kind} unreachable: {}", shown(outage));
            }
            let slowest = store.servers.iter().map(|server| server.round_trip).fold(0.0, f64::max);
            format!(
                "store {kind}, breaker {}, round trip {}, {} requests per call, {} timed out",
                shown(&store.breaker),
                seconds(slowest),
                rate(store.requests, store.calls),
                grouped(store.timed_out),
            )
        }
    }
}

/// Returns the connections of a listener, and its decision latency in the last minute.
pub(super) fn connections_and_latency(listener: &Listener) -> String {
    let latency = match (listener.latency.p50, listener.latency.p99) {
        (Some(p50), Some(p99)) => format!(", p50 {}, p99 {}", at_most(p50), at_most(p99)),
        _ => String::new(),
    };
    format!("{} connections{latency}", grouped(listener.connections))
}

fn listeners_line(live: &Live) -> Line<'static> {
    let text = live.listeners.iter().map(|listener| {
        format!(" {} {} ", shown(&listener.name), connections_and_latency(listener))
    });
    Line::from(text.collect::<String>()).dim()
}

fn store_line(live: &Live) -> Line<'static> {
    let line = Line::from(format!(" {}", store(&live.store)));
    let mut line = if live.store.reachable { line } else { line.fg(Color::Red).bold() };
    if let Some(complaint) = &live.reload_complaint {
        let text = format!("  reload failed: {}", shown(complaint));
        line.push_span(Span::from(text).fg(Color::Yellow));
    }
    line
}

fn foot_line() -> Line<'static> {
    let keys = ["q quit", "? help", "Tab pane", "s sort", "Space pause"];
    Line::from(format!(" {}", keys.join("  "))).dim()
}

fn length(width: Constraint) -> u16 {
    match width {
        Constraint::Length(length) => length,
        _ => 0,
    }
}

/// Colours bars by the worst outcome.
fn drawn(bars: &[Bar]) -> Line<'static> {
    let colour = |worst: Worst| match worst {
        Worst::Allowed => Color::Green,
        Worst::Shadow => Color::Yellow,
        Worst::Denied => Color::Red,
    };
    let pieces = bars.chunk_by(|one, other| one.worst == other.worst);
    let span = |piece: &[Bar]| {
        let text: String = piece.iter().map(|bar| bar.bar).collect();
        Span::from(text).fg(colour(piece.first().map(|bar| bar.worst).unwrap_or_default()))
    };
    Line::from(pieces.map(span).collect::<Vec<_>>())
}

fn draw_keys(live: &Live, keys: &[TopKey], skipped: usize, frame: &mut Frame<'_>, area: Rect) {
    let number = |count: u64, color: Color| {
        let line = Line::from(grouped(count)).right_aligned();
        Cell::from(if count > 0 { line.fg(color) } else { line.dim() })
    };
    let has_shadow = keys.iter().any(|top| outcomes(live, top)[2] > 0);
    let columns = if has_shadow { 3 } else { 2 };
    let name = keys.iter().map(|top| top.policy.len()).max().unwrap_or(0);
    let name = u16::try_from(name).unwrap_or(u16::MAX).clamp(6, area.width.max(24) / 4);
    let room = area.width.saturating_sub(8 * columns + name + 1);
    let row = |top: &TopKey| {
        let counts = outcomes(live, top).into_iter().zip([Color::Green, Color::Red, Color::Yellow]);
        let counts = counts.take(usize::from(columns)).map(|(count, color)| number(count, color));
        let key = Cell::from(fit(&key_name(&top.key), room));
        Row::new(counts.chain([key, Cell::from(fit(&shown(&top.policy), name)).dim()]))
    };
    let rows: Vec<_> = keys.iter().skip(skipped).map(row).collect();
    let figures = ["ALLOWED", "DENIED", "SHADOW"].into_iter().take(usize::from(columns));
    let heads = figures.map(|head| Line::from(head).right_aligned());
    let heads = heads.chain([Line::from("KEY"), Line::from("POLICY")]);
    let widths = (0..columns).map(|_| Constraint::Length(7));
    let widths = widths.chain([Constraint::Fill(1), Constraint::Length(name)]);
    let heads = Row::new(heads).style(Style::new().add_modifier(Modifier::DIM));
    frame.render_widget(Table::new(rows, widths).header(heads).column_spacing(1), area);
}

/// Returns the allowed, denied and shadow-denied requests of a key. A policy in shadow mode denies nothing.
pub(super) fn outcomes(live: &Live, top: &TopKey) -> [u64; 3] {
    let policy = live.policies.iter().find(|policy| policy.name == top.policy);
    match policy.is_some_and(|policy| policy.mode == "shadow") {
        true => [top.allowed, 0, top.denied],
        false => [top.allowed, top.denied, 0],
    }
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<_> = HELP
        .iter()
        .map(|(keys, what)| Line::from(vec![format!(" {keys:<11}").bold(), Span::from(*what)]))
        .collect();
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let width = 58.min(area.width);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" Help (press any key to close) ");
    frame.render_widget(Paragraph::new(lines).block(block), place);
}
