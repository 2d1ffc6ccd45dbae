//! The state of the display, and how keys change it.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::data::{Live, Policy};

/// The last data from a server, and the display settings.
#[derive(Debug)]
pub struct View {
    pub(super) server: String,
    pub(super) live: Option<Live>,
    seconds: Seconds,
    pub(super) pane: Pane,
    pub(super) order: Order,
    pub(super) scroll: usize,
    pub(super) is_paused: bool,
    pub(super) has_help: bool,
    pub(super) trouble: Option<ConnectionError>,
    /// Time since the view was opened.
    pub(super) now: Duration,
}

/// The counts of each policy in the last minutes.
#[derive(Debug, Default)]
pub(super) struct Seconds {
    /// End of the last second, in seconds since the Unix epoch; 0 if there is no data.
    end: u64,
    length: usize,
    /// By policy, all of equal length.
    policies: HashMap<String, VecDeque<SecondCounts>>,
}

/// The error of the last request for data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConnectionError {
    /// Time since the view was opened when the errors began.
    pub(super) since: Duration,
    pub(super) error: String,
}

/// The panes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pane {
    Policies,
    Traffic,
    Denied,
}

/// The sort order of policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    File,
    Allowed,
    Denied,
    Shadow,
    Used,
    Name,
}

/// The counts of a second: allowed, denied and shadow-denied requests, allowed and denied units.
type SecondCounts = [u32; KINDS];
const KINDS: usize = 5;

/// Length of the history, in seconds.
pub(super) const MAX_SECONDS: usize = 300;

/// Number of seconds that rates are averaged over.
const RATE: usize = 5;

impl View {
    /// Creates a view of the server at this address, without data yet.
    pub fn new(server: String) -> Self {
        Self {
            server,
            live: None,
            seconds: Seconds::default(),
            pane: Pane::Policies,
            order: Order::File,
            scroll: 0,
            is_paused: false,
            has_help: false,
            trouble: None,
            now: Duration::ZERO,
        }
    }

    /// Returns the time up to which the history is complete.
    pub fn since(&self) -> u64 {
        self.seconds.end
    }

    /// Stores new data. If the server was restarted, drops the old history.
    pub fn take(&mut self, live: Live) {
        let is_new = self.live.as_ref().is_some_and(|known| known.started != live.started);
        if is_new {
            self.seconds = Seconds::default();
        }
        self.seconds.take(&live);
        self.live = Some(live);
        self.trouble = None;
    }

    /// Records that the request for data failed.
    pub fn fail(&mut self, error: String) {
        let since = self.trouble.take().map_or(self.now, |trouble| trouble.since);
        self.trouble = Some(ConnectionError { since, error });
    }

    /// Advances the clock of the view.
    pub fn pass(&mut self, now: Duration) {
        self.now = now;
    }

    /// Returns true if new data should be fetched.
    pub fn wants_more(&self) -> bool {
        !self.is_paused
    }

    /// Handles a key press. Returns `true` if the program should end.
    pub fn press(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => return true,
            _ if self.has_help => self.has_help = false,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('?' | 'h') => self.has_help = true,
            KeyCode::Char(' ' | 'p') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Tab => self.look_at(self.pane.next()),
            KeyCode::BackTab => self.look_at(self.pane.next().next()),
            KeyCode::Char('1') => self.look_at(Pane::Policies),
            KeyCode::Char('2') => self.look_at(Pane::Traffic),
            KeyCode::Char('3') => self.look_at(Pane::Denied),
            KeyCode::Down | KeyCode::Char('j') => self.scroll_to(self.scroll + 1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll_to(self.scroll.saturating_sub(1)),
            KeyCode::PageDown => self.scroll_to(self.scroll + 10),
            KeyCode::PageUp => self.scroll_to(self.scroll.saturating_sub(10)),
            KeyCode::Home | KeyCode::Char('g') => self.scroll = 0,
            KeyCode::End | KeyCode::Char('G') => self.scroll_to(usize::MAX),
            _ => {}
        }
        false
    }

    fn look_at(&mut self, pane: Pane) {
        self.pane = pane;
        self.scroll = 0;
    }

    fn scroll_to(&mut self, line: usize) {
        let lines = self.live.as_ref().map_or(0, |live| match self.pane {
            Pane::Policies => live.policies.len(),
            Pane::Traffic => live.busiest.len(),
            Pane::Denied => live.most_denied.len(),
        });
        self.scroll = line.min(lines.saturating_sub(1));
    }

    /// Returns the policies in the chosen order.
    pub(super) fn policies(&self) -> Vec<&Policy> {
        let mut all: Vec<_> = self.live.iter().flat_map(|live| &live.policies).collect();
        let rate = |policy: &Policy, kind: usize| u64::MAX - self.recent(&policy.name).0[kind];
        match self.order {
            Order::File => {}
            Order::Allowed => all.sort_by_key(|policy| rate(policy, 0)),
            Order::Denied => all.sort_by_key(|policy| rate(policy, 1)),
            Order::Shadow => all.sort_by_key(|policy| rate(policy, 2)),
            Order::Used => {
                let used = |policy: &Policy| policy.used.unwrap_or(-1.0);
                all.sort_by(|one, other| used(other).total_cmp(&used(one)));
            }
            Order::Name => all.sort_by(|one, other| one.name.cmp(&other.name)),
        }
        all
    }

    /// Returns the counts of a policy in the last few seconds, and the number of these seconds.
    pub(super) fn recent(&self, policy: &str) -> ([u64; KINDS], u64) {
        let mut sums = [0; KINDS];
        let seconds = self.seconds.of(policy).map_or(0, |seconds| {
            for counts in seconds.iter().rev().take(RATE) {
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += u64::from(*count));
            }
            seconds.len().min(RATE) as u64
        });
        (sums, seconds)
    }

    /// Returns the counts of all policies in the last few seconds, and the number of these seconds.
    pub(super) fn recent_of_all(&self) -> ([u64; KINDS], u64) {
        let mut sums = [0_u64; KINDS];
        for name in self.seconds.policies.keys() {
            let counts = self.recent(name).0;
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        (sums, self.seconds.length.min(RATE) as u64)
    }

    /// Returns the allowed, denied and shadow-denied requests of a policy per second, and the end of the last second.
    pub(super) fn history(&self, policy: &str) -> (Vec<[u32; 3]>, u64) {
        let seconds = self.seconds.of(policy).map(|seconds| {
            let requests =
                seconds.iter().map(|&[allowed, denied, shadow, ..]| [allowed, denied, shadow]);
            requests.collect()
        });
        (seconds.unwrap_or_default(), self.seconds.end)
    }
}

impl Seconds {
    fn of(&self, policy: &str) -> Option<&VecDeque<SecondCounts>> {
        self.policies.get(policy)
    }

    /// Appends new seconds. Gaps are filled with zeros; if the clock went back, the history starts over.
    fn take(&mut self, live: &Live) {
        let history = &live.history;
        let length = history.length.min(MAX_SECONDS);
        let first = history.from.saturating_add((history.length - length) as u64);
        if length == 0 && first <= self.end {
            // The server's clock went back. Reset, so that the next response contains the whole history.
            *self = Self::default();
        }
        if length > 0 {
            if first <= self.end {
                *self = Self::default();
            }
            let gap = if self.length == 0 { 0 } else { first - self.end - 1 };
            let gap = usize::try_from(gap).unwrap_or(MAX_SECONDS).min(MAX_SECONDS);
            self.append(live, gap, length);
            self.end = first.saturating_add(length as u64 - 1);
        }
        self.policies.retain(|name, _| live.policies.iter().any(|policy| policy.name == *name));
    }

    fn append(&mut self, live: &Live, gap: usize, length: usize) {
        for policy in &live.policies {
            let known = self.policies.entry(policy.name.clone()).or_default();
            if known.len() < self.length {
                known.resize(self.length, [0; KINDS]);
            }
        }
        let skipped = live.history.length - length;
        let total = self.length + gap + length;
        for (name, known) in &mut self.policies {
            known.resize(known.len() + gap, [0; KINDS]);
            let counts = live.history.policies.get(name);
            let at = |list: &Vec<u32>, place: usize| list.get(place).copied().unwrap_or(0);
            known.extend((skipped..skipped + length).map(|place| {
                counts.map_or([0; KINDS], |counts| {
                    let requests = [&counts.allowed, &counts.denied, &counts.shadow_denied];
                    let units = [&counts.allowed_units, &counts.denied_units];
                    let [allowed, denied, shadow] = requests.map(|list| at(list, place));
                    let [allowed_units, denied_units] = units.map(|list| at(list, place));
                    [allowed, denied, shadow, allowed_units, denied_units]
                })
            }));
            known.drain(..known.len().saturating_sub(MAX_SECONDS));
        }
        self.length = total.min(MAX_SECONDS);
    }
}

impl Pane {
    fn next(self) -> Self {
        match self {
            Self::Policies => Self::Traffic,
            Self::Traffic => Self::Denied,
            Self::Denied => Self::Policies,
        }
    }
}

impl Order {
    fn next(self) -> Self {
        match self {
            Self::File => Self::Denied,
            Self::Denied => Self::Allowed,
            Self::Allowed => Self::Shadow,
            Self::Shadow => Self::Used,
            Self::Used => Self::Name,
            Self::Name => Self::File,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::File => "in file order",
            Self::Allowed => "by allowed",
            Self::Denied => "by denied",
            Self::Shadow => "by shadow",
            Self::Used => "by used",
            Self::Name => "by name",
        }
    }
}
