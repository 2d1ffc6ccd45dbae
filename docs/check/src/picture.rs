//! The images: one per algorithm, and one that compares them.

use std::{collections::HashMap, error::Error};

use crate::{
    plot::{Plot, highest},
    svg::{self, Font, Line, Svg},
    traffic::{self, Asked, PERIOD},
};

/// File names and contents.
pub(crate) type Pictures = Vec<(&'static str, String)>;

struct Sheet {
    file: &'static str,
    name: &'static str,
    limit: &'static str,
    /// Description of the image, without the counts.
    says: &'static str,
    /// Label of the highest count, after the count.
    peak: &'static str,
    /// True if the algorithm has windows.
    windows: bool,
}

const AMOUNT: i64 = 10;

const SHEETS: [Sheet; 4] = [
    Sheet {
        file: "fixed-window.svg",
        name: "fixed-window",
        limit: "10/10s",
        says: "The amount of one window is used just before the boundary, that of the next one just after it.",
        peak: "admitted within 10 s: twice the amount, across one boundary",
        windows: true,
    },
    Sheet {
        file: "sliding-window.svg",
        name: "sliding-window",
        limit: "10/10s sliding-window",
        says: "Nothing is admitted just after the boundary; \
               then the previous window fades, and about one request per second is admitted.",
        peak: "admitted within 10 s: above the limit, but never twice the amount",
        windows: true,
    },
    Sheet {
        file: "sliding-log.svg",
        name: "sliding-log",
        limit: "10/10s sliding-log",
        says: "A unit is free again exactly one period after it was taken.",
        peak: "admitted within 10 s, and never more",
        windows: false,
    },
    Sheet {
        file: "token-bucket.svg",
        name: "token-bucket",
        limit: "1/second burst 10",
        says: "The burst at once, then one each second.",
        peak: "admitted within 10 s: the burst plus the refill of 10 s",
        windows: false,
    },
];

pub(crate) fn all() -> Result<Pictures, Box<dyn Error>> {
    let mut pictures = Vec::new();
    for sheet in &SHEETS {
        pictures.push((sheet.file, one(sheet)?));
    }
    pictures.push(("concurrency.svg", concurrency()?));
    pictures.push(("algorithms.svg", side_by_side()?));
    Ok(pictures)
}

/// Draws a mark for each request. Requests of the same half second are stacked, the first at the bottom.
fn requests(svg: &mut Svg, plot: &Plot, asked: &[Asked]) {
    let mut columns: HashMap<u64, i64> = HashMap::new();
    for one in asked {
        let column = one.at / 500;
        let height = columns.entry(column).or_default();
        let at = (plot.x(column * 500 + 250), plot.base - 60 - 100 * *height);
        *height += 1;
        if one.allowed { svg.allowed(at) } else { svg.denied(at) }
    }
}

fn legend(svg: &mut Svg, y: i64, windows: bool) {
    svg.allowed((340, y - 42));
    svg.text((430, y), Font::LABEL, "allowed");
    svg.denied((1_090, y - 42));
    svg.text((1_180, y), Font::LABEL, "denied");
    svg.line((1_790, y - 42), (2_020, y - 42), Line::Limit);
    svg.text((2_100, y), Font::LABEL, "limit");
    if windows {
        svg.line((2_630, y - 100), (2_630, y + 20), Line::Boundary);
        svg.text((2_710, y), Font::LABEL, "window boundary");
    }
}

const TRAFFIC: &str =
    "Traffic: 12 requests just before 10 s, 12 just after, and from 13 s on two per second.";

fn one(sheet: &Sheet) -> Result<String, Box<dyn Error>> {
    let asked = traffic::ask(sheet.limit)?;
    let steps = traffic::trailing(&asked);
    let top = highest(&steps).1;
    let title = format!("{}: {}", sheet.name, sheet.limit);
    let describes = format!(
        "{TRAFFIC} {} At most {top} requests are admitted in the trailing 10 s; the limit is {AMOUNT}.",
        sheet.says
    );
    let mut svg = Svg::new(800, 500, &title, &describes);
    svg.heading((300, 340), 17, &title);
    svg.text((300, 560), Font::SAYS, sheet.says);
    svg.text((300, 750), Font::NOTE, TRAFFIC);
    legend(&mut svg, 1_000, sheet.windows);

    let above = Plot { left: 700, right: 7_300, base: 2_480, unit: 100 };
    let below = Plot { base: 4_560, unit: 74, ..above };
    if sheet.windows {
        for boundary in [PERIOD, 2 * PERIOD] {
            let x = above.x(boundary);
            svg.line((x, 1_290), (x, below.base), Line::Boundary);
        }
    }
    svg.text((300, 1_260), Font::NOTE, "requests, one column per half second");
    svg.line((above.left, above.base), (above.right, above.base), Line::Axis);
    requests(&mut svg, &above, &asked);

    svg.text((300, 2_700), Font::NOTE, "admitted in the trailing 10 s");
    below.count(&mut svg, &steps, AMOUNT);
    for count in [0, 10, 20] {
        let y = below.y(count);
        svg.line((below.left - 50, y), (below.left, y), Line::Axis);
        svg.text((below.left - 90, y + 42), Font::NOTE.end(), &count.to_string());
    }
    svg.text((below.right + 60, below.y(AMOUNT) + 42), Font::LABEL, "limit 10");
    below.peak(&mut svg, &steps, sheet.peak);
    below.axis(&mut svg, 5);
    Ok(svg.finish())
}

fn concurrency() -> Result<String, Box<dyn Error>> {
    const LIMIT: &str = "3/10s concurrency";
    let (asked, held) = traffic::hold(LIMIT)?;
    let steps = traffic::held_at_once(&held);
    let says = "At most 3 permits are held at once. One is never released and expires after 10 s.";
    let title = format!("concurrency: {LIMIT}");
    let mut svg = Svg::new(800, 500, &title, says);
    svg.heading((300, 340), 17, &title);
    svg.text((300, 560), Font::SAYS, says);
    legend(&mut svg, 800, false);

    let above = Plot { left: 700, right: 7_300, base: 1_420, unit: 100 };
    svg.text((300, 1_080), Font::NOTE, "requests");
    svg.line((above.left, above.base), (above.right, above.base), Line::Axis);
    requests(&mut svg, &above, &asked);

    svg.text((300, 1_670), Font::NOTE, "permits, from acquisition to release");
    for (row, one) in held.iter().enumerate() {
        let (left, y) = (above.x(one.from), 1_790 + 130 * row as i64);
        let width = above.x(one.until) - left;
        svg.bar((left, y), (width, 90), if one.returned { svg::ALLOWED } else { svg::EXCESS });
        if !one.returned {
            svg.text((left + width + 80, y + 85), Font::LABEL, "not released: expired");
        }
    }

    let below = Plot { base: 4_560, unit: 270, ..above };
    svg.text((300, 3_480), Font::NOTE, "permits held");
    below.count(&mut svg, &steps, 3);
    for count in [0, 3] {
        let y = below.y(count);
        svg.line((below.left - 50, y), (below.left, y), Line::Axis);
        svg.text((below.left - 90, y + 42), Font::NOTE.end(), &count.to_string());
    }
    svg.text((below.right + 60, below.y(3) + 42), Font::LABEL, "limit 3");
    below.axis(&mut svg, 5);
    Ok(svg.finish())
}

fn side_by_side() -> Result<String, Box<dyn Error>> {
    let title = "Admitted in the trailing 10 s, under the same traffic";
    let mut tops = Vec::new();
    for sheet in &SHEETS {
        let top = highest(&traffic::trailing(&traffic::ask(sheet.limit)?)).1;
        tops.push(format!("{} {top}", sheet.name));
    }
    let describes =
        format!("{TRAFFIC} The highest counts, with a limit of {AMOUNT}: {}.", tops.join(", "));
    let mut svg = Svg::new(800, 540, title, &describes);
    svg.heading((300, 340), 17, title);
    svg.text((300, 550), Font::NOTE, TRAFFIC);
    for (place, sheet) in SHEETS.iter().enumerate() {
        let (column, row) = (place as i64 % 2, place as i64 / 2);
        let left = 560 + 3_700 * column;
        let plot = Plot { left, right: left + 3_150, base: 2_740 + 2_270 * row, unit: 75 };
        svg.heading((left, plot.y(20) - 310), 14, &format!("{}: {}", sheet.name, sheet.limit));
        if sheet.windows {
            for boundary in [PERIOD, 2 * PERIOD] {
                let x = plot.x(boundary);
                svg.line((x, plot.y(20)), (x, plot.base), Line::Boundary);
            }
        }
        let steps = traffic::trailing(&traffic::ask(sheet.limit)?);
        plot.count(&mut svg, &steps, AMOUNT);
        for count in [0, 10, 20] {
            svg.text((left - 90, plot.y(count) + 42), Font::NOTE.end(), &count.to_string());
        }
        plot.peak(&mut svg, &steps, "at most");
        plot.axis(&mut svg, 10);
    }
    Ok(svg.finish())
}
