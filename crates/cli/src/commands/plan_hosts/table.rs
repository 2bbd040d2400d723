//! Output of proposals as text and JSON.

use super::files::RankFiles;
use crate::output;
use anyhow::Result;
use latent_hosts::predict::{Prediction, PredictionCase, Proposal, RankPrediction};
use serde_json::{Value, json};

/// Prints the best proposal in full and the others in a table.
pub(super) fn print(proposals: &[Proposal], case: &PredictionCase, files: &RankFiles) -> Result<()> {
    let best = best(proposals)?;
    output::line("| rank | host | layers | memory | ms per step |")?;
    output::line("|---|---|---|---|---|")?;
    for (number, rank) in best.ranks.iter().enumerate() {
        let (first, last) = (rank.layers.start, rank.layers.end - 1);
        let (memory, seconds) = (rank.memory / 1e9, 1e3 * rank.seconds);
        output::line(&format!(
            "| {number} | {} | {first} to {last} | {memory:.1} GB | {seconds:.2} |",
            rank.host
        ))?;
    }
    files.print()?;
    let (step, links) = (1e3 * best.step, 1e3 * best.links);
    output::line(&format!(
        "predicted with {} tokens of context: {:.2} tokens/s{} ({step:.2} ms per step, {links:.2} ms of them on links)",
        case.context,
        best.tokens_per_second,
        sequences(case),
    ))?;
    if let Some(seconds) = best.first_token {
        output::line(&format!("first token of a prompt of {}: {seconds:.2} s", case.prompt))?;
    }
    if proposals.len() > 1 {
        compare(proposals, best)?;
    }
    let ranks = best.ranks.len();
    output::line(&format!("mpirun -n {ranks} latent run -m MODEL --partition {}", best.partition))
}

fn sequences(case: &PredictionCase) -> String {
    match (case.rows, case.in_flight) {
        (1, 1) => String::new(),
        (rows, 1) => format!(" of {rows} sequences"),
        (rows, steps) => format!(" of {} sequences, {steps} steps in flight", rows * steps),
    }
}

/// The first proposal, which is the best; an error if none can run.
pub(super) fn best(proposals: &[Proposal]) -> Result<&Prediction> {
    match proposals.first().map(|proposal| &proposal.best) {
        Some(Ok(best)) => Ok(best),
        Some(Err(error)) => Err(error.clone().into()),
        None => Err(crate::exit::UsageError("the hosts file has no hosts".into()).into()),
    }
}

fn compare(proposals: &[Proposal], best: &Prediction) -> Result<()> {
    output::line("")?;
    output::line("| partition | tokens/s | first token | ms per step | on links | most memory | why not |")?;
    output::line("|---|---|---|---|---|---|---|")?;
    for proposal in proposals {
        match &proposal.best {
            Ok(found) => {
                let first = found.first_token.map_or_else(String::new, |seconds| format!("{seconds:.2} s"));
                let memory = found.ranks.iter().map(|rank| rank.memory).fold(0.0, f64::max) / 1e9;
                let why = if found == best { "best".into() } else { why(found, best) };
                output::line(&format!(
                    "| {} | {:.2} | {first} | {:.2} | {:.2} | {memory:.1} GB | {why} |",
                    found.partition,
                    found.tokens_per_second,
                    1e3 * found.step,
                    1e3 * found.links,
                ))?;
            }
            Err(error) => output::line(&format!("| {} | | | | | | {error} |", proposal.kind))?,
        }
    }
    output::line("")
}

/// Why a proposal is slower than the best.
fn why(found: &Prediction, best: &Prediction) -> String {
    let computing = |found: &Prediction| found.step - found.links;
    // A step's time is the sum of computing and links, which happen one after the other.
    let (more_links, more_computing) = (found.links - best.links, computing(found) - computing(best));
    // A step alone is faster, but with several in flight the slowest rank bounds the throughput.
    if more_links <= 0.0 && more_computing <= 0.0 {
        return "steps in flight wait for its slowest stretch".into();
    }
    if more_links > more_computing {
        format!("{:.2} ms more of a step on links", 1e3 * more_links)
    } else {
        format!("its ranks compute {:.2} ms longer, one after the other", 1e3 * more_computing)
    }
}

/// All proposals; the fields of the best one are at the top level.
pub(super) fn json(proposals: &[Proposal], case: &PredictionCase, files: &RankFiles) -> Result<()> {
    let mut value = object(best(proposals)?);
    for (rank, needed) in files.needed.iter().enumerate() {
        value["ranks"][rank]["files"] = json!(needed);
    }
    value["predicted"] = json!(true);
    value["context"] = json!(case.context);
    value["sequences"] = json!(case.rows);
    value["in_flight"] = json!(case.in_flight);
    value["prompt"] = json!(case.prompt);
    let one = |proposal: &Proposal| match &proposal.best {
        Ok(found) => object(found),
        Err(error) => json!({"partition": proposal.kind, "error": error.to_string()}),
    };
    value["proposals"] = proposals.iter().map(one).collect();
    output::json(&value)
}

fn object(found: &Prediction) -> Value {
    let rank = |rank: &RankPrediction| {
        json!({
            "host": rank.host,
            "layers": [rank.layers.start, rank.layers.end],
            "memory_bytes": rank.memory,
            "seconds_per_step": rank.seconds,
        })
    };
    json!({
        "partition": found.partition.to_string(),
        "tokens_per_second": found.tokens_per_second,
        "seconds_per_step": found.step,
        "link_seconds_per_step": found.links,
        "first_token_seconds": found.first_token,
        "ranks": found.ranks.iter().map(rank).collect::<Vec<_>>(),
    })
}
