//! `cargo xtask screen`: draws a terminal recording of `tmux capture-pane -e -p` as SVG.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Read},
    path::Path,
};

use anyhow::Context;

/// The style of characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Look {
    /// One of the first eight colours.
    colour: Option<usize>,
    is_bold: bool,
    is_dim: bool,
}

/// Adjacent characters with the same style, and the column of the first one.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    column: usize,
    look: Look,
    text: String,
}

/// Chosen for the background below.
const COLOURS: [&str; 8] =
    ["#3a3f4b", "#f0716b", "#6fc276", "#e0b04f", "#6ea8fe", "#c792ea", "#56c2c9", "#d7dae0"];
const GROUND: &str = "#16181d";
const TEXT: &str = "#d7dae0";

/// In tenths of SVG units, to avoid fractions.
const COLUMN: usize = 84;
const LINE: usize = 180;
const EDGE: usize = 120;

/// Reads a recording from standard input and draws it into `file`.
pub(crate) fn run(file: &Path) -> anyhow::Result<()> {
    let mut recording = String::new();
    io::stdin().read_to_string(&mut recording).context("cannot read the recording")?;
    fs::write(file, drawn(&recording)).with_context(|| format!("cannot write {}", file.display()))
}

fn drawn(recording: &str) -> String {
    let mut look = Look::default();
    let lines: Vec<_> = recording.trim_end().lines().map(|line| runs(line, &mut look)).collect();
    let end = |run: &Run| run.column + run.text.chars().count();
    let columns = lines.iter().flatten().map(end).max().unwrap_or(0);
    let (width, height) = (columns * COLUMN + 2 * EDGE, lines.len() * LINE + 2 * EDGE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" \
         font-size=\"14\" xml:space=\"preserve\">\n<rect width=\"100%\" height=\"100%\" rx=\"8\" \
         fill=\"{GROUND}\"/>\n",
        tenths(width),
        tenths(height),
    );
    for (number, run) in
        lines.iter().zip(1..).flat_map(|(runs, number)| runs.iter().map(move |run| (number, run)))
    {
        draw(&mut svg, number, run);
    }
    svg + "</svg>\n"
}

fn draw(svg: &mut String, line: usize, run: &Run) {
    let Run { column, look, text } = run;
    let text = text.trim_end();
    let blank = text.chars().take_while(|next| *next == ' ').count();
    let text = text.trim_start();
    if text.is_empty() {
        return;
    }
    let (x, y) = (EDGE + (column + blank) * COLUMN, EDGE + line * LINE - 50);
    let length = text.chars().count() * COLUMN;
    let fill = look.colour.and_then(|colour| COLOURS.get(colour)).unwrap_or(&TEXT);
    let bold = if look.is_bold { " font-weight=\"bold\"" } else { "" };
    let dim = if look.is_dim { " opacity=\"0.6\"" } else { "" };
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // `textLength` keeps each character in its column, with any font.
    let place =
        format!("x=\"{}\" y=\"{}\" textLength=\"{}\"", tenths(x), tenths(y), tenths(length));
    // Writing to a `String` cannot fail.
    let _ = writeln!(svg, "<text {place} fill=\"{fill}\"{bold}{dim}>{text}</text>");
}

fn tenths(number: usize) -> String {
    match number % 10 {
        0 => (number / 10).to_string(),
        rest => format!("{}.{rest}", number / 10),
    }
}

/// Splits a line into runs. The style at its end is the style at the start of the next line.
fn runs(line: &str, look: &mut Look) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let (mut column, mut rest) = (0, line.chars());
    while let Some(next) = rest.next() {
        if next == '\u{1b}' {
            let sequence: String = rest.by_ref().take_while(|next| *next != 'm').collect();
            let numbers = sequence.trim_start_matches('[').split(';');
            look.change(&numbers.map(|number| number.parse().unwrap_or(0)).collect::<Vec<_>>());
            continue;
        }
        // Several spaces would be drawn as one, so text after them starts a new run.
        let is_far = |run: &Run| run.text.ends_with("  ") && next != ' ';
        match runs.last_mut().filter(|run| run.look == *look && !is_far(run)) {
            Some(run) => run.text.push(next),
            None => runs.push(Run { column, look: *look, text: next.to_string() }),
        }
        column += 1;
    }
    runs
}

impl Look {
    fn change(&mut self, numbers: &[usize]) {
        let mut rest = numbers;
        while let [number, after @ ..] = rest {
            rest = after;
            match *number {
                0 => *self = Self::default(),
                1 => self.is_bold = true,
                2 => self.is_dim = true,
                22 => (self.is_bold, self.is_dim) = (false, false),
                30..=37 => self.colour = Some(number - 30),
                38 if let [5, colour, after @ ..] = after => {
                    (self.colour, rest) = (Some(*colour), after);
                }
                39 => self.colour = None,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_columns_are_parsed() {
        let mut look = Look::default();
        let plain = Look::default();
        let red = Look { colour: Some(1), is_bold: true, is_dim: false };
        let run = |column, look, text: &str| Run { column, look, text: text.to_owned() };
        assert_eq!(
            runs("ab\u{1b}[1;31mcd\u{1b}[0m e", &mut look),
            [run(0, plain, "ab"), run(2, red, "cd"), run(4, plain, " e")]
        );
        let wide = runs("a   b c", &mut Look::default());
        assert_eq!(wide, [run(0, plain, "a   "), run(4, plain, "b c")]);
        let green = runs("\u{1b}[38;5;2mx", &mut Look::default());
        assert_eq!(green[0].look, Look { colour: Some(2), ..plain });
        assert_eq!(runs("\u{1b}[2mx", &mut look)[0].look, Look { is_dim: true, ..plain });
        assert_eq!(runs("y\u{1b}[39m", &mut look)[0].look, Look { is_dim: true, ..plain });
    }

    #[test]
    fn a_recording_is_drawn_as_svg() {
        let svg = drawn("a\u{1b}[32m  <b>\u{1b}[39m\n\n c\n\n");
        assert!(
            svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 74.4 78\"")
        );
        let a = "<text x=\"12\" y=\"25\" textLength=\"8.4\" fill=\"#d7dae0\">a</text>\n";
        let b = "<text x=\"37.2\" y=\"25\" textLength=\"25.2\" fill=\"#6fc276\">&lt;b&gt;</text>\n";
        let c = "<text x=\"20.4\" y=\"61\" textLength=\"8.4\" fill=\"#d7dae0\">c</text>\n</svg>\n";
        assert!(svg.ends_with(&[a, b, c].concat()), "{svg}");
    }
}
