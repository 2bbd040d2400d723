//! Router statistics: how evenly experts are used, and how many distinct ones the rows of a step
//! choose.

use crate::chunks::TokenChunks;
use crate::error::EvalError;
use latent_engine::cache::Sequence;
use latent_engine::{Engine, LayerRouting, StepSize};
use latent_graph::activations::Activations;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Choices of a model's routers over a text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoutingStatistics {
    /// Tokens of the text.
    pub tokens: usize,
    /// The MoE layers.
    pub layers: Vec<LayerLoad>,
    /// Distinct experts of steps with several rows.
    pub steps: Vec<StepExperts>,
}

/// Load of the experts of a layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerLoad {
    pub layer: usize,
    /// Mean number of experts per token.
    pub per_token: f64,
    /// Share of each expert in all choices.
    pub load: Vec<f64>,
    /// Entropy of the shares relative to that of equal ones, `−Σ f ln f ÷ ln n`: 1 for an even
    /// load.
    pub entropy: f64,
    /// Maximum share divided by the mean: 1 for an even load.
    pub imbalance: f64,
    /// Experts that no token chose.
    pub unused: usize,
}

/// Experts of a step of several rows: means over the text and the MoE layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepExperts {
    pub rows: usize,
    /// Distinct experts per layer of consecutive tokens: a step that verifies drafts reads them.
    pub neighbours: f64,
    /// Distinct experts per layer of tokens far apart in the text: a step that decodes several
    /// sequences reads them.
    pub apart: f64,
    /// Expected distinct experts of independent rows and unbiased routers: `n (1 − (1 − k ÷
    /// n)^rows)`.
    pub uniform: f64,
    /// Bytes of weights and cache read by a step of consecutive tokens, relative to a step of one
    /// row.
    pub neighbours_bytes: f64,
    /// Bytes read by a step of tokens far apart, each in its own sequence, relative to a step of
    /// one row.
    pub apart_bytes: f64,
}

/// The experts that each row chose, by MoE layer.
type RowExperts = BTreeMap<usize, Vec<Vec<usize>>>;

/// Runs all chunks and counts the choices of their routers. `counts` are the rows of the steps to
/// analyze.
pub fn routing(
    engine: &mut Engine,
    activations: &Activations,
    (chunks, bos): (&TokenChunks, Option<u32>),
    counts: &[usize],
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<RoutingStatistics, EvalError> {
    let experts = engine.config().moe.as_ref().map(|moe| moe.experts).ok_or(EvalError::NoRouter)?;
    let mut rows = RowExperts::new();
    let mut done = 0;
    for text in chunks.tokens().chunks_exact(chunks.context()) {
        let mut tokens = text.to_vec();
        // As in `run_chunks`: the routers see the same tokens as a measurement of perplexity.
        tokens[0] = bos.unwrap_or(text[0]);
        let mut sequence = Sequence::default();
        for part in tokens.chunks(engine.chunk_for(tokens.len())) {
            for LayerRouting { layer, rows: chosen } in
                engine.trace_routing(activations, &mut sequence, part)?
            {
                rows.entry(layer).or_default().extend(chosen);
            }
            done += part.len();
            if !progress(done) {
                return Err(latent_engine::EngineError::Stopped.into());
            }
        }
        engine.release(sequence);
    }
    if rows.is_empty() {
        return Err(EvalError::NoRouter);
    }
    let layers: Vec<LayerLoad> = rows.iter().map(|(layer, rows)| load(*layer, rows, experts)).collect();
    let per_token = layers.iter().map(|layer| layer.per_token).sum::<f64>() / layers.len() as f64;
    // The mean length of the cache while a chunk runs.
    let cached = chunks.context() / 2;
    let one = bytes(engine, StepSize::decode(1, cached), &distinct(&rows, 1, true));
    // A step of more rows than the text has tokens would have no group to average over.
    let steps = counts.iter().filter(|count| (1..=done).contains(*count)).map(|&count| {
        let (near, far) = (distinct(&rows, count, true), distinct(&rows, count, false));
        // A step that verifies drafts computes the logits of all its rows, and they share one
        // sequence's cache. A decode step reads the cache of each of its sequences.
        let verify = StepSize { rows: count, wanted: count, ..StepSize::decode(1, cached) };
        StepExperts {
            rows: count,
            neighbours: mean(&near),
            apart: mean(&far),
            uniform: experts as f64 * (1.0 - (1.0 - per_token / experts as f64).powi(count as i32)),
            neighbours_bytes: bytes(engine, verify, &near) / one,
            apart_bytes: bytes(engine, StepSize::decode(count, cached), &far) / one,
        }
    });
    let steps = steps.collect();
    Ok(RoutingStatistics { tokens: done, layers, steps })
}

/// Bytes of a step that reads `distinct` experts in each layer.
fn bytes(engine: &Engine, size: StepSize, distinct: &BTreeMap<usize, f64>) -> f64 {
    // Dense layers have no entry, and read no expert.
    engine.routed_bytes(size, &|layer| distinct.get(&layer).copied().unwrap_or(0.0)).total()
}

fn mean(by_layer: &BTreeMap<usize, f64>) -> f64 {
    by_layer.values().sum::<f64>() / by_layer.len().max(1) as f64
}

fn load(layer: usize, rows: &[Vec<usize>], experts: usize) -> LayerLoad {
    let mut counts = vec![0usize; experts];
    rows.iter().flatten().for_each(|expert| counts[*expert] += 1);
    let total = counts.iter().sum::<usize>().max(1) as f64;
    let load: Vec<f64> = counts.iter().map(|count| *count as f64 / total).collect();
    // 0 · ln 0 counts as 0, but is NaN in floating point.
    let entropy: f64 = load.iter().filter(|share| **share > 0.0).map(|share| -share * share.ln()).sum();
    let most = load.iter().copied().fold(0.0, f64::max);
    LayerLoad {
        layer,
        per_token: total / rows.len().max(1) as f64,
        // ln 1 is 0, so a single expert would give 0 / 0.
        entropy: if experts > 1 { entropy / (experts as f64).ln() } else { 1.0 },
        imbalance: most * experts as f64,
        unused: counts.iter().filter(|count| **count == 0).count(),
        load,
    }
}

/// Mean number of distinct experts per layer in groups of `count` rows: consecutive rows, or rows
/// as far apart as possible.
fn distinct(rows: &RowExperts, count: usize, near: bool) -> BTreeMap<usize, f64> {
    let of_layer = |rows: &Vec<Vec<usize>>| {
        let groups = rows.len() / count;
        // Far apart: row i of a group is in the i-th of `count` equal parts of the text.
        let row = |group: usize, i: usize| if near { group * count + i } else { i * groups + group };
        let mut sum = 0;
        for group in 0..groups {
            let mut all: Vec<usize> = (0..count).flat_map(|i| rows[row(group, i)].iter().copied()).collect();
            all.sort_unstable();
            all.dedup();
            sum += all.len();
        }
        sum as f64 / groups.max(1) as f64
    };
    rows.iter().map(|(layer, rows)| (*layer, of_layer(rows))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_choices_give_an_even_load() {
        let even = load(3, &[vec![0, 1], vec![2, 3]], 4);
        assert_eq!((even.layer, even.unused, even.per_token), (3, 0, 2.0));
        assert!((even.entropy - 1.0).abs() < 1e-12 && (even.imbalance - 1.0).abs() < 1e-12);
        let one = load(0, &[vec![0], vec![0]], 4);
        assert_eq!((one.entropy, one.imbalance, one.unused), (0.0, 4.0, 3));
    }

    #[test]
    fn similar_neighbours_share_experts() {
        let rows = RowExperts::from([(1, vec![vec![0, 1], vec![0, 1], vec![2, 3], vec![2, 3]])]);
        assert_eq!(distinct(&rows, 2, true)[&1], 2.0);
        assert_eq!(distinct(&rows, 2, false)[&1], 4.0);
        assert_eq!(distinct(&rows, 1, false)[&1], 2.0);
        // Rows that do not fill a group are omitted.
        assert_eq!(distinct(&rows, 3, true)[&1], 4.0);
    }
}
