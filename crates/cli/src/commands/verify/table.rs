//! The table of `--weights`: a line per tensor, and its problems.

use super::deep::{DeepReport, DeepTensor};
use crate::output;
use latent_quant::Statistics;
use latent_types::format_bytes;
use serde_json::{Value, json};

/// Width of the column of names.
const NAME_WIDTH: usize = 26;

/// Problems of a tensor, which are findings, and unusual values, which are not.
pub(super) struct TensorVerdict {
    pub(super) wrong: Vec<String>,
    pub(super) odd: Vec<String>,
}

pub(super) fn judge(s: &Statistics) -> TensorVerdict {
    let (mut wrong, mut odd) = (Vec::new(), Vec::new());
    let at = s
        .first_bad
        .map_or_else(String::new, |(row, column)| format!(" (the first in row {row}, column {column})"));
    if s.nan > 0 {
        wrong.push(format!("{} NaN{at}", s.nan));
    }
    if s.infinite > 0 {
        wrong.push(format!("{} infinite{at}", s.infinite));
    }
    if s.bad_scales() > 0 {
        wrong.push(format!("{} scales that are not finite", s.bad_scales()));
    }
    if s.numbers > 0 && s.zeros == s.numbers {
        odd.push("all zeros".into());
    } else if s.zero_rows > 0 {
        let first = s.first_zero_row.unwrap_or_default();
        odd.push(format!("{} rows of zeros (the first is row {first})", s.zero_rows));
    }
    if let Some((count, largest, row)) = s.wild_scales() {
        odd.push(format!("{count} wild scales, up to {largest:.3e} in row {row}"));
    }
    TensorVerdict { wrong, odd }
}

/// The name of a tensor's line. Experts of a layer share one.
fn group(tensor: &DeepTensor) -> String {
    let mut parts: Vec<&str> = tensor.name.split('.').collect();
    if let Some(at) = parts.iter().position(|part| *part == "experts")
        && parts.get(at + 1).is_some_and(|part| part.bytes().all(|b| b.is_ascii_digit()))
    {
        parts[at + 1] = "*";
    }
    parts.join(".")
}

/// Lines of the table: name, first tensor, and statistics of the group.
fn grouped(deep: &DeepReport) -> Vec<(String, &DeepTensor, Option<Statistics>)> {
    let mut groups: Vec<(String, &DeepTensor, Option<Statistics>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for tensor in &deep.tensors {
        let name = group(tensor);
        // Experts of another type get their own line, because a line shows one type.
        let place = *places.entry((name.clone(), tensor.ty)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some((_, _, Some(all))) => tensor.statistics.iter().for_each(|s| all.merge(s)),
            Some(_) => {}
            None => groups.push((name, tensor, tensor.statistics.clone())),
        }
    }
    groups
}

pub(super) fn text(deep: &DeepReport, file: &str) -> String {
    let groups = grouped(deep);
    let mut lines = vec![format!("{file}: {} tensors", deep.tensors.len())];
    lines.push(format!(
        "{:<NAME_WIDTH$} {:<7} {:>7} {:>7} {:>8} {:>7} {:>5} {:>6}",
        "tensor", "type", "min", "max", "mean", "rms", "zero", "at row"
    ));
    for (name, tensor, statistics) in &groups {
        let Some(s) = statistics else {
            lines.push(format!("{:<NAME_WIDTH$} {:<7} not decoded", short(name), tensor.ty));
            continue;
        };
        let zero = 100.0 * s.zeros as f64 / s.numbers.max(1) as f64;
        // Without a finite value, min and max are undefined.
        let (min, max) = if s.finite() > 0 { (s.min, s.max) } else { (0.0, 0.0) };
        lines.push(format!(
            "{:<NAME_WIDTH$} {:<7} {:>7} {:>7} {:>8} {:>7} {zero:>4.0}% {:>6}",
            short(name),
            tensor.ty.name(),
            number(min.into()),
            number(max.into()),
            number(s.mean()),
            number(s.rms()),
            s.largest.1
        ));
    }
    let judged: Vec<(&DeepTensor, TensorVerdict)> =
        deep.tensors.iter().filter_map(|t| Some((t, judge(t.statistics.as_ref()?)))).collect();
    for (title, odd) in [("wrong", false), ("unusual, possibly intended", true)] {
        let of = |j: &TensorVerdict| if odd { j.odd.join("; ") } else { j.wrong.join("; ") };
        let problems: Vec<String> = judged
            .iter()
            .map(|(t, j)| (t, of(j)))
            .filter(|(_, problem)| !problem.is_empty())
            .map(|(t, problem)| format!("  {}: {problem}", t.name))
            .collect();
        if !problems.is_empty() {
            lines.push(String::new());
            lines.push(title.into());
            lines.extend(problems);
        }
    }
    // A tiny file may take less time than the clock resolves.
    let seconds = deep.took.as_secs_f64().max(1e-9);
    lines.push(String::new());
    lines.push(format!(
        "read {} in {seconds:.2} s with {} threads: {}/s, {:.2} billion weights/s",
        format_bytes(deep.bytes),
        deep.threads,
        format_bytes((deep.bytes as f64 / seconds) as u64),
        deep.numbers as f64 / seconds / 1e9
    ));
    lines.push(String::new());
    output::joined(&lines)
}

pub(super) fn json(deep: &DeepReport, file: &str) -> Value {
    let tensor = |t: &DeepTensor| match &t.statistics {
        None => json!({"name": t.name, "type": t.ty.name(), "shape": t.shape, "decoded": false}),
        Some(s) => {
            let judged = judge(s);
            json!({
                "name": t.name, "type": t.ty.name(), "shape": t.shape, "decoded": true,
                "min": finite(s, s.min), "max": finite(s, s.max), "mean": s.mean(), "rms": s.rms(),
                "zero_share": s.zeros as f64 / s.numbers.max(1) as f64,
                "absmax": s.largest.0, "absmax_row": s.largest.1,
                "nan": s.nan, "infinite": s.infinite, "zero_rows": s.zero_rows,
                "bad_scales": s.bad_scales(), "wild_scales": s.wild_scales().map_or(0, |wild| wild.0),
                "wrong": judged.wrong, "odd": judged.odd,
            })
        }
    };
    json!({
        "file": file,
        "tensors": deep.tensors.iter().map(tensor).collect::<Vec<_>>(),
        "bytes": deep.bytes,
        "numbers": deep.numbers,
        "threads": deep.threads,
        "seconds": deep.took.as_secs_f64(),
    })
}

fn finite(s: &Statistics, x: f32) -> Option<f32> {
    (s.finite() > 0).then_some(x)
}

/// At most seven characters.
fn number(x: f64) -> String {
    if x == 0.0 {
        return "0".into();
    }
    let text = match x.abs() {
        0.001..1000.0 => format!("{x:.4}"),
        _ => format!("{x:.1e}"),
    };
    text.chars().take(7).collect()
}

/// Shortens a name to its column: removes common prefixes and suffixes, then the middle.
fn short(name: &str) -> String {
    // Models that also read images have this prefix in safetensors.
    let name = name.strip_prefix("language_model.").unwrap_or(name);
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let layer = name.strip_prefix("model.layers.").or_else(|| name.strip_prefix("blk."));
    let name = layer.map_or_else(|| name.to_owned(), |rest| format!("L{rest}"));
    let count = name.chars().count();
    if count <= NAME_WIDTH {
        return name;
    }
    let head: String = name.chars().take(6).collect();
    let tail: String = name.chars().skip(count - (NAME_WIDTH - 7)).collect();
    format!("{head}…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_fit_their_columns() {
        assert_eq!(short("blk.12.attn_kv_a_mqa.weight"), "L12.attn_kv_a_mqa");
        let long = short("model.layers.12.self_attn.kv_a_proj_with_mqa.weight_scale_inv");
        assert_eq!(long.chars().count(), NAME_WIDTH);
        for x in [0.0, -1e-9, -1.5e-30, 0.001, -0.0123456, 999.99, -1e5, 3.4e38] {
            assert!(number(x).chars().count() <= 7, "{x}");
        }
    }
}
