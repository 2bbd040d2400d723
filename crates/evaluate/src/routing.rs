//! Router statistics: how evenly experts are used, and how many different ones the rows of a step choose.

use crate::chunks::TokenChunks;
use crate::error::EvalError;
use latent_engine::cache::Sequence;
use latent_engine::{Engine, LayerRouting, StepSize};
use latent_graph::activations::Activations;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the routers of a model chose over a text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoutingStatistics {
    /// Tokens of the text.
    pub tokens: usize,
    /// The MoE layers.
    pub layers: Vec<LayerLoad>,
    /// What steps of several rows choose.
    pub steps: Vec<StepExperts>,
}

/// How the experts of a layer are used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerLoad {
    pub layer: usize,
    /// Mean number of experts per token.
    pub per_token: f64,
    /// Of each expert, the share of all choices that are it.
    pub load: Vec<f64>,
    /// Entropy of these shares over that of equal ones, `−Σ f ln f ÷ ln n`: 1 where all experts are used alike.
    pub entropy: f64,
    /// The largest share over the mean: 1 where all are used alike.
    pub imbalance: f64,
    /// Experts that no token chose.
    pub unused: usize,
}

/// What a step of some rows chooses, on average over the text and over the MoE layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepExperts {
    pub rows: usize,
    /// Different experts per layer that neighbouring tokens choose: a step that verifies drafts reads them.
    pub neighbours: f64,
    /// The same of tokens far apart in the text: a step that decodes for several sequences.
    pub apart: f64,
    /// What rows would choose that know nothing of each other, from routers without preference: `n (1 − (1 − k ÷ n)^rows)`.
    pub uniform: f64,
    /// Bytes of weights and cache that a step of neighbours reads, over those of a step of one row.
    pub neighbours_bytes: f64,
    /// The same for tokens far apart, each in a sequence of its own.
    pub apart_bytes: f64,
}

/// Per MoE layer, the experts that each row chose.
type RowExperts = BTreeMap<usize, Vec<Vec<usize>>>;

/// Runs all chunks and counts what their routers choose; `counts` are the rows of the steps to look at.
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
    let cached = chunks.context() / 2;
    let one = bytes(engine, StepSize::decode(1, cached), &distinct(&rows, 1, true));
    let steps = counts.iter().filter(|count| (1..=done).contains(*count)).map(|&count| {
        let (near, far) = (distinct(&rows, count, true), distinct(&rows, count, false));
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
    let entropy: f64 = load.iter().filter(|share| **share > 0.0).map(|share| -share * share.ln()).sum();
    let most = load.iter().copied().fold(0.0, f64::max);
    LayerLoad {
        layer,
        per_token: total / rows.len().max(1) as f64,
        entropy: if experts > 1 { entropy / (experts as f64).ln() } else { 1.0 },
        imbalance: most * experts as f64,
        unused: counts.iter().filter(|count| **count == 0).count(),
        load,
    }
}

/// Per layer, the mean number of different experts in groups of `count` rows: neighbours, or rows as far apart as they can be.
fn distinct(rows: &RowExperts, count: usize, near: bool) -> BTreeMap<usize, f64> {
    let of_layer = |rows: &Vec<Vec<usize>>| {
        let groups = rows.len() / count;
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
    fn load_is_even_where_all_experts_are_chosen_alike() {
        let even = load(3, &[vec![0, 1], vec![2, 3]], 4);
        assert_eq!((even.layer, even.unused, even.per_token), (3, 0, 2.0));
        assert!((even.entropy - 1.0).abs() < 1e-12 && (even.imbalance - 1.0).abs() < 1e-12);
        let one = load(0, &[vec![0], vec![0]], 4);
        assert_eq!((one.entropy, one.imbalance, one.unused), (0.0, 4.0, 3));
    }

    #[test]
    fn neighbours_that_choose_alike_need_fewer_experts_than_rows_apart() {
        let rows = RowExperts::from([(1, vec![vec![0, 1], vec![0, 1], vec![2, 3], vec![2, 3]])]);
        assert_eq!(distinct(&rows, 2, true)[&1], 2.0);
        assert_eq!(distinct(&rows, 2, false)[&1], 4.0);
        assert_eq!(distinct(&rows, 1, false)[&1], 2.0);
        // rows that do not fill a group are left out
        assert_eq!(distinct(&rows, 3, true)[&1], 4.0);
    }
}
