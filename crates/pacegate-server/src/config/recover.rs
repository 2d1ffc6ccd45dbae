//! Reports all unknown fields, wrong types and similar mistakes in a YAML file, not only the first.
//!
//! The parser stops at the first mistake. This module then overwrites the entry that has the mistake with spaces and
//! parses the file again. Spaces keep the line and column of everything else.

use std::ops::Range;

use serde::de::DeserializeOwned;
use serde_saphyr::{Error, Location};

use super::{ConfigError, problem::Problems, yaml};

/// Maximum size of a file that is parsed again after a mistake. For a larger file, only the first mistake is reported,
/// because each further one takes another pass.
const MAX_RECOVERED_BYTES: usize = 1024 * 1024;

/// Maximum number of passes. A mistake takes up to two: one for the mistake, and one for the parent entry if it is
/// invalid after the removal.
const MAX_PASSES: usize = 2 * ConfigError::MAX_PROBLEMS;

/// An entry of a block map or an item of a block list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockNode {
    /// The column of its first character, from 0.
    indent: usize,
    /// Its lines, from 0.
    lines: Range<usize>,
}

/// Parses one document without the entries that have mistakes, and adds the mistakes to `problems`. After an error in
/// the syntax of YAML, parses the text before the entry that has it. Returns `None` if this does not help.
pub(super) fn parse<T: DeserializeOwned>(text: &str, problems: &mut Problems<'_>) -> Option<T> {
    let mut text = text.to_owned();
    let mut removed: Vec<Range<usize>> = Vec::new();
    let mut is_cut = false;
    for _ in 0..MAX_PASSES {
        let error = match serde_saphyr::from_str_with_options(&text, yaml::options()) {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let error = error.without_snippet();
        let location = error.location().unwrap_or(Location::UNKNOWN);
        let kind = ErrorKind::of(error);
        if kind == ErrorKind::Syntax && is_cut {
            // The cause is further up. Parts of it would be reported as other mistakes.
            return None;
        }
        let node = find(&text, location, kind);
        let is_consequence = node
            .as_ref()
            .is_some_and(|node| removed.iter().any(|lines| node.lines.contains(&lines.start)));
        if !is_consequence {
            problems.add(location, yaml::message(error));
        }
        is_cut |= kind == ErrorKind::Syntax;
        let node = node.filter(|_| text.len() <= MAX_RECOVERED_BYTES)?;
        text = node.blank(&text);
        removed.push(node.lines);
    }
    None
}

/// The part of the file that an error concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorKind {
    /// The entry at its location.
    Entry,
    /// The entry that lacks a field.
    Parent,
    /// The rest of the file.
    Syntax,
    /// The whole file, such as a size.
    File,
}

impl ErrorKind {
    fn of(error: &Error) -> Self {
        match error {
            Error::SerdeMissingField { .. } => Self::Parent,
            Error::SerdeUnknownField { .. }
            | Error::SerdeUnknownVariant { .. }
            | Error::SerdeInvalidType { .. }
            | Error::DuplicateMappingKey { .. }
            | Error::Unexpected { .. }
            | Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
            | Error::NullIntoString { .. }
            | Error::InvalidBooleanStrict { .. }
            | Error::InvalidScalar { .. }
            | Error::UnsupportedTag { .. }
            | Error::Message { .. } => Self::Entry,
            Error::Budget { .. } | Error::MultipleDocuments { .. } => Self::File,
            _ => Self::Syntax,
        }
    }
}

/// Returns the entry to remove because of an error, or `None` if a removal cannot help.
fn find(text: &str, location: Location, kind: ErrorKind) -> Option<BlockNode> {
    let line = usize::try_from(location.line()).ok()?.checked_sub(1)?;
    let column = usize::try_from(location.column()).ok()?.checked_sub(1)?;
    let lines: Vec<&str> = text.lines().collect();
    match kind {
        ErrorKind::File => None,
        ErrorKind::Parent => BlockNode::parent(&lines, line, column)?.outside_braces(&lines),
        ErrorKind::Entry => BlockNode::at(&lines, line, column)?.outside_braces(&lines),
        ErrorKind::Syntax => {
            let outside = outside_braces(&lines);
            let start = (0..lines.len().min(line + 1))
                .rev()
                .find(|line| outside[*line] && !starts(lines[*line]).is_empty())?;
            let indent = entry_start(lines[start])?;
            Some(BlockNode { indent, lines: start..lines.len() })
        }
    }
}

/// Returns for each line, and for the end of the text, whether no bracket or brace is open before it.
fn outside_braces(lines: &[&str]) -> Vec<bool> {
    let mut sum = 0;
    let after = lines.iter().map(|line| {
        sum += depth(line);
        sum == 0
    });
    std::iter::once(true).chain(after).collect()
}

/// Returns how many more brackets and braces a line opens than it closes.
fn depth(line: &str) -> isize {
    let line = line.split(" #").next().unwrap_or_default();
    let count = |chars: [char; 2]| isize::try_from(line.matches(chars).count()).unwrap_or(0);
    count(['{', '[']) - count(['}', ']'])
}

impl BlockNode {
    /// Returns the innermost entry or item that begins on this line, at this column or before.
    fn at(lines: &[&str], line: usize, column: usize) -> Option<Self> {
        let starts = starts(lines.get(line)?);
        let start = starts.iter().rev().find(|start| **start <= column).or(starts.first());
        Some(Self::new(lines, line, *start?))
    }

    /// Returns the entry or item that contains the one at this position.
    fn parent(lines: &[&str], line: usize, column: usize) -> Option<Self> {
        let indent = Self::at(lines, line, column)?.indent;
        for line in (0..=line).rev() {
            let outer = starts(lines[line]).into_iter().rev().find(|start| *start < indent);
            if let Some(start) = outer {
                return Some(Self::new(lines, line, start));
            }
        }
        None
    }

    fn new(lines: &[&str], line: usize, indent: usize) -> Self {
        let is_item = is_item_at(lines[line], indent);
        let belongs = |line: &&&str| match starts(line).first() {
            None => true,
            // The items of a list may have the same indentation as its field.
            Some(&start) => {
                start > indent || (start == indent && !is_item && is_item_at(line, start))
            }
        };
        let end = line + 1 + lines[line + 1..].iter().take_while(belongs).count();
        Self { indent, lines: line..end }
    }

    /// Returns the node itself, or the entry around the multi-line braces that it is part of: a line inside of them
    /// looks like a block entry, but cannot be removed from them.
    fn outside_braces(self, lines: &[&str]) -> Option<Self> {
        let outside = outside_braces(lines);
        if outside[self.lines.start] && outside[self.lines.end] {
            return Some(self);
        }
        let start = (0..=self.lines.start).rev().find(|line| outside[*line])?;
        let end = (self.lines.end..=lines.len()).find(|line| outside[*line])?;
        let node = Self::new(lines, start, entry_start(lines[start])?);
        Some(Self { lines: start..node.lines.end.max(end), ..node })
    }

    /// Overwrites the node with spaces.
    fn blank(&self, text: &str) -> String {
        let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
        for number in self.lines.clone() {
            let Some(line) = lines.get_mut(number) else { break };
            let kept = if number == self.lines.start { self.indent } else { 0 };
            *line = line[..kept.min(line.len())].to_owned()
                + &" ".repeat(line.len().saturating_sub(kept));
        }
        lines.join("\n")
    }
}

fn is_item_at(line: &str, start: usize) -> bool {
    let rest = &line[start..];
    rest.starts_with("- ") || rest.trim_end() == "-"
}

/// Returns the column of the innermost entry or item on a line. Braces are the value of the item before them.
fn entry_start(line: &str) -> Option<usize> {
    let starts = starts(line);
    let is_entry = |start: &&usize| !line[**start..].starts_with(['{', '[']);
    starts.iter().rev().find(is_entry).or(starts.first()).copied()
}

/// Returns the columns at which items and entries begin on a line: 2 and 4 for `  - name: a`. A blank line or a comment
/// has none.
fn starts(line: &str) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut place = 0;
    loop {
        let rest = line[place..].trim_start_matches(' ');
        place = line.len() - rest.len();
        if rest.trim_end().is_empty() || rest.starts_with('#') {
            return starts;
        }
        starts.push(place);
        match rest.strip_prefix("- ") {
            Some(_) => place += 2,
            None => return starts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_items_begin_after_dashes() {
        assert_eq!(starts("  - name: a"), [2, 4]);
        assert_eq!(starts("- - a"), [0, 2, 4]);
        assert_eq!(starts("name: - a"), [0]);
        assert!(starts("   ").is_empty() && starts("  # - a").is_empty());
    }

    #[test]
    fn a_node_ends_where_the_next_one_begins() {
        let text = "a:\n  b: 1\n\n  c: 2\nd:\n- e: 1\n  f: 2\n- g\nh: 1";
        let lines: Vec<_> = text.lines().collect();
        let node = |line, column| BlockNode::at(&lines, line, column).unwrap().lines;
        assert_eq!([node(0, 0), node(1, 5), node(4, 0)], [0..4, 1..3, 4..8]);
        assert_eq!([node(5, 0), node(5, 2), node(6, 5)], [5..7, 5..6, 6..7]);
        let parent = |line, column| BlockNode::parent(&lines, line, column).unwrap();
        assert_eq!(parent(3, 2), BlockNode { indent: 0, lines: 0..4 });
        assert_eq!(parent(5, 2), BlockNode { indent: 0, lines: 5..7 });
        let blank = BlockNode::at(&lines, 5, 2).unwrap().blank(text);
        assert_eq!(blank, text.replace("- e: 1", "-     "));
        assert_eq!(blank.len(), text.len());
    }
}
