//! Plots of counts over time.

use crate::{
    svg::{self, Font, Line, Point, Svg},
    traffic::SPAN,
};

/// A coordinate system with time from left to right and counts from bottom to top, in tenths of a pixel.
#[derive(Clone, Copy)]
pub(crate) struct Plot {
    pub left: i64,
    pub right: i64,
    /// Position of the count 0.
    pub base: i64,
    /// Height of one.
    pub unit: i64,
}

impl Plot {
    pub(crate) fn x(&self, at: u64) -> i64 {
        self.left + (self.right - self.left) * at.min(SPAN) as i64 / SPAN as i64
    }

    pub(crate) fn y(&self, count: i64) -> i64 {
        self.base - count * self.unit
    }

    /// Returns the corners of a step line.
    fn corners(&self, steps: &[(u64, i64)]) -> Vec<Point> {
        let mut corners: Vec<Point> = Vec::new();
        for &(at, count) in steps {
            if let Some(last) = corners.last().copied() {
                corners.push((self.x(at), last.1));
            }
            corners.push((self.x(at), self.y(count)));
        }
        if let Some(last) = corners.last().copied() {
            corners.push((self.right, last.1));
        }
        corners
    }

    /// Draws the time axis, with a mark for each second.
    pub(crate) fn axis(&self, svg: &mut Svg, every: u64) {
        svg.line((self.left, self.base), (self.right, self.base), Line::Axis);
        for second in (0..=SPAN / 1_000).step_by(every as usize) {
            let x = self.x(second * 1_000);
            svg.line((x, self.base), (x, self.base + 50), Line::Axis);
            svg.text((x, self.base + 190), Font::NOTE.middle(), &format!("{second} s"));
        }
    }

    /// Draws a count as a step line, the limit, and the area above the limit.
    pub(crate) fn count(&self, svg: &mut Svg, steps: &[(u64, i64)], limit: i64) {
        for (place, &(at, count)) in steps.iter().enumerate() {
            let until = steps.get(place + 1).map_or(SPAN, |next| next.0);
            if count > limit && until > at {
                let (left, right) = (self.x(at), self.x(until));
                let (top, bottom) = (self.y(count), self.y(limit));
                svg.area(
                    &[(left, top), (right, top), (right, bottom), (left, bottom)],
                    svg::EXCESS,
                );
            }
        }
        svg.line((self.left, self.y(limit)), (self.right, self.y(limit)), Line::Limit);
        svg.path(&self.corners(steps), svg::ALLOWED);
    }

    /// Writes a text above the first maximum of the count.
    pub(crate) fn peak(&self, svg: &mut Svg, steps: &[(u64, i64)], text: &str) {
        let (at, count) = highest(steps);
        let half = text.chars().count() as i64 * 31;
        let middle = self.x(at).clamp(self.left + half, self.right - half);
        let y = self.y(count);
        svg.text((middle, y - 110), Font::SAYS.middle(), &format!("{count} {text}"));
        svg.line((self.x(at), y - 70), (self.x(at), y - 20), Line::Mark);
    }
}

/// Returns the highest count and when it is first reached.
pub(crate) fn highest(steps: &[(u64, i64)]) -> (u64, i64) {
    steps.iter().fold((0, 0), |best, &step| if step.1 > best.1 { step } else { best })
}
