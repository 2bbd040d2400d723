//! Formats a view as lines of text.

use super::view::{ModelRow, TopView};
use latent_types::{format_bytes, printable};
use std::collections::VecDeque;
use unicode_width::UnicodeWidthChar;

/// Column where the values of a line begin.
const LABEL_WIDTH: usize = 11;

/// Token rates of the last readings.
#[derive(Default)]
pub(super) struct SpeedHistory {
    pub(super) tokens: VecDeque<f64>,
    pub(super) prompt: VecDeque<f64>,
}

/// Maximum number of readings.
// Wider terminals than this are rare.
const MAX_READINGS: usize = 400;

impl SpeedHistory {
    pub(super) fn add(&mut self, view: &TopView) {
        for (readings, value) in [(&mut self.tokens, view.token_rate), (&mut self.prompt, view.prompt_rate)] {
            readings.extend(value);
            while readings.len() > MAX_READINGS {
                readings.pop_front();
            }
        }
    }
}

/// The lines of a view for `columns` columns.
pub(super) fn lines(view: &TopView, history: &SpeedHistory, columns: usize) -> Vec<String> {
    // The most important lines come first, because a small screen cuts the rest.
    let mut lines = vec![requests(view), batch(view)];
    // 18 columns are the number and its unit before the sparkline.
    let spark = |values: &VecDeque<f64>| sparkline(values, columns.saturating_sub(LABEL_WIDTH + 18));
    lines.push(row(
        "generated",
        &format!("{:>8} tokens/s {}", shown(view.token_rate), spark(&history.tokens)),
    ));
    lines.push(row("prompt", &format!("{:>8} tokens/s {}", shown(view.prompt_rate), spark(&history.prompt))));
    if view.first_token.is_some() || view.gap.is_some() {
        let text =
            format!("first token after {}, then one every {}", seconds(view.first_token), seconds(view.gap));
        lines.push(row("latency", &text));
    }
    if let [Some(used), Some(cached), Some(free)] = view.blocks {
        lines.extend(cache(view, [used, cached, free], columns));
    }
    if let [Some(used), Some(slots), Some(bytes)] = view.state_slots
        && slots > 0.0
    {
        // The server reports bytes, so the value is not negative.
        let bytes = format_bytes(bytes as u64);
        lines.push(row("states", &format!("{used} of {slots} in use, snapshots included, {bytes} each")));
    }
    if let (Some(hits), Some(lookups)) = (view.hits, view.lookups) {
        let mut text = format!("{hits} of {lookups} hit ({:.0} %)", percent(hits, lookups));
        text += &of(view.saved, |saved| format!(", {} tokens saved", large(saved)));
        text += &of(view.evicted, |evicted| format!(", {evicted} evicted"));
        // The server reports bytes, so the value is not negative.
        text += &of(view.disk_bytes.filter(|bytes| *bytes > 0.0), |bytes| {
            format!(", {} on disk", format_bytes(bytes as u64))
        });
        lines.push(row("prefixes", &text));
    }
    if let [Some(finished), Some(refused), Some(cancelled), Some(failed)] = view.jobs {
        let preempted = of(view.preemptions, |count| format!(", {count} preempted"));
        let text = format!(
            "{finished} finished, {refused} refused, {cancelled} cancelled, {failed} failed{preempted}"
        );
        lines.push(row("answers", &text));
    }
    if let (Some(drafted), Some(accepted)) = (view.drafted.filter(|drafted| *drafted > 0.0), view.accepted) {
        lines.push(row(
            "drafts",
            &format!("{accepted} of {drafted} accepted ({:.0} %)", percent(accepted, drafted)),
        ));
    }
    if !view.models.is_empty() {
        lines.push(String::new());
        lines.push("models".into());
        lines.extend(view.models.iter().map(|of| model(of, columns)));
    }
    if !view.phases.is_empty() {
        lines.push(String::new());
        let of = view.phases_of.as_deref().map(|model| format!(" of {}", printable(model)));
        lines.push(format!("phases of a step{}", of.unwrap_or_default()));
        // 53 columns hold the name, the percentage and the time.
        let bar = columns.saturating_sub(53).min(40);
        for phase in &view.phases {
            let name = cut(&printable(&phase.name), 30);
            let fill = " ".repeat(31usize.saturating_sub(width(&name)));
            let full = ((phase.share * bar as f64).round() as usize).min(bar);
            let (percent, time) = (phase.share * 100.0, phase.microseconds);
            lines.push(format!("  {name}{fill}{percent:>4.0} % {time:>9.0} µs {}", "█".repeat(full)));
        }
    }
    lines
}

/// The first line: address, uptime, readiness.
pub(super) fn title(view: Option<&TopView>, url: &str) -> String {
    let mut title = format!("latent top  {}", printable(url));
    let Some(view) = view else { return title };
    title += &of(view.uptime, |seconds| format!("  up {}", duration(seconds)));
    if view.ready == Some(false) {
        title += "  NOT READY";
    }
    title
}

fn requests(view: &TopView) -> String {
    let prompt =
        of(view.in_prompt.filter(|count| *count > 0.0), |count| format!(" ({count} read their prompt)"));
    let tokens =
        of(view.waiting_tokens.filter(|count| *count > 0.0), |count| format!(" ({} tokens)", large(count)));
    row(
        "requests",
        &format!("{} running{prompt}, {} waiting{tokens}", whole(view.running), whole(view.waiting)),
    )
}

/// A line of a model. The name gets the remaining columns.
fn model(model: &ModelRow, columns: usize) -> String {
    // 46 columns hold the indent and the numbers.
    let room = columns.saturating_sub(48).clamp(12, 40);
    let name = printable(&model.name).to_string();
    let name = if width(&name) > room { format!("{}…", cut(&name, room - 1)) } else { name };
    let fill = " ".repeat(room - width(&name));
    let begin = format!("  {name}{fill}  ");
    match model.loaded {
        Some(false) => format!("{begin}not loaded"),
        _ => {
            let (running, waiting) = (whole(model.running), whole(model.waiting));
            format!(
                "{begin}{running:>3} running, {waiting:>3} waiting {:>8} tokens/s",
                shown(model.token_rate)
            )
        }
    }
}

fn batch(view: &TopView) -> String {
    if view.running == Some(0.0) && view.steps_rate == Some(0.0) {
        return row("batch", "idle");
    }
    let mut text = of(view.decoding, |count| format!("{count} decode, "));
    text += &of(view.prompt_rows, |count| format!("{count} prompt tokens, "));
    text += &of(view.step_seconds, |time| format!("{} a step, ", seconds(Some(time))));
    row("batch", &format!("{text}{} steps/s", shown(view.steps_rate)))
}

/// Cache blocks as a bar and as numbers.
fn cache(view: &TopView, blocks: [f64; 3], columns: usize) -> Vec<String> {
    let total: f64 = blocks.iter().sum();
    if total == 0.0 {
        return vec![row("KV cache", "no model is loaded")];
    }
    let room = columns.saturating_sub(LABEL_WIDTH + 1).min(60);
    let part = |count: f64| ((count / total * room as f64).round() as usize).min(room);
    let used = part(blocks[0]);
    let cached = part(blocks[0] + blocks[1]).saturating_sub(used);
    let bar = format!("{}{}{}", "█".repeat(used), "▒".repeat(cached), "·".repeat(room - used - cached));
    let tokens = of(view.block_tokens, |tokens| format!(" blocks of {tokens} tokens"));
    let [in_use, cached, free] = blocks;
    vec![
        row("KV cache", &bar),
        row("", &format!("█ {in_use} used  ▒ {cached} cached  · {free} free{tokens}")),
    ]
}

fn row(label: &str, text: &str) -> String {
    format!("{label:<LABEL_WIDTH$}{text}")
}

fn of(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map(text).unwrap_or_default()
}

/// A number with one decimal, or a dash.
fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.1}"))
}

fn whole(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.0}"))
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part * 100.0 / whole } else { 0.0 }
}

fn large(value: f64) -> String {
    match value {
        1e9.. => format!("{:.2} G", value / 1e9),
        1e6.. => format!("{:.2} M", value / 1e6),
        1e4.. => format!("{:.1} k", value / 1e3),
        _ => format!("{value:.0}"),
    }
}

fn seconds(value: Option<f64>) -> String {
    match value {
        None => "–".into(),
        Some(value) if value >= 1.0 => format!("{value:.2} s"),
        Some(value) => format!("{:.1} ms", value * 1e3),
    }
}

fn duration(seconds: f64) -> String {
    let minutes = (seconds / 60.0) as u64;
    match (minutes / 1440, minutes / 60 % 24, minutes % 60) {
        (0, 0, 0) => format!("{seconds:.0} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// The last values as a row of bars.
pub(super) fn sparkline(values: &VecDeque<f64>, columns: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = values.iter().skip(values.len().saturating_sub(columns));
    let most = shown.clone().fold(0.0f64, |most, value| most.max(*value));
    // 0 / 0 is NaN, which gets the lowest bar.
    let bar = |value: &f64| match value / most {
        share if share > 0.0 => BARS[((share * 8.0) as usize).min(7)],
        _ => BARS[0],
    };
    shown.map(bar).collect()
}

fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// The longest prefix of a text that fits. Wide characters (names of models in Chinese) take two
/// columns.
pub(super) fn cut(line: &str, columns: usize) -> String {
    let mut used = 0;
    line.chars()
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used <= columns
        })
        .collect()
}
