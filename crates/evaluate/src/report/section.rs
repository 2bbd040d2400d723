//! A section per result: a table and charts.

use super::chart::{self, ChartBar, ChartHeatmap, ChartLine, number};
use crate::choice::ChoiceAccuracy;
use crate::divergence::Divergence;
use crate::evaluation::{Evaluation, EvaluationResult};
use crate::perplexity::Perplexity;
use crate::question::QuestionAccuracy;
use crate::retrieval::Retrieval;
use crate::routing::RoutingStatistics;
use crate::statistics::Estimate;
use crate::weights::{WeightErrors, WeightGroup};
use latent_viz::escape;

/// Maximum rows of a table or chart.
const MAX_ROWS: usize = 40;

pub(super) fn section(evaluation: &Evaluation) -> String {
    let (title, content) = match &evaluation.found {
        EvaluationResult::Perplexity(found) => ("Perplexity", perplexity(found)),
        EvaluationResult::Kl(found) => ("KL divergence", divergence(found)),
        EvaluationResult::Choice(found) => ("Multiple choice", choices(found)),
        EvaluationResult::Questions(found) => ("Questions", questions(found)),
        EvaluationResult::Retrieval(found) => ("Retrieval by depth", retrieval(found)),
        EvaluationResult::Routing(found) => ("Expert load by layer", routing(found)),
        EvaluationResult::Weights(found) => ("Error by tensor type", weights(found)),
    };
    format!(
        "<section>\n<h2>{title}</h2>\n<p class=\"of\">{}</p>\n{content}</section>\n",
        escape(&of(evaluation))
    )
}

/// What was measured, in one line.
fn of(evaluation: &Evaluation) -> String {
    let model = &evaluation.model;
    let mut parts = vec![model.file.clone()];
    if !model.precision.is_empty() {
        parts.push(format!("precision {}, {}, {} cache", model.precision, model.isa, model.cache));
    }
    if !model.base.is_empty() {
        parts.push(format!("against {}", model.base));
    }
    if !evaluation.input.is_empty() {
        parts.push(evaluation.input.clone());
    }
    parts.push(format!("Latent {}", model.version));
    parts.join(" · ")
}

fn with_error(estimate: Estimate, factor: f64, unit: &str) -> String {
    let (value, error) = (factor * estimate.value, factor * estimate.error);
    // Two significant digits of the error.
    let digits = if error > 0.0 { (2.0 - error.log10()).clamp(1.0, 8.0) as usize } else { 4 };
    format!("{value:.digits$} ± {error:.digits$}{unit}")
}

fn table(rows: &[(&str, String)]) -> String {
    let rows: String = rows
        .iter()
        .map(|(name, value)| format!("<tr><th>{}</th><td>{}</td></tr>\n", escape(name), escape(value)))
        .collect();
    format!("<table>\n{rows}</table>\n")
}

fn heading(text: &str) -> String {
    format!("<h3>{}</h3>\n", escape(text))
}

fn note(text: &str) -> String {
    format!("<p class=\"note\">{}</p>\n", escape(text))
}

fn perplexity(found: &Perplexity) -> String {
    let points = found.running.iter().enumerate().map(|(i, ppl)| ((i + 1) as f64, *ppl)).collect();
    table(&[
        ("perplexity", with_error(found.perplexity, 1.0, "")),
        ("per token", with_error(found.nll, 1.0, " nats")),
        ("counted", format!("{} tokens in {} chunks of {}", found.positions, found.chunks, found.context)),
    ]) + &heading("Perplexity up to each chunk")
        + &chart::lines("perplexity up to each chunk", &[ChartLine { name: "perplexity", points }], "chunks")
}

fn divergence(found: &Divergence) -> String {
    let q = &found.kl_quantiles;
    let rows = [
        ("median", q.median),
        ("90 %", q.p90),
        ("95 %", q.p95),
        ("99 %", q.p99),
        ("99.9 %", q.p99_9),
        ("largest", q.maximum),
    ];
    // Quantiles differ by orders of magnitude, so the bars are logarithmic, from 1e-9.
    let bars: Vec<ChartBar> = rows
        .iter()
        .map(|(name, value)| ChartBar {
            name: (*name).to_owned(),
            value: (value.max(1e-9).log10() + 9.0).max(0.0),
            text: format!("{value:.6} nats"),
        })
        .collect();
    table(&[
        ("KL divergence", with_error(found.kl, 1.0, " nats")),
        ("same top token", with_error(found.same_top, 100.0, " %")),
        ("p of the next token", with_error(found.p_difference, 100.0, " %")),
        ("the same, rms", with_error(found.p_difference_rms, 100.0, " %")),
        ("perplexity", with_error(found.perplexity, 1.0, "")),
        ("perplexity of the base", with_error(found.base_perplexity, 1.0, "")),
        ("ln of their ratio", with_error(found.ln_ratio, 1.0, "")),
        ("counted", format!("{} tokens in {} chunks of {}", found.positions, found.chunks, found.context)),
    ]) + &heading("KL divergence by quantile of the positions, on a logarithmic scale")
        + &chart::bars("KL divergence by quantile", &bars, 10.0, None)
}

fn percent_bar(name: &str, share: Estimate) -> ChartBar {
    ChartBar {
        name: name.to_owned(),
        value: share.value,
        text: format!("{:.1} ± {:.1} %", 100.0 * share.value, 100.0 * share.error),
    }
}

fn choices(found: &ChoiceAccuracy) -> String {
    let bars = [
        percent_bar("sum of ln p", found.accuracy),
        percent_bar("per token", found.per_token),
        percent_bar("per character", found.per_character),
    ];
    table(&[("texts", found.tasks.to_string())])
        + &heading("Right choices")
        + &chart::bars("right choices", &bars, 1.0, Some((found.chance, "guessing")))
}

fn questions(found: &QuestionAccuracy) -> String {
    let mut bars = vec![percent_bar("all", found.exact)];
    for kind in found.kinds.iter().filter(|kind| !kind.kind.is_empty()).take(MAX_ROWS) {
        bars.push(percent_bar(&kind.kind, Estimate::share(kind.right, kind.questions)));
    }
    table(&[("questions", found.questions.to_string())])
        + &heading("Answers that are exactly as expected")
        + &chart::bars("exact answers", &bars, 1.0, None)
}

fn retrieval(found: &Retrieval) -> String {
    let (mut lengths, mut depths): (Vec<usize>, Vec<f64>) =
        found.cells.iter().map(|cell| (cell.length, cell.depth)).unzip();
    lengths.sort_unstable();
    lengths.dedup();
    lengths.truncate(MAX_ROWS);
    depths.sort_by(f64::total_cmp);
    depths.dedup();
    depths.truncate(MAX_ROWS);
    let cell = |depth: f64, length: usize| {
        let cell = found.cells.iter().find(|cell| cell.depth == depth && cell.length == length);
        cell.map_or((0.0, "–".to_owned()), |cell| (cell.found, format!("{:.0} %", 100.0 * cell.found)))
    };
    let cells = depths.iter().flat_map(|depth| lengths.iter().map(|length| cell(*depth, *length)));
    let map = ChartHeatmap {
        cells: cells.collect(),
        rows: depths.iter().map(|depth| format!("{:.0} %", 100.0 * depth)).collect(),
        columns: lengths.iter().map(usize::to_string).collect(),
        texts: lengths.len() <= 16,
    };
    table(&[
        ("found", with_error(found.found, 100.0, " %")),
        ("prompts per cell", found.trials.to_string()),
        ("hidden among", found.haystack.clone()),
    ]) + &heading("Found, by depth of the fact (down) and tokens of the prompt (across)")
        + &chart::map("retrieval by depth and length", &map)
}

fn routing(found: &RoutingStatistics) -> String {
    let experts = found.layers.iter().map(|layer| layer.load.len()).max().unwrap_or(0);
    let most = found.layers.iter().map(|layer| layer.imbalance).fold(1.0, f64::max);
    let cells = found.layers.iter().flat_map(|layer| {
        layer.load.iter().enumerate().map(move |(expert, share)| {
            let over = share * layer.load.len() as f64;
            let says = format!("layer {}, expert {expert}: {over:.2} × the mean", layer.layer);
            // Shades are relative to the most loaded expert of all layers, so that layers can be
            // compared.
            (over / most, says)
        })
    });
    let map = ChartHeatmap {
        cells: cells.collect(),
        rows: found
            .layers
            .iter()
            .map(|l| format!("L{}  entropy {:.3}, max {:.2} ×", l.layer, l.entropy, l.imbalance))
            .collect(),
        columns: (0..experts).map(|expert| expert.to_string()).collect(),
        texts: false,
    };
    let line = |name, of: fn(&crate::routing::StepExperts) -> f64| ChartLine {
        name,
        points: found.steps.iter().map(|step| (step.rows as f64, of(step))).collect(),
    };
    let distinct = [
        line("neighbours", |s| s.neighbours),
        line("far apart", |s| s.apart),
        line("uniform", |s| s.uniform),
    ];
    // Saturating: `latent eval report` reads results from files, which may hold any number.
    let unused = found.layers.iter().fold(0usize, |sum, layer| sum.saturating_add(layer.unused));
    let mut page = table(&[
        ("tokens", found.tokens.to_string()),
        ("experts never chosen", unused.to_string()),
    ]) + &heading(
        "Load of each expert (across) in each layer (down): the stronger the colour, the more often chosen",
    ) + &chart::map("expert load by layer", &map);
    // A line needs two points.
    if found.steps.len() > 1 {
        page += &heading("Different experts per layer that a step reads, by its rows");
        page += &chart::lines("different experts by rows", &distinct, "rows");
        page += &note(
            "neighbours: tokens that follow each other, as drafts do; far apart: tokens of different places, as sequences that decode \
             together; uniform: rows that know nothing of each other, over routers without preference.",
        );
    }
    page
}

fn group_bars(groups: &[WeightGroup]) -> (Vec<ChartBar>, f64) {
    let most = groups.iter().map(|group| group.relative).fold(0.0, f64::max);
    let bar = |group: &WeightGroup| ChartBar {
        name: group.name.clone(),
        value: group.relative,
        text: format!("{} · {:.2} bits · {} tensors", number(group.relative), group.bits, group.tensors),
    };
    (groups.iter().take(MAX_ROWS).map(bar).collect(), most)
}

fn weights(found: &WeightErrors) -> String {
    let ((types, most), (roles, role_max)) = (group_bars(&found.types), group_bars(&found.roles));
    let mut page = table(&[
        ("all weights", format!("relative error {}", number(found.relative))),
        ("compared", format!("{} weights", found.elements)),
        ("not compared", format!("{} tensors", found.skipped.len())),
    ]);
    page += &heading("Relative error by the type of the tensors");
    page += &chart::bars("relative error by type", &types, most, None);
    page += &heading("Relative error by what the tensors are");
    page += &chart::bars("relative error by role", &roles, role_max, None);
    page += &note("Relative error: √(Σ (w − base)² ÷ Σ base²).");
    page
}
