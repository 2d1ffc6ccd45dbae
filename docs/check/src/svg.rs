//! A minimal SVG writer. Coordinates are whole tenths of a pixel, so that every run writes the same bytes.

use std::fmt::Write;

const INK: &str = "#24292f";
const FAINT: &str = "#6e7781";
pub(crate) const ALLOWED: &str = "#0b6bb5";
const DENIED: &str = "#b3361e";
pub(crate) const EXCESS: &str = "#f6cfa6";
/// Attributes for the outline of a text.
const RIM: &str = r##"stroke="#ffffff" stroke-width="4" paint-order="stroke""##;

/// A point, in tenths of a pixel.
pub(crate) type Point = (i64, i64);

pub(crate) struct Svg {
    width: i64,
    height: i64,
    body: String,
}

/// The style of a text, and its alignment to its point.
#[derive(Clone, Copy)]
pub(crate) struct Font {
    size: i64,
    colour: &'static str,
    anchor: &'static str,
}

impl Font {
    pub(crate) const NOTE: Self = Self { size: 12, colour: FAINT, anchor: "start" };
    pub(crate) const LABEL: Self = Self { colour: INK, ..Self::NOTE };
    pub(crate) const SAYS: Self = Self { size: 13, ..Self::LABEL };

    pub(crate) const fn middle(self) -> Self {
        Self { anchor: "middle", ..self }
    }

    pub(crate) const fn end(self) -> Self {
        Self { anchor: "end", ..self }
    }
}

/// The meaning of a straight line.
#[derive(Clone, Copy)]
pub(crate) enum Line {
    Axis,
    Mark,
    Limit,
    Boundary,
}

impl Svg {
    /// Creates a white card of this size in pixels.
    pub(crate) fn new(width: i64, height: i64, title: &str, description: &str) -> Self {
        let mut svg = Self { width, height, body: String::new() };
        svg.line_of(&format!("<title>{}</title>", escape(title)));
        svg.line_of(&format!("<desc>{}</desc>", escape(description)));
        let (w, h) = (width - 1, height - 1);
        svg.line_of(&format!(
            r##"<rect x="0.5" y="0.5" width="{w}" height="{h}" rx="10" fill="#ffffff" stroke="#d0d7de"/>"##
        ));
        svg
    }

    /// Writes a text with a white outline, so that it is readable above lines.
    pub(crate) fn text(&mut self, at: Point, font: Font, text: &str) {
        let (x, y, text) = (px(at.0), px(at.1), escape(text));
        let Font { size, colour, anchor } = font;
        self.line_of(&format!(
            r##"<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" {RIM}>{text}</text>"##
        ));
    }

    pub(crate) fn heading(&mut self, at: Point, size: i64, text: &str) {
        let (x, y, text) = (px(at.0), px(at.1), escape(text));
        self.line_of(&format!(
            r#"<text x="{x}" y="{y}" font-size="{size}" font-weight="bold" fill="{INK}">{text}</text>"#
        ));
    }

    pub(crate) fn line(&mut self, from: Point, to: Point, line: Line) {
        let (colour, dash) = match line {
            Line::Axis => (FAINT, ""),
            Line::Mark => (INK, ""),
            Line::Limit => (INK, r#" stroke-dasharray="7 4""#),
            Line::Boundary => (FAINT, r#" stroke-dasharray="2 3""#),
        };
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(px);
        self.line_of(&format!(
            r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"{dash}/>"#
        ));
    }

    /// Draws a line through all points.
    pub(crate) fn path(&mut self, points: &[Point], colour: &str) {
        let points = points_text(points);
        self.line_of(&format!(
            r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>"#
        ));
    }

    pub(crate) fn area(&mut self, points: &[Point], colour: &str) {
        let points = points_text(points);
        self.line_of(&format!(
            r#"<polygon points="{points}" fill="{colour}" shape-rendering="crispEdges"/>"#
        ));
    }

    pub(crate) fn bar(&mut self, at: Point, size: Point, colour: &str) {
        let [x, y, width, height] = [at.0, at.1, size.0, size.1].map(px);
        self.line_of(&format!(
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="2" fill="{colour}"/>"#
        ));
    }

    /// Draws an allowed request: a filled circle.
    pub(crate) fn allowed(&mut self, at: Point) {
        let (x, y) = (px(at.0), px(at.1));
        self.line_of(&format!(r#"<circle cx="{x}" cy="{y}" r="4" fill="{ALLOWED}"/>"#));
    }

    /// Draws a denied request: a cross.
    pub(crate) fn denied(&mut self, at: Point) {
        let [left, right, top, bottom] = [at.0 - 33, at.0 + 33, at.1 - 33, at.1 + 33].map(px);
        let cross = format!("M{left} {top}L{right} {bottom}M{left} {bottom}L{right} {top}");
        self.line_of(&format!(r#"<path d="{cross}" stroke="{DENIED}" stroke-width="1.8"/>"#));
    }

    pub(crate) fn finish(self) -> String {
        let Self { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" font-family=\"sans-serif\">\n{body}</svg>\n"
        )
    }

    fn line_of(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }
}

fn points_text(points: &[Point]) -> String {
    let mut text = String::new();
    for (place, point) in points.iter().enumerate() {
        let space = if place > 0 { " " } else { "" };
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{space}{},{}", px(point.0), px(point.1));
    }
    text
}

fn px(tenths: i64) -> String {
    match (tenths / 10, tenths % 10) {
        (whole, 0) => whole.to_string(),
        (whole, part) => format!("{whole}.{part}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
