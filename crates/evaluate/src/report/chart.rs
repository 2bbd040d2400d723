//! SVG charts: bars, lines and heatmaps. Colours are classes of the style sheet.

use latent_viz::escape;
use std::fmt::Write;

/// Width of every chart.
const WIDTH: f64 = 880.0;

/// Height of a tick's text.
const TICK: f64 = 16.0;

/// Values of larger magnitude are omitted: the width of an axis would overflow.
const LARGE: f64 = 1e30;

/// A bar with its name and the text behind it.
pub(super) struct ChartBar {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) text: String,
}

/// A line with its name and points from left to right.
pub(super) struct ChartLine {
    pub(super) name: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// A heatmap.
pub(super) struct ChartHeatmap {
    pub(super) rows: Vec<String>,
    pub(super) columns: Vec<String>,
    /// In row order: shade from 0 to 1, and the text of the tooltip.
    pub(super) cells: Vec<(f64, String)>,
    /// Whether a cell is wide enough for its text.
    pub(super) texts: bool,
}

fn open(height: f64, label: &str) -> String {
    format!(
        "<figure><svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-label=\"{}\">\n",
        escape(label)
    )
}

fn close(mut out: String) -> String {
    out.push_str("</svg></figure>\n");
    out
}

fn text(out: &mut String, (x, y): (f64, f64), class: &str, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escape(text));
}

/// Horizontal bars with their names. `most` is the value of a full-length bar. `mark` is a line
/// across all bars.
pub(super) fn bars(label: &str, bars: &[ChartBar], most: f64, mark: Option<(f64, &str)>) -> String {
    const ROW: f64 = 24.0;
    let longest = bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0);
    // SVG cannot measure text: 7.2 px is the assumed mean width of a character.
    let left = (7.2 * longest as f64 + 14.0).clamp(60.0, 300.0);
    // 190 px on the right hold the text behind a bar of full length.
    let scale = (WIDTH - left - 190.0) / if most > 0.0 { most } else { 1.0 };
    let height = ROW * bars.len() as f64 + if mark.is_some() { TICK + 4.0 } else { 4.0 };
    let mut out = open(height, label);
    for (i, bar) in bars.iter().enumerate() {
        let y = ROW * i as f64;
        let wide = (bar.value * scale).max(0.0);
        text(&mut out, (left - 8.0, y + 16.0), "end tick", &bar.name);
        let _ = writeln!(
            out,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"16\" rx=\"3\" class=\"bar\"/>",
            y + 4.0
        );
        text(&mut out, (left + wide + 8.0, y + 16.0), "tick", &bar.text);
    }
    if let Some((at, name)) = mark {
        let (x, bottom) = (left + at * scale, ROW * bars.len() as f64 + 4.0);
        let _ =
            writeln!(out, "<line x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" class=\"mark\"/>");
        text(&mut out, (x, bottom + 12.0), "middle tick", name);
    }
    close(out)
}

/// Lines over one axis, with ticks at the values of the first line's points.
pub(super) fn lines(label: &str, lines: &[ChartLine], unit: &str) -> String {
    const HEIGHT: f64 = 280.0;
    // The names of the lines are to the right of the axis, the ticks of both axes to its left and
    // below.
    let (left, right, top, bottom) = (62.0, WIDTH - 130.0, 14.0, HEIGHT - 34.0);
    let all = || {
        lines
            .iter()
            .flat_map(|line| &line.points)
            .copied()
            .filter(|(x, y)| x.abs() < LARGE && y.abs() < LARGE)
    };
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    let (x0, x1) = range(&mut all().map(|(x, _)| x));
    let (y0, y1) = range(&mut all().map(|(_, y)| y));
    let mut out = open(HEIGHT, label);
    // Without points, the fold leaves the range at its infinite start.
    if !(x0.is_finite() && y0.is_finite()) {
        return close(out);
    }
    let (y0, y1) = ticks(y0, y1);
    // A single point has a range of 0; `MIN_POSITIVE` keeps 0 / 0 out of the page.
    let x = |v: f64| left + (v - x0) / (x1 - x0).max(f64::MIN_POSITIVE) * (right - left);
    let y = |v: f64| bottom - (v - y0) / (y1 - y0) * (bottom - top);
    for i in 0..=4 {
        let value = y0 + (y1 - y0) * f64::from(i) / 4.0;
        let at = y(value);
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" class=\"grid\"/>"
        );
        text(&mut out, (left - 8.0, at + 4.0), "end tick", &number(value));
    }
    let first = lines.first().map_or(&[][..], |line| &line.points);
    // At most 12 ticks, so that their texts do not overlap.
    let every = first.len().div_ceil(12).max(1);
    for (at, _) in first.iter().step_by(every) {
        text(&mut out, (x(*at), bottom + 18.0), "middle tick", &number(*at));
    }
    text(&mut out, (right + 10.0, bottom + 18.0), "tick", unit);
    let mut names: Vec<(f64, usize)> = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        // The style sheet has three colours of lines, c0 to c2.
        let class = format!("c{}", i.min(2));
        let path: Vec<String> =
            line.points.iter().map(|(a, b)| format!("{:.1},{:.1}", x(*a), y(*b))).collect();
        let _ = writeln!(out, "<polyline points=\"{}\" class=\"curve {class}\"/>", path.join(" "));
        // The dots of more points would hide the line.
        if line.points.len() <= 40 {
            for (a, b) in &line.points {
                let _ = writeln!(
                    out,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" class=\"dot {class}\"/>",
                    x(*a),
                    y(*b)
                );
            }
        }
        names.extend(line.points.last().map(|(_, last)| (y(*last) + 4.0, i)));
    }
    // Labels are placed from the top down and moved apart, so that they do not overlap.
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = f64::NEG_INFINITY;
    for (at, i) in names {
        let at = at.max(free);
        free = at + 14.0;
        text(&mut out, (right + 10.0, at), &format!("tick name c{}", i.min(2)), lines[i].name);
    }
    close(out)
}

/// Ends of an axis at round numbers.
fn ticks(low: f64, high: f64) -> (f64, f64) {
    let spread = if high > low { high - low } else { high.abs().max(1.0) };
    let power = 10f64.powf((spread / 4.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|n| n * power)
        .find(|step| 4.0 * step >= spread)
        .unwrap_or(power);
    let from = (low / step).floor() * step;
    // Rounding `from` down may move the end of the axis below `high`.
    let step = if from + 4.0 * step < high { 2.0 * step } else { step };
    (from, from + 4.0 * step)
}

/// A number with few digits.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 || v.fract() == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        v if v >= 0.01 => 3,
        _ => return format!("{value:.1e}"),
    };
    format!("{value:.digits$}")
}

/// A heatmap with a row per name.
pub(super) fn map(label: &str, map: &ChartHeatmap) -> String {
    let longest = map.rows.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let left = (7.2 * longest as f64 + 14.0).clamp(40.0, 200.0);
    let columns = map.columns.len().max(1);
    let wide = ((WIDTH - left - 4.0) / columns as f64).min(110.0);
    let high: f64 = if map.rows.len() > 24 { 14.0 } else { 24.0 };
    let height = TICK + 6.0 + high * map.rows.len() as f64 + 4.0;
    let mut out = open(height, label);
    // 34 px hold the text of a column.
    let every = ((34.0 / wide).ceil() as usize).max(1);
    for (i, name) in map.columns.iter().enumerate().filter(|(i, _)| i % every == 0) {
        text(&mut out, (left + wide * (i as f64 + 0.5), TICK - 4.0), "middle tick", name);
    }
    // Gaps between narrow cells would take most of their width.
    let gap = if wide > 6.0 { 1.5 } else { 0.0 };
    for (row, name) in map.rows.iter().enumerate() {
        let y = TICK + 2.0 + high * row as f64;
        text(&mut out, (left - 8.0, y + high / 2.0 + 4.0), "end tick", name);
        for (column, (shade, says)) in map.cells.iter().skip(row * columns).take(columns).enumerate() {
            let x = left + wide * column as f64;
            let area =
                format!("x=\"{x:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{:.1}\"", wide - gap, high - 1.5);
            let _ = writeln!(
                out,
                "<g><title>{}</title><rect {area} class=\"track\"/><rect {area} class=\"cell\" fill-opacity=\"{:.3}\"/></g>",
                escape(says),
                0.9 * shade.clamp(0.0, 1.0)
            );
            if map.texts {
                // Text on strongly coloured cells has the colour of the background, for contrast.
                let class = if *shade > 0.6 { "middle on-cell dark" } else { "middle on-cell" };
                text(&mut out, (x + (wide - gap) / 2.0, y + high / 2.0 + 3.0), class, says);
            }
        }
    }
    close(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers_around_all_values() {
        for (low, high) in [(1.7, 2.3), (0.0, 1.0), (3.0, 3.0), (0.001, 0.0094), (12.0, 190.0), (0.9, 4.1)] {
            let (from, to) = ticks(low, high);
            assert!(from <= low && to >= high && to > from, "{low} {high}: {from} {to}");
            assert!(to - from <= 5.0 * (high - low).max(high.abs()), "{low} {high}: {from} {to}");
        }
    }

    #[test]
    fn numbers_have_as_many_digits_as_they_need() {
        let shown = [1024.0, 31.25, 1.7345, 0.2, 0.00012].map(number);
        assert_eq!(shown, ["1024", "31.2", "1.73", "0.200", "1.2e-4"]);
    }

    #[test]
    fn charts_without_values_are_empty() {
        for chart in [
            bars("b", &[], 0.0, None),
            lines("l", &[], "x"),
            lines("l", &[ChartLine { name: "n", points: vec![] }], "x"),
        ] {
            assert!(
                chart.starts_with("<figure><svg") && !chart.contains("NaN") && !chart.contains("inf"),
                "{chart}"
            );
        }
        let one = lines("l", &[ChartLine { name: "n", points: vec![(1.0, 2.0)] }], "x");
        assert!(!one.contains("NaN"), "{one}");
    }
}
